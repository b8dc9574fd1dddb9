"""Opponents on the page: bots, served models, and the policies of a run."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import text as texts
from envs.games.game import Bot
from marl_jax.evaluation.records import PARSE_FAILURE
from marl_jax.interactive.game_table import GameTable, PolicySeat, Taken
from marl_jax.serving.openai import calls
from marl_jax.serving.openai.calls import Call, ServedModel
from marl_jax.serving.openai.messages import read_messages
from marl_jax.serving.openai.requests import CompletionRequest
from marl_jax.serving.remote_bot import chat_of

MOST_TOKENS = 256  # maximum number of tokens of a served model's completion


@dataclasses.dataclass(frozen=True)
class OpponentMove:
    """An action and how it was chosen.

    Attributes:
        action: Action of the move.
        prompt: Prompt of a model, or "".
        answer: Completion of a model, or "".
        error: Reason why the completion could not be used, or "".
    """

    action: int
    prompt: str = ""
    answer: str = ""
    error: str = ""


class Opponent(Protocol):
    """Player of all seats but the user's. Every game has its own opponent."""

    async def act(self, table: GameTable) -> OpponentMove:
        """Return a move for the seat to move."""
        ...

    def observe(self, taken: Taken) -> None:
        """Observe a move, including its own."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class BotOpponent:
    """A bot with a compiled `act`."""

    program: Callable[[Any, jax.Array], jax.Array]

    @classmethod
    def of(cls, bot: Bot) -> BotOpponent:
        """Compile the bot."""
        return cls(jax.jit(bot.act))

    async def act(self, table: GameTable) -> OpponentMove:
        """Return the bot's move."""
        return OpponentMove(int(await asyncio.to_thread(self.program, table.state, table.turn_key)))

    def observe(self, taken: Taken) -> None:
        """Do nothing; a bot only looks at the position."""


@dataclasses.dataclass(frozen=True, eq=False)
class ModelOpponent:
    """A served model that reads the position as a chat and answers with free text.

    A completion that names no legal action is replaced by a random action.

    Attributes:
        model: Served model.
        text: Text of the game, which also parses completions.
        temperature: Sampling temperature.
    """

    model: ServedModel
    text: texts.Text
    temperature: float = 0.0

    async def act(self, table: GameTable) -> OpponentMove:
        """Request a move from the model."""
        messages = await asyncio.to_thread(self._messages, table)
        request = CompletionRequest(
            self.model.name, messages=tuple(read_messages(messages)[0]), temperature=self.temperature,
            max_tokens=MOST_TOKENS, seed=secrets.randbits(32),
        )  # fmt: skip
        call = Call(self.model, request)
        call.start(calls.answer_alone(call))
        await call.wait()
        answer = call.choices[0].text
        action = self.text.parse(answer, table.legal.tolist())
        error = "" if action is not None else PARSE_FAILURE
        if action is None:
            action = int(np.random.default_rng().choice(np.flatnonzero(table.legal)))
        return OpponentMove(action, "\n\n".join(message["content"] for message in messages), answer, error)

    def observe(self, taken: Taken) -> None:
        """Do nothing; every prompt is self-contained."""

    def _messages(self, table: GameTable) -> list[dict[str, str]]:
        indices = jax.device_get(self.text.indices(table.state, jnp.int32(table.mover)))
        return chat_of(self.text, indices, table.mover)


@dataclasses.dataclass(frozen=True, eq=False)
class PolicyOpponent:
    """The policies of a run with their prompts and conversations from training."""

    seat: PolicySeat
    mesh: jax.sharding.Mesh

    async def act(self, table: GameTable) -> OpponentMove:
        """Return a move as in a match of the run."""
        return await asyncio.to_thread(self._act, table)

    def observe(self, taken: Taken) -> None:
        """Continue the conversations with a move."""
        with jax.set_mesh(self.mesh):
            self.seat.observe(taken.before, taken.action, taken.after)

    def _act(self, table: GameTable) -> OpponentMove:
        with jax.set_mesh(self.mesh):
            action = int(self.seat.act(table.state, table.turn_key))
        return OpponentMove(action, table.prompt_text(table.mover), table.prompt.text.names[action])
