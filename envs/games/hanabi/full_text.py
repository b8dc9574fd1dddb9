"""The full style of Hanabi: sentences, and lists in words."""

import itertools
from collections.abc import Sequence

from envs.games.hanabi.rules import COLOR_NAMES, Hanabi, copies
from envs.games.template import Fixed, Piece, Table


def rules(game: Hanabi) -> str:
    """Return the rules of the game, with a line for every answer."""
    colors = COLOR_NAMES[: game.colors]
    counts = [f"{n} of rank {r + 1}" for r, n in enumerate(copies(game.ranks))]
    ranks = "" if game.ranks == 1 else f" to {game.ranks}"
    legend = "\n".join(f"{name}: {words}" for name, words in zip(game.action_names, game.action_texts, strict=True))
    return (
        f"You play Hanabi, a cooperative card game of {game.players} players who see each other's cards but not their "
        f"own. Together you build a firework of each colour ({_list(colors)}) by playing its cards in the order of "
        f"their ranks, 1{ranks}. Each colour has {_list(counts)}. Every turn you do one thing. Play a card: if it is "
        "the next of its colour it is built, otherwise it is discarded and a life is lost. Discard a card: it "
        "regains an information token, and is not allowed while no token is missing. Tell a player all of their "
        "cards of one colour or one rank: it costs an information token and must name at least one card. After "
        "playing or discarding you draw a new card, which becomes your last; the cards after the one you gave move "
        "one place forward. Building the highest rank regains a token. The score is the number of cards built; "
        "without lives it is 0. When the deck is empty everybody moves once more. Players are named by their place "
        "after you: player +1 moves next. Behind a card stands, in brackets, what its holder can tell from hints; "
        f"none stands for a place without a card.\nAnswers:\n{legend}"
    )


def observation(game: Hanabi) -> tuple[Piece, ...]:
    """Return the pieces of an observation."""
    colors, hand = COLOR_NAMES[: game.colors], range(1, game.cards_per_hand + 1)
    names = _names(game)
    known_color, known_rank = _known(game)
    card = Table((" none", *(f" {card}" for card in _cards(game))))

    pieces: list[Piece] = [Fixed("Fireworks:")]
    for c, color in enumerate(colors):
        pieces += [Fixed("," if c else ""), Table(tuple(f" {color} {n}" for n in range(game.ranks + 1)))]
    pieces += [
        Fixed("\nInformation tokens:"),
        _count(game.max_information_tokens),
        Fixed(f" of {game.max_information_tokens}\nLives:"),
        _count(game.max_life_tokens),
        Fixed(f" of {game.max_life_tokens}\nCards in the deck:"),
        _count(game.n_cards - game.players * game.cards_per_hand),
        Table(("", *(f"\nTurns left: {n}" for n in range(1, game.players + 1)))),
        Fixed("\nDiscarded:"),
    ]
    for c, color in enumerate(colors):
        pieces += [Fixed(f"{',' if c else ''} {color}"), Table(tuple(_discarded(game)))]
    pieces.append(Fixed("\nLatest moves:"))
    for offset in range(game.players):
        actions = Table((" did nothing yet", *(" " + words for words in _actions_seen(game, names, offset))))
        pieces += [Fixed(f"\n{names[offset]}"), actions, Fixed(":"), Table(tuple(_outcomes(game)))]
    for offset in range(1, game.players):
        pieces.append(Fixed(f"\nCards of {names[offset]}:"))
        for h in hand:
            pieces += [Fixed(f"\n{h}:"), card, Fixed(" ("), known_color, Fixed(","), known_rank, Fixed(")")]
    pieces.append(Fixed("\nYour cards, as far as hints tell:"))
    for h in hand:
        own_color = Table(tuple(f" {known}" for known in known_color.variants))
        pieces += [Fixed(f"\n{h}:"), own_color, Fixed(","), known_rank]
    return (*pieces, Fixed("\n"))


