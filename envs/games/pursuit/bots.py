"""A bot that plays the pursuit game perfectly in every seat."""

import dataclasses

import jax
import jax.numpy as jnp

from envs.games.bots import pick
from envs.games.pursuit import solver
from envs.games.pursuit.rules import Pursuit, PursuitState


@dataclasses.dataclass(frozen=True)
class SolverBot:
    """A bot that sees the full grid and samples uniformly among the best moves."""

    game: Pursuit

    def act(self, state: PursuitState, key: jax.Array) -> jax.Array:
        """Sample a best move: int32 []; 0 if the game is over."""
        lost = solver.rounds_lost(self.game.shape, state.cells, self.game.player(state))
        return jnp.where(state.over, 0, pick(lost == 0, key))
