"""Exact evaluation of a team in a small game.

The policy is computed in every information set. Constrained completions have a known probability, so nothing has to be
sampled, and the gain of a best response is computed over the full game tree (`envs/games/exact.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import exact
from envs.games.game import Game
from marl_jax.agents import scoring
from marl_jax.rollouts.games import look
from marl_jax.rollouts.seated_team import SeatedTeam
from marl_jax.samples import Samples, from_prompts, in_parts
from marl_jax.setup.games import GameSetup
from models.sharding import whole


class Exploited(NamedTuple):
    """Distance of a policy from a Nash equilibrium.

    Attributes:
        nash_conv: Sum over seats of the gain from a best response in that seat.
        exploitability: `nash_conv` divided by the number of seats.
        returns: Expected return of each seat if all seats play the policy.
    """

    nash_conv: float
    exploitability: float
    returns: tuple[float, ...]


def is_exact(setup: GameSetup) -> bool:
    """Return whether the exact policy of a team can be computed in every information set."""
    c = setup.config
    seats = range(setup.game.n_players)
    return (
        setup.game.n_deals > 0
        and c.rollout.completion == "constrained"
        and c.env.context == "turn"
        and not any(setup.seating.has_bot(seat) for seat in seats)
    )


class ExactPlay:
    """Exact evaluation of a seated team at its training temperature.

        play = ExactPlay(game, seated, rows=256)
        play(weights).exploitability

    Args:
        game: A game with few information sets.
        seated: The team.
        rows: Maximum number of prompts per batch.
    """

    def __init__(self, game: Game, seated: SeatedTeam, rows: int):
        self.tree = exact.build(game)
        self._game, self._seated = game, seated
        n = len(self.tree.codes)
        self._parts = next(parts for parts in range(1, n + 1) if n % parts == 0 and n // parts <= max(rows, 1))
        self._program = jax.jit(self._ask)

    def __call__(self, weights: dict[str, dict]) -> Exploited:
        """Compute the gain of best responses against the team."""
        policy = self.policy(weights)
        gain = exact.nash_conv(self.tree, policy)
        returns = exact.expected_returns(self.tree, policy)
        return Exploited(gain, gain / len(returns), tuple(returns.tolist()))

    def policy(self, weights: dict[str, dict]) -> np.ndarray:
        """Return the probability of every action in every information set: float64 [I, A]."""
        likely = np.where(self.tree.legal, np.asarray(self._program(weights), np.float64), 0.0)
        return likely / likely.sum(1, keepdims=True)  # float32 does not sum to 1 exactly

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
        """Return each prompt with the completions of all actions, legal or not."""
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
            media=seen.media,
            policy=number,
            seat=jnp.broadcast_to(seen.seat[:, None], (n, a)),
            action=jnp.broadcast_to(jnp.arange(a), (n, a)),
            legal=jnp.broadcast_to(seen.legal[:, None], (n, a, a)),
            rewards=jnp.zeros((n, a, self._game.n_players)),
        )
