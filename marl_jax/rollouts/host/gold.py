"""Episodes in which the reference completions of a task replace those of the policies."""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from envs.tasks.replies import TaskError
from envs.tasks.task import Ask, Outcome, Task
from marl_jax.rollouts.host.rollout import HostRollout
from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.settings import Sampling
from models.tokenizers import Tokenizer

_reference: contextvars.ContextVar[str] = contextvars.ContextVar("reference")
"""Reference completion of the current episode; every episode runs in its own context."""


def gold_rollout(arguments: dict[str, Any]) -> HostRollout:
    """Build a rollout whose completions are the references of the task.

    Args:
        arguments: Arguments of `HostRollout`.
    """
    runner = arguments["runner"]
    runner.task = GoldTask(runner.task)
    runner.speakers = tuple(
        dataclasses.replace(speaker, sampler=GoldSampler(speaker.tokenizer)) for speaker in runner.speakers
    )
    arguments["publish"] = lambda params, version: None
    return HostRollout(**arguments)


class GoldTask(Task):
    """A task whose episodes know their reference completion."""

    def __init__(self, task: Task):
        self.task = task
        self.roles, self.serves, self.concurrency, self.graph = task.roles, task.serves, task.concurrency, task.graph

    def examples(self, part: str) -> Sequence[Any]:
        """Return the examples of the task."""
        return self.task.examples(part)

    async def play(self, ask: Ask, example: Any) -> Outcome:
        """Play an episode of the task with its reference completion."""
        reference = self.task.gold_reply(example)
        if reference is None:
            raise TaskError("the example has no reference completion")
        _reference.set(reference)
        return await self.task.play(ask, example)


class GoldSampler:
    """A sampler that returns the reference completion of the current episode.

    Args:
        tokenizer: Tokenizer of the policy.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer

    async def answer(
        self, ids: Sequence[int], sampling: Sampling, policy: int = 0, n: int = 1, deadline: float | None = None
    ) -> list[Completion]:
        """Return n copies of the reference, which end with a stop token if they fit."""
        text = self._tokenizer.strip_special(_reference.get())
        tokens = [*self._tokenizer.encode(text), *self._tokenizer.stop_ids[:1]]
        finish = "stop" if len(tokens) <= sampling.max_new_tokens else "length"
        kept = np.array(tokens[: sampling.max_new_tokens], np.int32)
        return [Completion(kept, np.zeros(len(kept), np.float32), finish, np.zeros(len(kept), np.int32))] * n
