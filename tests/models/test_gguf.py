"""GGUF files: every architecture and quantisation, a real model, and what is refused."""

import dataclasses
import struct
from pathlib import Path

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.config import ModelConfig, RopeScaling
from models.model import build
from models.weights import WeightsError, load, names, read_config
from models.weights.gguf_file import GGUFFile
from tests.conftest import shared_data
from tests.models import llama2c
from tests.models.hf_folders import same
from tests.models.tiny_models import CONFIGS, random_params

Q = gguf.GGMLQuantizationType
ARCHITECTURES = ("llama", "llama3", "phi3", "qwen2", "qwen3", "gpt2")


def config_of(family: str) -> ModelConfig:
    cfg = dataclasses.replace(CONFIGS[family], norm_eps=1e-5, rope_theta=5e5, bos_id=1, eos_ids=(2, 7))
    if family == "llama3":
        return dataclasses.replace(cfg, rope_scaling=RopeScaling("llama3", 8.0))
    return dataclasses.replace(cfg, rope_theta=10_000.0) if family == "gpt2" else cfg


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k of the llama architecture: [heads·H, in] -> the same shape."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(rows.shape)


def write_gguf(path: Path, cfg: ModelConfig, tensors: dict[str, np.ndarray], types=None, **fields) -> Path:
    """A GGUF file with the metadata llama.cpp's converter writes; `types` quantises some of the tensors."""
    architecture = cfg.family
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(cfg.max_positions)
    writer.add_embedding_length(cfg.d_model)
    writer.add_block_count(cfg.n_layers)
    writer.add_feed_forward_length(cfg.d_ff)
    writer.add_head_count(cfg.n_heads)
    writer.add_head_count_kv(cfg.n_kv_heads)
    writer.add_key_length(cfg.head_dim)
    if cfg.family == "gpt2":
        writer.add_layer_norm_eps(cfg.norm_eps)
    else:
        writer.add_layer_norm_rms_eps(cfg.norm_eps)
        writer.add_rope_freq_base(cfg.rope_theta)
    if cfg.sliding_window:
        writer.add_sliding_window(cfg.sliding_window)
    writer.add_token_list(["a", "b", "ü"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(7)
    for key, value in fields.items():
        getattr(writer, key)(value)
    for name, value in tensors.items():
        kind = (types or {}).get(name)
        writer.add_tensor(name, value if kind is None else gguf.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_tensors(cfg: ModelConfig, params: dict) -> dict[str, np.ndarray]:
    """Parameters under their GGUF names, fused and interleaved as llama.cpp wants them."""
    found: dict[str, list[np.ndarray]] = {}
    for slot in names.gguf_slots(cfg, cfg.family):
        value = params
        for key in slot.path:
            value = value[key]
        for i, name in enumerate(slot.tensors):
            part = np.asarray(value if slot.layers is None else value[i])
            matrix = part.reshape(np.prod(part.shape[: slot.n_in]), -1).T if slot.n_in else part
            if cfg.family == "llama" and slot.path[-1] in ("q", "k"):
                matrix = interleave(matrix, part.shape[1])
            found.setdefault(name, []).append(matrix if part.ndim == 2 or slot.n_in else matrix.ravel())
    biases = {name: [p.ravel() for p in parts] for name, parts in found.items() if name.endswith("bias")}
    return {name: np.ascontiguousarray(np.concatenate(parts)) for name, parts in (found | biases).items()}


def llama3_factors(half: int, theta: float, factor: float) -> np.ndarray:
    """rope_freqs.weight for Llama 3.1: low 1, high 4, original context 8192."""
    factors = []
    for i in range(half):
        wavelength = 2 * np.pi * theta ** (i / half)
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192 / 1:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_every_architecture_comes_back_as_it_was(family, tmp_path):
    cfg = config_of(family)
    params = random_params(build(cfg))
    tensors = gguf_tensors(cfg, params)
    if family == "llama3":
        tensors["rope_freqs.weight"] = llama3_factors(cfg.head_dim // 2, cfg.rope_theta, 8.0)
    path = write_gguf(tmp_path / "model.gguf", cfg, tensors)
    found, loaded = load(path)
    assert found == cfg == read_config(tmp_path)
    assert same(params, loaded)


def test_sharded_as_read_equals_unsharded(tmp_path):
    cfg = config_of("llama")
    path = write_gguf(tmp_path / "model.gguf", cfg, gguf_tensors(cfg, random_params(build(cfg))))
    mesh = Mesh(np.array(jax.devices()[:2]), ("model",))
    sharding = NamedSharding(mesh, PartitionSpec("model"))
    shardings = jax.tree.map(lambda x: sharding, build(cfg).abstract())
    whole, parts = load(path, dtype=jnp.bfloat16)[1], load(path, dtype=jnp.bfloat16, shardings=shardings)[1]
    assert same(whole, parts) and parts["layers"]["attn"]["q"].sharding == sharding


def dequantisable() -> list[Q]:
    found = []
    for kind in Q:
        try:
            gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError:
            continue
        found.append(kind)
    return found


@pytest.mark.parametrize("kind", dequantisable(), ids=lambda kind: kind.name)
def test_every_type_the_package_dequantises_is_read(kind, tmp_path):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(int(kind)).integers(0, 60, (6, 2 * size), dtype=np.uint8)  # small: finite scales
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("before", np.ones(3, np.float32))
    writer.add_tensor("x", raw, raw_shape=raw.shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(tmp_path / "x.gguf")
    assert file.shapes["x"] == (6, 2 * block) and file.unreadable(["x"]) == []
    expected = gguf.dequantize(raw, kind)
    assert file.tensor("x").dtype == np.float32
    assert np.array_equal(file.tensor("x"), expected, equal_nan=True)


def test_q4_k_and_q6_k_are_among_them():
    assert {Q.Q4_K, Q.Q6_K, Q.Q4_1, Q.Q8_0, Q.IQ4_XS, Q.BF16} <= set(dequantisable())


def test_quantised_matrices_are_close_to_what_they_were(tmp_path):
    cfg = dataclasses.replace(config_of("qwen2"), d_model=64, d_ff=64)
    params = random_params(build(cfg))
    tensors = gguf_tensors(cfg, params)
    types = {name: Q.Q8_0 for name, value in tensors.items() if value.ndim == 2}
    _, loaded = load(write_gguf(tmp_path / "model.gguf", cfg, tensors, types))
    for one, two in zip(jax.tree.leaves(params), jax.tree.leaves(loaded), strict=True):
        # A block of 32 shares a scale of an eighth bit of its largest number: half a step of rounding, plus fp16.
        assert np.abs(one - two).max() <= np.abs(one).max() / 127


def test_the_header_agrees_with_the_packages_own_reader(tmp_path):
    cfg = config_of("qwen3")
    path = write_gguf(tmp_path / "model.gguf", cfg, gguf_tensors(cfg, random_params(build(cfg))))
    mine, theirs = GGUFFile(path), gguf.GGUFReader(path)
    assert mine.shapes == {t.name: tuple(reversed(t.shape.tolist())) for t in theirs.tensors}
    fields = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert mine.metadata == fields


@pytest.mark.nightly
def test_stories260k_tells_its_story(tmp_path):
    """A real model, whose q and k are interleaved as llama.cpp's are; the text is the one its makers print."""
    tokenizers = pytest.importorskip("models.tokenizers")
    vocabulary = shared_data("weights/tok512.model")
    llama2c.to_gguf(shared_data("weights/stories260K.bin"), tmp_path / "stories.gguf")
    cfg, params = load(tmp_path / "stories.gguf")
    assert (cfg.n_params, cfg.tie_embeddings, cfg.n_kv_heads) == (260_032, True, 4)
    model = build(cfg)
    logits = jax.jit(lambda p, tokens: model.logits(p, model.forward(p, tokens, dtype=jnp.float32)[0]))
    ids = [cfg.bos_id]
    for _ in range(60):
        row = jnp.asarray([ids + [0] * (64 - len(ids))])
        ids.append(int(jnp.argmax(logits(params, row)[0, len(ids) - 1])))
    story = tokenizers.load(vocabulary).decode(ids[1:])
    assert story.strip().startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw"
    )


def refused(path: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_what_does_not_fit_is_refused(tmp_path):
    cfg = config_of("qwen2")
    tensors = gguf_tensors(cfg, random_params(build(cfg)))
    path = tmp_path / "model.gguf"

    short = {name: value for name, value in tensors.items() if name not in ("output_norm.weight", "blk.1.attn_k.bias")}
    message = refused(write_gguf(path, cfg, short | {"blk.0.ffn_up.weight": np.ones((2, 3), np.float32)}))
    assert "3 problems" in message and "missing: output_norm.weight [32]" in message
    assert "missing: blk.1.attn_k.bias [16]" in message
    assert "mis-shaped: blk.0.ffn_up.weight is [2, 3], but must be [48, 32]" in message

    integers = tensors | {"blk.0.ffn_up.weight": np.ones((48, 32), np.int16)}
    assert "unreadable: blk.0.ffn_up.weight has type I16, which cannot be dequantized" in refused(
        write_gguf(path, cfg, integers)
    )
    message = refused(write_gguf(path, cfg, tensors, add_rope_scaling_type=gguf.RopeScalingType.YARN))
    assert "qwen2.rope.scaling.type is 'yarn', but must be one of: 'none', 'linear'" in message
    message = refused(write_gguf(path, cfg, tensors, add_expert_count=8))
    assert "qwen2.expert_count is 8" in message
    message = refused(write_gguf(path, cfg, tensors | {"rope_freqs.weight": np.array([1, 3, 2, 9], np.float32)}))
    assert "rope_freqs.weight must be the scaling of Llama 3" in message

    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_tensor("token_embd.weight", np.ones((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "general.architecture is 'mamba', but must be one of: 'llama', 'phi3'" in refused(path)


def test_an_unknown_quantisation_is_named(tmp_path):
    cfg = config_of("qwen2")
    path = write_gguf(tmp_path / "model.gguf", cfg, gguf_tensors(cfg, random_params(build(cfg))))
    data = path.read_bytes()
    at = data.index(b"blk.0.ffn_up.weight") + len(b"blk.0.ffn_up.weight") + 4 + 2 * 8  # after the dimensions
    assert struct.unpack_from("<I", data, at) == (int(Q.F32),)
    path.write_bytes(data[:at] + struct.pack("<I", 199) + data[at + 4 :])
    assert "unreadable: blk.0.ffn_up.weight has type number 199, which cannot be dequantized" in refused(path)


def test_truncated_and_damaged_files_are_named(tmp_path):
    cfg = config_of("llama")
    path = write_gguf(tmp_path / "model.gguf", cfg, gguf_tensors(cfg, random_params(build(cfg))))
    data = path.read_bytes()
    path.write_bytes(data[:-2000])
    assert "is truncated" in refused(path) and "incomplete tensors:" in refused(path)
    for cut in (300, 100, 30, 6):
        path.write_bytes(data[:cut])
        assert "is truncated or damaged: its header cannot be read" in refused(path)
    path.write_bytes(b"")
    assert "is not a GGUF file" in refused(path)
    path.write_bytes(data[:4] + struct.pack("<I", 1) + data[8:])
    assert "GGUF version is 1, but must be 2 or 3" in refused(path)
