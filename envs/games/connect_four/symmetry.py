"""The mirror image of the board, for self-play augmentation."""

import dataclasses

import jax
import jax.numpy as jnp

from envs.games.connect_four.rules import COLUMNS, Board, ConnectFour, ConnectFourState, Word, select


@dataclasses.dataclass(frozen=True)
class ConnectFourSymmetry:
    """Symmetries of connect four: 0 is the identity, 1 swaps left and right.

    They satisfy `step(apply(s, i), map_action(a, i)) == apply(step(s, a), i)`.
    """

    game: ConnectFour

    @property
    def n_symmetries(self) -> int:
        """Number of symmetries: the identity and the mirror image."""
        return 2

    def apply(self, state: ConnectFourState, i: jax.Array) -> ConnectFourState:
        """Apply symmetry `i` (int [], 0 or 1) to a position."""
        flip = jnp.asarray(i) == 1
        return state._replace(
            first=select(flip, _mirror(state.first), state.first),
            second=select(flip, _mirror(state.second), state.second),
        )

    def map_action(self, action: jax.Array, i: jax.Array) -> jax.Array:
        """Map a column to its equivalent under symmetry `i`: int32 []."""
        return jnp.where(jnp.asarray(i) == 1, COLUMNS - 1 - action, action).astype(jnp.int32)


def _mirror(board: Board) -> Board:
    """Reverse the seven bytes: column c becomes column 6 - c."""
    left, right = _reverse_bytes(board.left), _reverse_bytes(board.right)
    # The reversed words hold columns 3 2 1 0 and (nothing) 6 5 4. All move down by one byte; column 3 joins the left.
    return Board(right >> 8 | left << 24, left >> 8)


def _reverse_bytes(word: Word) -> Word:
    return word << 24 | (word & 0xFF00) << 8 | word >> 8 & 0xFF00 | word >> 24
