"""The warehouse game: robots fetch requested shelves to a goal and return them.

In each round every robot chooses an action without seeing the choices of the others, and all robots act together. A
robot drives forward, turns, or lifts or lowers the shelf above it. A delivered shelf is replaced by a new request at
once, and its robot must return it to an empty storage place before it can lift another one. Robots without a shelf
drive below standing shelves.

The rules are those of RWARE 2 (Papoudakis et al. 2021), and so are the names and sizes of the presets.

Axis letters: P robots, A = 5 actions, C cells row by row, S shelves, Q requests.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from envs.games.game import Game, Reward, check_choice, check_range, keep_if_done, legal_or_end
from envs.games.puzzle import near
from envs.games.roles import VIEWS
from envs.games.warehouse import layout
from envs.games.warehouse.moves import movers

WAIT, FORWARD, LEFT, RIGHT, TOGGLE = range(5)
NOTHING = -1
"""Load of a robot without a shelf, and choice of a seat that has not chosen yet."""
SHELF, REQUESTED = 1, 2
"""Content of a cell: 0 no shelf, a shelf, or a requested shelf, plus 3 · (1 + direction) of a robot."""
REWARD_TYPES = ("global", "individual", "two_stage")
_SIZES = {"tiny": (1, 3), "small": (2, 3), "medium": (2, 5), "large": (3, 5)}
_DIFFICULTIES = {"-easy": 2.0, "": 1.0, "-hard": 0.5}


class WarehouseState(NamedTuple):
    """A position.

    Attributes:
        robots: int32 [P]. Cells of the robots.
        facing: int32 [P]. Directions of the robots: 0 up, 1 right, 2 down, 3 left.
        loads: int32 [P]. Number of the shelf that each robot carries, or NOTHING.
        delivered: bool [P]. Whether the carried shelf has been delivered.
        shelves: int32 [S]. Cells of the shelves.
        requests: int32 [Q]. Numbers of the requested shelves.
        choices: int32 [P]. Actions chosen in this round, or NOTHING.
        turn: int32 []. Number of choices so far.
        deliveries: int32 []. Number of deliveries so far.
        seed: uint32 []. Seed of the requests to come.
        floor: int8 [h, w]. Kind of each cell: 0 corridor, 1 storage place, 2 goal.
    """

    robots: jax.Array
    facing: jax.Array
    loads: jax.Array
    delivered: jax.Array
    shelves: jax.Array
    requests: jax.Array
    choices: jax.Array
    turn: jax.Array
    deliveries: jax.Array
    seed: jax.Array
    floor: jax.Array


class Round(NamedTuple):
    """Result of a round.

    Attributes:
        state: The next position, without changes of `choices` and `turn`.
        delivered: int32 [P]. Number of deliveries of each robot.
        returned: bool [P]. Whether a robot has returned a delivered shelf.
        lifted: int32 [P]. 1 for a robot that lifted a requested shelf, -1 if it lowered one.
    """

    state: WarehouseState
    delivered: jax.Array
    returned: jax.Array
    lifted: jax.Array


@dataclasses.dataclass(frozen=True)
class Warehouse(Game):
    """Robots in a warehouse.

    Attributes:
        shelf_rows: Number of rows of blocks, from 1 to 4.
        shelf_columns: Number of columns of blocks, an odd number from 1 to 7.
        column_height: Number of storage places of a block from top to bottom, from 1 to 10.
        players: Number of robots, from 1 to 10.
        requests: Number of shelves that are requested at any time.
        rounds: Number of rounds of an episode.
        view: "full" if everyone sees everything, "local" if a robot senses only the cells around it.
        radius: Number of rows and columns that a robot senses around itself in the local view.
        reward_type: "global" (each delivery is a team reward of 1), "individual" (the robot alone gets it) or
            "two_stage" (the robot gets half of it for the delivery and half for the return).
        pickup_reward: Process reward for lifting a requested shelf; lowering one costs the same.
    """

    name: ClassVar[str] = "warehouse"
    simultaneous: ClassVar[bool] = True
    n_actions: ClassVar[int] = 5
    action_names: ClassVar[tuple[str, ...]] = ("wait", "forward", "left", "right", "toggle")
    action_texts: ClassVar[tuple[str, ...]] = (
        "wait", "drive forward", "turn left", "turn right", "lift or lower a shelf",
    )  # fmt: skip
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        f"{size}-{robots}ag{difficulty}": dict(
            shelf_rows=rows, shelf_columns=columns, column_height=8, players=robots, requests=int(robots * factor),
            rounds=500,
        )
        for size, (rows, columns) in _SIZES.items()
        for robots in (1, 2, 4, 8)
        for difficulty, factor in _DIFFICULTIES.items()
        if robots * factor >= 1
    }  # fmt: skip

    shelf_rows: int = 2
    shelf_columns: int = 1
    column_height: int = 2
    players: int = 2
    requests: int = 2
    rounds: int = 50
    view: str = "full"
    radius: int = 1
    reward_type: str = "global"
    pickup_reward: float = 0.0

    def __post_init__(self):
        check_range(self.name, "shelf_rows", self.shelf_rows, 1, 4)
        check_choice(self.name, "shelf_columns", self.shelf_columns, (1, 3, 5, 7))
        check_range(self.name, "column_height", self.column_height, 1, 10)
        check_range(self.name, "players", self.players, 1, 10)
        if len(self.layout.places) < 2:
            raise ValueError(
                f"warehouse: shelf_rows is {self.shelf_rows}, but a warehouse with shelf_columns={self.shelf_columns} "
                "must have at least 2 rows"
            )
        check_range(self.name, "requests", self.requests, 1, len(self.layout.places) - 1)
        check_range(self.name, "rounds", self.rounds, 1, 999)
        check_choice(self.name, "view", self.view, VIEWS)
        check_range(self.name, "radius", self.radius, 1, 5)
        check_choice(self.name, "reward_type", self.reward_type, REWARD_TYPES)

    @classmethod
    def reward_levels_with(cls, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the level of deliveries, and `process` if lifting a shelf has a reward."""
        together = params.get("reward_type", cls.reward_type) == "global"
        shaped = params.get("pickup_reward", cls.pickup_reward)
        return ("team" if together else "agent", *(("process",) if shaped else ()))

    @property
    def layout(self) -> layout.Layout:
        """The floor plan."""
        return layout.build(self.shelf_rows, self.shelf_columns, self.column_height)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the grid."""
        return self.layout.shape

    @property
    def n_players(self) -> int:
        """P: number of robots."""
        return self.players

    @property
    def max_turns(self) -> int:
        """Number of choices in an episode."""
        return self.players * self.rounds

    def reset(self, key: jax.Array) -> WarehouseState:
        """Sample the robots' cells and directions, and the requests."""
        place, turn, request, later = jax.random.split(key, 4)
        plan, players = self.layout, self.players
        return WarehouseState(
            robots=jax.random.permutation(place, plan.floor.size)[:players].astype(jnp.int32),
            facing=jax.random.randint(turn, (players,), 0, 4),
            loads=jnp.full(players, NOTHING),
            delivered=jnp.zeros(players, bool),
            shelves=jnp.asarray(plan.places),
            requests=jax.random.permutation(request, len(plan.places))[: self.requests].astype(jnp.int32),
            choices=jnp.full(players, NOTHING),
            turn=jnp.int32(0),
            deliveries=jnp.int32(0),
            seed=jax.random.bits(later, (), jnp.uint32),
            floor=jnp.asarray(plan.floor),
        )

    def player(self, state: WarehouseState) -> jax.Array:
        """Return the seat that chooses next: int32 []."""
        return state.turn % self.players

    def legal(self, state: WarehouseState) -> jax.Array:
        """Return the legal actions; all are always legal: bool [5]."""
        return legal_or_end(jnp.ones(self.n_actions, bool), self.done(state))

    def step(self, state: WarehouseState, action: jax.Array) -> tuple[WarehouseState, Reward]:
        """Remember the choice, and let all robots act after the last one of the round."""
        over, seat = self.done(state), self.player(state)
        choices = jnp.where(jnp.arange(self.players) == seat, action, state.choices).astype(jnp.int32)
        complete = seat == self.players - 1
        result = self.act(state, choices)
        new = keep_if_done(~complete, state, result.state)
        new = new._replace(choices=jnp.where(complete, NOTHING, choices), turn=state.turn + 1)
        paid = complete & ~over
        together = self.reward_type == "global"
        own = 0.5 * (result.delivered + result.returned) if self.reward_type == "two_stage" else result.delivered
        reward = Reward(
            team=jnp.where(paid & together, jnp.sum(result.delivered), 0).astype(jnp.float32),
            agent=jnp.where(paid & (not together), own, 0).astype(jnp.float32),
            process=jnp.where(paid, self.pickup_reward * result.lifted, 0).astype(jnp.float32),
        )
        return keep_if_done(over, state, new), reward

    def act(self, state: WarehouseState, actions: jax.Array) -> Round:
        """Let all robots act together.

        Args:
            state: The position.
            actions: int32 [P]. Action of every robot.
        """
        plan, numbers = self.layout, jnp.arange(len(self.layout.places))
        loaded = state.loads != NOTHING
        there = jnp.asarray(plan.ahead)[state.facing, state.robots]
        standing = self.shelf_at(state, ~jnp.any(numbers == state.loads[:, None], axis=0))
        stopped = (actions != FORWARD) | (loaded & (standing[there] != NOTHING))
        robots = jnp.where(movers(state.robots, jnp.where(stopped, state.robots, there)), there, state.robots)
        turned = jnp.where(actions == RIGHT, 1, jnp.where(actions == LEFT, -1, 0))

        # A loaded robot is never in the cell of a standing shelf, so a free robot can lift what is in its cell.
        lift = (actions == TOGGLE) & ~loaded & (standing[state.robots] != NOTHING)
        lower = (actions == TOGGLE) & loaded & (state.floor.reshape(-1)[state.robots] == layout.PLACE)
        loads = jnp.where(lift, standing[state.robots], jnp.where(lower, NOTHING, state.loads))
        wanted = jnp.any(jnp.where(lift, loads, state.loads)[:, None] == state.requests, axis=1)
        shelves = state.shelves.at[jnp.where(loaded, state.loads, len(numbers))].set(robots, mode="drop")

        requests, deliveries, earned = state.requests, state.deliveries, jnp.zeros(self.players, jnp.int32)
        for goal in plan.goals:
            here = (robots == goal) & (loads != NOTHING)
            shelf = jnp.max(jnp.where(here, loads, NOTHING))
            delivered = (requests == shelf) & (shelf != NOTHING)
            is_requested = jnp.any(delivered)
            key = jax.random.fold_in(jax.random.key(state.seed), deliveries)
            taken = jnp.any(numbers == requests[:, None], axis=0)
            following = jnp.argmax(jnp.where(taken, -1.0, jax.random.uniform(key, numbers.shape)))
            requests = jnp.where(delivered, following, requests).astype(jnp.int32)
            deliveries, earned = deliveries + is_requested, earned + (here & is_requested)

        new = state._replace(
            robots=robots,
            facing=(state.facing + turned) % 4,
            loads=loads.astype(jnp.int32),
            delivered=(state.delivered & ~lower) | (earned > 0),
            shelves=shelves,
            requests=requests,
            deliveries=deliveries,
        )
        lifted = (lift & wanted).astype(jnp.int32) - (lower & wanted)
        return Round(new, earned, lower & state.delivered, lifted)

    def done(self, state: WarehouseState) -> jax.Array:
        """Return whether the last round is over: bool []."""
        return state.turn >= self.max_turns

    def score(self, state: WarehouseState) -> jax.Array:
        """Return the number of deliveries: int32 []."""
        return state.deliveries

    def visible(self, state: WarehouseState, player: jax.Array | int) -> jax.Array | None:
        """Return the cells that a robot senses, or None in the full view: bool [C]."""
        return None if self.view == "full" else near(self.shape, state.robots[jnp.asarray(player)], self.radius)

    def shelf_at(self, state: WarehouseState, which: jax.Array) -> jax.Array:
        """Return the number of the shelf in each cell, or NOTHING: int32 [C].

        Args:
            state: The position.
            which: bool [S]. Shelves that count.
        """
        cells = jnp.full(self.layout.floor.size, NOTHING)
        numbers = jnp.arange(len(state.shelves))
        return cells.at[jnp.where(which, state.shelves, len(cells))].set(numbers, mode="drop")


def contents(state: WarehouseState) -> jax.Array:
    """Return the content of each cell: int32 [C].

    Robots show their direction, but not whether they carry the shelf in their cell.
    """
    numbers = jnp.arange(len(state.shelves))
    kind = jnp.where(jnp.any(numbers == state.requests[:, None], axis=0), REQUESTED, SHELF)
    cells = jnp.zeros(state.floor.size, jnp.int32).at[state.shelves].set(kind)
    return cells.at[state.robots].add(3 * (1 + state.facing))
