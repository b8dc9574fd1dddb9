"""A game as a caller sees it, as pure functions of one copy.

The caller plays one seat while a bot plays the others, or plays every seat in turn. `deal`, `move`, `follow` and `look`
are pure: `gym.py` compiles them for one copy, `vector.py` for a batch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import text as texts
from envs.games.bots import make_bot
from envs.games.game import Bot, Game, Reward, State, check_choice, check_range
from envs.games.registry import make_text
from envs.games.template import Table as TextTable

try:
    import gymnasium
except ImportError:
    gymnasium = None

OBSERVATIONS = ("numbers", "text")
ILLEGAL = ("raise", "end")
ILLEGAL_REWARD = -1.0
"""Reward of an illegal action that ends the game."""
CHARACTERS = "".join(map(chr, [10, *range(32, 127)]))


class Episode(NamedTuple):
    """A game in progress.

    Attributes:
        state: State of the game.
        key: Random key of the bot's moves and of the next game.
        turns: Number of moves so far, int32 [].
        broken: Whether an illegal action ended the game, bool [].
    """

    state: State
    key: jax.Array
    turns: jax.Array
    broken: jax.Array


class View(NamedTuple):
    """The caller's view of an episode.

    Attributes:
        observation: Indices of the text, int32 [tables].
        action_mask: Legal actions, int8 [A]; all 0 after the end.
        player: Seat that the caller plays now, int32 [].
        terminated: Whether the game has ended, bool [].
        truncated: Whether it ended because a puzzle ran out of turns, bool [].
    """

    observation: Any
    action_mask: Any
    player: Any
    terminated: Any
    truncated: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A game with the settings of a caller; see `GymEnv` for the arguments."""

    game: Game
    seat: int = 0
    others: Bot | str | None = None
    observation: str = "numbers"
    text: str = "full"
    weights: Sequence[float] = (1.0, 1.0, 1.0)
    illegal: str = "raise"

    def __post_init__(self):
        if gymnasium is None:
            raise ImportError("this environment needs the package gymnasium: pip install gymnasium")
        check_range(self.game.name, "seat", self.seat, 0, self.game.n_players - 1)
        check_choice(self.game.name, "observation", self.observation, OBSERVATIONS)
        check_choice(self.game.name, "illegal", self.illegal, ILLEGAL)
        if len(self.weights) != 3:
            raise ValueError(f"weights is {self.weights!r}, but must be three numbers: for team, agent and process")
        make_text(self.game, self.text)

    @functools.cached_property
    def texts(self) -> texts.Text:
        """Text of the game in the style `text`."""
        return make_text(self.game, self.text)

    @functools.cached_property
    def bot(self) -> Bot | None:
        """Bot in the other seats, or None."""
        return make_bot(self.game, self.others) if isinstance(self.others, str) else self.others

    # Pure functions of one copy

    def deal(self, key: jax.Array) -> Episode:
        """Start a game."""
        key, deal = jax.random.split(key)
        return Episode(self.game.reset(deal), key, jnp.int32(0), jnp.bool_(False))

    def move(self, episode: Episode, action: jax.Array) -> tuple[Episode, jax.Array]:
        """Play an action of the caller; an illegal one ends the game with ILLEGAL_REWARD.

        Returns:
            Episode, and the weighted reward of every seat, float32 [P].
        """
        game, state = self.game, episode.state
        over = self.over(episode)
        legal = (action >= 0) & (action < game.n_actions) & game.legal(state)[action]
        after, reward = game.step(state, action)
        rewards = self._weighted(reward)
        penalty = jnp.zeros_like(rewards).at[self.mover(state)].set(ILLEGAL_REWARD)
        state = jax.tree.map(lambda old, new: jnp.where(legal & ~over, new, old), state, after)
        rewards = jnp.where(over, 0, jnp.where(legal, rewards, penalty))
        turns = episode.turns + (legal & ~over)
        return Episode(state, episode.key, turns, episode.broken | (~legal & ~over)), rewards

    def follow(self, episode: Episode) -> tuple[Episode, jax.Array]:
        """Let the bot move until the caller's turn, and add up the rewards: float32 [P]."""
        bot, nothing = self.bot, jnp.zeros(self.game.n_players)
        if bot is None:
            return episode, nothing

        def waits(carry):
            return ~self.over(carry[0]) & (self.game.player(carry[0].state) != self.seat)

        def turn(carry):
            (state, key, turns, broken), rewards = carry
            key, own = jax.random.split(key)
            state, reward = self.game.step(state, bot.act(state, own))
            return Episode(state, key, turns + 1, broken), rewards + self._weighted(reward)

        return jax.lax.while_loop(waits, turn, (episode, nothing))

    def look(self, episode: Episode) -> View:
        """Return the observation of the seat that the caller plays now."""
        game, (state, _, turns, broken) = self.game, episode
        done, player = self.over(episode), self.mover(state)
        late = done & ~broken & (turns >= game.max_turns) & (~game.success(state) if game.solvable else False)
        mask = (game.legal(state) & ~done).astype(jnp.int8)
        return View(self.texts.indices(state, player).astype(jnp.int32), mask, player, done & ~late, late)

    def mover(self, state: State) -> jax.Array:
        """Return the seat that the caller plays: int32 []."""
        return jnp.int32(self.seat) if self.bot else jnp.asarray(self.game.player(state), jnp.int32)

    def over(self, episode: Episode) -> jax.Array:
        """Return whether a game has ended: bool []."""
        return episode.broken | self.game.done(episode.state)

    def _weighted(self, reward: Reward) -> jax.Array:
        team, agent, process = self.weights
        total = team * reward.team + agent * reward.agent + process * reward.process
        return jnp.broadcast_to(total, (self.game.n_players,)).astype(jnp.float32)

    # Host

    def shown(self, numbers: np.ndarray, mask: np.ndarray, player: int) -> np.ndarray | str:
        """Return the numbers, or a text with rules and legal actions."""
        if self.observation == "numbers":
            return numbers
        text = self.texts
        parts = [text.rules, text.roles[player], text.observation.text(numbers), text.questions[player]]
        legal = f"Legal actions: {', '.join(self.legal_actions(mask))}"
        return "\n".join(part.removesuffix("\n") for part in (*parts, legal) if part)

    def legal_actions(self, mask: np.ndarray) -> list[str]:
        """Return the names of the legal actions, with an explanation of letters."""
        names = zip(self.texts.names, self.game.action_texts, strict=True)
        names = [name if name == words else f"{name} ({words})" for name, words in names]
        return [name.strip() for name, legal in zip(names, mask, strict=True) if legal]

    def number(self, action: Any, mask: np.ndarray) -> int:
        """Return an action as a number; -1 is a text that names no legal action.

        Raises:
            ValueError: If the action is illegal and `illegal` is "raise".
        """
        if isinstance(action, str):
            named = self.texts.parse(action, mask.astype(bool).tolist())
            number = -1 if named is None else named
        else:
            number = int(action)
        if self.illegal == "raise" and not (0 <= number < len(mask) and mask[number]):
            game, legal = self.game, np.flatnonzero(mask)
            accepted = ", ".join(f"{a} ({game.action_names[a]})" for a in legal)
            given = repr(action) if isinstance(action, str) else number
            raise ValueError(f"{game.name}: action is {given}, but must be one of: {accepted or 'none, it is over'}")
        return number

    def spaces(self) -> tuple[Any, Any]:
        """Return the Gymnasium spaces of observations and actions."""
        assert gymnasium is not None
        text, n_actions = self.texts, self.game.n_actions
        most = np.array([len(table.variants) - 1 for table in text.observation.tables], np.int32)
        seen = gymnasium.spaces.Box(np.zeros_like(most), most, dtype=np.int32)
        if self.observation == "text":
            board = sum(
                max(map(len, piece.variants if isinstance(piece, TextTable) else (piece.text,)))
                for piece in text.observation.pieces
            )
            every = self.legal_actions(np.ones(n_actions))
            around = len(text.rules) + max(map(len, text.roles)) + max(map(len, text.questions)) + len(", ".join(every))
            seen = gymnasium.spaces.Text(board + around + 32, min_length=0, charset=CHARACTERS)
        mask = gymnasium.spaces.Box(0, 1, (n_actions,), np.int8)
        both = gymnasium.spaces.Dict({"observation": seen, "action_mask": mask})
        return both, gymnasium.spaces.Discrete(n_actions)


def seed_keys(seeds: Sequence[int]) -> jax.Array:
    """Return a random key for every seed."""
    return jax.vmap(jax.random.key)(np.asarray([seed % 2**31 for seed in seeds], np.int32))
