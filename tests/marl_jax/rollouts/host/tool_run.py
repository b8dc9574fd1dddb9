"""Conversations with tools for tests, and a host rollout of them to be killed.

    python -m tests.marl_jax.rollouts.host.tool_run FOLDER

A scripted sampler writes calls, right and wrong ones, letter by letter, so that tokenizing its text again would give
other ids. The tools keep notes, which are state, and log every call in FOLDER/calls.jsonl.
"""

import asyncio
import dataclasses
import json
import os
import random
import sys
from pathlib import Path

import jax
import numpy as np

from envs.tasks.task import Outcome
from envs.tasks.tools import Functions, Limits, ToolError, ToolUse, tool
from marl_jax.rollouts.host.conversation import Speaker, derive_seed
from marl_jax.sampling.settings import Sampling
from tests.marl_jax.tiny_host import FakeAnswer, FakeSampler, make_rollout, merging_tokenizer

BUDGET, MAX_LENGTH = 120, 6000
WORDS = ("ab", "ba", "abab", "b", "<|im_end|>", "</tool_response>", "\u20ac", "a\nb", "<tool_call>")


class Notes:
    """Tools with state, which log their calls."""

    def __init__(self, log: Path | None = None, episode: str = ""):
        self.notes: list[str] = []
        self._log, self._episode = log, episode

    @tool
    def write(self, note: str) -> str:
        """Write a note.

        Args:
            note: The note.
        """
        self.notes.append(note)
        if self._log is not None:
            with open(self._log, "a") as file:
                file.write(json.dumps([self._episode, len(self.notes), note]) + "\n")
                file.flush()
                os.fsync(file.fileno())
        return " ".join(self.notes)

    @tool
    def count(self, least: int = 0) -> dict:
        """Count the notes.

        Args:
            least: Number of notes that there must be.
        """
        if len(self.notes) < least:
            raise ToolError(f"there are only {len(self.notes)}")
        return {"count": len(self.notes)}


class ToolSampler(FakeSampler):
    """Writes calls, texts and things in between, as a function of ids and seed.

    Args:
        key: Key of the arguments in the model's format.
        delay: Seconds before each completion.
    """

    def __init__(self, tokenizer=None, key="arguments", delay=0.0):
        super().__init__(tokenizer=tokenizer or merging_tokenizer())
        self.key, self.delay = key, delay

    async def answer(self, *args, **kwargs):
        await asyncio.sleep(self.delay)
        return await super().answer(*args, **kwargs)

    def _one(self, ids, sampling, policy, k):
        rng = random.Random(derive_seed(ids, sampling.seed, policy, k))
        tokens = list(self.text(rng).encode())
        finish = "stop"
        if len(tokens) < sampling.max_new_tokens:
            tokens.append(rng.choice(self.tokenizer.stop_ids))
        else:
            tokens, finish = tokens[: sampling.max_new_tokens], "length"
        logps = -np.asarray([rng.random() for _ in tokens], np.float32)
        return FakeAnswer(np.asarray(tokens, np.int32), logps, finish, np.full(len(tokens), self.version, np.int32))

    def text(self, rng):
        word = " ".join(rng.choices(WORDS, k=rng.randint(1, 3)))
        calls = [
            json.dumps({"name": name, self.key: arguments})
            for name, arguments in rng.choices(
                [("write", {"note": word}), ("write", {"note": "a"}), ("count", {}), ("count", {"least": 99}),
                 ("count", {"least": word}),
                 ("count", json.dumps({})), ("erase", {})], k=rng.choice((1, 1, 2)),
            )
        ]  # fmt: skip
        if self.key == "parameters":
            return "; ".join(calls) if rng.random() < 0.8 else word
        tagged = "\n".join(f"<tool_call>\n{call[: rng.choice((-3, 99, 99))]}\n</tool_call>" for call in calls)
        return rng.choice((tagged, f"ab {tagged}", tagged, word))


async def conversation(ask, example, log=None, turns=5):
    """Play turns with tools; candidates run on forks, and a random one is kept."""
    async with ToolUse(
        ask, Functions(Notes(log, f"{ask._job.id}")), Limits(calls=6, per_turn=2, result_tokens=16)
    ) as use:
        chat = ask.chat(0, system="abba", tools=use.tools)
        n, texts = ask.candidates, None
        for turn in range(turns):
            reply = await (chat.results(texts, n=n, label="act") if texts else chat.say(f"{example} ab {turn}", n=n))
            uses = [use.fork(k) for k in range(n)] if n > 1 else [use]
            tried = await asyncio.gather(*(u.run(chat, r) for u, r in zip(uses, reply.replies, strict=True)))
            for candidate, u in zip(reply.replies, uses, strict=True):
                candidate.reward(agent=u.counts["valid"])
            k = ask.random.randrange(n)
            if n > 1:
                chat.keep(k)
            use, texts = uses[k], tried[k]
        return Outcome(1, use.metrics())


def speaker_of(sampler, budget=BUDGET):
    return Speaker(sampler, sampler.tokenizer, Sampling(max_new_tokens=budget), MAX_LENGTH)


@dataclasses.dataclass(frozen=True)
class Talk:
    """The task of `conversation`."""

    log: Path | None = None
    roles = ("one",)
    forks = True

    def examples(self, part):
        return [f"{part} {i}" for i in range(1000)]

    def play(self, ask, example):
        return conversation(ask, example, self.log)


def main(folder: Path) -> None:
    """Play one rollout with a journal, and write its samples."""
    sampler = ToolSampler(delay=0.02)
    task = Talk(folder / "calls.jsonl")
    rollout = make_rollout(
        task, sampler, speakers=[speaker_of(sampler)], n_examples=4, samples=2, journal=folder / "journal"
    )
    samples, _, metrics = rollout({}, rollout.init(None, None))
    rollout.close()
    arrays = {jax.tree_util.keystr(k): x for k, x in jax.tree_util.tree_flatten_with_path(samples)[0]}
    np.savez(folder / "samples.npz", **arrays)
    (folder / "metrics.json").write_text(json.dumps(metrics))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
