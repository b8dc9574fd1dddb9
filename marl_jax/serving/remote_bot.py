"""A remote model as a bot of a game.

It reads the same text as the models of this run, as chat messages, and answers with free text.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from envs.games import text as texts
from envs.games.bots import pick
from envs.games.game import Game, State
from marl_jax.serving.remote import RemoteError, RemoteModel


@dataclasses.dataclass(frozen=True, eq=False)
class RemoteBot:
    """A bot that requests every move from a server.

    A completion that names no legal action is replaced by a random action.

    Attributes:
        game: Game to play.
        text: Text of the game in the style of the run.
        remote: Model that picks the actions.
        temperature: Sampling temperature.
        max_tokens: Maximum number of tokens of a completion.
    """

    game: Game
    text: texts.Text
    remote: RemoteModel
    temperature: float = 0.0
    max_tokens: int = 64

    def act(self, state: State, key: jax.Array) -> jax.Array:
        """Return a legal action: int32 []. Not for `vmap`; use `act_rows` for batches."""
        states, keys = jax.tree.map(lambda x: x[None], (state, key))
        return self.act_rows(states, keys, jnp.ones((1,), bool))[0]

    def act_rows(self, state: State, keys: jax.Array, wanted: jax.Array) -> jax.Array:
        """Return legal actions: int32 [B].

        Args:
            state: States of B games.
            keys: Random keys [B] for completions that name no legal action.
            wanted: bool [B]. Only these rows cost a request; the others get random actions.
        """
        seats = jax.vmap(self.game.player)(state)
        legal = jax.vmap(self.game.legal)(state)
        indices = jax.vmap(self.text.indices)(state, seats)
        shape = jax.ShapeDtypeStruct(wanted.shape, jnp.int32)
        named = io_callback(self._ask, shape, indices, seats, legal, wanted)
        return jnp.where(named < 0, jax.vmap(pick)(legal, keys), named)

    def _ask(self, indices, seats, legal, wanted) -> np.ndarray:
        """Return the action that each completion names, or -1; runs on the host."""
        indices, seats, legal, wanted = (np.asarray(x) for x in (indices, seats, legal, wanted))
        actions = np.full(wanted.shape, -1, np.int32)
        rows = np.flatnonzero(wanted)
        chats = [chat_of(self.text, indices[row], int(seats[row])) for row in rows]
        answers = self.remote.ask_all(chats, temperature=self.temperature, max_tokens=self.max_tokens)
        for row, answer in zip(rows, answers, strict=True):
            action = self.text.parse(answer, legal[row].tolist())
            actions[row] = -1 if action is None else action
        return actions


def chat_of(text: texts.Text, indices: np.ndarray, seat: int) -> list[dict[str, str]]:
    """Return the prompt of a seat as chat messages.

    Rules and role form the system message, position and question the user message.

    Args:
        text: Text of the game.
        indices: Indices of the observation, `text.indices(state, seat)`.
        seat: Seat to move.
    """
    rules = "\n".join(part for part in (text.rules, text.roles[seat]) if part)
    user = {"role": "user", "content": text.observation.text(indices.tolist()) + text.questions[seat]}
    return [{"role": "system", "content": rules}, user] if rules else [user]


@contextlib.contextmanager
def remote_failures() -> Iterator[None]:
    """Re-raise the failure of a remote model inside a compiled program as `RemoteError`."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        _, marker, message = str(error).partition(f"{RemoteError.__name__}: ")
        if not marker:
            raise
        raise RemoteError(message.splitlines()[0]) from None
