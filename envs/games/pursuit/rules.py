"""The pursuit game: two pursuers try to catch one evader on an open grid.

In each round the first pursuer, the second pursuer and the evader move in turn, by one cell up, down, left or right, or
stay. The evader is caught when it shares a cell with a pursuer. Pursuers may share a cell.

Axis letters: P = 3 seats, A = 5 actions, C cells of the grid, row by row.

Rewards: agent at the end of the game, less for a late capture. Both pursuers get the same, and the evader its negative.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from envs.games.game import Game, Reward, check_choice, check_range, keep_if_done, legal_or_end
from envs.games.pursuit import solver
from envs.games.pursuit.solver import EVADER, N_SEATS
from envs.games.puzzle import near
from envs.games.roles import VIEWS

EMPTY, FIRST, SECOND, BOTH, FREE, CAUGHT = range(6)
"""Content of a cell: nothing, a pursuer, both pursuers, the evader, or the evader with a pursuer."""


class PursuitState(NamedTuple):
    """A position.

    Attributes:
        cells: int32 [3]. Cells of the first pursuer, the second pursuer and the evader.
        board: int8 [h, w]. Content of each cell, EMPTY to CAUGHT.
        turn: int32 []. Number of moves so far.
        over: bool []. Whether the evader was caught or has escaped.
    """

    cells: jax.Array
    board: jax.Array
    turn: jax.Array
    over: jax.Array


@dataclasses.dataclass(frozen=True)
class Pursuit(Game):
    """Two pursuers against one evader.

    Attributes:
        height: Number of rows of the grid, from 3 to 8.
        width: Number of columns of the grid, from 3 to 8.
        rounds: Number of rounds after which the evader has escaped; by default height + width, within which perfect
            pursuers catch it from every start.
        view: "full" if everyone sees everything, "local" if a pursuer sees the evader only nearby.
        radius: Number of rows and columns that a pursuer sees around itself in the local view.
        delay_cost: Part of the pursuers' reward of 1 that a capture in the last round loses, in proportion in others.
        lost_round_reward: Process reward of a mover for each round that its move loses against perfect play.
    """

    name: ClassVar[str] = "pursuit"
    roles: ClassVar[tuple[str, ...]] = ("pursuer_a", "pursuer_b", "evader")
    sides: ClassVar[tuple[int, ...]] = (0, 0, 1)
    competitive: ClassVar[bool] = True
    stakes: ClassVar[bool] = True
    reward_levels: ClassVar[tuple[str, ...]] = ("agent", "process")
    n_players: ClassVar[int] = N_SEATS
    n_actions: ClassVar[int] = len(solver.STEPS)
    action_names: ClassVar[tuple[str, ...]] = ("stay", "up", "down", "left", "right")

    height: int = 5
    width: int = 5
    rounds: int | None = None
    view: str = "full"
    radius: int = 1
    delay_cost: float = 0.5
    lost_round_reward: float = 0.0

    def __post_init__(self):
        check_range(self.name, "height", self.height, 3, 8)
        check_range(self.name, "width", self.width, 3, 8)
        if self.rounds is None:
            object.__setattr__(self, "rounds", self.height + self.width)
        check_range(self.name, "rounds", self.rounds, 1, 99)
        check_choice(self.name, "view", self.view, VIEWS)
        check_range(self.name, "radius", self.radius, 1, 7)
        if not 0 <= self.delay_cost < 1:
            raise ValueError(f"pursuit: delay_cost is {self.delay_cost!r}, but must be >= 0 and < 1")

    @classmethod
    def reward_levels_with(cls, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the reward levels, without `process` unless lost rounds have a reward."""
        return cls.reward_levels if params.get("lost_round_reward", cls.lost_round_reward) else ("agent",)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the grid."""
        return self.height, self.width

    @property
    def max_rounds(self) -> int:
        """Number of rounds after which the evader has escaped."""
        assert self.rounds is not None  # set by `__post_init__`
        return self.rounds

    @property
    def max_turns(self) -> int:
        """Maximum number of moves: three per round."""
        return N_SEATS * self.max_rounds

    def reset(self, key: jax.Array) -> PursuitState:
        """Sample the cells of all seats, the evader's among those without a pursuer."""
        count, (pursuers_key, evader_key) = self.height * self.width, jax.random.split(key)
        pursuers = jax.random.randint(pursuers_key, (2,), 0, count)
        free = jnp.all(jnp.arange(count) != pursuers[:, None], axis=0)
        evader = jax.random.categorical(evader_key, jnp.where(free, 0.0, -jnp.inf))
        return self.start(jnp.append(pursuers, evader))

    def start(self, cells: jax.Array) -> PursuitState:
        """Return the first state with all seats in the given cells, int [3]."""
        cells = jnp.asarray(cells, jnp.int32)
        return PursuitState(cells, self._board(cells), jnp.int32(0), jnp.any(cells[:EVADER] == cells[EVADER]))

    def player(self, state: PursuitState) -> jax.Array:
        """Return the seat that moves next: int32 []."""
        return state.turn % N_SEATS

    def legal(self, state: PursuitState) -> jax.Array:
        """Return the moves that stay on the grid: bool [5]."""
        return legal_or_end(self._targets(state) >= 0, state.over)

    def step(self, state: PursuitState, action: jax.Array) -> tuple[PursuitState, Reward]:
        """Move the figure of the player to move."""
        seat, running = self.player(state), ~state.over
        cells = jnp.where(jnp.arange(N_SEATS) == seat, self._targets(state)[action], state.cells)
        caught = jnp.any(cells[:EVADER] == cells[EVADER])
        turn = state.turn + 1
        over = caught | (turn >= self.max_turns)
        gain = jnp.where(caught, self.payoff(state.turn // N_SEATS + 1), -1.0) * (over & running)
        process = jnp.zeros(N_SEATS)
        if self.lost_round_reward:
            lost = solver.rounds_lost(self.shape, state.cells, seat)[action]
            process = self.lost_round_reward * lost * running * jax.nn.one_hot(seat, N_SEATS)
        new = PursuitState(cells, self._board(cells), turn, over)
        reward = Reward(jnp.float32(0), jnp.stack([gain, gain, -gain]), process)
        return keep_if_done(state.over, state, new), reward

    def done(self, state: PursuitState) -> jax.Array:
        """Return whether the evader was caught or has escaped: bool []."""
        return state.over

    def endings(self, state: PursuitState) -> dict[str, jax.Array]:
        """Return whether the evader was caught."""
        return {"captured": jnp.any(state.cells[:EVADER] == state.cells[EVADER])}

    def payoff(self, number):
        """Return the pursuers' reward for a capture in round `number`, counted from 1."""
        return 1.0 - self.delay_cost * number / self.max_rounds

    def visible(self, state: PursuitState, player: jax.Array | int) -> jax.Array | None:
        """Return the cells visible to a seat, or None in the full view: bool [C].

        Pursuers see their surroundings and the cell of the other pursuer. The evader sees everything.
        """
        if self.view == "full":
            return None
        player = jnp.asarray(player)
        own, other = state.cells[jnp.minimum(player, 1)], state.cells[jnp.maximum(1 - player, 0)]
        partner = jnp.arange(self.height * self.width) == other
        return near(self.shape, own, self.radius) | partner | (player == EVADER)

    def _targets(self, state: PursuitState) -> jax.Array:
        """Return the cell after each move: int32 [5], -1 off the grid."""
        return jnp.asarray(solver.targets(self.shape))[state.cells[self.player(state)]]

    def _board(self, cells: jax.Array) -> jax.Array:
        first, second, evader = jnp.arange(self.height * self.width) == cells[:, None]
        pursuers = FIRST * first + SECOND * second  # BOTH is their sum
        codes = jnp.where(evader, jnp.where(pursuers > 0, CAUGHT, FREE), pursuers)
        return codes.astype(jnp.int8).reshape(self.shape)
