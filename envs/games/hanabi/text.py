"""Hanabi as text: what the seat knows and nothing else.

Axis letters: P players, H cards in a hand, C colours, R ranks.

Seen are the partners' cards, what the hints say about everybody's cards, fireworks, discards, tokens, the size of the
deck and the latest move of every player. Not seen are the own cards and the order of the deck: neither is read here for
the seat that looks. Players are named by their distance from the reader, `player +1` being the next to move.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.game import State
from envs.games.hanabi.rules import COLOR_NAMES, Hanabi, copies
from envs.games.template import Fixed, Piece, Table, Template
from envs.games.text import Text


def text(game: Hanabi, style: str) -> Text:
    """Full: sentences and lists in words. Brief: fields of fixed width, colours as letters."""
    full = style == "full"
    pieces = _full_pieces(game) if full else _brief_pieces(game)
    return Text(
        game=game,
        style=style,
        rules=_rules(game) if full else "",
        roles=("",) * game.players,
        observation=Template(pieces),
        indices=lambda state, player: _indices(game, state, player),
        questions=("What do you do? Answer with one letter only.",) * game.players if full else (":",) * game.players,
        names=game.action_names,
    )


# --- What is seen, as numbers ---------------------------------------------------------------------------------------


def _indices(game: Hanabi, state: State, player: jax.Array) -> jax.Array:
    """The same numbers for both styles, in the order of their tables."""
    seats = (player + jnp.arange(game.players)) % game.players
    places = np.array([1, *np.cumprod([c + 1 for c in copies(game.ranks)])[:-1]])
    left = game.n_cards - state.dealt
    cards = state.hands[seats[1:]].astype(jnp.int32) + 1
    colors, ranks = state.colors[seats].astype(jnp.int32), state.ranks[seats].astype(jnp.int32)
    partners = jnp.stack([cards, colors[1:], ranks[1:]], axis=-1)
    own = jnp.stack([colors[0], ranks[0]], axis=-1)
    parts = [
        state.fireworks,
        state.information,
        state.lives,
        left,
        jnp.where(left == 0, state.turns_left, 0),
        state.discards.astype(jnp.int32) @ places,
        _moves(game, state, seats),
        partners,
        own,
    ]
    return jnp.concatenate([jnp.ravel(part).astype(jnp.int32) for part in parts])


def _moves(game: Hanabi, state: State, seats: jax.Array) -> jax.Array:
    """Each player's latest move, oldest first: the action + 1 and its place in `_outcomes`: int32[P, 2]."""
    action, card, scored, touched = (field[seats].astype(jnp.int32) for field in state.last)
    move = game.decode(action)
    cards = game.max_score
    outcome = jnp.where(move.discard, card, jnp.where(scored == 1, cards + card, 2 * cards + card))
    outcome = jnp.where(move.discard | move.play, 1 + outcome, 3 * cards + 1 + touched)
    return jnp.stack([action + 1, jnp.where(action < 0, 0, outcome)], axis=-1)


# --- Full style -----------------------------------------------------------------------------------------------------


def _rules(game: Hanabi) -> str:
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


