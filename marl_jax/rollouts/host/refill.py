"""Informative examples, whose groups have different rewards and therefore nonzero advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from marl_jax.learning.groups import differ
from marl_jax.rollouts.host.collate import Row
from marl_jax.rollouts.host.episodes import Episode


def informative_examples(
    examples: Sequence[Sequence[Episode]],
    n_seats: int,
    reward_levels: Mapping[str, float] | None = None,
    turns: Sequence[int] = (),
    seats: Sequence[int] = (),
) -> list[bool]:
    """Return for each example whether one of its groups is informative for a learning seat.

    Groups are those of `collate`: the episodes of an example, or the candidates of a turn. Failed episodes are not
    members.

    Args:
        examples: Episodes of each example, with their rows (`collate.pack`).
        n_seats: Number of seats, P.
        reward_levels: Weights of team, agent and process rewards.
        turns: Turns that learn; () for all.
        seats: Seats that learn; () for all.
    """
    levels = {"team": 1.0, "agent": 1.0, "process": 1.0, **(reward_levels or {})}
    returns: dict[tuple, dict[int, np.ndarray]] = {}  # (example, group) -> member -> float [P]
    learning: dict[tuple, set[int]] = {}  # (example, group) -> seats
    answers = (
        ((number, answer.group), row, answer)
        for number, episodes in enumerate(examples)
        for episode in episodes
        for row in _rows(episode)
        for answer in row.answers
    )
    for group, row, answer in answers:
        reward = answer.said.replies[answer.k].rewards
        total = returns.setdefault(group, {}).setdefault(answer.member, np.zeros(n_seats))
        total += levels["team"] * reward.team
        total[row.chat.seat] += levels["agent"] * reward.agent + levels["process"] * reward.process
        if row.policy >= 0 and (not turns or answer.said.turn in turns) and (not seats or row.chat.seat in seats):
            learning.setdefault(group, set()).add(row.chat.seat)
    informative = [False] * len(examples)
    for group, learners in learning.items():
        of_seats = np.stack(list(returns[group].values()), axis=1)[sorted(learners)]
        informative[group[0]] |= bool(np.any(differ(of_seats, np.ones(of_seats.shape, bool))))
    return informative


def _rows(episode: Episode) -> list[Row]:
    assert episode.rows is not None
    return episode.rows
