"""Drawings of Leduc poker; with `player`, the other player's card is hidden."""

import jax
import jax.numpy as jnp

from envs.games import cards
from envs.games.betting import padded
from envs.games.leduc.rules import N_CARDS, RANKS, ROUND, SUITS, Leduc, LeducState
from envs.games.picture import HIDDEN_TILE, SHADE, Picture, Tile


def board(state: LeducState, player: int | None = None) -> str:
    """Draw the cards and the moves of both rounds, one line each."""
    hands, rounds = _shown(state, player)
    names = ["player 0", "player 1", "public"]
    lines = [f"{name:8}  {_name(card)}" for name, card in zip(names, hands, strict=True)]
    return "\n".join([*lines, *(f"round {i + 1}   {moves}" for i, moves in enumerate(rounds))])


def svg(state: LeducState, player: int | None = None) -> str:
    """Draw the cards side by side above the moves as an SVG document."""
    hands, rounds = _shown(state, player)
    names = ["player 0", "public", "player 1"]
    shown = [
        (name, "?" if card is None else RANKS[card // 2][0].upper(), card is not None and card % 2 == 1)
        for name, card in zip(names, (hands[0], hands[2], hands[1]), strict=True)
    ]
    return cards.table(shown, [f"round {i + 1}: {moves}" for i, moves in enumerate(rounds)])


def _shown(state: LeducState, player: int | None) -> tuple[list[int | None], list[str]]:
    """Return the cards (None if hidden) and the moves of each round."""
    state = jax.device_get(state)
    hidden = [player not in (None, 0), player not in (None, 1), state.round == 0]
    hands = [None if out_of_sight else int(card) for card, out_of_sight in zip(state.cards, hidden, strict=True)]
    return hands, [cards.listed(Leduc.action_names, ROUND.sequences[int(moves)]) for moves in state.moves]


def _name(card: int | None) -> str:
    return "?" if card is None else f"{RANKS[card // 2]} of {SUITS[card % 2]}"


def picture(game: Leduc, style: str) -> Picture:
    """Return the drawing for models: all cards, and below them each round's moves.

    The public card is the last one. Spades are black and hearts are red.
    """
    del style
    moves = padded(ROUND.sequences)
    ranks = tuple(Tile(rank[0].upper(), ink, "#f4e9c8") for rank in RANKS for ink in ("#222222", "#d64541"))
    names = tuple(Tile(name[0].upper(), "#2471a3") for name in game.action_names)
    width = max(moves.shape[1], game.n_players + 1)
    blank, first = N_CARDS + 1, N_CARDS + 3

    def drawn(state: LeducState, seat: jax.Array) -> jax.Array:
        own, public = game.seen_cards(state, seat)
        hands = jnp.where(jnp.arange(game.n_players) == seat, own, N_CARDS)
        shown = jnp.append(hands, jnp.where(public > 0, public - 1, N_CARDS))
        made = jnp.asarray(moves)[state.moves]
        made = jnp.where(made < 0, blank, first + made)
        fill = lambda rows: jnp.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=blank + 1)  # noqa: E731
        return jnp.concatenate([fill(shown[None]), fill(made)]).reshape(-1)

    return Picture((3, width), (*ranks, HIDDEN_TILE, Tile("-", SHADE), Tile(), *names), drawn)