def _full_pieces(game: Hanabi) -> tuple[Piece, ...]:
    colors, hand = COLOR_NAMES[: game.colors], range(1, game.hand_size + 1)
    names = ["you", *(f"player +{o}" for o in range(1, game.players))]
    numbers = tuple(map(str, range(1, game.ranks + 1)))
    known_color = [_options(colors, mask, "any colour") for mask in range(2**game.colors)]
    known_rank = Table(tuple(" " + _options(numbers, mask, "any rank") for mask in range(2**game.ranks)))
    card = Table((" none", *(f" {color} {rank}" for color in colors for rank in numbers)))

    pieces: list[Piece] = [Fixed("Fireworks:")]
    for c, color in enumerate(colors):
        pieces += [Fixed("," if c else ""), Table(tuple(f" {color} {n}" for n in range(game.ranks + 1)))]
    pieces += [
        Fixed("\nInformation tokens:"),
        _count(game.max_information_tokens),
        Fixed(f" of {game.max_information_tokens}\nLives:"),
        _count(game.max_life_tokens),
        Fixed(f" of {game.max_life_tokens}\nCards in the deck:"),
        _count(game.n_cards - game.players * game.hand_size),
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
            pieces += [
                Fixed(f"\n{h}:"),
                card,
                Fixed(" ("),
                Table(tuple(known_color)),
                Fixed(","),
                known_rank,
                Fixed(")"),
            ]
    pieces.append(Fixed("\nYour cards, as far as hints tell:"))
    for h in hand:
        pieces += [Fixed(f"\n{h}:"), Table(tuple(f" {known}" for known in known_color)), Fixed(","), known_rank]
    return (*pieces, Fixed("\n"))


def _options(values: tuple[str, ...], mask: int, everything: str) -> str:
    """The values in a bit mask in words, as few as it takes: those that are in it, or those that are not."""
    if mask == 2 ** len(values) - 1 and len(values) > 1:
        return everything
    held = [value for bit, value in enumerate(values) if mask >> bit & 1]
    rest = [value for value in values if value not in held]
    return " or ".join(held) or "none" if len(held) <= len(rest) else "not " + " or ".join(rest)


def _count(most: int) -> Table:
    return Table(tuple(f" {n}" for n in range(most + 1)))


def _discarded(game: Hanabi) -> list[str]:
    """Every content of a colour's discard pile; the count of the lowest rank changes fastest."""
    counts = [range(n + 1) for n in reversed(copies(game.ranks))]
    piles = (tuple(reversed(pile)) for pile in itertools.product(*counts))
    return [" " + ("".join(str(r + 1) * n for r, n in enumerate(pile)) or "none") for pile in piles]


def _actions_seen(game: Hanabi, names: list[str], offset: int) -> list[str]:
    """Every action of the player at `offset`, as the reader (offset 0) would tell it."""
    words = [f"{verb} card {h + 1}" for verb in ("discarded", "played") for h in range(game.hand_size)]
    told = [names[(offset + o) % game.players] for o in range(1, game.players)]
    words += [f"told {name} about {color}" for name in told for color in COLOR_NAMES[: game.colors]]
    words += [f"told {name} about rank {r + 1}" for name in told for r in range(game.ranks)]
    return words


def _outcomes(game: Hanabi) -> list[str]:
    """Nothing; a card discarded; a card built; a card that did not fit; the places that a hint named."""
    cards = [f"{color} {r + 1}" for color in COLOR_NAMES[: game.colors] for r in range(game.ranks)]
    masks = range(2**game.hand_size)
    places = [" and".join(f" card {h + 1}" for h in range(game.hand_size) if mask >> h & 1) for mask in masks]
    return [
        " nothing",
        *(f" {card}" for card in cards),
        *(f" {card}, which was built" for card in cards),
        *(f" {card}, which did not fit" for card in cards),
        *(words or " nothing" for words in places),
    ]


def _list(words: list[str] | tuple[str, ...]) -> str:
    return " and ".join([*([", ".join(words[:-1])] if len(words) > 1 else []), words[-1]])


# --- Brief style ----------------------------------------------------------------------------------------------------


def _brief_pieces(game: Hanabi) -> tuple[Piece, ...]:
    """The same tables as in the full style, each with variants of one width; spaces between groups."""
    letters = tuple(color[0].upper() for color in COLOR_NAMES[: game.colors])
    numbers = tuple(map(str, range(1, game.ranks + 1)))
    known = [Table(tuple(_flags(values, mask) for mask in range(2 ** len(values)))) for values in (letters, numbers)]
    cards = [letter + rank for letter in letters for rank in numbers]
    piles = itertools.product(*(range(n + 1) for n in reversed(copies(game.ranks))))
    discarded = Table(tuple("".join(map(str, reversed(pile))) for pile in piles))
    masks = range(2**game.hand_size)
    width = max(2, game.hand_size)
    # A card in capitals was built, in small letters discarded or lost; a hint shows the places it named.
    outcomes = [
        card.ljust(width, "-") for card in ["-", *(c.lower() for c in cards), *cards, *(c.lower() for c in cards)]
    ]
    outcomes += [_flags(tuple("*" * game.hand_size), mask).ljust(width, "-") for mask in masks]
    action = Table(("-", *game.action_names))

    pieces: list[Piece] = [Table(tuple(map(str, range(game.ranks + 1))))] * game.colors
    for most in (game.max_information_tokens, game.max_life_tokens, game.n_cards - game.players * game.hand_size):
        digits = len(str(most))
        pieces += [Fixed(" "), Table(tuple(str(n).rjust(digits, "0") for n in range(most + 1)))]
    pieces += [Fixed(" "), Table(tuple(map(str, range(game.players + 1))))]
    pieces += [Fixed(" "), discarded] * game.colors
    pieces += [Fixed(" "), action, Table(tuple(outcomes))] * game.players
    pieces += [Fixed(" "), Table(("--", *cards)), *known] * ((game.players - 1) * game.hand_size)
    pieces += [Fixed(" "), *known] * game.hand_size
    return tuple(pieces)


def _flags(values: tuple[str, ...], mask: int) -> str:
    """Each value that is in the bit mask, a dash for each that is not."""
    return "".join(value if mask >> bit & 1 else "-" for bit, value in enumerate(values))