def events(game: Hanabi) -> tuple[Piece, ...]:
    """Return the pieces of an event."""
    names = _names(game)
    moves = [
        f"{names[offset]} {words}" for offset in range(game.players) for words in _actions_seen(game, names, offset)
    ]
    known_color, known_rank = _known(game)
    pieces: list[Piece] = [
        Table(tuple(move[0].upper() + move[1:] for move in moves)),
        Fixed(":"),
        Table(tuple(_outcomes(game))),
        Table(("", *(f". Copies of it in the discard pile: {n}" for n in range(1, max(copies(game.ranks)) + 1)))),
        _changed(". Information tokens:", game.max_information_tokens),
        _changed(". Lives:", game.max_life_tokens),
        _changed(". Cards in the deck:", game.n_cards - game.players * game.cards_per_hand),
        Table(("", *(f". Turns left: {n}" for n in range(1, game.players + 1)))),
        Table((". What hints tell about this hand:", ". The hand now:")),
    ]
    card = Table(("", " none", *(f" {card}" for card in _cards(game))))
    for h in range(1, game.cards_per_hand + 1):
        pieces += [
            Fixed(f"{';' if h > 1 else ''} {h}:"), card, Fixed(" ("), known_color, Fixed(","), known_rank, Fixed(")")
        ]  # fmt: skip
    return (*pieces, Fixed(".\n"))


def _names(game: Hanabi) -> list[str]:
    return ["you", *(f"player +{o}" for o in range(1, game.players))]


def _cards(game: Hanabi) -> list[str]:
    return [f"{color} {r + 1}" for color in COLOR_NAMES[: game.colors] for r in range(game.ranks)]


def _known(game: Hanabi) -> tuple[Table, Table]:
    """Return tables of the colors and ranks that a bit mask allows."""
    colors, ranks = COLOR_NAMES[: game.colors], tuple(map(str, range(1, game.ranks + 1)))
    return (
        Table(tuple(_options(colors, mask, "any colour") for mask in range(2**game.colors))),
        Table(tuple(" " + _options(ranks, mask, "any rank") for mask in range(2**game.ranks))),
    )


def _options(values: tuple[str, ...], mask: int, everything: str) -> str:
    """Write the values in a bit mask in as few words as possible.

    Either the values in the mask are listed, or those that are not.
    """
    if mask == 2 ** len(values) - 1 and len(values) > 1:
        return everything
    held = [value for bit, value in enumerate(values) if mask >> bit & 1]
    rest = [value for value in values if value not in held]
    return " or ".join(held) or "none" if len(held) <= len(rest) else "not " + " or ".join(rest)


def _count(most: int) -> Table:
    return Table(tuple(f" {n}" for n in range(most + 1)))


def _changed(label: str, most: int) -> Table:
    return Table(("", *(f"{label} {n}" for n in range(most + 1))))


def _discarded(game: Hanabi) -> list[str]:
    """List all contents of a color's discard pile, the lowest rank changing fastest."""
    counts = [range(n + 1) for n in reversed(copies(game.ranks))]
    piles = (tuple(reversed(pile)) for pile in itertools.product(*counts))
    return [" " + ("".join(str(r + 1) * n for r, n in enumerate(pile)) or "none") for pile in piles]


def _actions_seen(game: Hanabi, names: list[str], offset: int) -> list[str]:
    """List all actions of the player at `offset`, as the reader (offset 0) sees them."""
    words = [f"{verb} card {h + 1}" for verb in ("discarded", "played") for h in range(game.cards_per_hand)]
    listeners = [names[(offset + o) % game.players] for o in range(1, game.players)]
    words += [f"told {name} about {color}" for name in listeners for color in COLOR_NAMES[: game.colors]]
    words += [f"told {name} about rank {r + 1}" for name in listeners for r in range(game.ranks)]
    return words


def _outcomes(game: Hanabi) -> list[str]:
    """List all outcomes: nothing, cards discarded, built or lost, places that a hint named."""
    cards = _cards(game)
    masks = range(2**game.cards_per_hand)
    places = [" and".join(f" card {h + 1}" for h in range(game.cards_per_hand) if mask >> h & 1) for mask in masks]
    return [
        " nothing",
        *(f" {card}" for card in cards),
        *(f" {card}, which was built" for card in cards),
        *(f" {card}, which did not fit" for card in cards),
        *(words or " nothing" for words in places),
    ]


def _list(words: Sequence[str]) -> str:
    return " and ".join([*([", ".join(words[:-1])] if len(words) > 1 else []), words[-1]])
