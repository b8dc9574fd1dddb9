"""Drawings of Kuhn poker; with `player`, the other player's card is hidden."""

import jax
import jax.numpy as jnp

from envs.games import cards
from envs.games.betting import padded
from envs.games.kuhn.rules import RANKS, ROUND, Kuhn, KuhnState
from envs.games.picture import HIDDEN_TILE, SHADE, Picture, Tile


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


def picture(game: Kuhn, style: str) -> Picture:
    """Return the drawing for models: the card of each player, and below them the moves."""
    del style
    moves, ranks = padded(ROUND.sequences), tuple(Tile(rank[0].upper(), paper="#f4e9c8") for rank in RANKS)
    names = tuple(Tile(name[0].upper(), "#2471a3") for name in game.action_names)
    width = max(moves.shape[1], game.n_players)
    blank, first = len(ranks) + 1, len(ranks) + 3

    def drawn(state: KuhnState, seat: jax.Array) -> jax.Array:
        hands = jnp.where(jnp.arange(game.n_players) == seat, state.cards, len(ranks))
        made = jnp.asarray(moves)[state.moves]
        made = jnp.where(made < 0, blank, first + made)
        fill = lambda row: jnp.pad(row, (0, width - len(row)), constant_values=blank + 1)  # noqa: E731
        return jnp.concatenate([fill(hands), fill(made)])

    return Picture((2, width), (*ranks, HIDDEN_TILE, Tile("-", SHADE), Tile(), *names), drawn)
