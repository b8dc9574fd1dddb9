"""Drawings of Kuhn poker; with `player`, the other player's card is hidden."""

import jax

from envs.games import cards
from envs.games.kuhn.rules import RANKS, ROUND, Kuhn, KuhnState


def board(state: KuhnState, player: int | None = None) -> str:
    """Draw the cards and the moves so far as terminal text."""
    hands, moves = _shown(state, player)
    return "\n".join([f"player {seat}  {card}" for seat, card in enumerate(hands)] + [f"moves     {moves}"])


def svg(state: KuhnState, player: int | None = None) -> str:
    """Draw the cards side by side above the moves as an SVG document."""
    hands, moves = _shown(state, player)
    return cards.table([(f"player {seat}", card[0].upper(), False) for seat, card in enumerate(hands)], [moves])


def _shown(state: KuhnState, player: int | None) -> tuple[list[str], str]:
    state = jax.device_get(state)
    hands = ["?" if player not in (None, seat) else RANKS[card] for seat, card in enumerate(state.cards)]
    return hands, cards.listed(Kuhn.action_names, ROUND.sequences[int(state.moves)])
