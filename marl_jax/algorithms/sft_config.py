"""Settings and checks of supervised training. Importing this does not import JAX."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from ml_collections import ConfigDict

from marl_jax.algorithms.common_config import check_no_other_players
from marl_jax.fields import TEXT, TEXTS, Rule, number
from marl_jax.learning.settings import LearnerSettings, setting

_KIND_WEIGHT = re.compile(r"(\w+)=(\d+(?:\.\d+)?)")
_KIND_WEIGHTS = Rule(
    "a tuple of texts KIND=WEIGHT, e.g. ('play=2',)",
    lambda x: TEXTS.holds(x) and all(_KIND_WEIGHT.fullmatch(text) for text in x),
)


def kind_weights(texts: Sequence[str]) -> dict[str, float]:
    """Weights by the names of kinds, from texts like "play=2"."""
    return {kind: float(weight) for kind, weight in (text.split("=") for text in texts)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SFTSettings(LearnerSettings):
    """Settings of supervised training."""

    bot: str = setting("", TEXT, "Bot to imitate; '': the strongest bot of the game")
    noise: float = setting(0.1, number(0, 0.9), "Fraction of random moves, which lead to unusual positions")
    kind_weights: tuple[str, ...] = setting(
        (), _KIND_WEIGHTS, "Loss weights by kind of move, e.g. ('play=2',); other kinds have weight 1"
    )


def check(c: ConfigDict) -> Iterator[str]:
    """Supervised training: a bot plays all seats and all levels of a game."""
    from envs.games import registry as games
    from envs.games.bots import bot_names

    if c.task.name:
        yield f"config.algo.name is 'sft' with task.name {c.task.name!r}, which no bot plays, but must be a game"
        return
    known = bot_names(c.env.name)
    if c.algo.bot and c.algo.bot not in known:
        yield f"config.algo.bot is {c.algo.bot!r}, which is no bot of {c.env.name}, but must be '', {', '.join(known)}"
    kinds = games.make(c.env.name, **c.env.params.to_dict()).action_kinds
    for kind in kind_weights(c.algo.kind_weights):
        if kind not in kinds:
            known = ", ".join(dict.fromkeys(kinds)) or "none"
            yield f"config.algo.kind_weights has {kind!r}, which is no kind of move of {c.env.name}, but must be one of: {known}"
    yield from check_no_other_players(c, "where a bot plays all seats")
    if c.curriculum.enabled:
        yield "config.curriculum.enabled is True with algo.name 'sft', which shows all levels, but must be False"
