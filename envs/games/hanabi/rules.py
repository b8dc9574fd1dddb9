"""Hanabi for two to five players, as in the Hanabi Learning Environment.

Axis letters: P players, H cards in a hand, C colors, R ranks, N cards in the deck, A actions.

A card is the number `color * R + rank`, both from 0; -1 is an empty place. Each color has three cards of the lowest
rank, one of the highest and two of the others. Hands are ordered from the oldest card to the newest: when a card
leaves, the newer ones move down, and the drawn card takes the last place.

Actions, in this order: discard place 0…H-1; play place 0…H-1; tell the player at offset 1…P-1 about color 0…C-1; tell
the player at offset 1…P-1 about rank 0…R-1. Offsets count from the player who gives the hint, and the offset is the
slower index.
"""

import dataclasses
import functools
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.game import Game, Reward, check_range, legal_or_end

COLOR_NAMES = ("red", "yellow", "green", "white", "blue")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Moves(NamedTuple):
    """The latest move of every player, which is public.

    Attributes:
        action: int32 [P]. The action, -1 before the first one.
        card: int8 [P]. The card that was played or discarded, -1 for a hint.
        scored: bool [P]. Whether the card was played successfully.
        touched: uint8 [P]. Bit h is set if the hint named the card in place h of its receiver.
    """

    action: jax.Array
    card: jax.Array
    scored: jax.Array
    touched: jax.Array


class HanabiState(NamedTuple):
    """A position, including its hidden parts.

    Attributes:
        deck: int8 [N]. All cards in the order in which they are dealt; constant.
        dealt: int32 []. Number of cards that have left the deck.
        hands: int8 [P, H]. Cards, oldest first, -1 in places that can no longer be filled.
        colors: uint8 [P, H]. Bit c is set if the hints allow color c for the card; 0 in empty places.
        ranks: uint8 [P, H]. Bit r is set if the hints allow rank r for the card; 0 in empty places.
        fireworks: int8 [C]. Number of cards played in each color, which is the rank that can be played next.
        discards: int8 [C, R]. Number of copies of each card in the discard pile.
        information: int32 []. Information tokens left.
        lives: int32 []. Life tokens left.
        seat: int32 []. Player to move.
        turns_left: int32 []. Turns left, counted down from P once the deck is empty.
        over: bool []. Whether the game has ended.
        last: The latest move of every player.
    """

    deck: jax.Array
    dealt: jax.Array
    hands: jax.Array
    colors: jax.Array
    ranks: jax.Array
    fireworks: jax.Array
    discards: jax.Array
    information: jax.Array
    lives: jax.Array
    seat: jax.Array
    turns_left: jax.Array
    over: jax.Array
    last: Moves


class Action(NamedTuple):
    """A decoded action; only some of the fields apply to each kind of action.

    Attributes:
        discard: bool [].
        play: bool [].
        hint_color: bool [].
        hint_rank: bool []. Exactly one of the four is True.
        place: int32 []. Place in the player's own hand (discard, play).
        offset: int32 []. Number of seats from the player to the receiver (hints).
        value: int32 []. Color or rank named (hints).
    """

    discard: jax.Array
    play: jax.Array
    hint_color: jax.Array
    hint_rank: jax.Array
    place: jax.Array
    offset: jax.Array
    value: jax.Array


