"""A task of tool calls for runs that `test_kills.py` kills.

The random model writes no JSON, so this plugin reads every completion as calls: of `note` for a letter, and of an
unknown tool for anything else. Calls have state, take a moment and are logged in the file that NOTED_CALLS names.
"""

import asyncio
import dataclasses
import json
import os

from envs.tasks import TASKS
from envs.tasks.task import Outcome, Task
from envs.tasks.tools import Functions, Limits, ToolUse, tool
from models import tool_calls
from tests.marl_jax.tiny_tasks import small_bytes

SECONDS = 0.02


class Letters(tool_calls.Parser):
    """One call per character."""

    name = "fenced"

    def attempts(self, text):
        for at, letter in enumerate(text):
            name = "note" if letter.isalpha() else "other"
            yield tool_calls.Attempt(at, at + 1, tool_calls.ToolCall(name, json.dumps({"letter": letter})))

    def held_from(self, text):
        return 0


class Notes:
    """A tool with state."""

    def __init__(self, step: int, episode: str):
        self.notes: list[str] = []
        self._where = step, episode

    @tool
    async def note(self, letter: str) -> str:
        """Add a letter.

        Args:
            letter: The letter.
        """
        with open(os.environ["NOTED_CALLS"], "a") as file:
            file.write(json.dumps([*self._where, len(self.notes)]) + "\n")
            file.flush()
            os.fsync(file.fileno())
        await asyncio.sleep(SECONDS)
        self.notes.append(letter)
        return "".join(self.notes)


@dataclasses.dataclass(frozen=True)
class Noted(Task):
    """Three turns of calls, rewarded for plain characters in the notes."""

    roles = ("writer",)

    def examples(self, part):
        return [f"{part} {i}" for i in range(12)]

    async def play(self, ask, example):
        notes = Notes(ask.step, ask._job.id)
        async with ToolUse(ask, Functions(notes), Limits(calls=12, per_turn=4)) as use:
            chat = ask.chat(0, tools=use.tools)
            reply = await chat.say(example)
            for _ in range(2):
                texts = await use.run(chat, reply)
                reply = await (chat.results(texts) if texts else chat.say(example))
            reward = small_bytes("".join(notes.notes))
            reply.reward(team=reward)
            return Outcome(reward, use.metrics())


tool_calls.PARSERS[Letters.name] = Letters
TASKS.add("noted", Noted)
