"""Payoffs between the members of a population, and their mixture."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from envs.games import exact
from envs.games.equilibria import nash_average
from envs.games.psro import least_exploitable, with_newest
from marl_jax.evaluation.contestants import Contestant, find_contestant
from marl_jax.evaluation.exact_play import ExactPlay, is_exact
from marl_jax.evaluation.match_results import in_turns, new_match, points_of
from marl_jax.setup.games import GameSetup


class Standings(NamedTuple):
    """A population of K members with its mixture.

    Attributes:
        names: Names of the members.
        payoffs: float64 [K, K]. Expected return of row against column, averaged over the seats.
        shares: float64 [K]. Probability of each member in the mixture, which draws one for each game.
        opponents: float64 [K]. Share of each member among the opponents of the next response.
        exploitability: Exploitability of the mixture; None if it cannot be computed exactly.
        best_gain: Exploitability of the opponents; None if it cannot be computed exactly.
        of_members: Exploitability of each member; None if it cannot be computed exactly.
    """

    names: tuple[str, ...]
    payoffs: np.ndarray
    shares: np.ndarray
    opponents: np.ndarray
    exploitability: float | None = None
    best_gain: float | None = None
    of_members: tuple[float, ...] | None = None


class Population:
    """The members of a population that play each other.

    Payoffs are exact in games with a small tree. Otherwise every pair plays `eval.games` games, and the payoff is the
    mean return in games with stakes, or the points above one half.

    Args:
        setup: Parts of a member; all members have the same models and game.
        meta_solver: `config.population.meta_solver`.
    """

    def __init__(self, setup: GameSetup, meta_solver: str = "nash"):
        self._meta_solver = meta_solver
        self._setup, self._game = setup, setup.game.held_out()
        self._exact = ExactPlay(self._game, setup.seated(), setup.config.rollout.num_envs) if is_exact(setup) else None
        self._policies: list[np.ndarray] = []
        self._members: list[Contestant] = []
        self._payoffs = np.zeros((0, 0))
        self._match = None
        self.names: list[str] = []

    def add(self, folder: Path) -> None:
        """Add the newest policy of a run and compute its payoffs against all members."""
        member = dataclasses.replace(find_contestant(str(folder), self._setup), name=folder.name)
        self.names.append(member.name)
        with jax.set_mesh(self._setup.mesh):
            if self._exact is None:
                self._members.append(member)
                self._payoffs = self._with_newest()
            else:
                assert member.weights is not None
                self._policies.append(self._exact.policy(member.weights))
                self._payoffs = with_newest(self._exact.tree, self._payoffs, self._policies)

    def standings(self) -> Standings:
        """Return the payoffs, the mixture of the members, and the opponents of the next response.

        The opponents are the mixture in equilibrium. The least exploitable mixture may have no use for a response, and
        the next one would answer the same mixture again. So its opponents are half this mixture, half the equilibrium.
        """
        payoffs = (self._payoffs - self._payoffs.T) / 2  # the exact ones are those of seat 0
        names, shares = tuple(self.names), nash_average(payoffs)[0]
        if self._exact is None:
            return Standings(names, payoffs, shares, shares)
        opponents = shares
        if self._meta_solver == "least_exploitable":
            shares = least_exploitable(self._exact.tree, self._policies).shares
            opponents = (shares + opponents) / 2
        of_members = tuple(exact.exploitability(self._exact.tree, policy) for policy in self._policies)
        mixed, answered = self._exploitability(shares), self._exploitability(opponents)
        return Standings(names, payoffs, shares, opponents, mixed, answered, of_members)

    def _exploitability(self, shares: np.ndarray) -> float:
        """Return the exploitability of a mixture of the members."""
        assert self._exact is not None
        mixture = exact.mixture(self._exact.tree, np.stack(self._policies), np.stack([shares, shares]))
        return exact.exploitability(self._exact.tree, mixture)

    def _with_newest(self) -> np.ndarray:
        """Return the payoffs [K, K], given those of all members but the newest."""
        payoffs, newest = np.pad(self._payoffs, ((0, 1), (0, 1))), len(self._members) - 1
        for k, other in enumerate(self._members[:-1]):
            payoffs[newest, k] = self._mean_payoff(self._members[newest], other)
            payoffs[k, newest] = -payoffs[newest, k]
        return payoffs

    def _mean_payoff(self, one: Contestant, other: Contestant) -> float:
        """Return the mean payoff of `one` against `other` in games with exchanged seats."""
        config, game = self._setup.config.eval, self._game
        if self._match is None:
            self._match = new_match(game, (one.plays, other.plays))
        seating, weights = in_turns(self._match, config.games), (one.weights, other.weights)
        played = jax.device_get(self._match(weights, seating, jax.random.key(config.seed), config.temperature))
        seat = np.argmax(seating == 0, axis=1)
        if game.stakes:
            return float(played.total.agent[np.arange(len(seat)), seat].mean())
        return float(points_of(played.total.agent, seat, game.sides).mean() - 0.5)
