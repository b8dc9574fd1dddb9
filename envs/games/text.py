"""What a model reads and writes in a game: rules, role, observation, question, events, action names.

Each game defines its text once, in `envs/games/<game>/text.py`, in three styles:

    full     natural language, for models that know some
    compact  about one token per fact, with short rules that explain the notation, for any tokenizer
    brief    a handful of characters without rules, for small byte-level models trained from scratch

Compiled for a tokenizer a text becomes a `Prompt` (`envs/games/prompt.py`), which renders token ids inside jit and the
same text as a string on the host:

    text = make(game, style="full")
    prompt = text.compile(tokenizer, chat_parts, context="turn")
    tokens, length = prompt.opening(state, seat)         # int32[T], int32[]; inside jit
    print(prompt.opening_text(state, seat))              # the string with exactly these tokens
    action = text.parse("I take 5")                    # 4, or None where no name is found

With chat parts, rules and role are the system message, observation and question the user message. Contexts: with `turn`
every prompt stands alone; with `history` a seat's later turns append what happened since its last one (`Text.events`).
docs/texts.md shows every game in every style.

Borders between pieces are checked when compiling, those around answers and events too, so that the answer's tokens are
`prompt.action_ids` in every state and a conversation's tokens are those of its text. Tokenizers differ in what they
merge, so a compact text comes in several notations (`Text.others`), of which compiling takes the one with the fewest
tokens among those whose borders hold.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp

from envs.games import answers
from envs.games.borders import Encoder, MergeError, Tokenizer
from envs.games.game import Game, State
from envs.games.prompt import History, Prompt
from envs.games.template import Compiled, Fixed, Piece, Table, Template, check_neighbors, token_table

STYLES = ("full", "compact", "brief")
CONTEXTS = ("turn", "history")
HOW = "Answer with "
REASONED = 'Begin with "Reason:" and say in one or two sentences what your options do. Then write "Answer:" and '
"""What takes the place of HOW in a question that asks for reasoning; `answers.py` reads the answer behind the mark.

