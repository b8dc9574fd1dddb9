"""`--mode=export`: export policies for transformers and peft.

python launch.py --workdir=runs/mine --mode=export

<workdir>/export/<policy>/           config, weights with merged LoRA adapter, and tokenizer
<workdir>/export/<policy>-adapter/   the adapter alone, in PEFT's format

Each folder has a model card, README.md, with the run's figures, the exact prompt and the licence of the base model.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import jax
from ml_collections import ConfigDict

from marl_jax import setup as setups
from marl_jax.agents.team import Backbone
from marl_jax.errors import RunError
from marl_jax.evaluation.model_card import RUN_CONFIG, model_card
from marl_jax.evaluation.unmasked import legal_answer_rate
from marl_jax.running.metrics import replace_text
from marl_jax.setup import GameSetup, TaskSetup
from marl_jax.setup.weights import restore_weights
from models import lora, peft
from models import registry as models
from models.weights.export import export
from models.weights.load import load

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
                folders = write_policy(workdir / "export" / name, backbone, weights[backbone.name], index)
                write_cards(folders, setup, backbone, name, step, workdir)
                written += folders
    for folder in written:
        log.info("exported step %d to %s", step, folder)
    return written


def write_cards(
    folders: list[Path], setup: GameSetup | TaskSetup, backbone: Backbone, name: str, step: int, workdir: Path
) -> None:
    """Write the model card and the run's config into the folders of a policy.

    The last folder has all weights of the policy.
    """
    legal = None
    if isinstance(setup, GameSetup):
        params = load(folders[-1], backbone.model.cfg, backbone.policy.dtype)[1]  # the weights that others will load
        legal = legal_answer_rate(setup.game, backbone, params)
        if legal is not None:
            log.info("%s: %.1f %% of the greedy answers without a mask are legal", name, 100 * legal)
    card = model_card(setup, backbone, name, step, workdir, legal)
    for folder in folders:
        replace_text(folder / "README.md", card)
        replace_text(folder / RUN_CONFIG, json.dumps(setup.config.to_dict(), indent=1) + "\n")


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
