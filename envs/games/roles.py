"""Two roles for a one-player puzzle: a planner proposes a move, an executor reads the proposal and makes one.

Axis letters: P = 2 players, A actions, C cells.

Seat 0 plans, seat 1 executes, in turns; both use the alphabet of the puzzle, and the executor is free to do otherwise
than it was told. Whatever the puzzle pays goes to the executor (agent and process) and to both (team). The planner is
paid at the process level for what its proposal would have earned, by a trial step that leaves the puzzle alone, so that
the reward of a proposal depends on that proposal and on nothing the executor does later.
With view "local" the executor sees only its surroundings (`visible`), so that the proposal carries what it cannot see.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.game import Bot, Game, Reward, State, check_choice, check_range
from envs.games.puzzle import Puzzle

PLANNER, EXECUTOR = 0, 1
NO_PROPOSAL = -1
VIEWS = ("full", "local")
REWARD_PARAMS = frozenset({"planner_weight"})
"""The parameters of the two-role form that say what is paid."""


class RoleState(NamedTuple):
    """A puzzle with someone who plans.

    inner: the puzzle's own state
    proposal: int32[]  the action proposed for this move, -1 while the planner has not spoken
    phase: int32[]     whose turn it is: 0 planner, 1 executor
    """

    inner: State
    proposal: jax.Array
    phase: jax.Array


@dataclasses.dataclass(frozen=True)
class TwoRole(Game):
    """A puzzle played by planner and executor.

    view: "full", both see the board; "local", the executor sees `radius` cells around itself
    planner_weight: what the planner gets of the total its proposal would have earned
    """

    game: Puzzle
    view: str = "full"
    radius: int = 1
    planner_weight: float = 1.0

    n_players: ClassVar[int] = 2
    roles: ClassVar[tuple[str, ...]] = ("planner", "executor")
    solvable: ClassVar[bool] = True
    has_levels: ClassVar[bool] = True

    def __post_init__(self):
        if not isinstance(self.game, Puzzle):
            raise ValueError(f"two roles need a one-player puzzle, found {self.game!r}")
        check_choice(self.name, "view", self.view, VIEWS)
        check_range(self.name, "radius", self.radius, 1, 16)

    @property
    def name(self) -> str:
        """The puzzle's: rules, text, bots and drawings are found under it."""
        return self.game.name

    @property
    def n_actions(self) -> int:
        """A: the puzzle's."""
        return self.game.n_actions

    @property
    def max_turns(self) -> int:
        """Two for each move of the puzzle."""
        return 2 * self.game.max_turns

    @property
    def action_names(self) -> tuple[str, ...]:
        """The puzzle's."""
        return self.game.action_names

    @property
    def n_levels(self) -> int:
        """How many levels episodes are drawn from."""
        return self.game.n_levels

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the board."""
        return self.game.shape

    @property
    def symbols(self) -> tuple[str, ...]:
        """One character for every code of `cells`."""
        return self.game.symbols

    def _begin(self, inner: State) -> RoleState:
        return RoleState(inner=inner, proposal=jnp.int32(NO_PROPOSAL), phase=jnp.int32(PLANNER))

    def reset(self, key: jax.Array) -> RoleState:
        """The first state of a drawn level; the planner speaks first."""
        return self._begin(self.game.reset(key))

    def reset_among(self, key: jax.Array, count: jax.Array | int) -> RoleState:
        """The first state of a level drawn from the `count` easiest."""
        return self._begin(self.game.reset_among(key, count))

    def reset_level(self, index: jax.Array | int) -> RoleState:
        """The first state of level `index`."""
        return self._begin(self.game.reset_level(index))

    def reset_from_level(self, level: dict[str, Any], index: jax.Array | int = -1) -> RoleState:
        """The first state of a level given by its arrays."""
        return self._begin(self.game.reset_from_level(level, index))

    def player(self, state: RoleState) -> jax.Array:
        """Planner and executor in turns: int32[]."""
        return state.phase

    def legal(self, state: RoleState) -> jax.Array:
        """The puzzle's legal moves, for proposals too: bool[A]."""
        return self.game.legal(state.inner)

    def step(self, state: RoleState, action: jax.Array) -> tuple[RoleState, Reward]:
        """Note a proposal, or make a move."""
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
            # a leaf that a step never replaces, such as the level itself, is passed on without a select
            return old if old is new else jnp.where(planning, old, new)

        following = RoleState(
            inner=jax.tree.map(commit, state.inner, after),
            proposal=jnp.where(running, spoken, state.proposal),
            phase=jnp.where(running, 1 - state.phase, state.phase),
        )
        return following, Reward(team=jnp.where(planning, 0.0, earned.team), agent=own, process=process)

    def done(self, state: RoleState) -> jax.Array:
        """When the puzzle is."""
        return self.game.done(state.inner)

    def success(self, state: RoleState) -> jax.Array:
        """Whether the puzzle is solved."""
        return self.game.success(state.inner)

    def lost(self, state: RoleState) -> jax.Array:
        """Whether the puzzle is."""
        return self.game.lost(state.inner)

    def moves(self, player: jax.Array) -> jax.Array:
        """The executor's do; the planner only proposes."""
        return jnp.asarray(player) == EXECUTOR

    def held_out(self) -> "TwoRole":
        """Planner and executor on the test part of the puzzle's pool."""
        return dataclasses.replace(self, game=self.game.held_out())

    def bot_from(self, factory: Callable[[Game], Bot]) -> Bot:
        """The puzzle's bot in both seats."""
        return RoleBot(factory(self.game))

    def cells(self, state: RoleState) -> jax.Array:
        """The whole board: int32[C]."""
        return self.game.cells(state.inner)

    def visible(self, state: RoleState, player: jax.Array | int) -> jax.Array:
        """The cells that `player` may be shown: bool[C]."""
        if self.view == "full":
            return jnp.ones(self.shape[0] * self.shape[1], bool)
        return self.game.surroundings(state.inner, state.proposal, self.radius) | (jnp.asarray(player) == PLANNER)


@dataclasses.dataclass(frozen=True)
class RoleBot:
    """A puzzle's bot in both seats: the planner proposes the bot's move, and the executor follows it."""

    bot: Bot

    def act(self, state: RoleState, key: jax.Array) -> jax.Array:
        """The proposal or the move: int32[]."""
        return jnp.where(state.phase == EXECUTOR, state.proposal, self.bot.act(state.inner, key))


def puzzle_state(state: State) -> State:
    """The puzzle's own state, with or without roles around it."""
    return state.inner if isinstance(state, RoleState) else state


def hide(marks: list, visible: np.ndarray | None) -> list:
    """`marks` of C cells with "?" where `visible` (bool[C]; None: everything) is False."""
    if visible is None:
        return marks
    return [mark if seen else "?" for mark, seen in zip(marks, np.asarray(visible), strict=True)]
