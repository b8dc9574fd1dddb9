"""Round-robin matches with Elo ratings and the Nash average, or cross-play scores."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from envs.games.equilibria import nash_average
from envs.games.game import Game
from marl_jax.evaluation import intervals, matches
from marl_jax.evaluation.contestants import Contestant
from marl_jax.evaluation.match_results import in_turns, new_match, points_of, repeats
from marl_jax.evaluation.matches import Match
from marl_jax.serving.remote_bot import remote_failures
from marl_jax.setup.games import GameSetup

log = logging.getLogger(__name__)


def everyone(setup: GameSetup, contestants: list[Contestant]) -> dict[str, Any]:
    """Play all pairs of contestants on held-out levels and summarize the results."""
    c, game = setup.config.eval, setup.game.held_out()
    table = round_robin(game, contestants, c.games, jax.random.key(c.seed), c.temperature, c.confidence)
    names = [contestant.name for contestant in contestants]
    result: dict[str, Any] = {
        "names": names,
        "matrix": table.points.tolist(),
        "distinct": table.distinct.astype(int).tolist(),
    }
    if game.competitive:
        for column, values in ratings(table, c.confidence).items():
            result[column] = dict(zip(names, values, strict=True))
    else:
        trained = [i for i, contestant in enumerate(contestants) if contestant.weights is not None]
        result["cross_play"] = cross_play(table.points[np.ix_(trained, trained)])
        if table.low is not None and table.high is not None:
            result["low"], result["high"] = table.low.tolist(), table.high.tolist()
    width = max(map(len, names))
    for i, name in enumerate(names):
        log.info("%*s  %s", width, name, " ".join(f"{x:6.3f}" for x in table.points[i]))
    log.info("%s", result.get("elo") or result.get("cross_play"))
    return result


class RoundRobin(NamedTuple):
    """Results of a round robin of n contestants.

    Attributes:
        points: float [n, n]. Mean points of row against column in a competitive game, with ½ on the diagonal. In a
            cooperative game, mean score of a team in which row has one seat, in turns, and column all others.
        draws: float [n, n]. Share of draws in a competitive game.
        distinct: float [n, n]. Number of distinct games (see `repeats`).
        low: float [n, n]. Lower ends of the intervals of the scores in a cooperative game, otherwise None.
        high: float [n, n]. Upper ends.
    """

    points: np.ndarray
    draws: np.ndarray
    distinct: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def round_robin(
    game: Game,
    contestants: Sequence[Contestant],
    games: int,
    key: jax.Array,
    temperature: float,
    confidence: float = 0.95,
) -> RoundRobin:
    """Play all pairs of contestants.

    A pair of a cooperative game with more than two seats plays twice: each of them has the single seat once.
    """
    n, mirrored = len(contestants), game.competitive or game.n_players == 2
    table, draws, distinct = np.full((n, n), 0.5), np.zeros((n, n)), np.zeros((n, n))
    low, high = np.zeros((n, n)), np.zeros((n, n))
    programs: dict[tuple, Match] = {}
    for i, a in enumerate(contestants):
        for j, b in enumerate(contestants):
            if (j < i and mirrored) or (i == j and game.competitive):
                continue
            kinds = (id(a.plays), id(b.plays))
            match = programs.setdefault(kinds, new_match(game, (a.plays, b.plays)))
            seating = matches.alone(games, game.n_players) if i == j else in_turns(match, games)
            with remote_failures():
                played = jax.device_get(match((a.weights, b.weights), seating, key, temperature))
            cells = ([i, j], [j, i]) if mirrored else (i, j)
            distinct[cells] = number = len(np.unique(repeats(match, played, seating, temperature)))
            if game.competitive:
                points = points_of(played.total.agent, np.argmax(seating == 0, axis=1), game.sides)
                table[i, j], table[j, i] = points.mean(), 1 - points.mean()
                draws[i, j] = draws[j, i] = (points == 0.5).mean()
            else:
                scores = played.total.team + played.total.agent.mean(1)
                table[cells], low[cells], high[cells] = intervals.bootstrap(scores, confidence, distinct=number)
    return RoundRobin(table, draws, distinct, *(() if game.competitive else (low, high)))


def ratings(table: RoundRobin, confidence: float = 0.95) -> dict[str, list[float]]:
    """Rate the contestants of a competitive game.

    Elo assumes that strength is a number, and rates contestants by the others that happen to play. The Nash average is
    the expected points above ½ against the strongest mixture of contestants, whose members have a share > 0 in it.

    Returns:
        Columns `elo`, `elo_low`, `elo_high`, `nash_average` and `nash_share`, each with one value per contestant.
    """
    elo = intervals.elo_intervals(table.points, table.draws, table.distinct, confidence)
    share, average = nash_average(table.points - 0.5)
    columns = ("elo", "elo_low", "elo_high")
    return {
        **{column: list(values) for column, values in zip(columns, zip(*elo, strict=True), strict=True)},
        "nash_average": average.tolist(),
        "nash_share": share.tolist(),
    }


def cross_play(table: np.ndarray) -> dict[str, float]:
    """Return the mean self-play score, cross-play score and their difference."""
    own = float(np.diag(table).mean())
    others = float(table[~np.eye(len(table), dtype=bool)].mean()) if len(table) > 1 else own
    return {"self_play": own, "cross_play": others, "gap": own - others}
