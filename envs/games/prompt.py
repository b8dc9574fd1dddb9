"""Prompts of a game, as token ids inside jit and strings on the host.

The conversation of one seat reads

    opening  answer  close event event … ask  answer  close event … ask  answer …

`opening` contains rules, role, current position and question. In the context `turn` it is the complete prompt. In the
context `history` a rollout keeps a row of pending tokens for every seat, appends an event at every move, and flushes
the row when the seat is to move:

    tokens, length = prompt.opening(state, seat)                      # int32[opening_length], int32[]
    pending, n = jnp.zeros(width, jnp.int32), 0                       # room for all events that may come
    pending, n = join([(pending, n), prompt.event(before, action, after, seat)], prompt.pad_id, width)
    tokens, length = prompt.next(pending, n, seat)                    # close, pending events, ask

An event restates everything that a move changed, including the seat's own moves: after a completion that names no
action, it says which action was played instead. The opening and the events since then therefore always contain the
facts of the current position. `close` replaces the stop token of a free-text completion; a constrained completion has
none.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.game import State
from envs.games.medium import Medium
from envs.games.template import Compiled, Rendered, join


class PromptText(Protocol):
    """The members of `envs.games.text.Text` that a prompt reads."""

    @property
    def names(self) -> tuple[str, ...]:
        """Action names as the model writes them."""
        ...

    @property
    def roles(self) -> tuple[str, ...]:
        """One line per seat."""
        ...

    @property
    def questions(self) -> tuple[str, ...]:
        """One question per seat."""
        ...

    @property
    def marked(self) -> bool:
        """Whether only a name after a mark counts."""
        ...

    @property
    def medium(self) -> Medium | None:
        """Picture or other medium whose place is in the prompt, or None."""
        ...

    @property
    def indices(self) -> Callable[[State, jax.Array], jax.Array]:
        """Function that returns the indices of an observation."""
        ...

    @property
    def event_indices(self) -> Callable[[State, jax.Array, State, jax.Array], jax.Array] | None:
        """Function that returns the indices of an event, if the text has events."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class History:
    """Compiled pieces of later turns: the `close` tokens, and templates of events and questions."""

    close_text: str
    close_ids: tuple[int, ...]
    event: Compiled
    ask: Compiled


@dataclasses.dataclass(frozen=True, eq=False)
class Prompt:
    """A game's text compiled for a tokenizer, a chat format and a context.

    Attributes:
        text: The text.
        context: One of `envs.games.text.CONTEXTS`.
        compiled_opening: Template of the opening.
        action_ids: int32 [A, longest]. Tokens of each action name, padded with -1.
        action_lengths: int32 [A].
        history: Pieces of later turns, or None in the context `turn`.
    """

    text: PromptText
    context: str
    compiled_opening: Compiled
    action_ids: np.ndarray
    action_lengths: np.ndarray
    history: History | None = None

    # Opening: the complete prompt in the context `turn`

    @property
    def prefix(self) -> tuple[int, ...]:
        """Tokens that begin every `opening`, so that their keys and values can be computed once."""
        return self.compiled_opening.head

    @property
    def pad_id(self) -> int:
        """Padding token of the rows."""
        return self.compiled_opening.pad_id

    @property
    def opening_length(self) -> int:
        """Maximum number of tokens in `opening`."""
        return self.compiled_opening.max_length

    def opening(self, state: State, seat: jax.Array) -> Rendered:
        """Render rules, role, position and question."""
        return self.compiled_opening.render(self.opening_indices(state, seat))

    def suffix(self, state: State, seat: jax.Array) -> Rendered:
        """Render `opening` without the tokens of `prefix`."""
        return self.compiled_opening.render_tail(self.opening_indices(state, seat))

    def opening_text(self, state: State, seat: int) -> str:
        """Return the string of `opening` (host only)."""
        return self.compiled_opening.template.text(jax.device_get(self._jitted_opening(state, jnp.int32(seat))))

    def image(self, state: State, seat: int) -> str:
        """Return the media in `opening` as a data URI (host only); "" without any."""
        return "" if self.text.medium is None else self.text.medium.uri(state, seat)

    def opening_indices(self, state: State, seat: jax.Array) -> jax.Array:
        """Return the indices of `opening`.

        They are the indices of the observation, preceded and followed by the seat, which selects the role and the
        question. If all seats share the same role or question, there is no table for it.
        """
        number = jnp.asarray(seat, jnp.int32)[None]
        observed = jnp.asarray(self.text.indices(state, seat), jnp.int32)
        before, after = len(set(self.text.roles)) > 1, len(set(self.text.questions)) > 1
        return jnp.concatenate([*[number] * before, observed, *[number] * after])

    # Later turns of a conversation

    @property
    def close_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion and start the next message."""
        return self._history.close_ids

    @property
    def close_text(self) -> str:
        """String of `close_ids`."""
        return self._history.close_text

    @property
    def event_length(self) -> int:
        """Maximum number of tokens in `event`."""
        return self._history.event.max_length

    @property
    def ask_length(self) -> int:
        """Maximum number of tokens in `ask`."""
        return self._history.ask.max_length

    def event(self, before: State, action: jax.Array, after: State, seat: jax.Array) -> Rendered:
        """Render one move from `before` to `after` as `seat` reads it."""
        return self._history.event.render(self._event_indices(before, action, after, seat))

    def ask(self, seat: jax.Array) -> Rendered:
        """Render the question that asks for a move and starts the completion."""
        return self._history.ask.render(jnp.asarray(seat, jnp.int32)[None])

    def next(self, pending: jax.Array, pending_length: jax.Array, seat: jax.Array) -> Rendered:
        """Render the tokens that follow a completion: close, pending events, ask.

        Args:
            pending: int32 [W]. Tokens of the pending events.
            pending_length: int32 [].
            seat: int32 []. The seat to move.
        """
        close = jnp.asarray(self.close_ids, jnp.int32)
        return join([(close, jnp.int32(close.shape[0])), (pending, pending_length), self.ask(seat)], self.pad_id)

    def event_text(self, before: State, action: int, after: State, seat: int) -> str:
        """Return the string of `event` (host only)."""
        numbers = self._jitted_event(before, jnp.int32(action), after, jnp.int32(seat))
        return self._history.event.template.text(jax.device_get(numbers))

    def ask_text(self, seat: int) -> str:
        """Return the string of `ask` (host only)."""
        template = self._history.ask.template
        return template.text([seat] * len(template.tables))

    @property
    def _history(self) -> History:
        if self.history is None:
            raise ValueError(f"events require the context 'history', but this prompt was compiled for {self.context!r}")
        return self.history

    @property
    def _event_indices(self) -> Callable[[State, jax.Array, State, jax.Array], jax.Array]:
        assert self.text.event_indices is not None  # `History` needs a text with events
        return self.text.event_indices

    @functools.cached_property
    def _jitted_opening(self) -> Callable[..., jax.Array]:
        return jax.jit(self.opening_indices)

    @functools.cached_property
    def _jitted_event(self) -> Callable[..., jax.Array]:
        return jax.jit(self._event_indices)
