"""The table of families: every entry is complete, and a family can be added by another package."""

import dataclasses
import subprocess
import sys

import jax
import numpy as np
import pytest

from models import decoder, hf_config, lora, peft
from models.config import ModelConfig, VisionConfig
from models.families import FAMILIES, rotary, vision
from models.model import build
from models.weights import export, load
from tests.models.tiny_models import CONFIGS, forward, random_tokens

VISION = VisionConfig(3, 8, 1, 12, image_id=5, start_id=6, end_id=7, patch=2, window=8, full_layers=(2,))
MORE = {"qwen2_5_vl": {"vision": VISION, "mrope_sections": (1, 1, 2), "head_dim": 8}}
SHAPE = {name: value for name, value in dataclasses.asdict(CONFIGS["llama"]).items() if name != "family"}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_complete(name):
    family = FAMILIES.get(name)
    shape = {**SHAPE, "n_kv_heads": SHAPE["n_heads"], "head_dim": 4}
    cfg = ModelConfig(name, **{**shape, **family.fixed, **MORE.get(name, {})})
    leaves = family.leaves(cfg)
    shapes = {
        "/".join(key.key for key in path): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(build(cfg).abstract())
    }
    of_layers = {path: (cfg.n_layers,) if path.startswith("layers/") else () for path in leaves}
    of_layers |= {path: (VISION.n_layers,) for path in leaves if path.startswith("vision/layers/")}
    assert {path: of_layers[path] + shape for path, (shape, _) in leaves.items()} == shapes
    assert cfg.n_params == sum(int(np.prod(shape)) for shape in shapes.values())
    assert leaves.keys() <= family.hf_names.keys() | vision.NAMES.keys()
    assert family.gguf_names is None or leaves.keys() <= family.gguf_names.keys()
    projections = {path.split("/")[-1] for path, (_, n_in) in leaves.items() if n_in and path.startswith("layers/")}
    assert set(family.lora_targets) == projections
    assert family.learned_positions == ("positions" in leaves)
    assert hf_config.to_dict(cfg)["architectures"] == [family.architecture]
    assert hf_config.from_dict(hf_config.to_dict(cfg)) == cfg


def test_a_config_imports_no_modules():
    code = "import sys; from models import config; config.FAMILIES.names(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "models.config" in loaded and not {"flax", "models.decoder", "models.families.rotary"} & set(loaded)


@pytest.fixture
def other_family(monkeypatch):
    """A family of another package: LLaMA's decoder under other names, with norms on q and k."""
    FAMILIES.names()
    monkeypatch.setattr(FAMILIES, "_entries", dict(FAMILIES._entries))
    names = {path: name.replace("model.", "net.").replace("self_attn", "mixer") for path, name in rotary.NAMES.items()}
    FAMILIES.add(
        "other",
        dataclasses.replace(
            FAMILIES.get("llama"),
            architecture="OtherForCausalLM",
            hf_names=names,
            lora_targets=("q", "v"),
            gguf_names=None,
            fixed={"qk_norm": True},
        ),
    )
    return "other"


@pytest.mark.nightly
def test_a_family_from_another_package(other_family, tmp_path):
    cfg = ModelConfig(other_family, **{**SHAPE, "qk_norm": True})
    model = build(cfg)
    params = model.init(jax.random.key(0))
    assert model._family.block is decoder.Block and "q_norm" in params["layers"]["attn"]
    folder = export(tmp_path / "model", cfg, params)
    again, loaded = load(folder)
    assert again == cfg
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    tokens = random_tokens(2, 5)
    np.testing.assert_array_equal(forward(model, loaded, tokens)[0], forward(model, params, tokens)[0])
    assert peft.modules(cfg) == {"net.layers.{}.mixer.q_proj": ("q",), "net.layers.{}.mixer.v_proj": ("v",)}
    with pytest.raises(ValueError, match="LoRA target is 'gate', but for the family other must be one of: q, v"):
        lora.sizes(cfg, "gate")
