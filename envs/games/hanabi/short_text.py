"""The compact and the brief style of Hanabi.

The compact style has two notations. In `WORDS` every fact begins with a space and a letter, and digits follow letters.
All byte-pair tokenizers split there, and a common word or a digit is one token. `SIGNS` is for bytes. A hand consists
of its cards, the places of the cards that can be played now and of those that are useless, and the knowledge of its
holder. The places follow from fireworks and discards; listing them saves the reader the comparison. The knowledge of a
card is a color and a rank:

    any        nothing is known      R, RG   red, red or green      r, ry   not red, neither red nor yellow
    any3, R3   the rank is 3         R45     4 or 5                 R-12    neither 1 nor 2
"""

import dataclasses
import itertools
from collections.abc import Iterator

from envs.games.hanabi.rules import COLOR_NAMES, Hanabi, copies
from envs.games.template import Fixed, Piece, Table


@dataclasses.dataclass(frozen=True)
class ShortNotation:
    """The words of the compact style.

    Attributes:
        start: Text before a line of the observation.
        gap: Text before every other fact.
    """

    start: str
    gap: str
    fireworks: str
    information: str
    lives: str
    deck: str
    turns: str
    discards: str
    pile: str
    players: tuple[str, ...]
    discard: str
    play: str
    tell: str
    places: str
    built: str
    lost: str
    has: str
    fits: str
    dead: str
    knows: str
    anything: str
    nothing: str
    question: str
    ask: str


WORDS = ShortNotation(
    start="\n",
    gap=" ",
    fireworks="fireworks",
    information="info",
    lives="lives",
    deck="deck",
    turns="turns",
    discards="trash",
    pile="trash",
    players=("you", "one", "two", "three", "four"),
    discard="drop",
    play="play",
    tell="tell",
    places="at",
    built="good",
    lost="bad",
    has="has",
    fits="fits",
    dead="dead",
    knows="known",
    anything="any",
    nothing="none",
    question="\nYour move?",
    ask=" Your move?",
)
SIGNS = ShortNotation(
    start=" ",
    gap="",
    fireworks="",
    information="i",
    lives="l",
    deck="d",
    turns="t",
    discards="",
    pile="x",
    players=tuple("01234"),
    discard="-",
    play="+",
    tell=">",
    places="@",
    built="!",
    lost="~",
    has=":",
    fits="^",
    dead="_",
    knows="=",
    anything="?",
    nothing=".",
    question="?",
    ask=" ?",
)


def rules(game: Hanabi, notation: ShortNotation) -> str:
    """Return the main rules, the notation by examples, and the meaning of the answers."""
    n, letters = notation, _letters(game)
    card = letters[0] + "1"
    colors = ", ".join(f"{letter} {color}" for letter, color in zip(letters, COLOR_NAMES, strict=False))
    counts = " ".join(map(str, copies(game.ranks)))
    red = COLOR_NAMES[0]

    def fact(*words: str) -> str:
        return n.gap.join(words)

    return (
        f"Hanabi with {game.players} players, who see each other's cards but not their own. Build each colour "
        f"({colors}) from rank 1 up; there are {counts} cards of its ranks. The score is the number of cards "
        "built, 0 without lives. When the deck is empty everybody moves once more.\n"
        f"{fact(n.play + '1', card, n.built)}: card 1, {red} 1, was built; {n.lost}: it did not fit, a life is lost. "
        f"{fact(n.discard + '1', card)}: discarded, a token is regained. "
        f"{fact(n.tell, n.players[1], letters[0], n.places + '12')}: cards 1 and 2 of {n.players[1]}, the next player, "
        f"are {red}; it costs a token. A new card is the last of its hand.\n"
        f"{n.has}: cards. {n.fits}12: cards 1 and 2 can be played now. {n.dead}3: card 3 is useless. "
        f"{n.knows}: what hints tell: {n.anything} nothing, {letters[0]} {red}, {letters[0].lower()} "
        f"not {red}, {n.anything}1 rank 1, {n.anything}-1 not rank 1, {n.nothing} no card. {n.discards}: discards.\n"
        f"Answers: {', '.join(_legend(game, n))}."
    )


def _legend(game: Hanabi, n: ShortNotation) -> Iterator[str]:
    """Yield the meaning of the answers: a range of letters for each kind of action."""
    names = iter(game.action_names)

    def kind(verb: str, count: int, what: str) -> str:
        letters = list(itertools.islice(names, count))
        span = letters[0] if count == 1 else f"{letters[0]} to {letters[-1]}"
        return f"{span} {verb} {what}"

    cards = f"1 to {game.cards_per_hand}"
    yield kind(n.discard, game.cards_per_hand, cards)
    yield kind(n.play, game.cards_per_hand, cards)
    for name in n.players[1 : game.players]:
        yield kind(n.tell, game.colors, f"{name} {' '.join(_letters(game))}")
        yield kind(n.tell, game.ranks, f"{name} {n.anything}1 to {n.anything}{game.ranks}")


