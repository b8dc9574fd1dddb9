"""A game's text compiled for a tokenizer: what a model reads, as token ids inside jit and as strings on the host.

A conversation of one seat reads

    opening  answer  close event event … ask  answer  close event … ask  answer …

`opening` is rules, role, present position and question; with the context `turn` that is all there is. With `history` a
rollout keeps a row of pending tokens for every seat, appends an event at every move, and flushes the row when the seat
is to move:

    tokens, length = prompt.opening(state, seat)                      # int32[opening_length], int32[]
    pending, n = jnp.zeros(width, jnp.int32), 0                       # room for all events that may come
    pending, n = join([(pending, n), prompt.event(before, action, after, seat)], prompt.pad_id, width)
    tokens, length = prompt.next(pending, n, seat)                    # close, pending events, ask

An event restates what a move changed, the seat's own moves included: after an answer that could not be read it says
what was played instead. So `opening` and the events since then always say what the present position's text would.
`close` takes the place of the token with which a free answer stopped; a constrained answer has none.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.game import State
from envs.games.template import Compiled, Rendered, join


class PromptText(Protocol):
    """The members of `envs.games.text.Text` that a prompt reads."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def roles(self) -> tuple[str, ...]: ...
    @property
    def questions(self) -> tuple[str, ...]: ...
    @property
    def marked(self) -> bool: ...
    @property
    def indices(self) -> Callable[[State, jax.Array], jax.Array]: ...
    @property
    def event_indices(self) -> Callable[[State, jax.Array, State, jax.Array], jax.Array] | None: ...


@dataclasses.dataclass(frozen=True, eq=False)
class History:
    """What later turns are made of: the tokens of `close`, and the templates of events and of what asks for a move."""

    close_text: str
    close_ids: tuple[int, ...]
    event: Compiled
    ask: Compiled


@dataclasses.dataclass(frozen=True, eq=False)
class Prompt:
    """A game's text compiled for a tokenizer, a chat format and a context.

    action_ids: int32[A, longest], the tokens of each name, padded with -1; action_lengths: int32[A]
    history: None in the context `turn`
    """

    text: PromptText
    context: str
    compiled_opening: Compiled
    action_ids: np.ndarray
    action_lengths: np.ndarray
    history: History | None = None

    # The opening, all of a prompt in the context `turn`

    @property
    def prefix(self) -> tuple[int, ...]:
        """The tokens with which every `opening` begins, whoever moves: their keys and values can be computed once."""
        return self.compiled_opening.head

    @property
    def pad_id(self) -> int:
        """What rows are filled up with."""
        return self.compiled_opening.pad_id

    @property
    def opening_length(self) -> int:
        """T of `opening`."""
        return self.compiled_opening.max_length

    def opening(self, state: State, seat: jax.Array) -> Rendered:
        """Rules, role, position and question: a prompt that stands alone or opens a conversation."""
        return self.compiled_opening.render(self.opening_indices(state, seat))

    def suffix(self, state: State, seat: jax.Array) -> Rendered:
        """`opening` without the tokens of `prefix`."""
        return self.compiled_opening.render_tail(self.opening_indices(state, seat))

    def opening_text(self, state: State, seat: int) -> str:
        """The string of `opening`; host only."""
        return self.compiled_opening.template.text(jax.device_get(self._jitted_opening(state, jnp.int32(seat))))

    def opening_indices(self, state: State, seat: jax.Array) -> jax.Array:
        """What `opening` renders: the observation's numbers between the seat, for its role, and again for its question.

        Where all seats read the same role or question there is no table for it.
        """
        number = jnp.asarray(seat, jnp.int32)[None]
        observed = jnp.asarray(self.text.indices(state, seat), jnp.int32)
        before, after = len(set(self.text.roles)) > 1, len(set(self.text.questions)) > 1
        return jnp.concatenate([*[number] * before, observed, *[number] * after])

    # Later turns of a conversation

    @property
    def close_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer and begin what is read next."""
        return self._history.close_ids

    @property
    def close_text(self) -> str:
        """The string of `close_ids`."""
        return self._history.close_text

    @property
    def event_length(self) -> int:
        """T of `event`."""
        return self._history.event.max_length

    @property
    def ask_length(self) -> int:
        """T of `ask`."""
        return self._history.ask.max_length

    def event(self, before: State, action: jax.Array, after: State, seat: jax.Array) -> Rendered:
        """One move as `seat` reads it: `action`, played in `before`, led to `after`."""
        return self._history.event.render(self._event_indices(before, action, after, seat))

    def ask(self, seat: jax.Array) -> Rendered:
        """What asks for a move and opens the answer."""
        return self._history.ask.render(jnp.asarray(seat, jnp.int32)[None])

    def next(self, pending: jax.Array, pending_length: jax.Array, seat: jax.Array) -> Rendered:
        """What a later turn appends after the answer: close, pending events (int32[W], int32[]), ask."""
        close = jnp.asarray(self.close_ids, jnp.int32)
        return join([(close, jnp.int32(close.shape[0])), (pending, pending_length), self.ask(seat)], self.pad_id)

    def event_text(self, before: State, action: int, after: State, seat: int) -> str:
        """The string of `event`; host only."""
        numbers = self._jitted_event(before, jnp.int32(action), after, jnp.int32(seat))
        return self._history.event.template.text(jax.device_get(numbers))

    def ask_text(self, seat: int) -> str:
        """The string of `ask`; host only."""
        template = self._history.ask.template
        return template.text([seat] * len(template.tables))

    @property
    def _history(self) -> History:
        if self.history is None:
            raise ValueError(f"events are for the context 'history'; this prompt was compiled for {self.context!r}")
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
