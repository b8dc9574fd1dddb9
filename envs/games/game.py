"""The contract every game keeps: pure rules on pytrees, unbatched, batched with `vmap`.

Axis letters: P players, A actions.

A game is a frozen dataclass. Its fields are static parameters (board size, number of players, …), so that a game is
hashable and can be closed over or passed as a static argument of `jit`. Everything that changes lives in the state, a
pytree of arrays with shapes that depend on the parameters only.

    state = game.reset(key)
    while not game.done(state):
        action = choose(game.player(state), game.legal(state))
        state, reward = game.step(state, action)

What holds for every game, and is tested for all of them in one place:

- `reset`, `player`, `legal`, `step` and `done` are pure, and work under `jit` and `vmap`;
- terminal states absorb: `step` returns them unchanged, with a zero reward;
- `legal` is never empty: in a terminal state action 0, and only it, is legal, so that samplers always have a choice;
- an episode takes at most `max_turns` steps;
- `step` with an illegal action is undefined inside jit; on the host, `check_action` refuses it with a clear error.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

State = Any
"""A pytree of arrays; each game defines its own NamedTuple."""


class Reward(NamedTuple):
    """What one step paid, at three levels; configs weigh them.

    team: f32[]      shared by all players (cooperative games)
    agent: f32[P]    each player's own (competitive games: +1, -1)
    process: f32[P]  how a player went about it (shaping, penalties for invalid moves)
    """

    team: jax.Array
    agent: jax.Array
    process: jax.Array


@dataclasses.dataclass(frozen=True)
class Game(abc.ABC):
    """Base of all games; subclasses give five attributes (as class variables or properties) and five functions."""

    name: ClassVar[str]
    """The name under which `envs.games.registry.make` knows the game."""
    reset_is_free: ClassVar[bool] = False
    """Every episode begins with the same constant state; `reset_done` then just selects."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Sets of parameters by name, for `envs.games.registry.make`."""

    roles: ClassVar[tuple[str, ...]] = ()
    """What the seats are called, where they have different tasks."""

    reward_levels: ClassVar[tuple[str, ...]] = Reward._fields
    """The levels of `Reward` at which the game ever pays anything."""

    @classmethod
    def reward_levels_with(cls, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Those of them at which it pays with these parameters."""
        return cls.reward_levels

    competitive: ClassVar[bool] = False
    """Whether seats play against each other, so that games are won and lost; otherwise the team has a score."""

    stakes: ClassVar[bool] = False
    """Whether a competitive game is won by more or less, so that what was earned says more than who won."""

    perfect_information: ClassVar[bool] = False
    """Whether all seats see everything and moves have no chance in them, so that one can be tried before it is made."""

    solvable: ClassVar[bool] = False
    """Whether episodes end solved or not, as `success` says."""

    has_levels: ClassVar[bool] = False
    """Whether episodes start from the levels of a pool: there are `n_levels`, `reset_level` and `reset_among`."""

    @property
    @abc.abstractmethod
    def n_players(self) -> int:
        """P: number of seats."""

    @property
    @abc.abstractmethod
    def n_actions(self) -> int:
        """A: size of the action set, the same for every player and state."""

    @property
    @abc.abstractmethod
    def max_turns(self) -> int:
        """Upper bound on the steps of an episode."""

    @property
    @abc.abstractmethod
    def action_names(self) -> tuple[str, ...]:
        """The name of every action, A distinct strings."""

    @abc.abstractmethod
    def reset(self, key: jax.Array) -> State:
        """The first state of an episode drawn with `key`."""

    @abc.abstractmethod
    def player(self, state: State) -> jax.Array:
        """The seat that moves now: int32[]."""

    @abc.abstractmethod
    def legal(self, state: State) -> jax.Array:
        """Which actions may be taken now: bool[A], never all False."""

    @abc.abstractmethod
    def step(self, state: State, action: jax.Array) -> tuple[State, Reward]:
        """The state after `action` (int[]) and what it paid."""

    @abc.abstractmethod
    def done(self, state: State) -> jax.Array:
        """Whether the episode is over: bool[]."""

    # What follows has an answer that fits most games.

    @property
    def seat_names(self) -> tuple[str, ...]:
        """A name for every seat: its role, or seat_0, seat_1, …"""
        return self.roles or tuple(f"seat_{i}" for i in range(self.n_players))

    @property
    def action_texts(self) -> tuple[str, ...]:
        """What every action does, in words, where its name alone does not say."""
        return self.action_names

    @property
    def action_kinds(self) -> tuple[str, ...]:
        """The kind of every action, where imitation is to be reported by kind; () where all are of one."""
        return ()

    def endings(self, state: State) -> dict[str, jax.Array]:
        """How a finished episode ended, bool[] each; evaluations report the share of every one by its name."""
        return {}

    def success(self, state: State) -> jax.Array:
        """Whether the episode was solved, in a game that is `solvable`: bool[]."""
        return jnp.bool_(False)

    def lost(self, state: State) -> jax.Array:
        """Whether it is known that the episode can no longer be solved, although it continues: bool[]."""
        return jnp.bool_(False)

    def score(self, state: State) -> jax.Array | None:
        """The points that the game itself counts: int32[]; None where it counts none."""
        return None

    def visible(self, state: State, player: jax.Array | int) -> jax.Array | None:
        """The cells of the board that a seat may be shown: bool[C]; None: nothing is hidden this way."""
        return None

    def moves(self, player: jax.Array) -> jax.Array:
        """Whether the actions of a seat change the position, rather than propose something to another seat: bool[]."""
        return jnp.bool_(True)

    def held_out(self) -> "Game":
        """The same game on levels that training never sees; itself where there are no levels."""
        return self

    # Games that are small enough to be looked at whole (`envs/games/exact.py`) say how they begin and who knows what.

    @property
    def n_deals(self) -> int:
        """How many first states there are, all equally likely; 0 where they are too many to be counted."""
        return 0

    def deal(self, number: jax.Array) -> State:
        """One of the first states, by its number (int[])."""
        raise NotImplementedError(f"{self.name} cannot be dealt by number")

    def information(self, state: State, seat: jax.Array) -> jax.Array:
        """What a seat knows as one number, equal for two states only where the seat cannot tell them apart: int32[]."""
        raise NotImplementedError(f"{self.name} does not say what a seat knows")

    def bot_from(self, factory: Callable[["Game"], "Bot"]) -> "Bot":
        """The bot that `factory(game)` makes, fit for the seats of this game."""
        return factory(self)


def check_range(game: str, field: str, value: Any, low: int, high: int) -> None:
    """Raise a ValueError that names the field unless `value` is an int with low <= value <= high."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{game}: {field} must be an integer from {low} to {high}, found {value!r}")