@dataclasses.dataclass(frozen=True)
class Hanabi(Game):
    """Hanabi, a cooperative game.

    The team reward is the change of the score, which drops to 0 when the last life is lost. Players who still lose
    nearly every game learn little from this. `consolation` returns this share of the lost score as a process reward;
    the score of a lost game remains 0.

    Attributes:
        players: Number of players.
        colors: Number of colors.
        ranks: Number of ranks.
        hand_size: Number of cards in a hand; by default five for two or three players, else four.
        max_information_tokens: Initial and maximum number of information tokens.
        max_life_tokens: Initial number of life tokens.
        consolation: Share of the lost score that is returned as a process reward.
    """

    players: int = 2
    colors: int = 5
    ranks: int = 5
    hand_size: int | None = None
    max_information_tokens: int = 8
    max_life_tokens: int = 3
    consolation: float = 0.0

    name: ClassVar[str] = "hanabi"
    reward_levels: ClassVar[tuple[str, ...]] = ("team", "process")
    PRESETS: ClassVar[dict[str, dict]] = {
        "full": {},
        "small": {"colors": 2, "ranks": 5, "hand_size": 2, "max_information_tokens": 3, "max_life_tokens": 1},
        "very_small": {"colors": 1, "ranks": 5, "hand_size": 2, "max_information_tokens": 3, "max_life_tokens": 1},
    }

    def __post_init__(self):
        check_range("hanabi", "players", self.players, 2, 5)
        check_range("hanabi", "colors", self.colors, 1, 5)
        check_range("hanabi", "ranks", self.ranks, 1, 5)
        if self.hand_size is None:
            object.__setattr__(self, "hand_size", 5 if self.players < 4 else 4)
        check_range("hanabi", "hand_size", self.hand_size, 1, 5)
        check_range("hanabi", "max_information_tokens", self.max_information_tokens, 0, 50)
        check_range("hanabi", "max_life_tokens", self.max_life_tokens, 1, 50)
        if not 0 <= self.consolation <= 1:
            raise ValueError(f"hanabi: consolation is {self.consolation!r}, but must be between 0 and 1")
        needed = self.players * self.cards_per_hand
        if needed > self.n_cards:
            raise ValueError(
                f"hanabi: {self.players} players with hand_size {self.hand_size} need {needed} cards, but "
                f"{self.colors} colors and {self.ranks} ranks make a deck of {self.n_cards}"
            )

    @classmethod
    def reward_levels_with(cls, params) -> tuple[str, ...]:
        """Return the reward levels, without `process` if there is no consolation."""
        return cls.reward_levels if params.get("consolation") else ("team",)

    # Sizes and names

    @property
    def n_players(self) -> int:
        """P: number of players."""
        return self.players

    @property
    def cards_per_hand(self) -> int:
        """H: number of cards in a full hand."""
        assert self.hand_size is not None  # `__post_init__` fills in the default
        return self.hand_size

    @property
    def n_actions(self) -> int:
        """A: number of actions.

        There are two per card in the hand, and one hint per other player and color or rank.
        """
        return 2 * self.cards_per_hand + (self.players - 1) * (self.colors + self.ranks)

    @property
    def n_cards(self) -> int:
        """N: number of cards in the deck."""
        return self.colors * sum(copies(self.ranks))

    @property
    def max_turns(self) -> int:
        """Maximum number of turns.

        Every drawn card allows one play or discard and at most one more hint; then everybody moves once.
        """
        drawn = self.n_cards - self.players * self.cards_per_hand
        return self.max_information_tokens + 2 * drawn + self.players

    @property
    def max_score(self) -> int:
        """Score of complete fireworks."""
        return self.colors * self.ranks

    @property
    def action_names(self) -> tuple[str, ...]:
        """One letter per action, so that a completion is a single token.

        `action_texts` describes the actions.
        """
        return tuple(_LETTERS[: self.n_actions])

    @functools.cached_property
    def action_texts(self) -> tuple[str, ...]:
        """Descriptions of the actions; places, ranks and offsets are counted from 1."""
        texts = [f"{verb} card {h + 1}" for verb in ("discard", "play") for h in range(self.cards_per_hand)]
        offsets = range(1, self.players)
        texts += [f"tell player +{o} about {COLOR_NAMES[c]}" for o in offsets for c in range(self.colors)]
        texts += [f"tell player +{o} about rank {r + 1}" for o in offsets for r in range(self.ranks)]
        return tuple(texts)

    @property
    def action_kinds(self) -> tuple[str, ...]:
        """Kind of every action: discard, play or hint."""
        hints = self.n_actions - 2 * self.cards_per_hand
        return ("discard",) * self.cards_per_hand + ("play",) * self.cards_per_hand + ("hint",) * hints

    # Rules

    def reset(self, key: jax.Array) -> HanabiState:
        """Start a game with a shuffled deck."""
        cards = np.repeat(np.arange(self.max_score), np.tile(copies(self.ranks), self.colors)).astype(np.uint32)
        # Sorting one array with random high bits and card numbers in the low bits is several times faster than
        # `permutation`. 27 random bits tie so rarely (once in 1e5 decks) that ordering ties by card does not matter.
        tickets = jax.random.bits(key, cards.shape, jnp.uint32) & np.uint32(~31 & 0xFFFFFFFF) | cards
        return self.reset_from_deck((jnp.sort(tickets) & 31).astype(jnp.int8))

    def reset_from_deck(self, deck: jax.Array) -> HanabiState:
        """Start a game with a given order of the deck (int [N]).

        Player 0 gets the first full hand, then player 1, and so on.
        """
        if deck.shape != (self.n_cards,):
            raise ValueError(f"hanabi: deck has shape {deck.shape}, but must have ({self.n_cards},)")
        players, hand = self.players, self.cards_per_hand
        deck = jnp.asarray(deck, jnp.int8)
        return HanabiState(
            deck=deck,
            dealt=jnp.int32(players * hand),
            hands=deck[: players * hand].reshape(players, hand),
            colors=jnp.full((players, hand), 2**self.colors - 1, jnp.uint8),
            ranks=jnp.full((players, hand), 2**self.ranks - 1, jnp.uint8),
            fireworks=jnp.zeros((self.colors,), jnp.int8),
            discards=jnp.zeros((self.colors, self.ranks), jnp.int8),
            information=jnp.int32(self.max_information_tokens),
            lives=jnp.int32(self.max_life_tokens),
            seat=jnp.int32(0),
            turns_left=jnp.int32(players),
            over=jnp.bool_(False),
            last=Moves(
                action=jnp.full((players,), -1, jnp.int32),
                card=jnp.full((players,), -1, jnp.int8),
                scored=jnp.zeros((players,), jnp.bool_),
                touched=jnp.zeros((players,), jnp.uint8),
            ),
        )

    def player(self, state: HanabiState) -> jax.Array:
        """Return the seat that moves next: int32 []."""
        return state.seat

    def done(self, state: HanabiState) -> jax.Array:
        """Return whether the game is over: bool [].

        It ends without lives, with complete fireworks, or after the round that follows the last card.
        """
        return state.over

    def score(self, state: HanabiState) -> jax.Array:
        """Return the number of cards played, or 0 without lives: int32 []."""
        return jnp.where(state.lives > 0, jnp.sum(state.fireworks, dtype=jnp.int32), 0)

    def endings(self, state: HanabiState) -> dict[str, jax.Array]:
        """Return whether all lives were lost, and whether all fireworks were completed."""
        return {"bomb_rate": state.lives == 0, "perfect_rate": self.score(state) == self.max_score}

    def legal(self, state: HanabiState) -> jax.Array:
        """Return the legal actions: bool [A].

        They are discards while information tokens are missing, plays, and hints that name at least one card.
        """
        others = state.hands[(state.seat + jnp.arange(1, self.players)) % self.players]
        held = state.hands[state.seat] >= 0
        has_color = _holds(others // self.ranks, others >= 0, self.colors)
        has_rank = _holds(others % self.ranks, others >= 0, self.ranks)
        hints = jnp.concatenate([has_color.ravel(), has_rank.ravel()]) & (state.information > 0)
        legal = jnp.concatenate([held & (state.information < self.max_information_tokens), held, hints])
        return legal_or_end(legal, state.over)

    def decode(self, action: jax.Array) -> Action:
        """Decode action numbers (int [...]); every field has their shape."""
        action = action.astype(jnp.int32)
        first_color = 2 * self.cards_per_hand
        first_rank = first_color + (self.players - 1) * self.colors
        named_color, named_rank = action - first_color, action - first_rank
        is_rank = action >= first_rank
        return Action(
            discard=action < self.cards_per_hand,
            play=(action >= self.cards_per_hand) & (action < first_color),
            hint_color=(action >= first_color) & ~is_rank,
            hint_rank=is_rank,
            place=jnp.where(action < self.cards_per_hand, action, action - self.cards_per_hand),
            offset=1 + jnp.where(is_rank, named_rank // self.ranks, named_color // self.colors),
            value=jnp.where(is_rank, named_rank % self.ranks, named_color % self.colors),
        )

    def step(self, state: HanabiState, action: jax.Array) -> tuple[HanabiState, Reward]:
        """Play, discard or give a hint.

        In a finished game nothing happens, because every kind of move is disabled.
        """
        live = ~state.over
        move = self.decode(action)
        hint = live & (move.hint_color | move.hint_rank)
        leaves = live & (move.discard | move.play)
        deck_empty = state.dealt == self.n_cards
        me = jnp.arange(self.players) == state.seat

        # The card that leaves the hand, and its effect.
        card = jnp.sum(jnp.where(_at(state.hands, state.seat, move.place), state.hands, 0), dtype=jnp.int32)
        color, rank = card // self.ranks, card % self.ranks
        built = jnp.arange(self.colors) == color
        fits = jnp.any(built & (state.fireworks == rank))
        scored = leaves & move.play & fits
        lost = leaves & ~scored
        fireworks = state.fireworks + (built & scored)
        discards = state.discards + (built[:, None] & (jnp.arange(self.ranks) == rank) & lost)
        lives = state.lives - (lost & move.play)
        gained = (lost & move.discard) | (scored & (rank == self.ranks - 1))
        information = jnp.minimum(state.information + gained, self.max_information_tokens) - hint

        # Newer cards move down, and the next card of the deck, if any, takes the last place.
        drawn = jnp.where(deck_empty, -1, state.deck[jnp.minimum(state.dealt, self.n_cards - 1)])
        moves_down = me[:, None] & leaves & (jnp.arange(self.cards_per_hand) >= move.place)
        hands = _remove(state.hands, moves_down, drawn)
        colors = _remove(state.colors, moves_down, jnp.where(deck_empty, 0, 2**self.colors - 1))
        ranks = _remove(state.ranks, moves_down, jnp.where(deck_empty, 0, 2**self.ranks - 1))

        # A hint rules out all other values for the cards it names, and its value for the rest.
        receiver = (jnp.arange(self.players) == (state.seat + move.offset) % self.players)[:, None] & (state.hands >= 0)
        named = jnp.where(move.hint_color, state.hands // self.ranks, state.hands % self.ranks) == move.value
        bit = (jnp.uint8(1) << move.value.astype(jnp.uint8)).astype(jnp.uint8)
        colors = jnp.where(receiver & hint & move.hint_color, jnp.where(named, bit, colors & ~bit), colors)
        ranks = jnp.where(receiver & hint & move.hint_rank, jnp.where(named, bit, ranks & ~bit), ranks)
        touched = jnp.sum(jnp.where(receiver & named & hint, 1 << jnp.arange(self.cards_per_hand), 0))

        score = jnp.sum(state.fireworks, dtype=jnp.int32)
        turns_left = state.turns_left - (live & deck_empty)
        over = (lives == 0) | (score + scored == self.max_score) | (turns_left == 0)
        lost_score = jnp.where(live & (lives == 0), score, 0)
        team = jnp.where(live, scored - lost_score, 0)
        moved = me & live
        new = HanabiState(
            deck=state.deck,
            dealt=state.dealt + (leaves & ~deck_empty),
            hands=hands,
            colors=colors,
            ranks=ranks,
            fireworks=fireworks,
            discards=discards,
            information=information,
            lives=lives,
            seat=jnp.where(live, (state.seat + 1) % self.players, state.seat),
            turns_left=turns_left,
            over=state.over | over,
            last=Moves(
                action=jnp.where(moved, action.astype(jnp.int32), state.last.action),
                card=jnp.where(moved, jnp.where(leaves, card, -1), state.last.card).astype(jnp.int8),
                scored=jnp.where(moved, scored, state.last.scored),
                touched=jnp.where(moved, touched, state.last.touched).astype(jnp.uint8),
            ),
        )
        consoled = jnp.full((self.players,), self.consolation * lost_score, jnp.float32)
        return new, Reward(team.astype(jnp.float32), jnp.zeros_like(consoled), consoled)


def copies(ranks: int) -> list[int]:
    """Return the number of cards of each rank in a color.

    There are three of the lowest rank, one of the highest and two of the others.
    """
    return [3 if r == 0 else 1 if r == ranks - 1 else 2 for r in range(ranks)]


def _at(array: jax.Array, row: jax.Array, column: jax.Array) -> jax.Array:
    """Return a mask of one entry of a matrix.

    In a batch this is cheaper than a gather or scatter.
    """
    rows, columns = array.shape
    return (jnp.arange(rows) == row)[:, None] & (jnp.arange(columns) == column)


def _remove(array: jax.Array, moves_down: jax.Array, newest: jax.Array) -> jax.Array:
    """Shift the marked places of each row (any [P, H]) to the left.

    `newest` fills the last place.
    """
    column = jnp.broadcast_to(newest.astype(array.dtype), (array.shape[0], 1))
    return jnp.where(moves_down, jnp.concatenate([array[:, 1:], column], axis=1), array)


def _holds(values: jax.Array, held: jax.Array, n: int) -> jax.Array:
    """Return which of n values occur in each hand: bool [..., n]."""
    return jnp.any((values[..., None] == jnp.arange(n)) & held[..., None], axis=-2)
