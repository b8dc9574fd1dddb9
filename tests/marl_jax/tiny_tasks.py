"""Tasks for tests, added by `--config.plugins=('tests.marl_jax.tiny_tasks',)`."""

import asyncio
import dataclasses
import json
import os
from pathlib import Path

from envs.tasks import TASKS
from envs.tasks.replies import CallTimeout
from envs.tasks.task import Outcome, Task
from marl_jax.rollouts.host.conversation import derive_seed

SLEEP = 3600.0


def small_bytes(text: str) -> float:
    """The share of plain characters: something that differs from answer to answer, and that can be learnt."""
    return sum(ord(c) < 80 for c in text) / max(len(text), 1)


@dataclasses.dataclass(frozen=True)
class Plain(Task):
    """Two roles in turn, rewarded for plain characters; `broken` examples fail, each in its way.

    With `reward` every reply gets this one: a constant, or more than float32 holds.
    """

    n_examples: int = 12
    broken: bool = False
    reward: float | None = None

    roles = ("writer", "editor")

    def examples(self, part):
        return [f"{part} {i}" for i in range(self.n_examples)]

    async def play(self, ask, example):
        if self.broken and example == "train 0":
            raise LookupError("no such thing")
        if self.broken and example == "train 1":
            await asyncio.sleep(SLEEP)
        if self.broken and example == "train 2":
            return "nonsense"
        writer, editor = ask.chat(0, system="Write."), ask.chat(1)
        text = example
        for chat in (writer, editor, writer):
            reply = await chat.say(text, n=ask.candidates)
            for candidate in reply.replies:
                if self.reward is not None:
                    candidate.reward(team=self.reward)
                    continue
                candidate.reward(team=small_bytes(candidate.text), agent=0.1 * len(candidate.text))
            text = (reply if ask.candidates == 1 else chat.keep(0)).text
        return Outcome(small_bytes(text), {"length": len(text)})


@dataclasses.dataclass(frozen=True)
class Moody(Plain):
    """`Plain`, with a judge who hangs at random.

    What he says of a call is a matter of luck, and turns out differently if he is asked again about a call whose result
    is in the journal already, which is in the folder that MOODY_JOURNAL names.
    """

    async def play(self, ask, example):
        outcome = await super().play(ask, example)
        reply = ask.chats[0].said[-1].replies[0]
        for number in range(3):
            call = f"step_{ask._job.step:08d}.process_0.jsonl {ask._job.id} mood#{number}"
            try:
                mood = await ask.record("mood", _mood(call), limit=0.02)
            except CallTimeout:
                mood = -0.5
            reply.reward(agent=mood)
            await asyncio.sleep(0.02)
        return outcome


async def _mood(call):
    luck = derive_seed("luck", call) + (call in BEFORE)
    if luck % 3 == 0:
        await asyncio.sleep(SLEEP)
    return luck % 7 / 7


def recorded(folder: Path) -> set[str]:
    """The calls in the journals of a folder, read without our own reader."""
    calls = set()
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().split("\n")[1:-1]:
            episode, call, _ = json.loads(line)
            calls.add(f"{path.name} {episode} {call}")
    return calls


BEFORE = recorded(Path(os.environ["MOODY_JOURNAL"])) if "MOODY_JOURNAL" in os.environ else set()


@dataclasses.dataclass(frozen=True)
class Debate(Task):
    """All agents answer at once, read the other answers and answer again; the reward counts their own characters."""

    n_examples: int = 12
    agents: int = 2
    turns: int = 2

    @property
    def roles(self):
        return tuple(f"agent_{number}" for number in range(self.agents))

    def examples(self, part):
        return [f"{part} {i}" for i in range(self.n_examples)]

    async def play(self, ask, example):
        chats = [ask.chat(seat) for seat in range(self.agents)]
        texts = [f"{example} for {role}" for role in self.roles]
        for _ in range(self.turns):
            replies = await asyncio.gather(*(chat.say(text) for chat, text in zip(chats, texts, strict=True)))
            for reply in replies:
                reply.reward(agent=small_bytes(reply.text))
            texts = ["".join(f"<{other.text}>" for other in replies if other is not reply) for reply in replies]
        return Outcome(small_bytes(replies[0].text))


@dataclasses.dataclass(frozen=True)
class Lengths(Task):
    """One answer to texts of which each has 60 bytes more than the one before."""

    n_examples: int = 12

    roles = ("reader",)

    def examples(self, part):
        return ["?" * 60 * (i + 1) for i in range(self.n_examples)]

    async def play(self, ask, example):
        reply = await ask.chat(0).say(example)
        reply.reward(team=small_bytes(reply.text))
        return Outcome(1.0)


TASKS.add("plain", Plain)
TASKS.add("lengths", Lengths)
TASKS.add("debate_of_bytes", Debate)
TASKS.add("moody", Moody)
