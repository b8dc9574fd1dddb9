"""Contestants of matches: bots, other runs and remote models."""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

from envs.games.bots import bot_names, make_bot
from envs.games.game import Bot
from envs.games.registry import make_text
from marl_jax.agents.team import Backbone
from marl_jax.errors import RunError
from marl_jax.fields import STEP
from marl_jax.rollouts.seated_team import SeatedTeam
from marl_jax.serving.remote import RemoteModel, is_remote
from marl_jax.serving.remote_bot import RemoteBot
from marl_jax.setup.games import GameSetup
from marl_jax.setup.members import setup_like
from marl_jax.setup.weights import restore_weights

LEAST_TOKENS = 64  # of a completion of a remote model, which was not trained to be brief
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Contestant:
    """A player that can be evaluated.

    Attributes:
        name: Unique name.
        plays: Team or bot.
        weights: Weights of the team; None for a bot.
    """

    name: str
    plays: SeatedTeam | Bot
    weights: dict | None = None


def find_contestants(names: Sequence[str], setup: GameSetup) -> list[Contestant]:
    """Find contestants by name, without duplicates.

    Runs with the same folder name get their full path as name.
    """
    names = list(dict.fromkeys(names))
    contestants = [find_contestant(name, setup) for name in names]
    short = collections.Counter(one.name for one in contestants)
    return [
        dataclasses.replace(one, name=name) if short[one.name] > 1 else one
        for name, one in zip(names, contestants, strict=True)
    ]


def find_contestant(name: str, setup: GameSetup) -> Contestant:
    """Find a contestant.

    Args:
        name: Bot, folder of a run, optionally with @STEP, or remote model (`serving/remote.py`).
        setup: Parts of the present run.

    Raises:
        RunError: If there is none, or it plays another game.
    """
    if is_remote(name):
        remote = RemoteModel.parse(name)
        text = make_text(setup.game, setup.config.env.text, setup.config.env.reasoning)
        tokens = setup.config.rollout.max_new_tokens
        temperature = setup.config.eval.temperature
        return Contestant(name, RemoteBot(setup.game, text, remote, temperature, max(tokens, LEAST_TOKENS)))
    if name in bot_names(setup.game.name):
        return Contestant(name, make_bot(setup.game, name))
    folder, _, step = name.partition("@")
    path = Path(folder).expanduser()
    if not (path / "config.json").is_file():
        known = ", ".join(bot_names(setup.game.name))
        raise RunError(f"opponent {name!r} is neither a bot of {setup.game.name} ({known}) nor the folder of a run")
    if step and not STEP.holds(step):
        raise RunError(f"opponent is {name!r}, but its step must be {STEP.accepted}")
    other = setup_like(path, setup.config)
    if not isinstance(other, GameSetup):
        raise RunError(
            f"opponent {name!r} is a run of the task {other.config.task.name}, but this run plays {setup.game}"
        )
    if other.game != setup.game:
        raise RunError(f"opponent {name!r} plays {other.game}, but this run plays {setup.game}")
    weights = restore_weights(other, path, step or "newest")[1]
    # Runs with the same shapes share a compiled match; their weights are arguments.
    one = setup if _shape(setup) == _shape(other) else other
    seated = dataclasses.replace(one.seated(), seating=other.seating)
    return Contestant(f"{path.name}@{step}" if step else path.name, seated, weights)


def _shape(setup: GameSetup) -> tuple:
    """Return the properties of a team that determine its compiled program."""

    def backbone(m: Backbone) -> tuple:
        policy = m.policy
        answers = type(policy.answers), policy.width
        return m.name, m.policies, m.model, policy.lora, policy.dtype, answers, m.tokenizer.fingerprint

    return tuple(map(backbone, setup.backbones)), setup.config.env.to_dict()
