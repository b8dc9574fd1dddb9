"""Cooperative matrix games: two players choose simultaneously and share a reward.

A game has one or more states, each with a payoff matrix. A joint action leads to a later state or ends the game. The
second player moves after the first one, but sees nothing of that move until the round is over.

Presets:

- `two_step` (the default), from Rashid et al. 2018 (QMIX): the first player picks a state in which every joint action
  gives 7, or one with payoffs from 0 to 8. A sum of individual values cannot represent the second one.
- `qtran`, from Son et al. 2019: the best joint action is next to the worst ones, so no monotonic mixing finds it.
- `climbing` and `penalty`, from Claus and Boutilier 1998.
"""

import dataclasses
import string
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.game import Game, Reward, keep_if_done, legal_or_end

Matrices = tuple[tuple[tuple[float, ...], ...], ...]
Links = tuple[tuple[tuple[int, ...], ...], ...]
END = -1
"""Entry of `leads_to` that ends the game."""

TWO_STEP: Matrices = (((0, 0), (0, 0)), ((7, 7), (7, 7)), ((0, 1), (1, 8)))
TWO_STEP_LINKS: Links = (((1, 1), (2, 2)),)


class MatrixState(NamedTuple):
    """State of a game.

    Attributes:
        stage: int32 []. Index of the payoff matrix; the number of matrices if the game is over.
        first: int32 []. Choice of the first player in this round, -1 before it.
    """

    stage: jax.Array
    first: jax.Array


@dataclasses.dataclass(frozen=True)
class Matrix(Game):
    """A cooperative matrix game for two players.

    Attributes:
        payoffs: Reward of every joint action: [state][choice of the first player][choice of the second player].
        leads_to: The same for the index of the next state, -1 for the end. States without an entry end the game.
    """

    payoffs: Matrices = TWO_STEP
    leads_to: Links = TWO_STEP_LINKS

    name: ClassVar[str] = "matrix"
    reset_is_free: ClassVar[bool] = True
    simultaneous: ClassVar[bool] = True
    reward_levels: ClassVar[tuple[str, ...]] = ("team",)
    n_players: ClassVar[int] = 2
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "two_step": dict(payoffs=TWO_STEP, leads_to=TWO_STEP_LINKS),
        "qtran": dict(payoffs=(((8, -12, -12), (-12, 0, 0), (-12, 0, 0)),), leads_to=()),
        "climbing": dict(payoffs=(((11, -30, 0), (-30, 7, 6), (0, 0, 5)),), leads_to=()),
        "penalty": dict(payoffs=(((10, 0, -10), (0, 2, 0), (-10, 0, 10)),), leads_to=()),
    }

    def __post_init__(self):
        for field in ("payoffs", "leads_to"):  # configs may contain lists
            value = tuple(tuple(map(tuple, matrix)) for matrix in getattr(self, field))
            object.__setattr__(self, field, value)
        if not self.payoffs or not self.payoffs[0]:
            raise ValueError("matrix: payoffs is empty, but must have at least one matrix")
        n = len(self.payoffs[0])
        if n > len(string.ascii_uppercase):
            raise ValueError(f"matrix: payoffs has {n} actions, but must have at most {len(string.ascii_uppercase)}")
        if len(self.leads_to) > len(self.payoffs):
            raise ValueError(
                f"matrix: leads_to has {len(self.leads_to)} matrices, but must have at most {len(self.payoffs)}"
            )
        for field in ("payoffs", "leads_to"):
            for matrix in getattr(self, field):
                if len(matrix) != n or any(len(row) != n for row in matrix):
                    raise ValueError(f"matrix: {field} has {matrix!r}, but every matrix must be {n} by {n}")
        for stage, matrix in enumerate(self.leads_to):
            for following in (entry for row in matrix for entry in row):
                if following != END and not stage < following < len(self.payoffs):
                    raise ValueError(
                        f"matrix: leads_to has {following} in state {stage}, but must be -1 or a later state, at most "
                        f"{len(self.payoffs) - 1}"
                    )

    @property
    def n_stages(self) -> int:
        """Number of states before the end."""
        return len(self.payoffs)

    @property
    def n_actions(self) -> int:
        """A: number of choices."""
        return len(self.payoffs[0])

    @property
    def max_turns(self) -> int:
        """Maximum number of moves: two in every state."""
        return 2 * self.n_stages

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names of the choices: A, B, C and so on."""
        return tuple(string.ascii_uppercase[: self.n_actions])

    def links(self) -> np.ndarray:
        """Return the next state of every joint action: int32 [states, A, A].

        The end is the number of states.
        """
        table = np.full((self.n_stages, self.n_actions, self.n_actions), END, np.int32)
        if self.leads_to:
            table[: len(self.leads_to)] = self.leads_to
        return np.where(table == END, self.n_stages, table).astype(np.int32)

    def reset(self, key: jax.Array) -> MatrixState:
        """Return the first state."""
        return MatrixState(jnp.int32(0), jnp.int32(-1))

    def player(self, state: MatrixState) -> jax.Array:
        """Return the seat that moves next: int32 []."""
        return (state.first >= 0).astype(jnp.int32)

    def legal(self, state: MatrixState) -> jax.Array:
        """Return the legal actions; all are always legal: bool [A]."""
        return legal_or_end(jnp.ones((self.n_actions,), bool), self.done(state))

    def step(self, state: MatrixState, action: jax.Array) -> tuple[MatrixState, Reward]:
        """Remember the choice of the first player, or play the joint action."""
        over, complete = self.done(state), state.first >= 0
        joint = (jnp.minimum(state.stage, self.n_stages - 1), jnp.maximum(state.first, 0), action)
        following = jnp.where(complete, jnp.asarray(self.links())[joint], state.stage)
        new = MatrixState(following, jnp.where(complete, -1, action).astype(jnp.int32))
        payoff = jnp.where(complete & ~over, jnp.asarray(self.payoffs, jnp.float32)[joint], 0.0)
        return keep_if_done(over, state, new), Reward(payoff, jnp.zeros(2), jnp.zeros(2))

    def done(self, state: MatrixState) -> jax.Array:
        """Return whether the game is over: bool []."""
        return state.stage == self.n_stages
