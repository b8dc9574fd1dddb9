"""A bot that plays an equilibrium of a small game, solved once on the host and looked up inside jit."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import exact
from envs.games.game import Game, State

ITERATIONS = 200


@functools.cache
def _table(game: Game) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every information set its seat and number, int32 [I], and the probabilities of the actions, float32 [I, A]."""
    tree = exact.build(game)
    policy = exact.solve(tree, ITERATIONS)
    return tree.seat.astype(np.int32), tree.codes.astype(np.int32), policy.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class EquilibriumBot:
    """Draws its actions from a policy that hardly anything gains against."""

    game: Game

    def act(self, state: State, key: jax.Array) -> jax.Array:
        """A legal action: int32[]; 0 when the game is over."""
        seats, codes, policy = _table(self.game)
        seat = self.game.player(state)
        known = (codes == self.game.information(state, seat)) & (seats == seat)
        chosen = jax.random.categorical(key, jnp.log(jnp.asarray(policy)[jnp.argmax(known)]))
        return jnp.where(self.game.done(state), 0, chosen).astype(jnp.int32)
