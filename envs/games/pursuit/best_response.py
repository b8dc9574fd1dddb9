"""Exact values and best responses of policies in the pursuit game.

    policy = perfect_policy(game)                          # float64 [3, C, C, C, A]
    values(game, pursuers=policy[:2], evader=policy[2])    # expected payoff of the pursuers by position
    nash_conv(game, policy)                                # sum of both sides' gains from a best response

Policies depend on the position only, best responses also on the round. All arithmetic is backward induction over the
rounds, in NumPy.
"""

import numpy as np

from envs.games.pursuit import solver
from envs.games.pursuit.rules import Pursuit
from envs.games.pursuit.solver import EVADER, N_SEATS


def values(game: Pursuit, pursuers: np.ndarray | None = None, evader: np.ndarray | None = None) -> np.ndarray:
    """Return the expected payoff of the pursuers from every position: float64 [C, C, C].

    A side without a policy plays a best response, so without any policy this is the value of the game. Positions in
    which the evader is caught have the payoff of the first round.

    Args:
        game: The game.
        pursuers: float [2, C, C, C, A]. Probabilities of the moves of each pursuer.
        evader: float [C, C, C, A]. Probabilities of the moves of the evader.
    """
    after = solver.targets(game.shape)
    policies = (*((None, None) if pursuers is None else pursuers), evader)
    over = solver.caught(len(after))
    value = np.full(over.shape, -1.0)
    for number in range(game.max_rounds, 0, -1):
        for seat in reversed(range(N_SEATS)):
            value = np.where(over, game.payoff(number), value)
            value = _before(value, seat, after, policies[seat])
        value = np.where(over, game.payoff(number), value)
    return value


def nash_conv(game: Pursuit, policy: np.ndarray) -> float:
    """Return the sum of both sides' gains from a best response, over all starts.

    Args:
        game: The game.
        policy: float [3, C, C, C, A]. Probabilities of the moves of each seat.
    """
    gain = values(game, evader=policy[EVADER]) - values(game, pursuers=policy[:EVADER])
    return float(gain[~solver.caught(len(gain))].mean())


def perfect_policy(game: Pursuit) -> np.ndarray:
    """Return the policy of the solver bot: float64 [3, C, C, C, A]."""
    after, rounds = solver.targets(game.shape), solver.rounds_to_capture(game.shape).astype(int)
    policies = []
    for seat in range(N_SEATS):
        moved = solver.successors(-rounds[(seat + 1) % N_SEATS], seat, after)  # the pursuers like few rounds
        best = (moved == _best(moved, seat, after)[..., None]) & _on_grid(seat, after)
        policies.append(best / best.sum(-1, keepdims=True))
    return np.stack(policies)


def _before(value: np.ndarray, seat: int, after: np.ndarray, policy: np.ndarray | None) -> np.ndarray:
    """Return the values before the move of a seat: float64 [C, C, C]."""
    moved = solver.successors(value, seat, after)
    return _best(moved, seat, after) if policy is None else (policy * moved).sum(-1)


def _best(moved: np.ndarray, seat: int, after: np.ndarray) -> np.ndarray:
    """Return the value of a seat's best move: [C, C, C].

    The pursuers maximize, the evader minimizes.
    """
    moved = np.where(_on_grid(seat, after), moved, moved[..., :1])  # staying is always possible
    return moved.min(-1) if seat == EVADER else moved.max(-1)


def _on_grid(seat: int, after: np.ndarray) -> np.ndarray:
    """Return the possible moves of a seat: bool, broadcast to [C, C, C, A]."""
    return np.expand_dims(after >= 0, [axis for axis in range(N_SEATS) if axis != seat])
