"""The weights of a run, from its checkpoints or from before training."""

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
    """What a checkpoint says of its run; nothing where it is damaged, which `restore` tells."""
    try:
        return checkpoints.meta(step).get("run", {})
    except (OSError, ValueError, KeyError):
        return {}


def restore_weights(setup: Setup, workdir: Path, step: str = "newest") -> tuple[int, dict[str, dict]]:
    """(step, weights of every model) from a run's checkpoint: "newest", "best" or the number of a step.

    The run must be one of the same models that played the same game, see `check_run`.
    """
    trained = {backbone.name: _used(setup, backbone, backbone.abstract()[0]) for backbone in setup.trained_backbones}
    checkpoints = Checkpoints(workdir, read_only=True)
    try:
        wanted = checkpoints.named(step)
        check_run(_run_of(checkpoints, wanted), setup, workdir)
        # Where the newest is damaged, the one before it will do.
        restored = checkpoints.restore({"trained": trained}, step=None if step == "newest" else wanted, partial=True)
    finally:
        checkpoints.close()
    assert restored is not None  # `named` has found a checkpoint
    check_run(restored.meta.get("run", {}), setup, workdir)
    weights = {backbone.name: restored.state["trained"].get(backbone.name, {}) for backbone in setup.backbones}
    for backbone in setup.backbones:
        if "model" not in weights[backbone.name]:  # it is only read: a frozen model, or the base of adapters
            weights[backbone.name] = {
                **backbone.policy.acting_params(backbone.weights_at_start()[1]),
                **weights[backbone.name],
            }
    return restored.step, weights


def present_weights(setup: Setup, workdir: Path) -> tuple[int, dict[str, dict]]:
    """(step, weights) of the checkpoint that `eval.step` names, or those a run would begin with where there is none."""
    if (workdir / "checkpoints").is_dir():
        return restore_weights(setup, workdir, setup.config.eval.step)
    starts = [(backbone.config.name, backbone.config.init_from) for backbone in setup.backbones]
    words = [f"{name} of {place}" if place else f"{name} untuned" for name, place in starts]
    log.info("%s has no checkpoints, so these are taken: %s", workdir, ", ".join(dict.fromkeys(words)))
    return 0, untuned_weights(setup)


def untuned_weights(setup: Setup) -> dict[str, dict]:
    """The weights of every model before any training."""
    found = {}
    for backbone in setup.backbones:
        trained, frozen = backbone.weights_at_start()
        found[backbone.name] = _used(setup, backbone, {**frozen, **trained})
    return found


def _used(setup: Setup, backbone: Backbone, weights: dict) -> dict:
    """The weights that are needed outside of training: those that act, and a head that scores or values."""
    asked = setup.algorithm.verifies or setup.config.eval.best_of > 1
    head = {"critic": weights["critic"]} if asked and "critic" in weights else {}
    return {**backbone.policy.acting_params(weights), **head}
