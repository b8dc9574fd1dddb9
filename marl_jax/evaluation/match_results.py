"""What came out of matches: points, rates and scores with intervals, over games that are distinct."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import jax
import numpy as np

from envs.games.game import Bot, Game
from marl_jax.evaluation import intervals, matches
from marl_jax.evaluation.matches import Match, Played
from marl_jax.rollouts.seated_team import SeatedTeam


def new_match(game: Game, contestants: Sequence[SeatedTeam | Bot]) -> Match:
    """A match that walks through the levels of a puzzle; other games draw their starts."""
    return Match(game, contestants, walk=game.has_levels)


def in_turns(match: Match, games: int) -> np.ndarray:
    """Seating int32 [B, P] of a match of two: the first in one seat, in turns; the second in all others."""
    return matches.in_turns(games, match.game.n_players, match.n_levels if match.walk else None)


def repeats(match: Match, played: Played, seating: np.ndarray, temperature: float) -> np.ndarray:
    """int [B]: a number for every game, equal for games that are one game played again.

    Those are greedy games with the same start and seats, where all of them went the same way. If some went another,
    chance had a part in them (a bot's choice, a random move in place of an answer), and each is a draw of its own.
    """
    games = len(seating)
    if temperature > 0:
        return np.arange(games)
    moves = np.where(np.arange(len(played.action))[:, None] < played.length, played.action, -1).T
    alike = _groups(np.column_stack([match.starts(games), seating]))
    ways = collections.defaultdict(set)
    for group, way in zip(alike, _groups(moves), strict=True):
        ways[group].add(way)
    return np.array([games + group if len(ways[group]) == 1 else i for i, group in enumerate(alike)])


def _groups(rows: np.ndarray) -> list[int]:
    """A number for each row [B, …], the same for equal rows."""
    numbers: dict[bytes, int] = {}
    return [numbers.setdefault(row.tobytes(), len(numbers)) for row in np.ascontiguousarray(rows)]


def match_metrics(
    game: Game, played: Played, seating: np.ndarray, confidence: float, same: np.ndarray | None = None
) -> dict[str, float]:
    """What contestant 0 achieved, each figure with its interval, the one that tells most first.

    Where games are won, the score is the share of points (a win 1, a draw ½), followed by the rates; where they are won
    by more or less, what was earned on average comes first. A cooperative game has the score it pays, and puzzles
    before it how many were solved.

    same  int [B], equal for games that are one game played again; left out, all differ. Rates and means are over all
          games, intervals as wide as for the distinct ones
    """
    total, length = jax.device_get((played.total, played.length))
    same = np.arange(len(length)) if same is None else same
    distinct = len(np.unique(same))
    found: dict[str, intervals.Interval] = {}
    if game.competitive:
        seat = np.argmax(seating == 0, axis=1)
        points = points_of(total.agent, seat)
        n = len(points)
        if game.stakes:
            mine = total.agent[np.arange(n), seat]
            found["payoff"] = intervals.bootstrap(mine, confidence, distinct=distinct)
        found["score"] = intervals.wilson(float(points.sum()), n, confidence, distinct)  # first: the headline
        found["win_rate"] = intervals.wilson(int((points == 1).sum()), n, confidence, distinct)
        found["draw_rate"] = intervals.wilson(int((points == 0.5).sum()), n, confidence, distinct)
        found["loss_rate"] = intervals.wilson(int((points == 0).sum()), n, confidence, distinct)
        for i in range(game.n_players):
            mine, n_mine = points[seat == i], len(np.unique(same[seat == i]))
            if len(mine):
                found[f"win_rate_seat_{i}"] = intervals.wilson(int((mine == 1).sum()), len(mine), confidence, n_mine)
    else:
        if played.success is not None:
            found["success"] = intervals.wilson(int(np.sum(played.success)), len(length), confidence, distinct)
        # What was achieved; rewards for how it was gone about are for learning.
        found["score"] = intervals.bootstrap(total.team + total.agent.mean(1), confidence, distinct=distinct)
    for name, flags in (played.endings or {}).items():
        found[name] = intervals.wilson(int(np.sum(flags)), len(length), confidence, distinct)
    row = {"game_length": float(length.mean())}
    for name, interval in found.items():
        row |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return row


def points_of(agent: np.ndarray, seat: np.ndarray) -> np.ndarray:
    """Of the player in `seat` [B], from the agent rewards [B, P]: 1 for a win, ½ for a draw, 0 for a loss."""
    rows = np.arange(len(seat))
    mine = agent[rows, seat]
    others = np.where(np.arange(agent.shape[1]) == seat[:, None], -np.inf, agent).max(1)
    return np.where(mine > others, 1.0, np.where(mine == others, 0.5, 0.0))