def check_choice(game: str, field: str, value: Any, accepted: tuple) -> None:
    """Raise a ValueError that names the field unless `value` is one of `accepted`."""
    if value not in accepted:
        raise ValueError(f"{game}: {field} must be one of {', '.join(map(repr, accepted))}, found {value!r}")


@functools.partial(jax.jit, static_argnums=0)
def _done_and_legal(game: Game, state: State) -> tuple[jax.Array, jax.Array]:
    return game.done(state), game.legal(state)


def check_action(game: Game, state: State, action: Any) -> int:
    """Return `action` as an int, or raise a ValueError that says why it cannot be taken; host only, unbatched."""
    done, legal = jax.device_get(_done_and_legal(game, state))
    if done:
        raise ValueError(f"{game.name}: the game is over, found action {action!r}")
    number = int(action)
    if number != action or not 0 <= number < game.n_actions:
        raise ValueError(f"{game.name}: action must be an integer from 0 to {game.n_actions - 1}, found {action!r}")
    if not legal[number]:
        accepted = ", ".join(f"{a} ({game.action_names[a]})" for a in range(game.n_actions) if legal[a])
        found = f"{number} ({game.action_names[number]})"
        raise ValueError(f"{game.name}: action {found} is illegal here; legal are {accepted}")
    return number


def legal_or_end(legal: jax.Array, done: jax.Array) -> jax.Array:
    """`legal` (bool[A]) of a running game; in a finished one action 0 and only it."""
    only_first = jnp.arange(legal.shape[-1]) == 0
    return jnp.where(done, only_first, legal)


def keep_if_done(done: jax.Array, old: State, new: State) -> State:
    """`old` where the game was already over, else `new`: makes terminal states absorbing."""
    return jax.tree.map(lambda a, b: jnp.where(done, a, b), old, new)


def reset_done(game: Game, states: State, keys: jax.Array, chunk: int = 128) -> State:
    """Begin a new game in every finished row of a batch of states; row b's new game is `game.reset(keys[b])`.

    Equal to resetting all rows and selecting, but only rows that ended are dealt, `chunk` at a time: dealing costs more
    than a step (a shuffle, a new level), and few rows of a large batch end at the same step.
    """
    done = jax.vmap(game.done)(states)
    if game.reset_is_free:
        return jax.vmap(keep_if_done)(~done, states, jax.vmap(game.reset)(keys))
    rows = keys.shape[0]
    chunk = min(chunk, rows)

    def some_ended(carry):
        return jnp.any(carry[1])

    def deal(carry):
        states, ended = carry
        at = jnp.nonzero(ended, size=chunk, fill_value=rows)[0]  # filled up with a row that does not exist
        fresh = jax.vmap(game.reset)(keys[at])
        states = jax.tree.map(lambda old, new: old.at[at].set(new, mode="drop"), states, fresh)
        return states, ended.at[at].set(False, mode="drop")

    return jax.lax.while_loop(some_ended, deal, (states, done))[0]


class Bot(Protocol):
    """Anything that picks a legal action for the player to move."""

    def act(self, state: State, key: jax.Array) -> jax.Array:
        """A legal action in `state`: int32[]."""
        ...
