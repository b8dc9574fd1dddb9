"""Hugging Face folders in: arrangement, dtypes, shards, shardings, and everything that can be wrong with them."""

import json
import tracemalloc

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.model import build
from models.weights import WeightsError, load, names, read_config
from tests.models.hf_folders import golden, same, write_folder
from tests.models.tiny_models import CONFIGS

CASES = ("llama", "llama3", "smollm2", "mistral", "phi3", "qwen2", "qwen3", "gpt2")


@pytest.mark.parametrize("case", CASES)
def test_a_folder_fills_the_tree_of_the_model(case, tmp_path):
    config, tensors = golden(case)
    folder = write_folder(tmp_path, config, tensors)
    cfg, params = load(folder)
    assert read_config(folder) == cfg
    assert jax.tree.map(lambda x: x.shape, params) == jax.tree.map(lambda x: x.shape, build(cfg).abstract())
    assert sum(x.size for x in jax.tree.leaves(params)) == cfg.n_params
    total = sum(np.abs(t.astype(np.float64)).sum() for t in tensors.values())
    mine = sum(np.abs(np.asarray(x, np.float64)).sum() for x in jax.tree.leaves(params))
    assert mine == pytest.approx(total, rel=1e-12)  # every number arrived, none twice


@pytest.mark.parametrize("family", CONFIGS)
def test_slots_and_model_agree_on_every_shape(family):
    cfg = CONFIGS[family]
    slots = {slot.path: slot.full_shape for slot in names.hugging_face_slots(cfg)}
    leaves = jax.tree_util.tree_leaves_with_path(build(cfg).abstract())
    assert slots == {tuple(key.key for key in path): leaf.shape for path, leaf in leaves}


def test_separate_projections_are_transposed_and_split_into_heads(tmp_path):
    config, tensors = golden("qwen2")
    cfg, params = load(write_folder(tmp_path, config, tensors))
    d, n, k, h = cfg.d_model, cfg.n_heads, cfg.n_kv_heads, cfg.head_dim
    for layer in range(cfg.n_layers):
        attn = jax.tree.map(lambda x, i=layer: np.asarray(x[i]), params["layers"]["attn"])
        disk = {p: tensors[f"model.layers.{layer}.self_attn.{p}_proj.weight"].astype(np.float32) for p in "qkvo"}
        for head in range(n):
            rows = slice(head * h, (head + 1) * h)
            assert np.array_equal(attn["q"][:, head], disk["q"][rows].T)
            assert np.array_equal(attn["o"][head], disk["o"][:, rows].T)
        assert np.array_equal(attn["k"].reshape(d, k * h), disk["k"].T)
        assert np.array_equal(attn["v_bias"].ravel(), tensors[f"model.layers.{layer}.self_attn.v_proj.bias"])


def test_fused_projections_come_apart(tmp_path):
    config, tensors = golden("phi3")
    cfg, params = load(write_folder(tmp_path, config, tensors))
    heads, kv = cfg.n_heads * cfg.head_dim, cfg.n_kv_heads * cfg.head_dim
    q, k, v = np.split(tensors["model.layers.1.self_attn.qkv_proj.weight"], [heads, heads + kv])
    gate, up = np.split(tensors["model.layers.1.mlp.gate_up_proj.weight"], 2)
    layer = jax.tree.map(lambda x: np.asarray(x[1]), params["layers"])
    for name, disk in (("q", q), ("k", k), ("v", v)):
        assert np.array_equal(layer["attn"][name].reshape(cfg.d_model, -1), disk.T)
    assert np.array_equal(layer["mlp"]["gate"], gate.T) and np.array_equal(layer["mlp"]["up"], up.T)


def test_gpt2_matrices_are_stored_the_other_way_round(tmp_path):
    config, tensors = golden("gpt2")
    cfg, params = load(write_folder(tmp_path, config, tensors))
    q, k, v = np.split(tensors["transformer.h.1.attn.c_attn.weight"], 3, axis=1)
    bias = np.split(tensors["transformer.h.1.attn.c_attn.bias"], 3)
    attn = jax.tree.map(lambda x: np.asarray(x[1]), params["layers"]["attn"])
    for name, disk, b in (("q", q, bias[0]), ("k", k, bias[1]), ("v", v, bias[2])):
        assert np.array_equal(attn[name].reshape(cfg.d_model, -1), disk)
        assert np.array_equal(attn[f"{name}_bias"].ravel(), b)
    assert np.array_equal(params["layers"]["mlp"]["up"][1], tensors["transformer.h.1.mlp.c_fc.weight"])


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("wanted", [jnp.float32, jnp.bfloat16])
def test_every_dtype_is_cast_as_it_is_read(stored, wanted, tmp_path):
    config, tensors = golden("qwen3")
    tensors = {name: value.astype(stored) for name, value in tensors.items()}
    cfg, params = load(write_folder(tmp_path, config, tensors), dtype=wanted)
    down = np.stack([tensors[f"model.layers.{i}.mlp.down_proj.weight"].T for i in range(cfg.n_layers)])
    assert params["layers"]["mlp"]["down"].dtype == wanted
    assert np.array_equal(np.asarray(params["layers"]["mlp"]["down"]), down.astype(jnp.dtype(wanted)))
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype(wanted)}


def test_shards_hold_what_a_single_file_holds(tmp_path):
    config, tensors = golden("llama")
    one = load(write_folder(tmp_path / "one", config, tensors))
    three = load(write_folder(tmp_path / "three", config, tensors, shards=3))
    assert one[0] == three[0] and same(one[1], three[1])


