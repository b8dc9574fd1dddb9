"""Optimal play of matrix games."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.matrix.rules import Matrix, MatrixState


@dataclasses.dataclass(frozen=True)
class OptimalBot:
    """A bot that plays its part of a joint action with the highest return."""

    game: Matrix

    def act(self, state: MatrixState, key: jax.Array) -> jax.Array:
        """Return the seat's choice: int32 []."""
        best, _ = solve(self.game)
        stage = jnp.minimum(state.stage, self.game.n_stages - 1)
        return jnp.where(self.game.done(state), 0, jnp.asarray(best)[stage, self.game.player(state)])


def solve(game: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """Compute the best joint action of every state by backward induction.

    Returns:
        Choices int32 [states, 2], and the optimal returns float [states + 1], 0 at the end.
    """
    payoffs, links = np.asarray(game.payoffs, float), game.links()
    best, values = np.zeros((game.n_stages, 2), np.int32), np.zeros(game.n_stages + 1)
    for stage in reversed(range(game.n_stages)):
        returns = payoffs[stage] + values[links[stage]]
        best[stage] = np.unravel_index(np.argmax(returns), returns.shape)
        values[stage] = returns.max()
    return best, values