Models of half a billion parameters keep to this form (Qwen2.5-Coder-0.5B, untuned); asked to think first they leave
that out, or do not come to an end.
"""
BEFORE_CLOSE = ("a", " the", "7", ".", "?", ")", ":", " ", "\n", "\n\n", "é")
"""Ends of free answers that stand for all of them when the border with what follows is checked."""


class ChatParts(Protocol):
    """What a model's chat format puts around messages.

    A conversation reads `system_open S system_close user_open U user_close_and_reply A reply_close_and_user V …`, and
    begins with `start` in place of all that stands before U when there is no system message.
    """

    @property
    def system_open(self) -> str: ...
    @property
    def system_close(self) -> str: ...
    @property
    def user_open(self) -> str: ...
    @property
    def user_close_and_reply(self) -> str: ...
    @property
    def reply_close_and_user(self) -> str: ...
    @property
    def start(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class Text:
    """The text of one game.

    rules:       the same for every seat; may be empty
    roles:       one line for every seat
    observation: template of what the seat sees; `indices(state, seat)` gives its numbers inside jit, int32[tables]
    questions:   one for every seat, what to answer and how
    names:       the A action names as the model writes them
    events:      template of one move as a seat reads it: who did what, and every fact that changed, restated;
                 `event_indices(before, action, after, seat)` gives its numbers inside jit, int32[tables]
                 a game without events has no context `history`
    asks:        the questions of later turns, one for every seat; left out, `questions`
    others:      the same text in other notations
    marked:      the questions ask for a mark before the answer (`answers.py`), and only a name behind one counts
    """

    game: Game
    style: str
    rules: str
    roles: tuple[str, ...]
    observation: Template
    indices: Callable[[State, jax.Array], jax.Array]
    questions: tuple[str, ...]
    names: tuple[str, ...]
    events: Template | None = None
    event_indices: Callable[[State, jax.Array, State, jax.Array], jax.Array] | None = None
    asks: tuple[str, ...] = ()
    others: tuple["Text", ...] = ()
    marked: bool = False

    def __post_init__(self):
        object.__setattr__(self, "asks", self.asks or self.questions)
        for field, expected in (
            ("roles", self.game.n_players),
            ("questions", self.game.n_players),
            ("names", self.game.n_actions),
            ("asks", self.game.n_players),
        ):
            found = getattr(self, field)
            if len(found) != expected:
                raise ValueError(f"text of {self.game.name}: {field} has {len(found)} entries, expected {expected}")
        try:
            answers.check_names(self.names)
        except ValueError as error:
            raise ValueError(f"text of {self.game.name}: {error}") from error

    def observe(self, state: State, seat: int) -> str:
        """The observation alone, as a string; host only."""
        return self.observation.text(jax.device_get(self._jitted(state, jnp.int32(seat))))

    @functools.cached_property
    def _jitted(self) -> Callable[[State, jax.Array], jax.Array]:
        return jax.jit(self.indices)

    def reasoned(self) -> "Text":
        """The text with questions that ask for reasoning before the answer: for free answers, in natural language."""
        if self.style != "full":
            raise ValueError(
                f"text of {self.game.name}: style {self.style!r} cannot ask for reasoning, but must be full"
            )
        asked = (q if HOW in q else f"{q} {HOW}the name of an action." for q in self.questions)
        return dataclasses.replace(self, questions=tuple(q.replace(HOW, REASONED) for q in asked), marked=True)

    def parse(self, answer: str | bytes, legal: Sequence[bool] | None = None) -> int | None:
        """The action that a free answer names, among the legal ones if these are given; None if it names none.

        `answers.py` says what counts as naming it.
        """
        return answers.parse(self.names, answer, legal, self.marked)

    def compile(
        self, tokenizer: Tokenizer, chat: ChatParts | None = None, context: str = "turn", free: bool = False
    ) -> Prompt:
        """The prompt for a tokenizer; without chat parts the text stands bare, for base models.

        `free` says that answers are free text, so that in a conversation anything may stand before what follows them.
        """
        if context not in CONTEXTS:
            raise ValueError(f"context must be one of {', '.join(CONTEXTS)}, found {context!r}")
        encoder = Encoder(tokenizer)
        prompts, errors = [], []
        for text in (self, *self.others):
            try:
                prompts.append(text._compile(encoder, chat, context, free))
            except MergeError as error:
                errors.append(error)
        if not prompts:
            raise errors[0]
        return min(prompts, key=lambda prompt: _tokens(prompt.compiled_opening))

    def _compile(self, encoder: Encoder, chat: ChatParts | None, context: str, free: bool) -> Prompt:
        lead, board = _lead(self.observation)
        question = _joined(_by_seat(self.questions), Fixed(self._answer(chat)))
        opening = Template((*self._before_board(chat, lead), *board, question))
        ids, lengths = token_table(encoder, self.names)
        return Prompt(
            text=self,
            context=context,
            compiled_opening=opening.compile(encoder, followed_by=self.names),
            action_ids=ids,
            action_lengths=lengths,
            history=self._history(encoder, chat, free) if context == "history" else None,
        )

    def _history(self, encoder: Encoder, chat: ChatParts | None, free: bool) -> History:
        """What later turns are made of, with every border that a conversation can have checked."""
        if self.events is None:
            raise ValueError(f"the text of {self.game.name} has no events; the context must be 'turn'")
        close = Template((Fixed(chat.reply_close_and_user if chat else "\n"),))
        ask = Template((_joined(_by_seat(self.asks), Fixed(self._answer(chat))),))
        answers = Template((Table((*self.names, *(BEFORE_CLOSE if free else ()))),))
        check_neighbors(encoder, [answers, close, self.events, self.events, ask], followed_by=self.names)
        check_neighbors(encoder, [close, ask])
        text = close.text([])
        return History(
            close_text=text,
            close_ids=tuple(encoder(text, continues=True)),
            event=self.events.compile(encoder, continues=True),
            ask=ask.compile(encoder, continues=True),
        )

    def _before_board(self, chat: ChatParts | None, lead: Fixed) -> tuple[Piece, ...]:
        """Rules, role and the beginning of the observation, which is joined to the role: no border falls there."""
        end = "\n" if chat is None else chat.system_close + chat.user_open
        if not self.rules and not any(self.roles):
            return (Fixed((chat.start if chat else "") + lead.text),)
        between = "\n" if self.rules and any(self.roles) else ""
        start = (chat.system_open if chat else "") + self.rules + between
        return Fixed(start), _joined(_by_seat(self.roles), Fixed(end + lead.text))

    def _answer(self, chat: ChatParts | None) -> str:
        """What stands between the question and the answer."""
        if chat is None:
            return "" if self.style == "brief" else "\n"
        return chat.user_close_and_reply


# --- Pieces that several games use ----------------------------------------------------------------------------------


def grid(
    shape: tuple[int, int], symbols: Sequence[str], between: str | None = " ", labels: Sequence[str] = ()
) -> tuple[Piece, ...]:
    """A board, one table per cell, row by row.

    Cells are split by `between` (a symbol that starts with a plus has that in its place) and rows by newlines; the
    board ends with one, and `labels` stand in front of the rows. A row's last cell carries its newline, because
    tokenizers merge a newline with the sign before it. With `between` None there is nothing between cells and rows.
    """
    height, width = shape
    if between is None:
        return (Table(tuple(symbols)),) * (height * width)

    def cell(column: int) -> Table:
        start = between if column or labels else ""
        end = "\n" if column == width - 1 else ""
        return Table(
            tuple(("" if symbol[0] == "+" and len(symbol) > 1 else start) + symbol + end for symbol in symbols)
        )

    row = tuple(cell(column) for column in range(width))
    if not labels:
        return row * height
    return tuple(piece for label in labels for piece in (Fixed(label), *row))


def _tokens(compiled: Compiled) -> float:
    """The tokens between the shortest and the longest rendering, without those that all begin with."""
    return (compiled.min_length + compiled.max_length) / 2 - len(compiled.head)


def _by_seat(strings: tuple[str, ...]) -> Piece:
    """A fixed piece if all seats have the same string, else a table indexed by the seat."""
    return Fixed(strings[0]) if len(set(strings)) == 1 else Table(strings)


def _joined(piece: Piece, after: Fixed) -> Piece:
    """One piece that reads like the two."""
    if isinstance(piece, Fixed):
        return Fixed(piece.text + after.text)
    return Table(tuple(text + after.text for text in piece.variants))


def _lead(template: Template) -> tuple[Fixed, tuple[Piece, ...]]:
    """Split off the fixed beginning, which may be empty."""
    if template.pieces and isinstance(template.pieces[0], Fixed):
        return template.pieces[0], template.pieces[1:]
    return Fixed(""), template.pieces
