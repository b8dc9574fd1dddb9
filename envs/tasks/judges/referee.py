"""Judges that reward the episodes of a run.

A task describes what is compared as a `Contest`, and `ruled` turns the verdict into rewards. The comparison is recorded
with the episode, so that an interrupted run repeats it without the judge. A judge that does not answer in time, that
fails, or that answers nonsense in both orders fails the episode, which is counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from envs.tasks.judges.judge import BadVerdict, Judge, Verdict
from envs.tasks.judges.kinds import RuleJudge
from envs.tasks.replies import CallFailed, CallTimeout, EpisodeError

REFERENCE, PARTNER = "reference", "partner"
RECORD = "judge"
"""Name under which comparisons are recorded."""


class JudgeFailed(EpisodeError):
    """The judge of a run failed."""

    reason = "judge_failed"


class JudgeTimeout(EpisodeError):
    """The judge of a run did not answer in time."""

    reason = "judge_timeout"


@dataclasses.dataclass(frozen=True)
class Contest:
    """Two texts to compare.

    Attributes:
        prompt: The request that both texts answer.
        own: Text of the learner.
        other: Text that it is compared with.
        scores: Scores of both texts by the rule of the task.
    """

    prompt: str
    own: str
    other: str
    scores: tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Ruling:
    """Rewards that follow from a comparison.

    Attributes:
        own: Reward of the learner.
        other: Reward of its opponent, if there is one.
        metrics: Metrics of the judge.
    """

    own: float
    other: float
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Referee:
    """The judge of a run with its settings.

    Attributes:
        judge: The judge; None for the rule of the task.
        criterion: What it compares; see `judge.CRITERIA`.
        against: "reference" or "partner", the text that the learner's is compared with.
        weight: Weight of the probability to be better.
        rule_weight: Weight of the task's own reward.
        limit: Time limit of a comparison in seconds.
    """

    judge: Judge | None
    criterion: str = "correctness"
    against: str = REFERENCE
    weight: float = 1.0
    rule_weight: float = 0.0
    limit: float = 60.0

    async def decide(self, ask: Any, contest: Contest, own: float, other: float, name: str = RECORD) -> Ruling:
        """Compare the texts of a contest.

        Args:
            ask: The episode.
            contest: The texts.
            own: Reward of the learner by the rule.
            other: Reward of its opponent by the rule.
            name: Name under which the verdict is recorded.

        Raises:
            EpisodeError: There is no verdict.
        """
        try:
            verdict = Verdict(**await ask.record(name, self._compare(contest), limit=self.limit))
        except CallTimeout as error:
            raise JudgeTimeout(f"the judge took longer than judge.time_limit: {error}") from error
        except CallFailed as error:
            raise JudgeFailed(str(error)) from error
        if verdict.failed == 2:
            raise BadVerdict("the judge replied without a verdict in both orders")
        metrics = {
            "judge_p": verdict.p, "judge_flipped": float(verdict.flipped), "judge_failed": verdict.failed / 2,
        }  # fmt: skip
        if contest.scores[0] != contest.scores[1]:
            right = (verdict.p > 0.5) == (contest.scores[0] > contest.scores[1])
            metrics["judge_agreement"] = 0.5 if verdict.p == 0.5 else float(right)
        return Ruling(
            self.rule_weight * own + self.weight * verdict.p,
            self.rule_weight * other + self.weight * (1.0 - verdict.p),
            metrics,
        )

    async def _compare(self, contest: Contest) -> dict[str, Any]:
        judge = self.judge
        if judge is None:
            scores = {contest.own: contest.scores[0], contest.other: contest.scores[1]}
            judge = RuleJudge(lambda prompt, text: scores[text])
        verdict = await judge.compare(contest.prompt, contest.own, contest.other, self.criterion)
        return dataclasses.asdict(verdict)


async def ruled(ask: Any, own: float, other: float, contest: Callable[[str], Contest]) -> Ruling:
    """Return the rewards of an episode, by the judge or by the rule.

    Args:
        ask: The episode.
        own: Reward of the learner by the rule.
        other: Reward of its opponent by the rule.
        contest: Returns what is compared with "reference" or "partner".
    """
    referee = ask.judge
    return Ruling(own, other) if referee is None else await referee.decide(ask, contest(referee.against), own, other)
