"""Equilibria of zero-sum matrix games, and the Nash average of several players.

SciPy comes with JAX, which requires it.
"""

import numpy as np
from scipy import optimize, special

TIGHT = 1e-9
"""Probability below which a player has no part in any equilibrium."""


def solve_zero_sum(payoffs: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Solve a zero-sum matrix game.

    Args:
        payoffs: float [M, N]. Payoff of the row player, who maximizes it.

    Returns:
        Equilibrium strategies of the row player [M] and of the column player [N], and the value of the game.
    """
    rows, value = _maximin(payoffs)
    return rows, _maximin(-payoffs.T)[0], value


def _maximin(payoffs: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the strategy [M] with the highest guaranteed payoff, and that payoff."""
    m, n = payoffs.shape
    solution = optimize.linprog(
        c=np.append(np.zeros(m), -1.0),  # the last variable is the guaranteed payoff
        A_ub=np.column_stack([-payoffs.T, np.ones(n)]),
        b_ub=np.zeros(n),
        A_eq=np.append(np.ones(m), 0.0)[None],
        b_eq=[1.0],
        bounds=[*[(0, None)] * m, (None, None)],
    )
    strategy = np.maximum(solution.x[:m], 0.0)
    return strategy / strategy.sum(), float(solution.x[m])


def nash_average(payoffs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rate players against the equilibrium of the game of choosing one of them.

    Of all equilibria, the one with the highest entropy counts (Balduzzi et al., 2018). Unlike a mean or Elo, the rating
    does not change when players are copied: copies share the probability of their original.

    Args:
        payoffs: float [N, N]. Payoff of row against column, antisymmetric.

    Returns:
        The equilibrium [N], and the expected payoff of every player against it [N]: 0 for its members, at most 0 for
        the others.
    """
    payoffs = np.asarray(payoffs, float)
    if not np.allclose(payoffs, -payoffs.T):
        raise ValueError("payoffs must be antisymmetric: payoffs[i, j] is not -payoffs[j, i]")
    # In equilibrium p, no player gains against it: payoffs @ p <= 0. Members of some equilibrium gain exactly 0.
    members = np.flatnonzero([_largest_share(payoffs, i) > TIGHT for i in range(len(payoffs))])
    own = payoffs[:, members]

    def dual(multipliers: np.ndarray) -> tuple[float, np.ndarray]:
        scores = -multipliers @ own
        return float(np.logaddexp.reduce(scores)), -own @ special.softmax(scores)

    inside = np.isin(np.arange(len(payoffs)), members)
    bounds = [(None, None) if member else (0, None) for member in inside]
    options = {"maxiter": 10_000, "ftol": 1e-16, "gtol": 1e-12}
    solution = optimize.minimize(
        dual, np.zeros(len(payoffs)), jac=True, bounds=bounds, method="L-BFGS-B", options=options
    )
    strategy = np.zeros(len(payoffs))
    strategy[members] = special.softmax(-solution.x @ own)
    return strategy, payoffs @ strategy


def _largest_share(payoffs: np.ndarray, player: int) -> float:
    """Return the largest probability of a player in any equilibrium."""
    n = len(payoffs)
    solution = optimize.linprog(
        c=-np.eye(n)[player], A_ub=payoffs, b_ub=np.zeros(n), A_eq=np.ones((1, n)), b_eq=[1.0], bounds=(0, None)
    )
    return float(solution.x[player])
