"""Who a person can play against on the page: a bot, a served model asked by text, or a run's policies as they train."""

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
from marl_jax.serving.openai.prompts import read_messages
from marl_jax.serving.openai.requests import CompletionRequest
from marl_jax.serving.remote_bot import chat_of

MOST_TOKENS = 256  # of a served model's answer


@dataclasses.dataclass(frozen=True)
class OpponentMove:
    """An action, and where a model chose it what it read and wrote; `error` says why the answer was of no use."""

    action: int
    prompt: str = ""
    answer: str = ""
    error: str = ""


class Opponent(Protocol):
    """Moves for all seats but the person's; one of its own in every game."""

    async def act(self, table: GameTable) -> OpponentMove:
        """The move of the seat that is to move."""
        ...

    def observe(self, taken: Taken) -> None:
        """Hears of a move, its own too."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class BotOpponent:
    """A bot; `act` is compiled."""

    program: Callable[[Any, jax.Array], jax.Array]

    @classmethod
    def of(cls, bot: Bot) -> BotOpponent:
        """Compiles the bot."""
        return cls(jax.jit(bot.act))

    async def act(self, table: GameTable) -> OpponentMove:
        """As the bot does."""
        return OpponentMove(int(await asyncio.to_thread(self.program, table.state, table.turn_key)))

    def observe(self, taken: Taken) -> None:
        """Nothing: it looks at the position only."""


@dataclasses.dataclass(frozen=True, eq=False)
class ModelOpponent:
    """A served model that reads the position as a chat and answers with free text; what names no move is a random one.

    text  what it reads, and how its answers are read
    """

    model: ServedModel
    text: texts.Text
    temperature: float = 0.0

    async def act(self, table: GameTable) -> OpponentMove:
        """Asks the model."""
        messages = await asyncio.to_thread(self._messages, table)
        asked = CompletionRequest(
            self.model.name, messages=tuple(read_messages(messages)), temperature=self.temperature,
            max_tokens=MOST_TOKENS, seed=secrets.randbits(32),
        )  # fmt: skip
        call = Call(self.model, asked)
        call.start(calls.answer_alone(call))
        await call.wait()
        answer = call.choices[0].text
        action = self.text.parse(answer, table.legal.tolist())
        error = "" if action is not None else PARSE_FAILURE
        if action is None:
            action = int(np.random.default_rng().choice(np.flatnonzero(table.legal)))
        return OpponentMove(action, "\n\n".join(message["content"] for message in messages), answer, error)

    def observe(self, taken: Taken) -> None:
        """Nothing: every prompt stands alone."""

    def _messages(self, table: GameTable) -> list[dict[str, str]]:
        indices = jax.device_get(self.text.indices(table.state, jnp.int32(table.mover)))
        return chat_of(self.text, indices, table.mover)


@dataclasses.dataclass(frozen=True, eq=False)
class PolicyOpponent:
    """The policies of a run with the prompts, answers and conversations that they were trained with."""

    seat: PolicySeat
    mesh: jax.sharding.Mesh

    async def act(self, table: GameTable) -> OpponentMove:
        """As in a match of the run."""
        return await asyncio.to_thread(self._act, table)

    def observe(self, taken: Taken) -> None:
        """Goes on with its conversation."""
        with jax.set_mesh(self.mesh):
            self.seat.observe(taken.before, taken.action, taken.after)

    def _act(self, table: GameTable) -> OpponentMove:
        with jax.set_mesh(self.mesh):
            action = int(self.seat.act(table.state, table.turn_key))
        return OpponentMove(action, table.prompt_text(table.mover), table.prompt.text.names[action])