def observation(game: Hanabi, notation: ShortNotation) -> tuple[Piece, ...]:
    """Return the pieces of an observation.

    They are fireworks, counts, discards, the latest move of every player, the other hands, and the seat's own hand.
    """
    n, letters = notation, _letters(game)
    known = _known(game, n)
    card = Table((n.gap + n.nothing, *(n.gap + c for c in _cards(game))))
    pieces: list[Piece] = [Fixed(n.fireworks)]
    for letter in letters:
        pieces += [Fixed(n.gap + letter), Table(tuple(map(str, range(game.ranks + 1))))]
    pieces += [Fixed(n.start + n.information), _count(game.max_information_tokens)]
    pieces += [Fixed(n.gap + n.lives), _count(game.max_life_tokens)]
    pieces += [Fixed(n.gap + n.deck), _count(game.n_cards - game.players * game.cards_per_hand)]
    pieces += [Table(("", *(f"{n.gap}{n.turns}{turns}" for turns in range(1, game.players + 1))))]
    pieces += [Fixed(n.start + n.discards)]
    for letter in letters:
        pieces += [Fixed(n.gap + letter), Table(tuple(_piles(game)))]
    for offset in range(game.players):
        moves = (n.gap + n.nothing, *_actions(game, n, offset))
        pieces += [Fixed(n.start + n.players[offset]), Table(moves), Table(tuple(_outcomes(game, n)))]
    for offset in range(1, game.players):
        pieces += [Fixed(n.start + n.players[offset] + n.gap + n.has), *[card] * game.cards_per_hand]
        pieces += [Table(tuple(_places(game, n.gap + word))) for word in (n.fits, n.dead)]
        pieces += [Fixed(n.gap + n.knows), *known * game.cards_per_hand]
    return *pieces, Fixed(n.start + n.players[0] + n.gap + n.knows), *known * game.cards_per_hand


def events(game: Hanabi, notation: ShortNotation) -> tuple[Piece, ...]:
    """Return the pieces of an event."""
    n = notation
    who = [(n.gap or " ") + name for name in n.players[: game.players]]
    moves = tuple(who[offset] + action for offset in range(game.players) for action in _actions(game, n, offset))
    card = Table(("", n.gap + n.nothing, *(n.gap + c for c in _cards(game))), linked=True)
    return (
        Table(moves),
        Table(tuple(_outcomes(game, n))),
        Table(("", *(f"{n.gap}{n.pile}{count}" for count in range(1, max(copies(game.ranks)) + 1)))),
        _changed(n.gap + n.information, game.max_information_tokens),
        _changed(n.gap + n.lives, game.max_life_tokens),
        _changed(n.gap + n.deck, game.n_cards - game.players * game.cards_per_hand),
        Table(("", *(f"{n.gap}{n.turns}{turns}" for turns in range(1, game.players + 1)))),
        Table(("", n.gap + n.has)),
        *[card] * game.cards_per_hand,
        Fixed(n.gap + n.knows),
        *_known(game, n) * game.cards_per_hand,
    )


def _letters(game: Hanabi) -> tuple[str, ...]:
    return tuple(color[0].upper() for color in COLOR_NAMES[: game.colors])


def _cards(game: Hanabi) -> list[str]:
    return [f"{letter}{r + 1}" for letter in _letters(game) for r in range(game.ranks)]


def _count(most: int) -> Table:
    return Table(tuple(map(str, range(most + 1))))


def _changed(label: str, most: int) -> Table:
    return Table(("", *(f"{label}{n}" for n in range(most + 1))))


def _piles(game: Hanabi) -> list[str]:
    """List all contents of a color's discard pile, the lowest rank changing fastest."""
    piles = itertools.product(*(range(count + 1) for count in reversed(copies(game.ranks))))
    return ["".join(str(r + 1) * count for r, count in enumerate(reversed(pile))) for pile in piles]


def _actions(game: Hanabi, n: ShortNotation, offset: int) -> list[str]:
    """List all actions of the player at `offset` from the reader."""
    listeners = [n.players[(offset + o) % game.players] for o in range(1, game.players)]
    return [
        *(f"{n.gap}{verb}{h + 1}" for verb in (n.discard, n.play) for h in range(game.cards_per_hand)),
        *(f"{n.gap}{n.tell}{n.gap}{name}{n.gap}{letter}" for name in listeners for letter in _letters(game)),
        *(f"{n.gap}{n.tell}{n.gap}{name}{n.gap}{n.anything}{r + 1}" for name in listeners for r in range(game.ranks)),
    ]


