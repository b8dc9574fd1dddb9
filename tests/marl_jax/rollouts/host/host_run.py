"""A run of two host rollouts with a judge that times out at random, to be killed in the second one.

    python -m tests.marl_jax.rollouts.host.host_run FOLDER

The first rollout ends with a "checkpoint"; a process that finds one resumes from it. What the judge says of a call is a
matter of luck, and turns out differently if it is asked again about a call whose result is in the journal already.
"""

import asyncio
import json
import sys
from pathlib import Path

import jax
import numpy as np

from envs.tasks.replies import CallTimeout
from envs.tasks.task import Outcome
from marl_jax.rollouts.host.conversation import derive_seed
from tests.marl_jax.tiny_host import FakeSampler, make_rollout


class SlowSampler(FakeSampler):
    """Gives whoever wants to kill the process time to do so."""

    async def answer(self, *args, **kwargs):
        await asyncio.sleep(0.02)
        return await super().answer(*args, **kwargs)


def recorded(folder: Path) -> set[str]:
    """The calls in the journals of a folder, read without our own reader."""
    calls = set()
    for path in folder.glob("journal/*.jsonl"):
        for line in path.read_text().split("\n")[1:-1]:
            episode, call, _ = json.loads(line)
            calls.add(f"{path.name} {episode} {call}")
    return calls


def make_task(before: set[str], step: int):
    """Two seats talk four times; each text says what the judge thought of the answer before."""

    async def judge(call, text):
        luck = derive_seed("luck", call) + (call in before)
        if luck % 3 == 0:
            await asyncio.sleep(3600)
        return luck % 10

    async def play(ask, example):
        chats = [ask.chat(0), ask.chat(1)]
        text = example
        for turn in range(4):
            replies = await asyncio.gather(*(chat.say(text) for chat in chats))
            for seat, reply in enumerate(replies):
                call = f"step_{step:08d}.process_0.jsonl {ask._job.id} judge_{seat}#{turn}"
                try:
                    verdict = await ask.record(f"judge_{seat}", judge(call, reply.text), limit=0.03)
                except CallTimeout:
                    verdict = -1
                reply.reward(agent=verdict)
                text = f"The judge says {verdict}."
        return Outcome(1)

    return play


def main(folder: Path) -> None:
    checkpoint = folder / "checkpoint.json"
    before = recorded(folder)
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else None
    while state is None or state["step"] < 2:
        step = 0 if state is None else state["step"]
        rollout = make_rollout(
            make_task(before, step), SlowSampler(), n_examples=3, samples=2, journal=folder / "journal"
        )
        state = state or rollout.init(None, None)
        samples, state, _ = rollout({}, state)
        rollout.close()
        arrays = {jax.tree_util.keystr(k): x for k, x in jax.tree_util.tree_flatten_with_path(samples)[0]}
        np.savez(folder / f"samples_{step}.npz", **arrays)
        part = folder / "checkpoint.part"
        part.write_text(json.dumps(state))
        part.rename(checkpoint)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
