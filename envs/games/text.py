"""What a model reads and writes in a game: rules, role, observation, question, action names.

Each game defines its text once, in `envs/games/<game>/text.py`, in two styles: `full`, natural language for models that
know some, and `brief`, a handful of characters for small byte-level models trained from scratch. Compiled for a
tokenizer it becomes a `Prompt`, which renders token ids inside jit and the same text as a string on the host:

    text = make(game, style="full")
    prompt = text.compile(tokenizer, chat_parts, context="turn")
    tokens, length = prompt.first(state, player)       # int32[T], int32[]; inside jit
    print(prompt.first_text(state, player))            # the string with exactly these tokens
    action = text.parse("I take 5")                    # 4, or None where no name is found

With chat parts, rules and role are the system message, observation and question the user message. Contexts: with `turn`
every prompt stands alone (`first`); with `history` a seat's later turns append `next` to its conversation, which closes
the answer before and opens a new user message. Borders between pieces are checked when compiling, those around the
action names too, so the answer's tokens are `prompt.action_ids` in every state.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import answers
from envs.games.entry import GAMES
from envs.games.game import Game, State
from envs.games.template import Compiled, Encoder, Fixed, Piece, Table, Template, Tokenizer, token_table

STYLES = ("full", "brief")
CONTEXTS = ("turn", "history")


class ChatParts(Protocol):
    """What a model's chat format puts around messages.

    A conversation reads `system_open S system_close user_open U user_close_and_reply A reply_close_and_user V …`, and
    begins with `start` in place of all that stands before U when there is no system message.
    """

    system_open: str
    system_close: str
    user_open: str
    user_close_and_reply: str
    reply_close_and_user: str
    start: str


@dataclasses.dataclass(frozen=True)
class Text:
    """The text of one game.

    rules:       the same for every seat; may be empty
    roles:       one line for every seat
    observation: template of what the seat sees; `indices(state, player)` gives its numbers inside jit, int32[tables]
    questions:   one for every seat, what to answer and how
    names:       the A action names as the model writes them
    """

    game: Game
    style: str
    rules: str
    roles: tuple[str, ...]
    observation: Template
    indices: Callable[[State, jax.Array], jax.Array]
    questions: tuple[str, ...]
    names: tuple[str, ...]

    def __post_init__(self):
        for field, expected in (
            ("roles", self.game.n_players),
            ("questions", self.game.n_players),
            ("names", self.game.n_actions),
        ):
            found = getattr(self, field)
            if len(found) != expected:
                raise ValueError(f"text of {self.game.name}: {field} has {len(found)} entries, expected {expected}")
        try:
            answers.check_names(self.names)
        except ValueError as error:
            raise ValueError(f"text of {self.game.name}: {error}") from error

    def observe(self, state: State, player: int) -> str:
        """The observation alone, as a string; host only."""
        return self.observation.text(jax.device_get(self._jitted(state, jnp.int32(player))))

    @functools.cached_property
    def _jitted(self) -> Callable[[State, jax.Array], jax.Array]:
        return jax.jit(self.indices)

    def parse(self, answer: str | bytes, legal: Sequence[bool] | None = None) -> int | None:
        """The action that a free answer names, among the legal ones if these are given; None if it names none.

        `answers.py` says what counts as naming it.
        """
        return answers.parse(self.names, answer, legal)

    def compile(self, tokenizer: Tokenizer, chat: ChatParts | None = None, context: str = "turn") -> "Prompt":
        """The prompt for a tokenizer; without chat parts the text stands bare, for base models."""
        if context not in CONTEXTS:
            raise ValueError(f"context must be one of {', '.join(CONTEXTS)}, found {context!r}")
        encoder = Encoder(tokenizer)
        lead, *board = _lead(self.observation)
        turn = (*board, _joined(_by_player(self.questions), Fixed(self._answer(chat))))
        first = Template((*self._opening(chat, lead), *turn))
        following = Template((Fixed((chat.reply_close_and_user if chat else "\n") + lead.text), *turn))
        history = context == "history"
        ids, lengths = token_table(encoder, self.names, followed_by=(following.pieces[0].text,) if history else ())
        return Prompt(
            text=self,
            context=context,
            compiled_first=first.compile(encoder, followed_by=self.names),
            compiled_next=following.compile(encoder, continues=True, followed_by=self.names) if history else None,
            action_ids=ids,
            action_lengths=lengths,
        )

    def _opening(self, chat: ChatParts | None, lead: Fixed) -> tuple[Piece, ...]:
        """Rules, role and the beginning of the observation, which is joined to the role: no border falls there."""
        end = "\n" if chat is None else chat.system_close + chat.user_open
        if not self.rules and not any(self.roles):
            return (Fixed((chat.start if chat else "") + lead.text),)
        between = "\n" if self.rules and any(self.roles) else ""
        start = (chat.system_open if chat else "") + self.rules + between
        return Fixed(start), _joined(_by_player(self.roles), Fixed(end + lead.text))

    def _answer(self, chat: ChatParts | None) -> str:
        """What stands between the question and the answer."""
        if chat is None:
            return "\n" if self.style == "full" else ""
        return chat.user_close_and_reply


@dataclasses.dataclass(frozen=True, eq=False)
class Prompt:
    """A game's text compiled for a tokenizer, a chat format and a context.

    action_ids: int32[A, longest], the tokens of each name, padded with -1; action_lengths: int32[A]
    """

    text: Text
    context: str
    compiled_first: Compiled
    compiled_next: Compiled | None
    action_ids: np.ndarray
    action_lengths: np.ndarray

    @property
    def prefix(self) -> tuple[int, ...]:
        """The tokens with which every `first` begins, whoever moves: their keys and values can be computed once."""
        return self.compiled_first.head

    @property
    def first_length(self) -> int:
        """T of `first`."""
        return self.compiled_first.max_length

    @property
    def next_length(self) -> int:
        """T of `next`."""
        return self._next.max_length

    def first(self, state: State, player: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The whole prompt of a turn that stands alone or opens a conversation: int32[T] right-padded, int32[]."""
        return self.compiled_first.render(self.indices(state, player, opening=True))

    def suffix(self, state: State, player: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`first` without the tokens of `prefix`: int32[T - len(prefix)], int32[]."""
        return self.compiled_first.render_tail(self.indices(state, player, opening=True))

    def next(self, state: State, player: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What a later turn appends after the answer (without its stop token): int32[T] right-padded, int32[]."""
        return self._next.render(self.indices(state, player, opening=False))

    def first_text(self, state: State, player: int) -> str:
        """The string of `first`; host only."""
        return self.compiled_first.template.text(self._on_host(state, player, opening=True))

    def next_text(self, state: State, player: int) -> str:
        """The string of `next`; host only."""
        return self._next.template.text(self._on_host(state, player, opening=False))

    @property
    def _next(self) -> Compiled:
        if self.compiled_next is None:
            raise ValueError(f"next is for the context 'history'; this prompt was compiled for {self.context!r}")
        return self.compiled_next

    @functools.cached_property
    def _jitted(self) -> Callable[..., jax.Array]:
        return jax.jit(self.indices, static_argnames="opening")

    def _on_host(self, state: State, player: int, opening: bool) -> np.ndarray:
        return jax.device_get(self._jitted(state, jnp.int32(player), opening=opening))

    def indices(self, state: State, player: jax.Array, opening: bool) -> jax.Array:
        """What `first` (opening) or `next` render: the observation's numbers between the seat for role and question."""
        seat = jnp.asarray(player, jnp.int32)[None]
        before = opening and isinstance(_by_player(self.text.roles), Table)
        after = isinstance(_by_player(self.text.questions), Table)
        observed = jnp.asarray(self.text.indices(state, player), jnp.int32)
        return jnp.concatenate([*[seat] * before, observed, *[seat] * after])


def make(game: Game, style: str = "full") -> Text:
    """The text of a game in a style."""
    if style not in STYLES:
        raise ValueError(f"text style must be one of {', '.join(STYLES)}, found {style!r}")
    return GAMES.get(game.name).text(game, style)


# --- Pieces that several games use ----------------------------------------------------------------------------------


def grid(
    shape: tuple[int, int], symbols: Sequence[str], spaced: bool = True, labels: Sequence[str] = ()
) -> tuple[Piece, ...]:
    """A board, one table per cell, row by row.

    Spaced, cells are split by spaces (a symbol that starts with a plus has that in its place) and rows by newlines; the
    board ends with one, and `labels` stand in front of the rows. A row's last cell carries its newline, because
    tokenizers merge a newline with the sign before it. Not spaced, there is nothing between cells.
    """
    height, width = shape
    if not spaced:
        return (Table(tuple(symbols)),) * (height * width)

    def cell(column: int) -> Table:
        start = " " if column or labels else ""
        end = "\n" if column == width - 1 else ""
        return Table(
            tuple(("" if symbol[0] == "+" and len(symbol) > 1 else start) + symbol + end for symbol in symbols)
        )

    row = tuple(cell(column) for column in range(width))
    if not labels:
        return row * height
    return tuple(piece for label in labels for piece in (Fixed(label), *row))


def _by_player(strings: tuple[str, ...]) -> Piece:
    """A fixed piece if all seats have the same string, else a table indexed by the seat."""
    return Fixed(strings[0]) if len(set(strings)) == 1 else Table(strings)


def _joined(piece: Piece, after: Fixed) -> Piece:
    """One piece that reads like the two."""
    if isinstance(piece, Fixed):
        return Fixed(piece.text + after.text)
    return Table(tuple(text + after.text for text in piece.variants))


def _lead(template: Template) -> tuple[Piece, ...]:
    """The pieces with a fixed one, maybe empty, in front."""
    if template.pieces and isinstance(template.pieces[0], Fixed):
        return template.pieces
    return (Fixed(""), *template.pieces)
