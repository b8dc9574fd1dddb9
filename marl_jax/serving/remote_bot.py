"""A remote model as a bot of a game: it reads what models read here, as messages, and answers with free text."""

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
    """Asks a server for every move; an answer that names no legal action is replaced by a random one.

    text         what is read, in the style of the run
    temperature  of the answers
    max_tokens   of an answer
    """

    game: Game
    text: texts.Text
    remote: RemoteModel
    temperature: float = 0.0
    max_tokens: int = 64

    def act(self, state: State, key: jax.Array) -> jax.Array:
        """One legal action: int32[]. Not for `vmap`; that is what `act_rows` is for."""
        states, keys = jax.tree.map(lambda x: x[None], (state, key))
        return self.act_rows(states, keys, jnp.ones((1,), bool))[0]

    def act_rows(self, state: State, keys: jax.Array, asked: jax.Array) -> jax.Array:
        """int32 [B]; only rows that are `asked` (bool [B]) cost a request."""
        seats = jax.vmap(self.game.player)(state)
        legal = jax.vmap(self.game.legal)(state)
        indices = jax.vmap(self.text.indices)(state, seats)
        shape = jax.ShapeDtypeStruct(asked.shape, jnp.int32)
        named = io_callback(self._ask, shape, indices, seats, legal, asked)
        return jnp.where(named < 0, jax.vmap(pick)(legal, keys), named)

    def _ask(self, indices, seats, legal, asked) -> np.ndarray:
        """On the host: the action that each answer names, or -1."""
        indices, seats, legal, asked = (np.asarray(x) for x in (indices, seats, legal, asked))
        found = np.full(asked.shape, -1, np.int32)
        rows = np.flatnonzero(asked)
        chats = [chat_of(self.text, indices[row], int(seats[row])) for row in rows]
        answers = self.remote.ask_all(chats, temperature=self.temperature, max_tokens=self.max_tokens)
        for row, answer in zip(rows, answers, strict=True):
            action = self.text.parse(answer, legal[row].tolist())
            found[row] = -1 if action is None else action
        return found


def chat_of(text: texts.Text, indices: np.ndarray, seat: int) -> list[dict[str, str]]:
    """What a seat reads, as messages: rules and role are the system text, position and question the user's.

    indices  of the observation, `text.indices(state, seat)`
    """
    rules = "\n".join(part for part in (text.rules, text.roles[seat]) if part)
    user = {"role": "user", "content": text.observation.text(indices.tolist()) + text.questions[seat]}
    return [{"role": "system", "content": rules}, user] if rules else [user]


@contextlib.contextmanager
def remote_failures() -> Iterator[None]:
    """Within it, a remote model that fails inside of a compiled program is the `RemoteError` that it was."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        _, found, message = str(error).partition(f"{RemoteError.__name__}: ")
        if not found:
            raise
        raise RemoteError(message.splitlines()[0]) from None
