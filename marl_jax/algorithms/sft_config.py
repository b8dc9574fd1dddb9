"""Settings and checks of supervised fine-tuning. Importing this does not import JAX."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from ml_collections import ConfigDict

from marl_jax.algorithms.common_config import check_known_bot, check_no_other_players
from marl_jax.fields import TEXT, TEXTS, Rule, choice, number
from marl_jax.learning.settings import LearnerSettings, setting

_KIND_WEIGHT = re.compile(r"(\w+)=(\d+(?:\.\d+)?)")
_KIND_WEIGHTS = Rule(
    "a tuple of strings KIND=WEIGHT, such as ('play=2',)",
    lambda x: TEXTS.holds(x) and all(_KIND_WEIGHT.fullmatch(text) for text in x),
)


def kind_weights(texts: Sequence[str]) -> dict[str, float]:
    """Parse weights by kind of move from strings such as "play=2"."""
    return {kind: float(weight) for kind, weight in (text.split("=") for text in texts)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SFTSettings(LearnerSettings):
    """Settings of supervised fine-tuning."""

    bot: str = setting("", TEXT, "Bot to imitate; '': the strongest bot of the game")
    noise: float = setting(0.1, number(0, 0.9), "Fraction of random moves, which lead to unusual positions")
    kind_weights: tuple[str, ...] = setting(
        (), _KIND_WEIGHTS, "Loss weights by kind of move, e.g. ('play=2',); other kinds have weight 1"
    )
    data: str = setting("", TEXT, "Folder of recorded moves to imitate in addition to the bot; '': none")
    data_frac: float = setting(0.75, number(0, 1), "Fraction of rows with recorded moves, if there are any")
    gain_weight: float = setting(2.0, number(0), "Additional loss weight of a recorded move per unit of its gain")
    min_gain: float = setting(
        0.0, number(0), "Lowest gain of a recorded move that is imitated; with less, the bot's move is"
    )
    loss_agg: str = setting(
        "completion",
        choice("completion", "token"),
        "Loss aggregation; completion: mean over completions; token: mean over tokens, for long texts",
    )


def check(c: ConfigDict) -> Iterator[str]:
    """Yield the problems of a config with supervised fine-tuning."""
    from envs.games import registry as games
    from envs.games.entry import GAMES

    if c.algo.data and c.task.name:
        yield f"config.algo.data is {c.algo.data!r}, but must be '' for tasks, which have no recorded moves"
    if c.task.name:  # its reference completions are checked when the run is built, because that reads the data
        return
    yield from check_known_bot(c)
    kinds = games.make(c.env.name, **c.env.params.to_dict()).action_kinds
    for kind in kind_weights(c.algo.kind_weights):
        if kind not in kinds:
            known = ", ".join(dict.fromkeys(kinds)) or "none"
            yield f"config.algo.kind_weights has {kind!r}, but kinds of moves of {c.env.name} must be one of: {known}"
    if c.algo.data and GAMES.get(c.env.name).read_moves is None:
        yield f"config.algo.data is {c.algo.data!r}, but must be '': {c.env.name} has no recorded moves"
    if c.algo.data and c.env.context != "turn":
        yield f"config.env.context is {c.env.context!r}, but must be 'turn' with algo.data, which has single positions"
    yield from check_no_other_players(c, "has a bot in all seats")
    if c.curriculum.enabled:
        yield "config.curriculum.enabled is True with algo.name 'sft', which uses all levels, but must be False"
