"""Exact play: a team asked for its whole policy in a small game, every information set in one batch.

Answers that name an action have a probability each, so that nothing has to be sampled: the policy is a table, and what
a best response gains against it is computed over the whole tree (`envs/games/exact.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import exact
from envs.games.game import Game
from marl_jax.agents import scoring
from marl_jax.algorithms.algorithm import in_parts
from marl_jax.rollouts.games import look
from marl_jax.rollouts.seated_team import SeatedTeam
from marl_jax.samples import Samples, from_prompts
from models.sharding import whole


class Exploited(NamedTuple):
    """How far a policy is from an equilibrium.

    nash_conv       what the seats could gain by best responses, one seat at a time, added up
    exploitability  that by the number of seats
    returns         of each seat where all play the policy
    """

    nash_conv: float
    exploitability: float
    returns: tuple[float, ...]


class ExactPlay:
    """Asks a seated team, at the temperature with which it trains.

        play = ExactPlay(game, seated, rows=256)
        play(weights).exploitability

    rows  prompts that are read at once, at most
    """

    def __init__(self, game: Game, seated: SeatedTeam, rows: int):
        self.tree = exact.build(game)
        self._game, self._seated = game, seated
        n = len(self.tree.codes)
        self._parts = next(parts for parts in range(1, n + 1) if n % parts == 0 and n // parts <= max(rows, 1))
        self._program = jax.jit(self._ask)

    def __call__(self, weights: dict[str, dict]) -> Exploited:
        """What best responses gain against the team with these weights."""
        policy = self.policy(weights)
        gain = exact.nash_conv(self.tree, policy)
        returns = exact.expected_returns(self.tree, policy)
        return Exploited(gain, gain / len(returns), tuple(returns.tolist()))

    def policy(self, weights: dict[str, dict]) -> np.ndarray:
        """The probability of every action in every information set of the tree: float64 [I, A]."""
        found = np.where(self.tree.legal, np.asarray(self._program(weights), np.float64), 0.0)
        return found / found.sum(1, keepdims=True)  # float32 does not add up to 1 exactly

    def _ask(self, weights: dict[str, dict]) -> jax.Array:
        team, tree = self._seated.team, self.tree
        states = jax.tree.map(jnp.asarray, tree.states)
        number = self._seated.policy(jnp.asarray(tree.seat), jnp.asarray(tree.turn))
        seen = look(self._game, team, states, jnp.asarray(tree.seat), number)
        likely = jnp.zeros(tree.legal.shape, jnp.float32)
        for backbone in team.backbones:
            samples = team.own(self._every_answer(seen, number, backbone.policy.answers), backbone.number)

            def logps(part: Samples, backbone=backbone) -> jax.Array:
                return part.to_completions(scoring.answer_logps(backbone.policy, weights[backbone.name], part))

            own = team.own_ids(number, backbone.number) >= 0
            likely = jnp.where(own[:, None], jnp.exp(in_parts(logps, samples, self._parts)), likely)
        return whole(likely)

    def _every_answer(self, seen, number: jax.Array, answers) -> Samples:
        """Each prompt with the answers that name the actions, legal or not."""
        n, a = self.tree.legal.shape
        ids, lengths = answers.written()
        width = self._seated.team.width
        ids = np.pad(ids, ((0, 0), (0, width - ids.shape[1])))
        return from_prompts(
            seen.prompts,
            seen.lengths,
            jnp.broadcast_to(jnp.asarray(ids), (n, a, width)),
            jnp.broadcast_to(jnp.asarray(lengths), (n, a)),
            jnp.zeros((n, a, width)),
            skip=seen.skip,
            policy=number,
            seat=jnp.broadcast_to(seen.seat[:, None], (n, a)),
            action=jnp.broadcast_to(jnp.arange(a), (n, a)),
            legal=jnp.broadcast_to(seen.legal[:, None], (n, a, a)),
            rewards=jnp.zeros((n, a, self._game.n_players)),
        )
