"""Weights of a run from a checkpoint or before training."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from marl_jax.agents.team import Backbone
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.setup.parts import Setup
from marl_jax.setup.run_fingerprint import check_run

log = logging.getLogger(__name__)


def _run_of(checkpoints: Checkpoints, step: int) -> dict[str, Any]:
    """Return the fingerprint in a checkpoint, or {} if it is damaged, which `restore` reports."""
    try:
        return checkpoints.meta(step).get("run", {})
    except (OSError, ValueError, KeyError):
        return {}


def restore_weights(setup: Setup, workdir: Path, step: str = "newest") -> tuple[int, dict[str, dict]]:
    """Load the weights of every model from a checkpoint.

    Args:
        setup: Parts of the run.
        workdir: Folder of a run with the same models and game; see `check_run`.
        step: "newest", "best" or the number of a step.

    Returns:
        Step and weights by name of the model.
    """
    trained = {backbone.name: _used(setup, backbone, backbone.abstract()[0]) for backbone in setup.trained_backbones}
    checkpoints = Checkpoints(workdir, read_only=True)
    try:
        wanted = checkpoints.named(step)
        check_run(_run_of(checkpoints, wanted), setup, workdir)
        # If the newest is damaged, the one before it is used.
        restored = checkpoints.restore({"trained": trained}, step=None if step == "newest" else wanted, partial=True)
    finally:
        checkpoints.close()
    assert restored is not None  # `named` has found a checkpoint
    check_run(restored.meta.get("run", {}), setup, workdir)
    weights = {backbone.name: restored.state["trained"].get(backbone.name, {}) for backbone in setup.backbones}
    for backbone in setup.backbones:
        if "model" not in weights[backbone.name]:  # a frozen model or the base of adapters
            weights[backbone.name] = {
                **backbone.policy.acting_params(backbone.weights_at_start()[1]),
                **weights[backbone.name],
            }
    return restored.step, weights


def present_weights(setup: Setup, workdir: Path) -> tuple[int, dict[str, dict]]:
    """Load the checkpoint named by `eval.step`, or the initial weights if there is none."""
    if (workdir / "checkpoints").is_dir():
        return restore_weights(setup, workdir, setup.config.eval.step)
    starts = [(backbone.config.name, backbone.config.init_from) for backbone in setup.backbones]
    words = [f"{name} from {place}" if place else f"{name} untrained" for name, place in starts]
    log.info("%s has no checkpoints; using %s", workdir, ", ".join(dict.fromkeys(words)))
    return 0, untuned_weights(setup)


def untuned_weights(setup: Setup) -> dict[str, dict]:
    """Return the initial weights of every model."""
    weights = {}
    for backbone in setup.backbones:
        trained, frozen = backbone.weights_at_start()
        weights[backbone.name] = _used(setup, backbone, {**frozen, **trained})
    return weights


def _used(setup: Setup, backbone: Backbone, weights: dict) -> dict:
    """Return the weights for inference: those of the policy and a critic head."""
    needs_head = setup.algorithm.verifies or setup.config.eval.best_of > 1
    head = {"critic": weights["critic"]} if needs_head and "critic" in weights else {}
    return {**backbone.policy.acting_params(weights), **head}
