"""The interface of all games: pure functions on unbatched pytrees.

Use `jax.vmap` for batches. Axis letters: P players, A actions.

A game is a frozen dataclass. Its fields are static parameters (board size, number of players, …), so a game is hashable
and can be closed over or passed as a static argument of `jit`. Everything that changes lives in the state, a pytree of
arrays whose shapes depend on the parameters only.

    state = game.reset(key)
    while not game.done(state):
        action = choose(game.player(state), game.legal(state))
        state, reward = game.step(state, action)

Every game guarantees the following, and one test checks it for all of them:

- `reset`, `player`, `legal`, `step` and `done` are pure, and work under `jit` and `vmap`.
- Terminal states are absorbing: `step` returns them unchanged, with zero reward.
- `legal` is never empty. In a terminal state only action 0 is legal, so samplers always have a choice.
- An episode takes at most `max_turns` steps.
- `step` with an illegal action is undefined inside jit. On the host, `check_action` rejects it with a clear error.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

State = Any
"""A pytree of arrays. Each game defines its own NamedTuple."""


class Reward(NamedTuple):
    """Reward of one step at three levels, which configs weight.

    Attributes:
        team: float32 []. Shared by all players (cooperative games).
        agent: float32 [P]. Individual reward of each player (competitive games: +1, -1).
        process: float32 [P]. Reward for how a player acts (shaping, penalties for invalid moves).
    """

    team: jax.Array
    agent: jax.Array
    process: jax.Array


@dataclasses.dataclass(frozen=True)
class Game(abc.ABC):
    """Base class of all games.

    Subclasses define five attributes, as class variables or properties, and five functions.
    """

    name: ClassVar[str]
    """Name of the game in `envs.games.registry.make`."""
    reset_is_free: ClassVar[bool] = False
    """Whether every episode starts from the same constant state, so that `reset_done` only needs to select."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Named sets of parameters for `envs.games.registry.make`."""

    roles: ClassVar[tuple[str, ...]] = ()
    """Names of the seats, if they have different tasks."""

    reward_levels: ClassVar[tuple[str, ...]] = Reward._fields
    """Levels of `Reward` that can be nonzero in this game."""

    @classmethod
    def reward_levels_with(cls, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the levels that can have a nonzero reward with the given parameters."""
        return cls.reward_levels

    competitive: ClassVar[bool] = False
    """Whether seats play against each other, so that games are won or lost. Otherwise the team has a score."""

    stakes: ClassVar[bool] = False
    """Whether wins of a competitive game differ in size, so that the return is more informative than the winner."""

    simultaneous: ClassVar[bool] = False
    """Whether every seat moves once per round, in order, without seeing the other moves of the round."""

    perfect_information: ClassVar[bool] = False
    """Whether all seats see everything and moves are deterministic, so that a move can be tried before it is made."""

    solvable: ClassVar[bool] = False
    """Whether an episode can be solved, see `success`."""

    speakers: ClassVar[tuple[int, ...]] = ()
    """For each seat, the seat whose soft messages it can read, -1 for none. Empty if the game has no speakers."""

    has_levels: ClassVar[bool] = False
    """Whether episodes start from the levels of a pool, with `n_levels`, `reset_level` and `reset_among`."""

    @property
    @abc.abstractmethod
    def n_players(self) -> int:
        """P: number of seats."""

    @property
    @abc.abstractmethod
    def n_actions(self) -> int:
        """A: number of actions, the same for every player and state."""

    @property
    @abc.abstractmethod
    def max_turns(self) -> int:
        """Maximum number of steps in an episode."""

    @property
    @abc.abstractmethod
    def action_names(self) -> tuple[str, ...]:
        """Names of the A actions, all distinct."""

    @abc.abstractmethod
    def reset(self, key: jax.Array) -> State:
        """Sample the first state of an episode."""

    @abc.abstractmethod
    def player(self, state: State) -> jax.Array:
        """Return the seat that moves next: int32 []."""

    @abc.abstractmethod
    def legal(self, state: State) -> jax.Array:
        """Return the mask of legal actions: bool [A], never all False."""

    @abc.abstractmethod
    def step(self, state: State, action: jax.Array) -> tuple[State, Reward]:
        """Apply an action.

        Args:
            state: Current state.
            action: int []. A legal action of the player to move.

        Returns:
            The next state and the reward of the step.
        """

    @abc.abstractmethod
    def done(self, state: State) -> jax.Array:
        """Return whether the episode is over: bool []."""

    # Methods with defaults that fit most games

    @property
    def sides(self) -> tuple[int, ...]:
        """Side of each seat in a competitive game; seats of the same side win together."""
        return tuple(range(self.n_players))

    @property
    def seat_names(self) -> tuple[str, ...]:
        """Names of the seats: the roles, or seat_0, seat_1 and so on."""
        return self.roles or tuple(f"seat_{i}" for i in range(self.n_players))

    @property
    def action_texts(self) -> tuple[str, ...]:
        """Descriptions of the actions, for games where the names do not explain them."""
        return self.action_names

    @property
    def action_kinds(self) -> tuple[str, ...]:
        """Kind of every action, to report imitation metrics by kind.

        Empty if all actions are of the same kind.
        """
        return ()

    def endings(self, state: State) -> dict[str, jax.Array]:
        """Return how a finished episode ended: bool [] by metric name."""
        return {}

    def success(self, state: State) -> jax.Array:
        """Return whether a `solvable` game was solved: bool []."""
        return jnp.bool_(False)

    def lost(self, state: State) -> jax.Array:
        """Return whether a running episode is known to be unsolvable: bool []."""
        return jnp.bool_(False)

    def score(self, state: State) -> jax.Array | None:
        """Return the game's own score, or None if it has none: int32 []."""
        return None

    def visible(self, state: State, player: jax.Array | int) -> jax.Array | None:
        """Return the board cells visible to a seat, or None if all are: bool [C]."""
        return None

    def moves(self, player: jax.Array) -> jax.Array:
        """Return whether a seat's actions change the position: bool [].

        They do not if the seat only makes proposals to another seat.
        """
        return jnp.bool_(True)

    def held_out(self) -> "Game":
        """Return the game on held-out levels, or itself if it has no levels."""
        return self

    # For games that are small enough to enumerate (`envs/games/exact.py`)

    @property
    def n_deals(self) -> int:
        """Number of equally likely first states, or 0 if there are too many to enumerate."""
        return 0

    def deal(self, number: jax.Array) -> State:
        """Return the first state with the given number (int [])."""
        raise NotImplementedError(f"{self.name} cannot be dealt by number")

    def information(self, state: State, seat: jax.Array) -> jax.Array:
        """Encode a seat's knowledge as one number: int32 [].

        Two states have the same number only if the seat cannot distinguish them.
        """
        raise NotImplementedError(f"{self.name} does not define information sets")

    def bot_from(self, factory: Callable[["Game"], "Bot"]) -> "Bot":
        """Build a bot for the seats of this game from `factory(game)`."""
        return factory(self)


def check_range(game: str, field: str, value: Any, low: int, high: int) -> None:
    """Raise a ValueError unless `value` is an int from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{game}: {field} is {value!r}, but must be an integer from {low} to {high}")


def check_choice(game: str, field: str, value: Any, accepted: tuple) -> None:
    """Raise a ValueError unless `value` is one of `accepted`."""
    if value not in accepted:
        raise ValueError(f"{game}: {field} is {value!r}, but must be one of: {', '.join(map(repr, accepted))}")


@functools.partial(jax.jit, static_argnums=0)
def _done_and_legal(game: Game, state: State) -> tuple[jax.Array, jax.Array]:
    return game.done(state), game.legal(state)


def check_action(game: Game, state: State, action: Any) -> int:
    """Return `action` as an int, or raise a ValueError if it is illegal.

    Runs on the host, for one unbatched state.
    """
    done, legal = jax.device_get(_done_and_legal(game, state))
    if done:
        raise ValueError(f"{game.name}: action is {action!r}, but the game is over")
    number = int(action)
    if number != action or not 0 <= number < game.n_actions:
        raise ValueError(f"{game.name}: action is {action!r}, but must be an integer from 0 to {game.n_actions - 1}")
    if not legal[number]:
        accepted = ", ".join(f"{a} ({game.action_names[a]})" for a in range(game.n_actions) if legal[a])
        name = game.action_names[number]
        raise ValueError(f"{game.name}: action is {number} ({name}), but must be one of: {accepted}")
    return number


def legal_or_end(legal: jax.Array, done: jax.Array) -> jax.Array:
    """Return `legal` (bool [A]), or only action 0 if the game is done."""
    only_first = jnp.arange(legal.shape[-1]) == 0
    return jnp.where(done, only_first, legal)


def keep_if_done(done: jax.Array, old: State, new: State) -> State:
    """Return `old` if the game was already over, else `new`: terminal states are absorbing."""
    return jax.tree.map(lambda a, b: jnp.where(done, a, b), old, new)


def reset_done(game: Game, states: State, keys: jax.Array, chunk: int = 128, ended: jax.Array | None = None) -> State:
    """Start a new game in every finished row of a batch of states.

    Equivalent to resetting all rows with `game.reset(keys[b])` and selecting. Only finished rows are dealt, `chunk` at
    a time: dealing is more expensive than a step (a shuffle, a new level), and few rows of a large batch finish at the
    same step. If given, `ended` (bool [B]) says which rows are finished.
    """
    done = jax.vmap(game.done)(states) if ended is None else ended
    if game.reset_is_free:
        return jax.vmap(keep_if_done)(~done, states, jax.vmap(game.reset)(keys))
    rows = keys.shape[0]
    chunk = min(chunk, rows)

    def some_ended(carry):
        return jnp.any(carry[1])

    def deal(carry):
        states, ended = carry
        at = jnp.nonzero(ended, size=chunk, fill_value=rows)[0]  # padded with an out-of-range row
        fresh = jax.vmap(game.reset)(keys[at])
        states = jax.tree.map(lambda old, new: old.at[at].set(new, mode="drop"), states, fresh)
        return states, ended.at[at].set(False, mode="drop")

    return jax.lax.while_loop(some_ended, deal, (states, done))[0]


class Bot(Protocol):
    """A player that picks a legal action for the seat to move."""

    def act(self, state: State, key: jax.Array) -> jax.Array:
        """Return a legal action in `state`: int32 []."""
        ...
