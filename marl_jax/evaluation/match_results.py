"""Metrics of matches with confidence intervals over distinct games."""

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
    """Build a match; puzzles play their levels in order."""
    return Match(game, contestants, walk=game.has_levels)


def in_turns(match: Match, games: int) -> np.ndarray:
    """Return the seating of two contestants, int32 [B, P]; see `matches.in_turns`."""
    return matches.in_turns(games, match.game.sides, match.n_levels if match.walk else None)


def repeats(match: Match, played: Played, seating: np.ndarray, temperature: float) -> np.ndarray:
    """Return a number for every game, int [B], equal for games that repeat each other.

    Greedy games with the same start and seats repeat each other if all of them have the same moves. Otherwise chance
    played a role (a bot's choice, or a random move after a parse failure), and each of them counts.
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
    """Return a number for each row [B, …], the same for equal rows."""
    numbers: dict[bytes, int] = {}
    return [numbers.setdefault(row.tobytes(), len(numbers)) for row in np.ascontiguousarray(rows)]


def match_metrics(
    game: Game, played: Played, seating: np.ndarray, confidence: float, same: np.ndarray | None = None
) -> dict[str, float]:
    """Compute the metrics of contestant 0 with their intervals, the most informative one first.

    In competitive games, the score is the fraction of points (1 for a win, ½ for a draw), followed by the rates. Games
    with stakes also have the mean payoff, which comes first. Cooperative games have the mean team score, and puzzles
    the success rate before it.

    Args:
        game: The game.
        played: Finished games.
        seating: int32 [B, P]. Contestant in each seat.
        confidence: Confidence level of the intervals.
        same: int [B]. Equal for games that repeat each other; see `repeats`. Rates and means are over all games, but
            intervals are as wide as for the distinct ones. Defaults to all games being distinct.
    """
    total, length = jax.device_get((played.total, played.length))
    same = np.arange(len(length)) if same is None else same
    distinct = len(np.unique(same))
    metrics: dict[str, intervals.Interval] = {}
    if game.competitive:
        seat = np.argmax(seating == 0, axis=1)
        points = points_of(total.agent, seat, game.sides)
        n = len(points)
        if game.stakes:
            payoffs = total.agent[np.arange(n), seat]
            metrics["payoff"] = intervals.bootstrap(payoffs, confidence, distinct=distinct)
        metrics["score"] = intervals.wilson(float(points.sum()), n, confidence, distinct)
        metrics["win_rate"] = intervals.wilson(int((points == 1).sum()), n, confidence, distinct)
        metrics["draw_rate"] = intervals.wilson(int((points == 0.5).sum()), n, confidence, distinct)
        metrics["loss_rate"] = intervals.wilson(int((points == 0).sum()), n, confidence, distinct)
        for i in range(game.n_players):
            own, n_own = points[seat == i], len(np.unique(same[seat == i]))
            if len(own):
                metrics[f"win_rate_seat_{i}"] = intervals.wilson(int((own == 1).sum()), len(own), confidence, n_own)
    else:
        if played.success is not None:
            metrics["success"] = intervals.wilson(int(np.sum(played.success)), len(length), confidence, distinct)
        # Process rewards are for training only.
        metrics["score"] = intervals.bootstrap(total.team + total.agent.mean(1), confidence, distinct=distinct)
    for name, flags in (played.endings or {}).items():
        metrics[name] = intervals.wilson(int(np.sum(flags)), len(length), confidence, distinct)
    row = {"game_length": float(length.mean())}
    for name, interval in metrics.items():
        row |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return row


def points_of(agent: np.ndarray, seat: np.ndarray, sides: Sequence[int]) -> np.ndarray:
    """Return the points of players: 1 for a win, ½ for a draw.

    Args:
        agent: float32 [B, P]. Agent rewards.
        seat: int [B]. Seats of the player.
        sides: Side of each seat (`Game.sides`).
    """
    of_seat = np.asarray(sides)
    own = agent[np.arange(len(seat)), seat]
    others = np.where(of_seat == of_seat[seat][:, None], -np.inf, agent).max(1)
    return np.where(own > others, 1.0, np.where(own == others, 0.5, 0.0))