@pytest.mark.parametrize("case", ["qwen2", "phi3", "gpt2"])
def test_sharded_as_read_equals_unsharded(case, tmp_path):
    folder = write_folder(tmp_path, *golden(case))
    cfg, whole = load(folder)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))

    def spec(path, leaf):  # split the widest axis that four devices divide
        axes = [i for i, size in enumerate(leaf.shape) if size % 4 == 0]
        axis = max(axes, key=lambda i: leaf.shape[i], default=None)
        return NamedSharding(mesh, PartitionSpec(*("model" if i == axis else None for i in range(leaf.ndim))))

    shardings = jax.tree_util.tree_map_with_path(spec, build(cfg).abstract())
    _, parts = load(folder, shardings=shardings)
    assert same(whole, parts)
    assert jax.tree.map(lambda x: x.sharding, parts) == shardings
    everywhere = NamedSharding(mesh, PartitionSpec())
    assert same(whole, load(folder, shardings=everywhere)[1])


def test_loading_holds_one_copy_of_the_model(tmp_path):
    config, _ = golden("llama")
    config |= {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 8, "vocab_size": 256}
    folder = tmp_path / "model"
    write_folder(folder, config, {})
    cfg = read_config(folder)
    slots = names.hugging_face_slots(cfg)
    tensors = {name: np.ones(slot.disk_shape, np.float16) for slot in slots for name in slot.tensors}
    write_folder(folder, config, tensors)
    largest = 4 * max(int(np.prod(slot.full_shape)) for slot in slots)
    del tensors
    load(folder)  # imports and caches of the first call are not what is measured
    tracemalloc.start()
    _, params = load(folder)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = sum(x.nbytes for x in jax.tree.leaves(params))
    assert size == 4 * cfg.n_params
    assert peak < size + largest + 500_000


def test_harmless_extras_and_a_missing_prefix_are_tolerated(tmp_path):
    config, tensors = golden("gpt2")
    reference = load(write_folder(tmp_path / "plain", config, tensors))[1]
    mask = {"h.0.attn.bias": np.ones((1, 1, 4, 4), np.uint8), "h.0.attn.masked_bias": np.zeros((), np.float32)}
    bare = {name.removeprefix("transformer."): value for name, value in tensors.items()} | mask
    assert same(reference, load(write_folder(tmp_path / "bare", config, bare))[1])
    config, tensors = golden("qwen2")
    reference = load(write_folder(tmp_path / "tied", config, tensors))[1]
    more = {"lm_head.weight": tensors["model.embed_tokens.weight"]}
    more |= {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    assert same(reference, load(write_folder(tmp_path / "more", config, tensors | more))[1])


def test_everything_that_does_not_fit_is_in_one_error(tmp_path):
    config, tensors = golden("qwen3")
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.gate_proj.weight"]
    tensors["model.layers.0.self_attn.q_proj.weight"] = np.ones((3, 5), np.float16)
    tensors["model.layers.9.mlp.up_proj.weight"] = np.ones(3, np.float16)
    tensors["model.layers.1.mlp.up_proj.weight"] = tensors["model.layers.1.mlp.up_proj.weight"].astype(np.int8)
    with pytest.raises(WeightsError) as caught:
        load(write_folder(tmp_path, config, tensors))
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{tmp_path} does not fit the model, 5 problems:"
    assert {line.strip() for line in lines[1:]} == {
        "missing: model.norm.weight [32]",
        "missing: model.layers.1.mlp.gate_proj.weight [44, 32]",
        "mis-shaped: model.layers.0.self_attn.q_proj.weight is [3, 5], but must be [48, 32]",
        "extra: model.layers.9.mlp.up_proj.weight [3]",
        "unreadable: model.layers.1.mlp.up_proj.weight has type I8, but must be one of: F32, F16, BF16",
    }


def test_truncated_and_damaged_files_are_named(tmp_path):
    config, tensors = golden("llama")
    file = write_folder(tmp_path, config, tensors) / "model.safetensors"
    data = file.read_bytes()
    last = max(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).items(), key=lambda x: x[1]["data_offsets"])
    file.write_bytes(data[:-10])
    with pytest.raises(WeightsError, match=rf"model\.safetensors is truncated: .* incomplete tensors: {last[0]}$"):
        load(tmp_path)
    for cut in (100, 5, 0):
        file.write_bytes(data[:cut])
        with pytest.raises(WeightsError, match=r"model\.safetensors is (truncated|not a safetensors file)"):
            load(tmp_path)
    file.write_bytes(data[:8] + b"#" * (len(data) - 8))
    with pytest.raises(WeightsError, match=r"model\.safetensors is not a safetensors file: its header is malformed"):
        load(tmp_path)
    header = json.dumps({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(WeightsError, match=r"x has 8 bytes, but F32\[4\] needs 16"):
        load(tmp_path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(WeightsError, match="nowhere does not exist, but must be a Hugging Face folder or a GGUF file"):
        load(tmp_path / "nowhere")
    with pytest.raises(WeightsError, match="must have a config.json or one GGUF file, but has neither"):
        load(tmp_path)
    config, tensors = golden("llama")
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(
        WeightsError,
        match=r"neither model\.safetensors nor .*pytorch_model\.bin cannot be loaded because it is a pickle",
    ):
        load(tmp_path)
    write_folder(tmp_path, config, tensors, shards=3)
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(WeightsError, match="lacks shards that .* lists: model-2.safetensors"):
        load(tmp_path)
