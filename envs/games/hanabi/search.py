"""Search by one seat of Hanabi over the moves of a bot.

This is single-agent SPARTA (Lerer et al. 2020) with the bot as blueprint in all other seats.

On its turn, the searching seat samples hands that it may hold (`belief.py`). It plays every legal move in the same
sampled positions and lets the bot finish the games in all seats. A move replaces the bot's own one only if its mean
score is higher by more than a threshold and by several standard errors of the paired difference.

    search = SearchBot(game, ConventionBot(game))
    memory = search.begin(state, seat)
    choice = search.choose(memory, state, key)             # if it is the seat's turn
    memory = search.observe(memory, state, action)         # after every move of any player
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from envs.games.game import Bot, check_range
from envs.games.hanabi import belief
from envs.games.hanabi.belief import Memory
from envs.games.hanabi.rules import Hanabi, HanabiState


class Choice(NamedTuple):
    """A searched move.

    Attributes:
        action: int32 []. The move.
        blueprint: int32 []. The bot's own move in the same position.
        gain: float32 []. Estimated gain in score over the bot's move, 0 if they are the same.
        error: float32 []. Standard error of the gain of the best move that was compared with the bot's.
        lost: int32 []. Number of the others' moves that no sampled hand explained (`Belief.lost`). The bot's own move
            is played if there are any.
    """

    action: jax.Array
    blueprint: jax.Array
    gain: jax.Array
    error: jax.Array
    lost: jax.Array


@dataclasses.dataclass(frozen=True)
class SearchBot:
    """A player that searches one move ahead and otherwise follows a deterministic bot.

    All moves are first compared in `screening` positions. The best of them and the bot's own move, `finalists` in all,
    are compared in `rollouts` new positions, which decide.

    Attributes:
        game: The game.
        bot: Bot that all seats play in rollouts and the others in the game. It must not depend on its key.
        hands: Number of hypothetical hands of the belief.
        screening: Number of rollouts of every move.
        finalists: Number of moves in the second comparison.
        rollouts: Number of rollouts of each of them.
        threshold: Lowest gain in score for which another move than the bot's is played.
        errors: Lowest gain in standard errors.
    """

    game: Hanabi
    bot: Bot
    hands: int = 1024
    screening: int = 32
    finalists: int = 4
    rollouts: int = 256
    threshold: float = 0.05
    errors: float = 1.0

    def __post_init__(self):
        for field, low in (("hands", 1), ("screening", 1), ("finalists", 2), ("rollouts", 2)):
            check_range("hanabi search", field, getattr(self, field), low, 1_000_000)
        for field in ("threshold", "errors"):
            if not getattr(self, field) >= 0:
                raise ValueError(f"hanabi search: {field} is {getattr(self, field)!r}, but must be >= 0")

    def begin(self, state: HanabiState, seat: jax.Array | int) -> Memory:
        """Start the memory of a seat at the first position of a game."""
        return belief.begin(self.game, state, seat)

    def observe(self, memory: Memory, before: HanabiState, action: jax.Array) -> Memory:
        """Remember the move `action` of the player to move in `before`."""
        return belief.observe(self.game, memory, before, action)

    def choose(self, memory: Memory, state: HanabiState, key: jax.Array) -> Choice:
        """Search for a move of the seat that remembers, which is to move."""
        game = self.game
        hands_key, first_key, second_key = jax.random.split(key, 3)
        own = self.bot.act(state, key)
        hands = belief.believe(game, self.bot, memory, state, hands_key, self.hands)
        legal = game.legal(state)
        actions = jnp.arange(game.n_actions)

        positions = belief.deal(game, memory, state, hands, first_key, self.screening)
        screened = jnp.mean(self._scores(positions, actions, legal), axis=1)
        screened = jnp.where(actions == own, jnp.inf, jnp.where(legal, screened, -jnp.inf))
        order = jnp.argsort(-screened)[: min(self.finalists, game.n_actions)]  # the bot's own move comes first

        positions = belief.deal(game, memory, state, hands, second_key, self.rollouts)
        scores = self._scores(positions, order, legal[order])
        gains = scores - scores[0]
        mean = jnp.where(legal[order], jnp.mean(gains, axis=1), -jnp.inf).at[0].set(-jnp.inf)
        best = jnp.argmax(mean)
        error = jnp.std(gains[best]) / jnp.sqrt(self.rollouts - 1)
        deviates = (mean[best] > self.threshold) & (mean[best] > self.errors * error) & (hands.lost == 0)
        return Choice(
            action=jnp.where(deviates, order[best], own).astype(jnp.int32),
            blueprint=own,
            gain=jnp.where(deviates, mean[best], 0.0),
            error=error,
            lost=hands.lost,
        )

    def _scores(self, positions: HanabiState, actions: jax.Array, legal: jax.Array) -> jax.Array:
        """Return the final scores of moves in positions [M, …]: float32 [A, M].

        Illegal moves are not played and get the score 0.
        """
        after, _ = jax.vmap(lambda a: jax.vmap(self.game.step, (0, None))(positions, a))(actions)
        after = after._replace(over=after.over | ~legal[:, None])
        final = jax.vmap(lambda states: play_out(self.game, self.bot, states))(after)
        return jnp.where(legal[:, None], jax.vmap(jax.vmap(self.game.score))(final), 0).astype(jnp.float32)


def play_out(game: Hanabi, bot: Bot, states: HanabiState) -> HanabiState:
    """Let a bot finish games [B, …] in all seats, with a constant key."""
    decks, key = states.deck, jax.random.key(0)
    act, step = jax.vmap(bot.act, (0, None)), jax.vmap(game.step)

    def turn(rest: HanabiState) -> HanabiState:
        # The decks are constants of the loop, so that they are not copied.
        now = rest._replace(deck=decks)
        return _without_decks(step(now, act(now, key))[0])

    last = jax.lax.while_loop(lambda rest: ~jnp.all(rest.over), turn, _without_decks(states))
    return last._replace(deck=decks)


def _without_decks(states: HanabiState) -> HanabiState:
    return states._replace(deck=states.deck[:, :0])
