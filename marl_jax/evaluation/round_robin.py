"""Round-robin matches with Elo ratings or cross-play scores."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

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
    table, distinct = round_robin(game, contestants, c.games, jax.random.key(c.seed), c.temperature)
    names = [contestant.name for contestant in contestants]
    result: dict[str, Any] = {"names": names, "matrix": table.tolist(), "distinct": distinct.astype(int).tolist()}
    if game.competitive:
        result["elo"] = dict(zip(names, ratings(table, distinct).tolist(), strict=True))
    else:
        trained = [i for i, contestant in enumerate(contestants) if contestant.weights is not None]
        result["cross_play"] = cross_play(table[np.ix_(trained, trained)])
    width = max(map(len, names))
    for i, name in enumerate(names):
        log.info("%*s  %s", width, name, " ".join(f"{x:6.3f}" for x in table[i]))
    log.info("%s", result.get("elo") or result.get("cross_play"))
    return result


def round_robin(
    game: Game, contestants: Sequence[Contestant], games: int, key: jax.Array, temperature: float
) -> tuple[np.ndarray, np.ndarray]:
    """Play all pairs of contestants.

    Returns:
        Mean points of row against column in a competitive game, with ½ on the diagonal, or mean score of row and column
        together in a cooperative one, [n, n]; and the number of distinct games, [n, n] (see `repeats`).
    """
    n = len(contestants)
    table, distinct = np.full((n, n), 0.5), np.zeros((n, n))
    programs: dict[tuple, Match] = {}
    for i, a in enumerate(contestants):
        for j, b in enumerate(contestants):
            if j < i or (i == j and game.competitive):
                continue
            kinds = (id(a.plays), id(b.plays))
            match = programs.setdefault(kinds, new_match(game, (a.plays, b.plays)))
            seating = matches.alone(games, game.n_players) if i == j else in_turns(match, games)
            with remote_failures():
                played = jax.device_get(match((a.weights, b.weights), seating, key, temperature))
            distinct[i, j] = distinct[j, i] = len(np.unique(repeats(match, played, seating, temperature)))
            if game.competitive:
                points = points_of(played.total.agent, np.argmax(seating == 0, axis=1), game.sides).mean()
                table[i, j], table[j, i] = points, 1 - points
            else:
                table[i, j] = table[j, i] = (played.total.team + played.total.agent.mean(1)).mean()
    return table, distinct


def ratings(table: np.ndarray, games: np.ndarray) -> np.ndarray:
    """Compute Elo ratings [n] from mean points and numbers of games, both [n, n]."""
    return intervals.elo(table * games, games)


def cross_play(table: np.ndarray) -> dict[str, float]:
    """Return the mean self-play score, cross-play score and their difference."""
    own = float(np.diag(table).mean())
    others = float(table[~np.eye(len(table), dtype=bool)].mean()) if len(table) > 1 else own
    return {"self_play": own, "cross_play": others, "gap": own - others}
