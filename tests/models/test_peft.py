"""LoRA adapters in the PEFT format: round trips, golden adapters made by `peft`, and what is refused."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models import families, lora, peft
from models.model import build
from models.weights import WeightsError, export, load
from tests.models.hf_folders import same, write_folder
from tests.models.tiny_models import CONFIGS, FAMILIES, make, random_tokens

GOLDEN = Path(__file__).parent / "golden"
CASES = ("qwen2", "phi3", "gpt2")


def random_stack(cfg, n=3, rank=4, targets=None, dtype=np.float32):
    """A stack of n adapters with nothing zero in it, and their scales."""
    targets = targets or families.FAMILIES.get(cfg.family).lora_targets
    rng = np.random.default_rng(5)
    sizes = {target: lora.sizes(cfg, target) for target in targets}

    def normal(*shape):
        return 0.2 * rng.standard_normal((cfg.n_layers, n, *shape)).astype(dtype)

    stack = {t: {"a": normal(d_in, rank), "b": normal(rank, d_out)} for t, (d_in, d_out) in sizes.items()}
    return stack, np.array([0.5, 2.0, 1.5][:n], np.float32)


def logits_with(cfg, params, adapter: peft.Adapter, tokens) -> np.ndarray:
    """float32 [B, T, V] of the model with one adapter on every row."""
    stacked = jax.tree.map(lambda x: np.asarray(x, np.float32)[:, None], adapter.weights)
    own = lora.Lora(stacked, np.array([adapter.scale], np.float32), np.zeros(tokens.shape[0], np.int32))
    return np.asarray(_logits(build(cfg))(params, tokens, own))


@functools.cache
def _logits(model):
    def compute(params, tokens, own):
        hidden, _ = model.forward(params, tokens, adapters=own, dtype=jnp.float32)
        return model.logits(params, hidden)

    return jax.jit(compute)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_round_trip_is_bit_equal(family, tmp_path):
    cfg = CONFIGS[family]
    adapters, scale = random_stack(cfg)
    adapter = peft.take(adapters, scale, 1)
    found = peft.load(peft.export(tmp_path / "adapter", cfg, adapter), cfg)
    assert found.scale == adapter.scale and same(found.weights, adapter.weights)


@pytest.mark.parametrize("family", ["qwen2", "phi3", "gpt2"])
@pytest.mark.parametrize("targets", [("q", "v"), ("k", "o", "down"), ("up",)])
def test_any_subset_of_projections_survives_in_any_dtype(family, targets, tmp_path):
    cfg = CONFIGS[family]
    adapters, scale = random_stack(cfg, targets=targets, dtype=ml_dtypes.bfloat16)
    adapter = peft.take(adapters, scale, 2)
    found = peft.load(peft.export(tmp_path / "adapter", cfg, adapter), cfg)
    assert found.scale == 1.5 and same(found.weights, adapter.weights)


def test_a_fresh_adapter_whose_b_is_zero_survives(tmp_path):
    cfg = CONFIGS["phi3"]
    adapters = lora.init(cfg, jax.random.key(0), 1, 2, ("q", "k", "gate"))
    adapter = peft.take(adapters, lora.scales(1, 2, 16), 0)
    found = peft.load(peft.export(tmp_path / "adapter", cfg, adapter), cfg)
    assert found.scale == 8.0 and same(found.weights, adapter.weights)


def test_the_files_are_laid_out_as_peft_lays_them_out(tmp_path):
    cfg = CONFIGS["qwen2"]
    adapters, scale = random_stack(cfg, targets=("q", "down"))
    folder = peft.export(tmp_path / "adapter", cfg, peft.take(adapters, scale, 1), base_model="some/model")
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["task_type"] == "CAUSAL_LM"
    assert config["base_model_name_or_path"] == "some/model"
    assert (config["r"], config["lora_alpha"]) == (4, 8)
    assert config["target_modules"] == ["mlp.down_proj", "self_attn.q_proj"]
    tensors = load_file(folder / "adapter_model.safetensors")
    assert len(tensors) == 2 * 2 * cfg.n_layers
    a = tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"]
    b = tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"]
    assert np.array_equal(a, np.asarray(adapters["q"]["a"])[1, 1].T)
    assert np.array_equal(b, np.asarray(adapters["q"]["b"])[1, 1].T)


def golden_adapter(case: str, folder: Path):
    """Base folder, adapter folder, tokens and logits that `peft` made."""
    with np.load(GOLDEN / f"peft_{case}.npz") as file:
        arrays = dict(file)
    base, tensors = (
        {name.removeprefix(front): x for name, x in arrays.items() if name.startswith(front)}
        for front in ("base/", "adapter/")
    )
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(str(arrays["adapter_config"]))
    save_file({name: x.astype(np.float32) for name, x in tensors.items()}, adapter / "adapter_model.safetensors")
    base = write_folder(folder / "base", json.loads(str(arrays["base_config"])), base)
    return base, adapter, arrays["tokens"], arrays["logits"]


@pytest.mark.parametrize("case", CASES)
def test_adapters_made_by_peft_compute_what_peft_computes(case, tmp_path):
    base, folder, tokens, wanted = golden_adapter(case, tmp_path)
    cfg, params = load(base)
    adapter = peft.load(folder, cfg)
    mine = logits_with(cfg, params, adapter, tokens)
    assert np.abs(mine - wanted).max() <= 1e-4
    none = logits_with(cfg, params, dataclasses.replace(adapter, scale=0.0), tokens)
    assert np.abs(none - wanted).max() > 0.1  # the adapter matters


@pytest.mark.parametrize("case", CASES)
def test_adapters_made_by_peft_are_written_back_tensor_for_tensor(case, tmp_path):
    base, folder, *_ = golden_adapter(case, tmp_path)
    cfg, _ = load(base)
    again = peft.export(tmp_path / "again", cfg, peft.load(folder, cfg))
    one, two = (load_file(f / "adapter_model.safetensors") for f in (folder, again))
    assert one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)
    configs = [json.loads((f / "adapter_config.json").read_text()) for f in (folder, again)]
    for field in ("r", "lora_alpha", "bias", "fan_in_fan_out", "rank_pattern", "alpha_pattern"):
        assert configs[0][field] == configs[1][field], field


@pytest.mark.nightly
def test_an_adapter_goes_into_a_place_of_a_stack():
    cfg = CONFIGS["qwen2"]
    adapters, scale = random_stack(cfg, n=3, rank=4, targets=("q", "v", "up"))
    small, small_scale = random_stack(cfg, n=1, rank=2, targets=("q", "up"))
    own = peft.take(small, small_scale, 0)
    adapters, scale = jax.tree.map(jnp.asarray, (adapters, scale))
    stack, scales = peft.put(adapters, scale, 1, own)
    assert scales.tolist() == [0.5, 0.5, 1.5]
    for other in (0, 2):
        assert same(peft.take(stack, scales, other).weights, peft.take(adapters, scale, other).weights)
    _, params = make("qwen2")
    tokens = random_tokens(2, 7)
    one, two = (logits_with(cfg, params, a, tokens) for a in (own, peft.take(stack, scales, 1)))
    assert np.abs(one - two).max() < 1e-5


def test_an_adapter_that_does_not_fit_the_stack_is_refused():
    cfg = CONFIGS["qwen2"]
    adapters, scale = random_stack(cfg, rank=2, targets=("q",))
    with pytest.raises(ValueError, match="adapter rank for q is 4, but must be <= 2"):
        peft.put(adapters, scale, 0, peft.take(*random_stack(cfg, rank=4, targets=("q",)), 0))
    with pytest.raises(ValueError, match="the adapter has the targets up, but the stack has only q"):
        peft.put(adapters, scale, 0, peft.take(*random_stack(cfg, rank=2, targets=("q", "up")), 0))
    with pytest.raises(ValueError, match="adapter index is 3, but must be from 0 to 2"):
        peft.take(adapters, scale, 3)


def test_targets_that_a_family_does_not_have_are_refused(tmp_path):
    adapter = peft.take(*random_stack(CONFIGS["qwen2"], targets=("q", "gate")), 0)
    with pytest.raises(
        ValueError, match="adapter targets are gate, but for the family gpt2 must be among: q, k, v, o, up"
    ):
        peft.export(tmp_path / "adapter", CONFIGS["gpt2"], adapter)
    with pytest.raises(ValueError, match="adapter targets are none"):
        peft.export(tmp_path / "adapter", CONFIGS["gpt2"], peft.Adapter({}, 1.0))
    with pytest.raises(WeightsError, match="adapter q: a and b have shapes .* must have"):
        peft.export(tmp_path / "adapter", dataclasses.replace(CONFIGS["qwen2"], d_model=64), adapter)
    assert list(tmp_path.iterdir()) == []


def edit(folder: Path, **fields) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_scales_of_peft_are_honoured(tmp_path):
    cfg = CONFIGS["qwen2"]
    adapters, scale = random_stack(cfg, targets=("q", "up"))
    adapter = peft.take(adapters, scale, 1)
    folder = peft.export(tmp_path / "adapter", cfg, adapter)
    edit(folder, use_rslora=True)
    assert peft.load(folder, cfg).scale == 8 / np.sqrt(4)
    edit(folder, use_rslora=False, alpha_pattern={"up_proj": 16})
    found = peft.load(folder, cfg)
    assert found.scale == 2.0
    assert np.array_equal(found.weights["up"]["b"], 2 * np.asarray(adapter.weights["up"]["b"]))
    assert np.array_equal(found.weights["q"]["b"], np.asarray(adapter.weights["q"]["b"]))
    edit(folder, alpha_pattern={"layers.0.mlp.up_proj": 16})
    with pytest.raises(WeightsError, match="alpha_pattern has 'layers.0.mlp.up_proj', but must have module names"):
        peft.load(folder, cfg)


def test_layers_that_were_left_out_change_nothing(tmp_path):
    cfg = CONFIGS["qwen2"]
    adapters, scale = random_stack(cfg, targets=("q",))
    adapter = peft.take(adapters, scale, 0)
    folder = peft.export(tmp_path / "adapter", cfg, adapter)
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file({n: t for n, t in tensors.items() if ".layers.1." in n}, folder / "adapter_model.safetensors")
    with pytest.raises(WeightsError, match="missing: base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"):
        peft.load(folder, cfg)
    edit(folder, layers_to_transform=[1])
    found = peft.load(folder, cfg).weights["q"]
    assert not found["b"][0].any() and np.array_equal(found["b"][1], np.asarray(adapter.weights["q"]["b"])[1])


def test_what_cannot_be_used_is_refused(tmp_path):
    cfg = CONFIGS["qwen2"]
    adapters, scale = random_stack(cfg, targets=("q",))
    folder = peft.export(tmp_path / "adapter", cfg, peft.take(adapters, scale, 0))
    for fields, message in (
        ({"use_dora": True}, "use_dora is True, but must be one of: None, False"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3', but must be 'LORA'"),
        ({"bias": "all"}, "bias is 'all', but must be one of: None, 'none'"),
    ):
        before = (folder / "adapter_config.json").read_text()
        edit(folder, **fields)
        with pytest.raises(WeightsError, match=rf"adapter_config\.json: {message}"):
            peft.load(folder, cfg)
        (folder / "adapter_config.json").write_text(before)
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
    save_file(tensors | {name: np.ones((3, 4), np.float32), "other": np.ones(2, np.float32)}, path)
    with pytest.raises(WeightsError) as caught:
        peft.load(folder, cfg)
    assert f"mis-shaped: {name} is [3, 4], but must be [64, 4]" in str(caught.value)
    assert "extra: other [2]" in str(caught.value)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(WeightsError, match=r"adapter_model\.safetensors is truncated"):
        peft.load(folder, cfg)
    path.unlink()
    with pytest.raises(WeightsError, match=r"adapter_model\.safetensors does not exist"):
        peft.load(folder, cfg)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "phi3", "gpt2"])
def test_peft_computes_the_same_from_the_folder(family, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed: no live comparison with peft")
    theirs = pytest.importorskip("peft", reason="peft is not installed: no live comparison with it")
    from transformers import AutoModelForCausalLM

    cfg = CONFIGS[family]
    _, params = make(family)
    adapter = peft.take(*random_stack(cfg), 2)  # every projection has its own A: blocks where they are fused
    export(tmp_path / "base", cfg, params)
    peft.export(tmp_path / "adapter", cfg, adapter)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    model = theirs.PeftModel.from_pretrained(model, tmp_path / "adapter").eval()
    tokens = random_tokens(2, 12)
    with torch.no_grad():
        wanted = model(torch.tensor(np.asarray(tokens, np.int64))).logits.numpy()
    assert np.abs(logits_with(cfg, params, adapter, tokens) - wanted).max() <= 1e-4
