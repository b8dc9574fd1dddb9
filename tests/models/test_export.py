"""Weights out: bit-equal round trips, files transformers accepts, and nothing half-written."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

from models import hf_config
from models.model import build
from models.weights import WeightsError, export, load
from tests.models.hf_folders import same
from tests.models.tiny_models import CONFIGS, FAMILIES, make, random_tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_a_round_trip_is_bit_equal(family, tmp_path):
    model, params = make(family)
    folder = export(tmp_path / "model", model.cfg, params)
    assert {p.name for p in folder.iterdir()} == {"config.json", "generation_config.json", "model.safetensors"}
    cfg, loaded = load(folder)
    assert cfg == model.cfg and same(params, loaded)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_other_dtypes_survive_too(dtype, tmp_path):
    model, params = make("phi3")
    params = jax.tree.map(lambda x: x.astype(dtype), params)
    folder = export(tmp_path / "model", model.cfg, params)
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == jnp.dtype(dtype).name
    assert same(params, load(folder, dtype=dtype)[1])


def test_a_wider_dtype_can_be_asked_for(tmp_path):
    model, params = make("llama")
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    folder = export(tmp_path / "model", model.cfg, half, dtype=jnp.float32)
    assert same(jax.tree.map(lambda x: x.astype(jnp.float32), half), load(folder)[1])


def test_shards_keep_to_the_limit_and_come_back(tmp_path):
    model, params = make("qwen3")
    folder = export(tmp_path / "model", model.cfg, params, shard_bytes=20_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert {p.name for p in folder.glob("*.safetensors")} == set(files)
    assert index["metadata"]["total_size"] == 4 * model.cfg.n_params
    for file in files:
        with safe_open(folder / file, "np") as shard:
            assert shard.metadata() == {"format": "pt"}
            assert {index["weight_map"][name] for name in shard.keys()} == {file}  # noqa: SIM118, not a mapping
            assert sum(shard.get_tensor(name).nbytes for name in shard.keys()) <= 20_000  # noqa: SIM118
    assert same(params, load(folder)[1])


def test_the_stop_ids_are_in_both_configs(tmp_path):
    model, params = make("qwen2")
    cfg = dataclasses.replace(model.cfg, bos_id=3, eos_ids=(5, 4))
    folder = export(tmp_path / "model", cfg, params)
    assert json.loads((folder / "generation_config.json").read_text()) == {"bos_token_id": 3, "eos_token_id": [5, 4]}
    assert hf_config.read(folder) == cfg


class Saver:
    """A tokenizer that can save itself, or cannot."""

    def __init__(self, broken=False):
        self.broken = broken

    def save(self, folder):
        if self.broken:
            raise OSError("the disk is full")
        (folder / "tokenizer.json").write_text("{}")


def test_the_tokenizer_saves_itself_into_the_folder(tmp_path):
    model, params = make("llama")
    assert (export(tmp_path / "model", model.cfg, params, tokenizer=Saver()) / "tokenizer.json").exists()


def test_nothing_half_written_is_left_behind(tmp_path):
    model, params = make("llama")
    with pytest.raises(OSError, match="the disk is full"):
        export(tmp_path / "model", model.cfg, params, tokenizer=Saver(broken=True))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_overwrite_keeps_the_old_folder(tmp_path):
    model, params = make("llama")
    folder = export(tmp_path / "model", model.cfg, params)
    with pytest.raises(FileExistsError, match="pass overwrite=True to replace it"):
        export(folder, model.cfg, params)
    with pytest.raises(OSError, match="the disk is full"):
        export(folder, model.cfg, params, tokenizer=Saver(broken=True), overwrite=True)
    assert same(params, load(folder)[1])
    other = jax.tree.map(lambda x: x + 1, params)
    export(folder, model.cfg, other, overwrite=True)
    assert same(other, load(folder)[1])
    assert list(tmp_path.iterdir()) == [folder]


def test_a_tree_that_is_not_the_models_is_refused(tmp_path):
    model, params = make("qwen2")
    wrong = {**params, "embed": params["embed"][:3], "head": params["norm"]}
    del wrong["norm"]
    with pytest.raises(WeightsError) as caught:
        export(tmp_path / "model", model.cfg, wrong)
    assert {line.strip() for line in str(caught.value).splitlines()[1:]} == {
        "missing: norm [32]",
        "extra: head [32]",
        "mis-shaped: embed is [3, 32], but must be [64, 32]",
    }
    with pytest.raises(WeightsError, match="missing: layers/attn/q"):
        export(tmp_path / "model", model.cfg, model.unstack(params))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_computes_the_same_from_the_folder(family, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed: no live comparison with transformers")
    from transformers import AutoModelForCausalLM

    cfg = CONFIGS[family]
    model, params = make(family)
    folder = export(tmp_path / "model", cfg, params, shard_bytes=30_000)
    theirs, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    tokens = random_tokens(2, 20)
    hidden, _ = build(cfg).forward(params, tokens, dtype=jnp.float32)
    mine = np.asarray(model.logits(params, hidden))
    with torch.no_grad():
        wanted = theirs(torch.tensor(np.asarray(tokens, np.int64))).logits.numpy()
    assert np.abs(mine - wanted).max() <= 1e-4
