"""Two roles for a one-player puzzle: a planner proposes moves, an executor makes them.

Axis letters: P = 2 players, A actions, C cells.

Seat 0 plans and seat 1 executes, in turns. Both use the actions of the puzzle, and the executor may ignore the
proposal. The executor gets the agent and process rewards of the puzzle, and both get the team reward. The planner gets
a process reward for the total that its proposal would have earned, computed by a trial step that does not change the
puzzle. The reward of a proposal thus depends on that proposal only, not on later moves of the executor. With the view
"local" the executor sees only its surroundings (`visible`), so that the proposal has to convey the rest. With the view
"half" neither seat sees the half of the other.

Without proposals only the executor has turns. The planner can then send soft messages (`speakers`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.game import Bot, Game, Reward, State, check_choice, check_range
from envs.games.puzzle import Puzzle, upper_rows

PLANNER, EXECUTOR = 0, 1
NO_PROPOSAL = -1
VIEWS = ("full", "local")
ROLE_VIEWS = (*VIEWS, "half")
REWARD_PARAMS = frozenset({"planner_weight"})
"""Parameters of `TwoRole` that change rewards."""


class RoleState(NamedTuple):
    """State of a puzzle with planner and executor.

    Attributes:
        inner: State of the puzzle.
        proposal: int32 []. Proposed action, -1 before the proposal.
        phase: int32 []. Seat to move: 0 planner, 1 executor.
    """

    inner: State
    proposal: jax.Array
    phase: jax.Array


@dataclasses.dataclass(frozen=True)
class TwoRole(Game):
    """A puzzle played by a planner and an executor.

    Attributes:
        game: The puzzle.
        view: "full" if both see the board, "local" if the executor sees `radius` cells around itself, "half" if the
            planner sees the upper half and the executor the lower one. Both also see the cell of the figure that moves
            (in Sudoku, the cells that touch the proposed one).
        radius: Distance that the executor sees in the local view.
        planner_weight: Share of the total reward of its proposal that the planner gets.
        proposes: Whether the planner proposes every move. Otherwise only the executor has turns.
    """

    game: Puzzle
    view: str = "full"
    radius: int = 1
    planner_weight: float = 1.0
    proposes: bool = True

    n_players: ClassVar[int] = 2
    roles: ClassVar[tuple[str, ...]] = ("planner", "executor")
    solvable: ClassVar[bool] = True
    has_levels: ClassVar[bool] = True
    speakers: ClassVar[tuple[int, ...]] = (-1, PLANNER)

    def __post_init__(self):
        if not isinstance(self.game, Puzzle):
            raise ValueError(f"game is {self.game!r}, but two roles require a one-player puzzle")
        check_choice(self.name, "view", self.view, ROLE_VIEWS)
        check_range(self.name, "radius", self.radius, 1, 16)

    @property
    def name(self) -> str:
        """Name of the puzzle, which selects its rules, text, bots and drawings."""
        return self.game.name

    @property
    def n_actions(self) -> int:
        """A: number of actions of the puzzle."""
        return self.game.n_actions

    @property
    def max_turns(self) -> int:
        """Maximum number of turns: two for each move of the puzzle, or one without proposals."""
        return self.game.max_turns * (2 if self.proposes else 1)

    @property
    def action_names(self) -> tuple[str, ...]:
        """Action names of the puzzle."""
        return self.game.action_names

    @property
    def n_levels(self) -> int:
        """Number of levels from which episodes are drawn."""
        return self.game.n_levels

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the board."""
        return self.game.shape

    @property
    def symbols(self) -> tuple[str, ...]:
        """One character for every code in `cells`."""
        return self.game.symbols

    @property
    def _first(self) -> int:
        return PLANNER if self.proposes else EXECUTOR

    def _begin(self, inner: State) -> RoleState:
        return RoleState(inner=inner, proposal=jnp.int32(NO_PROPOSAL), phase=jnp.int32(self._first))

    def reset(self, key: jax.Array) -> RoleState:
        """Return the first state of a sampled level."""
        return self._begin(self.game.reset(key))

    def reset_among(self, key: jax.Array, count: jax.Array | int) -> RoleState:
        """Return the first state of a level sampled from the `count` easiest."""
        return self._begin(self.game.reset_among(key, count))

    def reset_level(self, index: jax.Array | int) -> RoleState:
        """Return the first state of level `index`."""
        return self._begin(self.game.reset_level(index))

    def reset_from_level(self, level: dict[str, Any], index: jax.Array | int = -1) -> RoleState:
        """Return the first state of a level given by its arrays."""
        return self._begin(self.game.reset_from_level(level, index))

    def player(self, state: RoleState) -> jax.Array:
        """Return the seat to move: int32 [].

        Planner and executor take turns if there are proposals.
        """
        return state.phase

    def legal(self, state: RoleState) -> jax.Array:
        """Return the legal moves of the puzzle, also for proposals: bool [A]."""
        return self.game.legal(state.inner)

    def step(self, state: RoleState, action: jax.Array) -> tuple[RoleState, Reward]:
        """Record a proposal, or make a move."""
        planning = state.phase == PLANNER
        after, earned = self.game.step(state.inner, action)
        total = earned.team + earned.agent[0] + earned.process[0]
        own = jnp.stack([jnp.float32(0), jnp.where(planning, 0.0, earned.agent[0])])
        process = jnp.stack(
            [jnp.where(planning, self.planner_weight * total, 0.0), jnp.where(planning, 0.0, earned.process[0])]
        )
        running = ~self.game.done(state.inner)
        spoken = jnp.where(planning, jnp.asarray(action, jnp.int32), NO_PROPOSAL)

        def commit(old: jax.Array, new: jax.Array) -> jax.Array:
            # Leaves that a step never replaces, such as the level itself, need no select.
            return old if old is new else jnp.where(planning, old, new)

        following = RoleState(
            inner=jax.tree.map(commit, state.inner, after),
            proposal=jnp.where(running, spoken, state.proposal),
            phase=jnp.where(running & self.proposes, 1 - state.phase, state.phase),
        )
        return following, Reward(team=jnp.where(planning, 0.0, earned.team), agent=own, process=process)

    def done(self, state: RoleState) -> jax.Array:
        """Return whether the puzzle is over: bool []."""
        return self.game.done(state.inner)

    def success(self, state: RoleState) -> jax.Array:
        """Return whether the puzzle is solved: bool []."""
        return self.game.success(state.inner)

    def lost(self, state: RoleState) -> jax.Array:
        """Return whether the puzzle is known to be unsolvable: bool []."""
        return self.game.lost(state.inner)

    def moves(self, player: jax.Array) -> jax.Array:
        """Return whether the seat makes moves: True for the executor only."""
        return jnp.asarray(player) == EXECUTOR

    def held_out(self) -> "TwoRole":
        """Return the game on the test split of the puzzle's pool."""
        return dataclasses.replace(self, game=self.game.held_out())

    def bot_from(self, factory: Callable[[Game], Bot]) -> Bot:
        """Build a bot that plays both seats from the puzzle's bot."""
        return RoleBot(factory(self.game))

    def cells(self, state: RoleState) -> jax.Array:
        """Return the complete board: int32 [C]."""
        return self.game.cells(state.inner)

    def visible(self, state: RoleState, player: jax.Array | int) -> jax.Array:
        """Return the cells that `player` sees: bool [C]."""
        if self.view == "full":
            return jnp.ones(self.shape[0] * self.shape[1], bool)
        planning = jnp.asarray(player) == PLANNER
        if self.view == "local":
            return self.game.surroundings(state.inner, state.proposal, self.radius) | planning
        height, width = self.shape
        upper = jnp.arange(height * width) < upper_rows(height) * width
        return (upper == planning) | self.game.surroundings(state.inner, state.proposal, 0)


@dataclasses.dataclass(frozen=True)
class RoleBot:
    """A puzzle's bot in both seats: the executor follows the proposal, if there is one."""

    bot: Bot

    def act(self, state: RoleState, key: jax.Array) -> jax.Array:
        """Return the proposal or the move: int32 []."""
        return jnp.where(state.proposal == NO_PROPOSAL, self.bot.act(state.inner, key), state.proposal)


def puzzle_state(state: State) -> State:
    """Return the state of the puzzle, with or without roles."""
    return state.inner if isinstance(state, RoleState) else state


def hide(marks: list, visible: np.ndarray | None) -> list:
    """Replace marks [C] with "?" where `visible` (bool [C], or None) is False."""
    if visible is None:
        return marks
    return [mark if seen else "?" for mark, seen in zip(marks, np.asarray(visible), strict=True)]
