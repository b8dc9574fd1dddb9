"""The text of a game: rules, roles, observations, questions, events and action names.

Each game defines its text once, in `envs/games/<game>/text.py`, in three styles:

    full     natural language, for pretrained models
    compact  about one token per fact, with short rules that explain the notation, for any tokenizer
    brief    a handful of characters without rules, for small byte-level models trained from scratch

Compiling a text for a tokenizer gives a `Prompt` (`envs/games/prompt.py`), which renders token ids inside jit and the
same text as a string on the host:

    text = make_text(game, style="full")
    prompt = text.compile(tokenizer, chat_parts, context="turn")
    tokens, length = prompt.opening(state, seat)       # int32[T], int32[]; inside jit
    print(prompt.opening_text(state, seat))            # the string with exactly these tokens
    action = text.parse("I take 5")                    # 4, or None if no action is named

With chat parts, rules and role form the system message, and observation and question the user message. In the context
`turn` every prompt is complete by itself. In the context `history` a seat's later turns append the events since its
last turn (`Text.events`). docs/texts.md shows every game in every style.

Compiling checks that no token crosses a boundary between pieces, including those around completions and events. The
tokens of an action are therefore `prompt.action_ids` in every state, and a conversation's tokens are those of its text.
Tokenizers merge different strings, so a compact text comes in several notations (`Text.others`). Compiling picks the
valid notation with the fewest tokens.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import answers
from envs.games.borders import Encoder, MergeError, Tokenizer
from envs.games.game import Game, State
from envs.games.medium import Medium
from envs.games.prompt import History, Prompt
from envs.games.template import Compiled, Fixed, Image, Piece, Table, Template, check_neighbors, token_table

STYLES = ("full", "compact", "brief")
CONTEXTS = ("turn", "history")
OBSERVATIONS = ("text", "image", "both")
MEDIA_ORDERS = ("interleaved", "prepended")
HOW = "Answer with "
REASONED = 'Begin with "Reason:" and say in one or two sentences what your options do. Then write "Answer:" and '
"""Replacement of HOW in questions that ask for reasoning. `answers.py` reads the action after the mark.

