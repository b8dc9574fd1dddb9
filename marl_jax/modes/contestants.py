"""Contestants: who can be evaluated or played against, and the weights of runs, from their checkpoints or untuned."""


from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envs.games import text as texts
from envs.games.bots import Bot, bot_names, make_bot
from marl_jax import setup as setups
from marl_jax.agents.team import Backbone
from marl_jax.config import saved, stages
from marl_jax.errors import RunError
from marl_jax.fields import STEP
from marl_jax.rollouts.matches import SeatedTeam
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.serving.remote import RemoteModel, is_remote
from marl_jax.serving.remote_bot import RemoteBot
from marl_jax.setup.parts import Setup
from marl_jax.setup.run_fingerprint import check_run
from registries import load_plugins

LEAST_TOKENS = 64  # of a remote model's answer: it has not learnt to be brief
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Contestant:
    """Someone who can be evaluated: a name, how it plays, and its weights (None for a bot)."""

    name: str
    plays: SeatedTeam | Bot
    weights: dict | None = None


def find_contestants(names: Sequence[str], setup: Setup) -> list[Contestant]:
    """All of them, each once; runs whose folders have the same name go by what was given for them."""
    names = list(dict.fromkeys(names))
    found = [find_contestant(name, setup) for name in names]
    short = collections.Counter(one.name for one in found)
    return [
        dataclasses.replace(one, name=name) if short[one.name] > 1 else one
        for name, one in zip(names, found, strict=True)
    ]


def find_contestant(name: str, setup: Setup) -> Contestant:
    """A bot by name, the folder of a run with @STEP behind it or not, or a remote model (`serving/remote.py`)."""
    if is_remote(name):
        remote = RemoteModel.parse(name)
        text = texts.make(setup.game, setup.config.env.text, setup.config.env.reasoning)
        tokens = setup.config.rollout.max_new_tokens
        temperature = setup.config.eval.temperature
        return Contestant(name, RemoteBot(setup.game, text, remote, temperature, max(tokens, LEAST_TOKENS)))
    if name in bot_names(setup.game.name):
        return Contestant(name, make_bot(setup.game, name))
    folder, _, step = name.partition("@")
    path = Path(folder).expanduser()
    if not (path / "config.json").is_file():
        known = ", ".join(bot_names(setup.game.name))
        raise RunError(f"opponent {name!r} is no bot of {setup.game.name} ({known}) and no folder of a run")
    if step and not STEP.holds(step):
        raise RunError(f"opponent {name!r}; accepted: a bot, FOLDER, or FOLDER@STEP with {STEP.accepted}")
    other = _setup_of(path, setup)
    if not hasattr(other, "game"):
        raise RunError(f"opponent {name!r} is a run of the task {other.config.task.name}, this run plays {setup.game}")
    if other.game != setup.game:
        raise RunError(f"opponent {name!r} plays {other.game}, this run plays {setup.game}")
    weights = restore_weights(other, path, step or "newest")[1]
    # Runs of one shape share a compiled match; their weights are arguments.
    one = setup if _shape(setup) == _shape(other) else other
    seated = dataclasses.replace(one.seated(), seating=other.seating)
    return Contestant(f"{path.name}@{step}" if step else path.name, seated, weights)


def _setup_of(folder: Path, setup: Setup) -> Setup:
    """What the run in a folder is made of, on the devices of this one; how it learnt is of no matter here."""
    try:
        config = stages.started(saved.read(folder), folder).unlock()
        load_plugins(config.plugins)
        config.mesh, config.distributed = setup.config.mesh, setup.config.distributed
        config.rollout.games, config.eval.games = setup.config.rollout.games, setup.config.eval.games
        config.algo.update({field: 1 for field in ("minibatches", "grad_accum_steps") if field in config.algo})
        return setups.make(config, workdir=folder)
    except (AttributeError, KeyError, ValueError) as error:
        raise RunError(f"{folder / 'config.json'} is of no run that this version can play: {error}") from error


def _shape(setup: Setup) -> tuple:
    """What two teams must agree in to be one program."""

    def backbone(m: Backbone) -> tuple:
        policy = m.policy
        answers = type(policy.answers), policy.width
        return m.name, m.policies, m.model, policy.lora, policy.dtype, answers, m.tokenizer.fingerprint

    return tuple(map(backbone, setup.backbones)), setup.config.env.to_dict()


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
        restored = checkpoints.restore(
            {"trained": trained}, step=None if step == "newest" else wanted, partial=True
        )
    finally:
        checkpoints.close()
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
