"""Rewards from verdicts, as reward functions of the task `dataset`.

    # rewards.py
    judge = LanguageJudge(ChatClient.parse("http://127.0.0.1:8000/v1#judge"), cache=VerdictCache("runs/verdicts.jsonl"))
    preferred = ReferenceReward(judge, "relevance")

    python launch.py --config=experiments/dataset.py --config.task.params.rewards="('rewards.py:preferred',)" …

The results are recorded with the episode, so that an interrupted run repeats them without the judge. A judge that
cannot be reached fails the episode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from envs.tasks.judges.judge import Judge
from envs.tasks.scorer_client import ScorerClient


@dataclasses.dataclass(frozen=True)
class ReferenceReward:
    """The probability that a completion is better than the reference of its example.

    Attributes:
        judge: The judge.
        criterion: What it compares; see `judge.CRITERIA`.
        column: Column of the dataset with the reference.
    """

    judge: Judge
    criterion: str = "correctness"
    column: str = "reference"

    async def __call__(self, prompt: str, completion: str, **columns: Any) -> float:
        """Return the reward of a completion."""
        if not isinstance(columns.get(self.column), str):
            raise ValueError(f"the example has no text in the column {self.column!r} to compare the completion with")
        return (await self.judge.compare(prompt, completion, columns[self.column], self.criterion)).p


@dataclasses.dataclass(frozen=True)
class GroupReward:
    """The mean probability that a candidate is better than the other candidates of its turn.

    Attributes:
        judge: The judge.
        criterion: What it compares; see `judge.CRITERIA`.
    """

    judge: Judge
    criterion: str = "correctness"

    async def __call__(self, prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
        """Return the rewards of the candidates of one prompt."""
        return await self.judge.rank(str(prompts[0]), list(completions), self.criterion)


@dataclasses.dataclass(frozen=True)
class ScoreReward:
    """The score of a reward model.

    Attributes:
        url: Address of the reward server.
        version: Version that it must have; "" accepts any.
    """

    url: str
    version: str = ""

    async def __call__(self, prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
        """Return the scores of the candidates of one prompt."""
        chats = [
            [{"role": "user", "content": str(prompt)}, {"role": "assistant", "content": text}]
            for prompt, text in zip(prompts, completions, strict=True)
        ]
        return await ScorerClient(self.url, self.version).score(chats)