Untuned models of 0.5B parameters (Qwen2.5-Coder-0.5B) follow this format. When asked to think first instead, they skip
the reasoning or do not stop.
"""
BEFORE_CLOSE = ("a", " the", "7", ".", "?", ")", ":", " ", "\n", "\n\n", "é")
"""Representative endings of free-text completions, used to check the boundary with the next turn."""


class ChatParts(Protocol):
    """Strings that a model's chat template puts around messages.

    A conversation reads `system_open S system_close user_open U user_close_and_reply A reply_close_and_user V …`.
    Without a system message, `start` replaces everything before U.
    """

    @property
    def system_open(self) -> str:
        """Text before the system message."""
        ...

    @property
    def system_close(self) -> str:
        """Text after the system message."""
        ...

    @property
    def user_open(self) -> str:
        """Text before the user message."""
        ...

    @property
    def user_close_and_reply(self) -> str:
        """Text between a user message and the completion."""
        ...

    @property
    def reply_close_and_user(self) -> str:
        """Text between a completion and the next user message."""
        ...

    @property
    def start(self) -> str:
        """Text before the first user message if there is no system message."""
        ...


@dataclasses.dataclass(frozen=True)
class Text:
    """The text of one game in one style.

    Attributes:
        game: The game.
        style: One of `STYLES`.
        rules: Rules shared by all seats; may be empty.
        roles: One line per seat.
        observation: Template of an observation.
        indices: Function `indices(state, seat)` that returns the indices of `observation` inside jit, int32 [tables].
        questions: One question per seat, including how to answer.
        names: The A action names as the model writes them.
        events: Template of one move as a seat reads it: who did what, and every fact that changed. A game without
            events does not support the context `history`.
        event_indices: Function `event_indices(before, action, after, seat)` that returns the indices of `events` inside
            jit, int32 [tables].
        asks: Questions of later turns, one per seat; by default `questions`.
        others: The same text in other notations.
        marked: Whether the questions ask for a mark before the answer (`answers.py`), so that only a name after a mark
            counts.
        board: Number of pieces at the start of `observation` that a picture replaces; None for all.
        spans: First and last piece + 1 of `observation` that each of several media replaces; () for one picture.
        medium: Picture or other medium whose place is in the prompt, or None.
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
    board: int | None = None
    spans: tuple[tuple[int, int], ...] = ()
    medium: Medium | None = None

    def __post_init__(self):
        object.__setattr__(self, "asks", self.asks or self.questions)
        for field, expected in (
            ("roles", self.game.n_players),
            ("questions", self.game.n_players),
            ("names", self.game.n_actions),
            ("asks", self.game.n_players),
        ):
            entries = len(getattr(self, field))
            if entries != expected:
                raise ValueError(f"text of {self.game.name}: {field} has {entries} entries, but must have {expected}")
        try:
            answers.check_names(self.names)
        except ValueError as error:
            raise ValueError(f"text of {self.game.name}: {error}") from error

    def observe(self, state: State, seat: int) -> str:
        """Return the observation as a string (host only)."""
        return self.observation.text(jax.device_get(self._jitted(state, jnp.int32(seat))))

    @functools.cached_property
    def _jitted(self) -> Callable[[State, jax.Array], jax.Array]:
        return jax.jit(self.indices)

    def reasoned(self) -> "Text":
        """Return a copy whose questions ask for reasoning before the answer.

        Requires the style `full`, and completions that are free text.
        """
        if self.style != "full":
            raise ValueError(
                f"text of {self.game.name}: style is {self.style!r}, but must be 'full' to ask for reasoning"
            )
        questions = (q if HOW in q else f"{q} {HOW}the name of an action." for q in self.questions)
        return dataclasses.replace(self, questions=tuple(q.replace(HOW, REASONED) for q in questions), marked=True)

    def with_media(
        self, medium: Medium, places: Sequence[str], observation: str = "image", order: str = "interleaved"
    ) -> "Text":
        """Return a copy with the places of pictures or other media in the observation.

        Args:
            medium: What the game shows in this style.
            places: Special tokens of the model, one for each embedding: a text for each medium, or one for all.
            observation: "image" if media replace their text, "both" if they precede the complete text.
            order: One of `MEDIA_ORDERS`. Media of a single place are always prepended.
        """
        if observation not in OBSERVATIONS[1:]:
            raise ValueError(f"observation is {observation!r}, but must be one of: {', '.join(OBSERVATIONS[1:])}")
        pieces, indices = self.observation.pieces, self.indices
        spans = self.spans or ((0, len(pieces) if self.board is None else self.board),)
        replaced = {i for start, end in spans for i in range(start, end)} if observation == "image" else set()
        interleaved = order == "interleaved" and observation == "image" and len(places) == len(spans)
        at = {start: place for (start, _), place in zip(spans, places, strict=True)} if interleaved else {}
        shown: list[Piece] = [] if interleaved else [Image(place) for place in places]
        kept, tables = [], 0
        for i, piece in enumerate(pieces):
            if i in at:
                shown.append(Image(at[i]))
            if i not in replaced:
                shown.append(piece)
            if isinstance(piece, Table):
                kept += [tables] * (i not in replaced)
                tables += 1
        return dataclasses.replace(
            self,
            observation=Template(tuple(shown)),
            indices=lambda state, seat: jnp.asarray(indices(state, seat))[np.asarray(kept, np.int32)],
            others=tuple(other.with_media(medium, places, observation, order) for other in self.others),
            spans=(),
            medium=medium,
        )

    def parse(self, answer: str | bytes, legal: Sequence[bool] | None = None) -> int | None:
        """Return the action that a completion names, or None.

        `answers.py` defines which name counts.

        Args:
            answer: Text of the completion.
            legal: Mask of legal actions; by default all are legal.
        """
        return answers.parse(self.names, answer, legal, self.marked)

    def compile(
        self, tokenizer: Tokenizer, chat: ChatParts | None = None, context: str = "turn", free: bool = False
    ) -> Prompt:
        """Compile the prompt for a tokenizer.

        Args:
            tokenizer: Tokenizer of the model.
            chat: Chat format of the model, or None for base models, which read the text alone.
            context: One of `CONTEXTS`.
            free: Whether completions are free text, so that in a conversation any text can precede the next turn.
        """
        if context not in CONTEXTS:
            raise ValueError(f"context is {context!r}, but must be one of: {', '.join(CONTEXTS)}")
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
        """Compile the pieces of later turns and check all boundaries in a conversation."""
        if self.events is None:
            raise ValueError(f"context is 'history', but the text of {self.game.name} has no events; set it to 'turn'")
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
        """Return rules, role and the beginning of the observation.

        The beginning is joined to the role, so there is no boundary between them.
        """
        end = "\n" if chat is None else chat.system_close + chat.user_open
        if not self.rules and not any(self.roles):
            return (Fixed((chat.start if chat else "") + lead.text),)
        between = "\n" if self.rules and any(self.roles) else ""
        start = (chat.system_open if chat else "") + self.rules + between
        return Fixed(start), _joined(_by_seat(self.roles), Fixed(end + lead.text))

    def _answer(self, chat: ChatParts | None) -> str:
        """Return the text between the question and the completion."""
        if chat is None:
            return "" if self.style == "brief" else "\n"
        return chat.user_close_and_reply


# --- Pieces that several games use ----------------------------------------------------------------------------------


def grid(
    shape: tuple[int, int], symbols: Sequence[str], between: str | None = " ", labels: Sequence[str] = ()
) -> tuple[Piece, ...]:
    """Build a board with one table per cell, row by row.

    Args:
        shape: Height and width of the board.
        symbols: Strings that a cell can show.
        between: Separator of cells. A symbol that starts with a plus replaces it. If None, neither cells nor rows are
            separated.
        labels: Strings at the start of the rows.

    Every row ends with a newline, which belongs to its last cell because tokenizers merge a newline with the character
    before it.
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
    """Return the average of the shortest and longest rendering, without the fixed beginning."""
    return (compiled.min_length + compiled.max_length) / 2 - len(compiled.head)


def _by_seat(strings: tuple[str, ...]) -> Fixed | Table:
    """Return fixed text if all seats share it, else a table indexed by seat."""
    return Fixed(strings[0]) if len(set(strings)) == 1 else Table(strings)


def _joined(piece: Fixed | Table, after: Fixed) -> Fixed | Table:
    """Append fixed text to a piece."""
    if isinstance(piece, Fixed):
        return Fixed(piece.text + after.text)
    return Table(tuple(text + after.text for text in piece.variants))


def _lead(template: Template) -> tuple[Fixed, tuple[Piece, ...]]:
    """Split off the fixed beginning, which may be empty."""
    if template.pieces and isinstance(template.pieces[0], Fixed):
        return template.pieces[0], template.pieces[1:]
    return Fixed(""), template.pieces