def _outcomes(game: Hanabi, n: ShortNotation) -> list[str]:
    """List all outcomes: nothing, cards discarded, built or lost, places that a hint named."""
    cards = [n.gap + card for card in _cards(game)]
    return [
        "",
        *cards,
        *(card + n.gap + n.built for card in cards),
        *(card + n.gap + n.lost for card in cards),
        *_places(game, n.gap + n.places),
    ]


def _places(game: Hanabi, word: str) -> Iterator[str]:
    """Yield a word with the places in every bit mask, empty for none."""
    for mask in range(2**game.cards_per_hand):
        places = "".join(str(h + 1) for h in range(game.cards_per_hand) if mask >> h & 1)
        yield word + places if places else ""


def _known(game: Hanabi, n: ShortNotation) -> tuple[Table, Table]:
    """Return tables of the colors and ranks that a bit mask allows."""
    letters, ranks = _letters(game), tuple(map(str, range(1, game.ranks + 1)))

    def color(mask: int) -> str:
        held, rest = _split(letters, mask)
        if not held or (not rest and len(held) > 1):
            return n.anything if held else n.nothing
        return "".join(held) if len(held) <= len(rest) or not rest else "".join(rest).lower()

    def rank(mask: int) -> str:
        held, rest = _split(ranks, mask)
        if not held or (not rest and len(held) > 1):
            return ""
        return "".join(held) if len(held) <= len(rest) or not rest else "-" + "".join(rest)

    return (
        Table(tuple(n.gap + color(mask) for mask in range(2**game.colors))),
        Table(tuple(rank(mask) for mask in range(2**game.ranks))),
    )


def _split(values: tuple[str, ...], mask: int) -> tuple[list[str], list[str]]:
    """Split values into those in a bit mask and the rest."""
    held = [value for bit, value in enumerate(values) if mask >> bit & 1]
    return held, [value for value in values if value not in held]


# --- Brief style ----------------------------------------------------------------------------------------------------

_DIGITS = "0123456789abcdefghijklmnopqrstuv"  # a bit mask of up to five values is one digit in base 32
_PROSPECTS = Table(tuple("-x!*."))  # no card, useless, playable, the last copy, any other


def brief_observation(game: Hanabi) -> tuple[Piece, ...]:
    """Return the pieces of an observation in the brief style.

    The tables are those of the full style. The variants of each have the same width, so no separators are needed.
    """
    known = _masks(game)
    piles = itertools.product(*(range(n + 1) for n in reversed(copies(game.ranks))))
    discarded = Table(tuple("".join(map(str, reversed(pile))) for pile in piles))
    pieces: list[Piece] = [Table(tuple(map(str, range(game.ranks + 1))))] * game.colors
    for most in (game.max_information_tokens, game.max_life_tokens, game.n_cards - game.players * game.cards_per_hand):
        digits = len(str(most))
        pieces.append(Table(tuple(str(n).rjust(digits, "0") for n in range(most + 1))))
    pieces.append(Table(tuple(map(str, range(game.players + 1)))))
    pieces += [discarded] * game.colors
    pieces += [Table(("-", *game.action_names)), Table(tuple(_brief_outcomes(game)))] * game.players
    pieces += [Table(("--", *_cards(game))), _PROSPECTS, *known] * ((game.players - 1) * game.cards_per_hand)
    pieces += known * game.cards_per_hand
    return tuple(pieces)


def brief_events(game: Hanabi) -> tuple[Piece, ...]:
    """Return the pieces of an event in the brief style.

    They are the offset of the player, the letter of the action, its outcome, and each change after a letter.
    """
    moves = tuple(f" {offset}{name}" for offset in range(game.players) for name in game.action_names)
    return (
        Table(moves),
        Table(tuple(_brief_outcomes(game))),
        Table(("", *(f"x{count}" for count in range(1, max(copies(game.ranks)) + 1)))),
        _changed("i", game.max_information_tokens),
        _changed("l", game.max_life_tokens),
        _changed("d", game.n_cards - game.players * game.cards_per_hand),
        Table(("", *(f"t{n}" for n in range(1, game.players + 1)))),
        Table(("", ":")),
        *[Table(("", "--", *_cards(game)), linked=True)] * game.cards_per_hand,
        Fixed("="),
        *_masks(game) * game.cards_per_hand,
    )


def _brief_outcomes(game: Hanabi) -> list[str]:
    """List all outcomes in the brief style.

    Cards are uppercase if built and lowercase if discarded or lost. A hint shows the mask of the places it named.
    """
    cards = _cards(game)
    lost = [c.lower() for c in cards]
    return ["--", *lost, *cards, *lost, *(f"*{_DIGITS[mask]}" for mask in range(2**game.cards_per_hand))]


def _masks(game: Hanabi) -> tuple[Table, Table]:
    """Return tables of the colors and ranks that hints allow."""
    colors, ranks = (Table(tuple(_DIGITS[: 2**n])) for n in (game.colors, game.ranks))
    return colors, ranks
