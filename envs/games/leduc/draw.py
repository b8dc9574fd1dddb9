"""Drawings of Leduc poker; with `player`, the other player's card is hidden."""

import jax

from envs.games import cards
from envs.games.leduc.rules import RANKS, ROUND, SUITS, Leduc, LeducState


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
