"""`--mode=export`: export policies for transformers and peft.

python launch.py --workdir=runs/mine --mode=export

<workdir>/export/<policy>/           config, weights with merged LoRA adapter, and tokenizer
<workdir>/export/<policy>-adapter/   the adapter alone, in PEFT's format
"""

from __future__ import annotations

import logging
from pathlib import Path

import jax
from ml_collections import ConfigDict

from marl_jax import setup as setups
from marl_jax.agents.team import Backbone
from marl_jax.errors import RunError
from marl_jax.setup.weights import restore_weights
from models import lora, peft
from models import registry as models
from models.weights.export import export

log = logging.getLogger(__name__)


def main(config: ConfigDict, workdir: Path) -> list[Path]:
    """Export every policy of the checkpoint named by `eval.step`, by default the newest."""
    setup = setups.make(config, workdir=workdir)
    if setup.algorithm.verifies:
        raise RunError(f"{workdir} is a verifier, but its head cannot be exported; use --mode=serve_reward")
    with jax.set_mesh(setup.mesh):
        step, weights = restore_weights(setup, workdir, config.eval.step)
        written = []
        for backbone in setup.backbones:
            for index, name in enumerate(backbone.policies):
                written += write_policy(workdir / "export" / name, backbone, weights[backbone.name], index)
    for folder in written:
        log.info("exported step %d to %s", step, folder)
    return written


def write_policy(folder: Path, backbone: Backbone, weights: dict, index: int) -> list[Path]:
    """Export one policy of a model and return the new folders.

    Args:
        folder: Target folder.
        backbone: The model.
        weights: Its weights.
        index: Index of the policy, which selects its adapter.
    """
    params, written = weights["model"], []
    if "adapters" in weights:
        spec = backbone.policy.lora
        assert spec is not None
        scale = lora.scales(spec.n, spec.rank, spec.alpha)
        alone, base = folder.with_name(f"{folder.name}-adapter"), models.get(backbone.config.name).hub_id or ""
        adapter = peft.take(weights["adapters"], scale, index)
        written.append(peft.export(alone, backbone.model.cfg, adapter, base_model=base, overwrite=True))
        params = lora.merge(params, weights["adapters"], scale, index)
    return [*written, export(folder, backbone.model.cfg, params, tokenizer=backbone.tokenizer, overwrite=True)]
