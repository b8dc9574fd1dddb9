"""Pictures of Hanabi for models.

Axis letters: P players, H cards in a hand, C colors, R ranks.

The first row has the tokens (I), lives (L), cards in the deck (D) and turns left after its end (T). Then follow a row
for each color, with the firework and the number of discarded copies of each rank, and a row for each player, the reader
first. A player's row has three cells for every card: the card ("?" in the reader's hand), the colors and the ranks that
hints allow. Its last two cells are the player's latest move and the card that it concerned, or the places that it
named; a lost card has a "!".
"""

import jax
import jax.numpy as jnp

from envs.games.hanabi.rules import COLOR_NAMES, Hanabi, HanabiState, copies
from envs.games.picture import HIDDEN_TILE, SHADE, Picture, Tile

_PAPERS = ("#d64541", "#f4d03f", "#27ae60", "#f4f6f7", "#2e6fd1")
_HEADER = "ILDT"


def picture(game: Hanabi, style: str) -> Picture:
    """Return the drawing for models."""
    del style
    n, hand, colors, ranks = game.players, game.cards_per_hand, game.colors, game.ranks
    copied = max(copies(ranks))
    numbers = range(max(game.max_information_tokens, game.max_life_tokens, game.n_cards) + 1)
    letters = "".join(name[0].upper() for name in COLOR_NAMES[:colors])
    tiles: list[Tile] = [Tile(), HIDDEN_TILE, *(Tile(letter, "#ffffff", "#333333") for letter in _HEADER)]

    def add(more: list[Tile]) -> int:
        tiles.extend(more)
        return len(tiles) - len(more)

    number = add([Tile(str(i)) for i in numbers])
    firework = add([Tile(str(i), paper=_PAPERS[c]) for c in range(colors) for i in range(ranks + 1)])
    discarded = add([Tile(str(i), _PAPERS[c], "#444444") for c in range(colors) for i in range(copied + 1)])
    card = add([Tile(str(r + 1), paper=_PAPERS[c]) for c in range(colors) for r in range(ranks)])
    lost = add([Tile(f"{r + 1}!", paper=_PAPERS[c]) for c in range(colors) for r in range(ranks)])
    of_colors = add([Tile(_marked(letters, mask), paper=SHADE) for mask in range(1 << colors)])
    places = max(hand, ranks)
    of_digits = add([Tile(_marked("12345"[:places], mask), paper=SHADE) for mask in range(1 << places)])
    moves = add([Tile("-", SHADE), *(Tile(sign, "#2471a3") for sign in _moves(game))])
    width = max(2 * len(_HEADER), ranks + 1, 3 * hand + 2)

    def drawn(state: HanabiState, seat: jax.Array) -> jax.Array:
        seats = (seat + jnp.arange(n)) % n
        left = game.n_cards - state.dealt
        counts = jnp.stack([state.information, state.lives, left, jnp.where(left == 0, state.turns_left, 0)])
        header = jnp.stack([2 + jnp.arange(len(_HEADER)), number + counts], axis=1).reshape(1, -1)
        color = jnp.arange(colors)[:, None]
        piles = jnp.concatenate(
            [
                firework + color * (ranks + 1) + state.fireworks[:, None],
                discarded + color * (copied + 1) + state.discards,
            ],
            axis=1,
        )
        held = state.hands[seats].astype(jnp.int32)
        cards = jnp.where(seats[:, None] == seat, 1, card + held)
        knows = of_colors + state.colors[seats].astype(jnp.int32), of_digits + state.ranks[seats].astype(jnp.int32)
        hands = jnp.where(held[..., None] < 0, 0, jnp.stack([cards, *knows], axis=-1)).reshape(n, -1)
        rows = (header, piles, jnp.concatenate([hands, _latest(state, seats)], axis=1))
        return jnp.concatenate([jnp.pad(row, ((0, 0), (0, width - row.shape[1]))) for row in rows]).reshape(-1)

    def _latest(state: HanabiState, seats: jax.Array) -> jax.Array:
        """Return the latest move of each player and what it concerned: int32 [P, 2]."""
        action, concerned, scored, touched = (field[seats].astype(jnp.int32) for field in state.last)
        move = game.decode(action)
        shown = jnp.where(move.play & (scored == 0), lost, card) + concerned
        shown = jnp.where(move.discard | move.play, shown, of_digits + touched)
        return jnp.stack([moves + action + 1, jnp.where(action < 0, 0, shown)], axis=1)

    return Picture((1 + colors + n, width), tuple(tiles), drawn)


def _marked(signs: str, mask: int) -> str:
    """Return the signs whose bit is set, three per line; "" if there are none."""
    shown = "".join(sign if mask >> i & 1 else " " for i, sign in enumerate(signs))
    return "" if not mask else "\n".join(shown[start : start + 3].ljust(3) for start in range(0, len(shown), 3))


def _moves(game: Hanabi) -> list[str]:
    """Return a sign for every action: verb and place, or distance and hint."""
    own = [f"{verb}{place + 1}" for verb in "DP" for place in range(game.cards_per_hand)]
    told = (*(name[0].upper() for name in COLOR_NAMES[: game.colors]), *map(str, range(1, game.ranks + 1)))
    by_color = [f"+{o}\n{sign}" for o in range(1, game.players) for sign in told[: game.colors]]
    return own + by_color + [f"+{o}\n{sign}" for o in range(1, game.players) for sign in told[game.colors :]]
