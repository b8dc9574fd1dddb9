"""Policy-space response oracles: populations of policies in small two-player zero-sum games.

Every round solves the matrix game of choosing one policy of the population, and adds a response to the equilibrium
mixture (Lanctot et al., 2017). With exact best responses this is the double oracle method, which ends in an equilibrium
of the game:

    tree = exact.build(make("kuhn"))
    *_, last = psro(tree, functools.partial(exact_response, tree), rounds=20)
    last.nash_conv, last.value             # 0.0 and -1/18

Between the first round and the last, that mixture may become more exploitable, because the matrix game leaves out all
other policies. `least_exploitable` solves the game of the population against all policies instead (McAleer et al.,
2022), so that another member never makes the mixture more exploitable.

Axis letters: K policies of the population, J best responses, I information sets, A actions, P = 2 seats.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize

from envs.games import exact
from envs.games.equilibria import solve_zero_sum
from envs.games.exact import GameTree


class Round(NamedTuple):
    """A population and its mixture.

    Attributes:
        policies: float64 [K, I, A]. Policies for both seats.
        payoffs: float64 [K, K]. Expected return of seat 0, played by the row policy, against the column policy.
        weights: float64 [P, K]. Shares of the policies in each seat.
        mixture: float64 [I, A]. The mixture as one policy.
        nash_conv: Gain of exact best responses to the mixture, summed over the seats.
        value: Expected return of seat 0 if both seats play the mixture.
        response_gap: Difference between the gains of an exact best response and of the newest policy against the policy
            that it responds to; 0 for exact best responses and for the first policy.
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
    meta_solver: str = "nash",
) -> Iterator[Round]:
    """Grow a population and yield it after each round, until its mixture is an equilibrium.

    Args:
        tree: Tree of a two-player zero-sum game.
        respond: Function that returns a policy [I, A] against another one [I, A]: the mixture, or with
            `least_exploitable` the adversary. Each seat plays against the other seat.
        rounds: Maximum number of policies, K.
        first: First policy; the uniform one by default.
        tolerance: NashConv at which the population is complete.
        meta_solver: Mixture of the policies; `nash` or `least_exploitable`.
    """
    if tree.game.n_players != 2 or not np.allclose(tree.returns.sum(1), 0):
        raise ValueError(f"{tree.game.name} is not a two-player zero-sum game, which a population requires")
    policies = [tree.uniform() if first is None else first]
    payoffs, gap = np.zeros((0, 0)), 0.0
    while True:
        payoffs = with_newest(tree, payoffs, policies)
        if meta_solver == "nash":
            weights, target = np.stack(solve_zero_sum(payoffs)[:2]), None
        else:
            shares, _, target = least_exploitable(tree, policies, tolerance)
            weights = np.stack([shares, shares])
        mixture = exact.mixture(tree, np.stack(policies), weights)
        nash_conv, value = exact.nash_conv(tree, mixture), exact.expected_returns(tree, mixture)[0]
        yield Round(np.stack(policies), payoffs, weights, mixture, nash_conv, float(value), gap)
        if nash_conv < tolerance or len(policies) >= rounds:
            return
        target = mixture if target is None else target
        policies.append(respond(target))
        gap = exact.nash_conv(tree, target) - _gain(tree, policies[-1], target)


class LeastExploitable(NamedTuple):
    """The mixture of a population with the lowest NashConv.

    Attributes:
        shares: float64 [K]. Probability of each policy, for both seats.
        nash_conv: NashConv of the mixture.
        adversary: float64 [I, A]. Mixture of best responses that gains at least `nash_conv`, up to the tolerance,
            against every policy of the population. A policy that does better against it lowers `nash_conv`.
    """

    shares: np.ndarray
    nash_conv: float
    adversary: np.ndarray


def least_exploitable(tree: GameTree, policies: Sequence[np.ndarray], tolerance: float = 1e-4) -> LeastExploitable:
    """Compute the mixture of policies whose best responses gain least.

    A mixture draws one policy per game, so what a response earns is linear in the shares, and NashConv is the maximum
    over all responses. Cutting planes: a linear program minimizes it over the responses so far, which bounds it from
    below, and the best responses to its solution are added until that bound is reached.

    Args:
        tree: Tree of a two-player zero-sum game.
        policies: Policies [I, A].
        tolerance: Largest difference between the NashConv of the result and the lowest one.
    """
    shares, best = np.full(len(policies), 1.0 / len(policies)), None
    responses, earned = [], []
    while True:
        mixture = exact.mixture(tree, np.stack(policies), np.stack([shares, shares]))
        responses.append(exact_response(tree, mixture))
        earned.append([_earned(tree, responses[-1], policy) for policy in policies])
        nash_conv = float(shares @ np.sum(earned[-1], axis=1))
        if best is None or nash_conv < best[1]:
            best = shares, nash_conv
        shares, lowest, weights = _minimax(np.array(earned))
        if best[1] - lowest <= tolerance:
            return LeastExploitable(*best, exact.mixture(tree, np.stack(responses), weights))


def _minimax(earned: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
    """Minimize the sum over the seats of what the best of several responses earns.

    Args:
        earned: float64 [J, K, P]. Expected return of each response against each policy, by the response's seat.

    Returns:
        The shares of the policies [K], the sum, and the weights of the responses [P, J] that earn it against any
        shares.
    """
    n, k, seats = earned.shape
    per_seat = np.repeat(np.eye(seats), n, axis=0)
    solution = optimize.linprog(
        c=np.append(np.zeros(k), np.ones(seats)),  # the last variables are what the best response of each seat earns
        A_ub=np.column_stack([np.moveaxis(earned, 2, 0).reshape(-1, k), -per_seat]),
        b_ub=np.zeros(n * seats),
        A_eq=np.append(np.ones(k), np.zeros(seats))[None],
        b_eq=[1.0],
        bounds=[*[(0, None)] * k, *[(None, None)] * seats],
    )
    shares = np.maximum(solution.x[:k], 0.0)
    weights = np.maximum(-solution.ineqlin.marginals, 0.0).reshape(seats, n)
    return shares / shares.sum(), float(solution.fun), weights / weights.sum(1, keepdims=True)


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
    return float(sum(_earned(tree, policy, mixture)) - exact.expected_returns(tree, mixture).sum())


def _earned(tree: GameTree, policy: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Return the expected return of a policy in each seat against another one."""
    first = exact.expected_returns(tree, seated(tree, policy, other))[0]
    return first, exact.expected_returns(tree, seated(tree, other, policy))[1]
