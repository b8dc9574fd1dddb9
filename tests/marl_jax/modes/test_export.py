"""Exported policies equal the trained ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import defaults
from marl_jax import setup
from marl_jax.errors import RunError
from marl_jax.modes import export
from marl_jax.running.checkpoint import Checkpoints
from models import lora, peft
from models.weights.load import load


def make_run(workdir, rank):
    """A run with one checkpoint, with weights that differ from the initial ones."""
    config = defaults.get_config()
    config.env.style, config.mesh.data = "plain", 1
    config.model.lora.rank = rank
    config.model.shape.update(dict(d_model=32, n_layers=2, n_heads=2, n_kv_heads=1, head_dim=16, d_ff=48))
    made = setup.make(config)
    trained, frozen = made.backbone.weights_at_start()
    trained = jax.tree.map(lambda x: x + jnp.linspace(0, 0.5, x.size).reshape(x.shape).astype(x.dtype), trained)
    checkpoints = Checkpoints(workdir)
    checkpoints.save(7, {"trained": {"main": trained}, "optimizer": jnp.zeros(3)}, {})
    checkpoints.close()
    return config, made, trained, frozen


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.nightly
def test_all_weights(tmp_path):
    config, made, trained, _ = make_run(tmp_path, rank=0)
    assert export.main(config, tmp_path) == [tmp_path / "export" / "main"]
    cfg, params = load(tmp_path / "export" / "main")[:2]
    assert cfg == made.backbone.model.cfg
    assert_same(params, trained["model"])


def test_an_adapter_is_merged_and_also_written_alone(tmp_path):
    config, made, trained, frozen = make_run(tmp_path, rank=4)
    assert [folder.name for folder in export.main(config, tmp_path)] == ["main-adapter", "main"]
    scale = lora.scales(1, 4, config.model.lora.alpha)
    expected = lora.merge(frozen["model"], trained["adapters"], scale, 0)
    assert_same(load(tmp_path / "export" / "main")[1], expected)
    alone = peft.load(tmp_path / "export" / "main-adapter", made.backbone.model.cfg)
    assert_same(alone.weights["q"]["a"], trained["adapters"]["q"]["a"][:, 0])


def test_a_folder_without_checkpoints_is_reported(tmp_path):
    config, *_ = make_run(tmp_path / "run", rank=0)
    with pytest.raises(RunError, match="has no checkpoint"):
        export.main(config, tmp_path)
