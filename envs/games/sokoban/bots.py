"""The Sokoban solver as a bot, a host callback inside jit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.sokoban.levels import boxes_of, goals_of, player_of
from envs.games.sokoban.rules import SokobanState, cells
from envs.games.sokoban.solver import BOX, BOX_ON_GOAL, FLOOR, GOAL, PLAYER, PLAYER_ON_GOAL, SearchLimit, solve


def advance(codes: np.ndarray, action: int) -> np.ndarray:
    """Return the board uint8 [h, w] after a move that is not blocked."""
    after = codes.copy()
    flat, goal = after.reshape(-1), goals_of(codes).reshape(-1)
    step = (-codes.shape[1], codes.shape[1], -1, 1)[action]
    here = int(np.argmax(player_of(codes)))
    if boxes_of(flat[here + step]):
        flat[here + 2 * step] = BOX_ON_GOAL if goal[here + 2 * step] else BOX
    flat[here + step] = PLAYER_ON_GOAL if goal[here + step] else PLAYER
    flat[here] = GOAL if goal[here] else FLOOR
    return after


@dataclasses.dataclass(frozen=True)
class SokobanSolver:
    """A bot that plays a solution, and replans if the position leaves it.

    Solutions have the fewest moves for up to two boxes, and the fewest pushes for more. If none is found within
    `max_nodes` positions, the bot goes up, which is legal unless blocked moves are masked. Inside jit the solver is a
    host callback, which is fine for demonstrations and evaluation, but slow in large batches.

    Attributes:
        max_nodes: Maximum number of positions to search.
        plans: Next move for every board of every plan. The bot follows a plan to its end: replanning at every move
            could alternate between equally good plans forever.
    """

    max_nodes: int = 50_000
    plans: dict[bytes, int] = dataclasses.field(default_factory=dict, init=False, repr=False, compare=False)

    def act(self, state: SokobanState, key: jax.Array) -> jax.Array:
        """Return the next move of the plan: int32 []."""
        codes = cells(state).astype(jnp.uint8).reshape(state.ground.shape)
        return jax.pure_callback(self.moves, jax.ShapeDtypeStruct((), jnp.int32), codes, vmap_method="expand_dims")

    def moves(self, codes: np.ndarray) -> np.ndarray:
        """Return the moves for boards uint8 [..., h, w], on the host: int32 [...]."""
        codes = np.asarray(codes, np.uint8)
        boards = codes.reshape(-1, *codes.shape[-2:])
        return np.array([self._move(board) for board in boards], np.int32).reshape(codes.shape[:-2])

    def _move(self, codes: np.ndarray) -> int:
        name = bytes(codes.shape) + codes.tobytes()
        if name not in self.plans:
            objective = "moves" if boxes_of(codes).sum() <= 2 else "pushes"
            try:
                plan = solve(codes, objective, self.max_nodes) or ()
            except SearchLimit:
                plan = ()
            self.plans[name] = plan[0] if plan else 0
            for action, after in zip(plan, plan[1:], strict=False):
                codes = advance(codes, action)
                self.plans[bytes(codes.shape) + codes.tobytes()] = after
        return self.plans[name]
