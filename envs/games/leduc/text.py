"""The text of Leduc poker: the seat's card, the public card and all moves."""

import jax
import jax.numpy as jnp

from envs.games.leduc.rules import RANKS, ROUND, SUITS, Leduc, LeducState
from envs.games.template import Fixed, Piece, Table, Template
from envs.games.text import Text

RULES = (
    "You play Leduc poker, a game of two players with six cards: two jacks, two queens and two kings. Each player puts "
    "one chip into the pot and gets one card, which the other does not see. There are two rounds of betting, and the "
    "first player begins both. Call puts in as many chips as the other player has, or none if that is nothing more. "
    "Raise puts in 2 chips more than that in the first round and 4 in the second; a round has at most two raises. Fold "
    "gives up the pot and is allowed after a raise. A round ends when a player calls, except for the first move of a "
    "round. After the first round a public card is shown. At the end a player whose card has the rank of the public "
    "card wins the pot, otherwise the higher rank: kings beat queens, and queens beat jacks. Equal ranks share the pot."
)
COMPACT_RULES = (
    "Leduc poker: two jacks, queens and kings, one card each, one chip each in the pot. Two rounds, raises of 2 and "
    "then 4 chips, at most two a round. After the first round a public card: a pair with it wins, else the higher "
    "rank. Fold answers a raise. Shown are your card, the public card, and the moves of both rounds, the first "
    "player's first."
)


def text(game: Leduc, style: str) -> Text:
    """Build the text in one style.

    The style `full` has sentences, `compact` words, and `brief` one letter for each card and move, with dashes for
    those to come. In the brief style a card is the first letter of its rank, uppercase for spades.
    """
    listed = tuple(", ".join(game.action_names[a] for a in sequence) or "none" for sequence in ROUND.sequences)
    if style == "full":
        cards = _cards(game, "{rank} of {suit}")
        public = tuple(f" The public card is the {card}.\n" for card in cards)
        return _text(
            game, style, RULES, ("You are the first player.", "You are the second player."),
            (Fixed("Your card is the"), Table(tuple(f" {card}." for card in cards)),
             Table((" The public card is not shown yet.\n", *public)),
             Fixed("Moves of the first round:"), Table(tuple(f" {moves}.\n" for moves in listed)),
             Fixed("Moves of the second round:"), Table(tuple(f" {moves}.\n" for moves in listed))),
            (Table(("You decided to", "The other player decided to")), Table(tuple(f" {a}" for a in game.action_names)),
             Table((".\n", *(f".{shown}" for shown in public)))),
            game.action_names, "What do you do? Answer with one word only.", "What do you do?",
        )  # fmt: skip
    if style == "compact":
        cards = _cards(game, " {rank} {suit}")
        return _text(
            game, style, COMPACT_RULES, ("", ""),
            (Fixed("card"), Table(tuple(f"{card}\n" for card in cards)),
             Fixed("public"), Table((" none\n", *(f"{card}\n" for card in cards))),
             Fixed("first"), Table(tuple(f" {moves}\n" for moves in listed)),
             Fixed("second"), Table(tuple(f" {moves}\n" for moves in listed))),
            (Table(("you", "other")), Table(tuple(f" {name}" for name in game.action_names)),
             Table(("\n", *(f" public{card}\n" for card in cards)))),
            game.action_names, "Your move?", "Your move?",
        )  # fmt: skip
    letters = tuple(name[0] for name in game.action_names)
    cards = tuple(rank[0].upper() if suit == 0 or not game.suits else rank[0] for rank in RANKS for suit in (0, 1))
    longest = max(map(len, ROUND.sequences))
    moves = tuple("".join(letters[a] for a in sequence).ljust(longest, "-") for sequence in ROUND.sequences)
    return _text(
        game, style, "", ("", ""),
        (Table(cards), Table(("-", *cards)), Table(moves), Table(tuple(f"{m}:" for m in moves))),
        (Table(("x", "o")), Table(letters), Table(("-", *cards))), letters, "", ":",
    )  # fmt: skip


def _cards(game: Leduc, form: str) -> tuple[str, ...]:
    """Return the names of the six cards, without suits if the game hides them."""
    if game.suits:
        return tuple(form.format(rank=rank, suit=suit) for rank in RANKS for suit in SUITS)
    plain = form.replace(" of {suit}", "").replace(" {suit}", "")
    return tuple(plain.format(rank=rank) for rank in RANKS for _ in SUITS)


def _text(
    game: Leduc, style: str, rules: str, roles: tuple[str, str], seen: tuple[Piece, ...], event: tuple[Piece, ...],
    names: tuple[str, ...], question: str, ask: str,
) -> Text:  # fmt: skip
    return Text(
        game=game,
        style=style,
        rules=rules,
        roles=roles,
        observation=Template(seen),
        indices=lambda state, seat: jnp.concatenate([game.seen_cards(state, seat), state.moves]),
        questions=(question, question),
        names=names,
        events=Template(event),
        event_indices=lambda before, action, after, seat: _event(game, before, action, after, seat),
        asks=(ask, ask),
    )


def _event(game: Leduc, before: LeducState, action: jax.Array, after: LeducState, seat: jax.Array) -> jax.Array:
    """Return the indices of an event: int32 [3].

    They are whether the other player moved, the move, and 1 + the public card if the move revealed it.
    """
    shown = jnp.where(after.round > before.round, game.seen_cards(after, seat)[1], 0)
    return jnp.stack([game.player(before) != seat, action, shown]).astype(jnp.int32)
