"""Policy-space response oracles: populations of policies in small two-player zero-sum games.

Every round solves the matrix game of choosing one policy of the population, and adds a response to the equilibrium
mixture (Lanctot et al., 2017). With exact best responses this is the double oracle method, which ends in an equilibrium
of the game:

    tree = exact.build(make("kuhn"))
    *_, last = psro(tree, functools.partial(exact_response, tree), rounds=20)
    last.nash_conv, last.value             # 0.0 and -1/18

Axis letters: K policies of the population, I information sets, A actions, P = 2 seats.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from envs.games import exact
from envs.games.equilibria import solve_zero_sum
from envs.games.exact import GameTree


class Round(NamedTuple):
    """A population and its equilibrium.

    Attributes:
        policies: float64 [K, I, A]. Policies for both seats.
        payoffs: float64 [K, K]. Expected return of seat 0, played by the row policy, against the column policy.
        weights: float64 [P, K]. Equilibrium of the matrix game.
        mixture: float64 [I, A]. The equilibrium as one policy.
        nash_conv: Gain of exact best responses to the mixture, summed over the seats.
        value: Expected return of seat 0 in equilibrium.
        response_gap: Part of `nash_conv` that the newest policy did not gain against the previous mixture; 0 for exact
            best responses and for the first policy.
    """

    policies: np.ndarray
    payoffs: np.ndarray
    weights: np.ndarray
    mixture: np.ndarray
    nash_conv: float
    value: float
    response_gap: float


def psro(
    tree: GameTree,
    respond: Callable[[np.ndarray], np.ndarray],
    rounds: int,
    first: np.ndarray | None = None,
    tolerance: float = 1e-9,
) -> Iterator[Round]:
    """Grow a population and yield it after each round, until its mixture is an equilibrium.

    Args:
        tree: Tree of a two-player zero-sum game.
        respond: Function that returns a policy [I, A] against a mixture [I, A]; each seat plays against the other
            seat's mixture.
        rounds: Maximum number of policies, K.
        first: First policy; the uniform one by default.
        tolerance: NashConv at which the population is complete.
    """
    if tree.game.n_players != 2 or not np.allclose(tree.returns.sum(1), 0):
        raise ValueError(f"{tree.game.name} is not a two-player zero-sum game, which a population requires")
    policies = [tree.uniform() if first is None else first]
    payoffs, gap = np.zeros((0, 0)), 0.0
    while True:
        payoffs = with_newest(tree, payoffs, policies)
        row, column, value = solve_zero_sum(payoffs)
        weights = np.stack([row, column])
        mixture = exact.mixture(tree, np.stack(policies), weights)
        nash_conv = exact.nash_conv(tree, mixture)
        yield Round(np.stack(policies), payoffs, weights, mixture, nash_conv, value, gap)
        if nash_conv < tolerance or len(policies) >= rounds:
            return
        policies.append(respond(mixture))
        gap = nash_conv - _gain(tree, policies[-1], mixture)


def exact_response(tree: GameTree, mixture: np.ndarray) -> np.ndarray:
    """Return a best response of each seat to the other seat's mixture: float64 [I, A].

    Information sets that the mixture never reaches get a legal action, too.
    """
    actions = np.max([exact.best_response(tree, mixture, seat)[1] for seat in range(tree.game.n_players)], axis=0)
    return np.eye(tree.legal.shape[1])[actions]


def seated(tree: GameTree, *policies: np.ndarray) -> np.ndarray:
    """Combine policies [I, A], one per seat, into one policy [I, A]."""
    return np.stack(policies)[tree.seat, np.arange(len(tree.seat))]


def with_newest(tree: GameTree, payoffs: np.ndarray, policies: Sequence[np.ndarray]) -> np.ndarray:
    """Return the payoffs [K, K], given those of all policies but the newest."""
    payoffs, newest, last = np.pad(payoffs, ((0, 1), (0, 1))), policies[-1], len(policies) - 1
    for k, other in enumerate(policies):
        payoffs[last, k] = exact.expected_returns(tree, seated(tree, newest, other))[0]
        payoffs[k, last] = exact.expected_returns(tree, seated(tree, other, newest))[0]
    return payoffs


def _gain(tree: GameTree, policy: np.ndarray, mixture: np.ndarray) -> float:
    """Return what a policy gains against a mixture, summed over the seats."""
    first = exact.expected_returns(tree, seated(tree, policy, mixture))[0]
    second = exact.expected_returns(tree, seated(tree, mixture, policy))[1]
    return float(first + second - exact.expected_returns(tree, mixture).sum())
