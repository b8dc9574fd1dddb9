"""The `propose` task: a proposer writes problems with verifiable answers for a solver.

In training, the proposer writes a program and an input, or K of each if the run samples K candidates (AT-GRPO). The
sandbox runs every program twice (`programs.py`). Each valid proposal that is new becomes a problem: the solver reads it
in a separate chat, where N candidates predict the output.

The proposer is rewarded with 1 − solve rate, and with `no_signal` (0) if all or none of the N candidates are right. An
invalid proposal gets a process reward of −`penalty` (−0.5) and no solver. A duplicate, which has the same program up to
names of variables and the same call as an earlier candidate of the turn or a problem in the prompt, gets 0 and no
solver. The solver is rewarded with 0.8 for the exact output and 0.2 for a readable assertion, as in the `code` task.

Evaluations, and training with `problems="published"`, have a solver only. The test split is CRUXEval.
"""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from envs.tasks.chat import CONTINUATIONS
from envs.tasks.code import calls, sources
from envs.tasks.code import prompts as solving
from envs.tasks.code.predict import judge_predictions, play_prediction
from envs.tasks.data import Dataset
from envs.tasks.propose import problems, programs, prompts
from envs.tasks.replies import CallFailed, CallTimeout, Reply
from envs.tasks.sandbox import shared_sandbox
from envs.tasks.task import Ask, Outcome, Task, check_params, check_split

SOLVER, PROPOSER = 0, 1
KINDS = ("proposed", "published")
DUPLICATE = "duplicate"


@dataclasses.dataclass(frozen=True)
class Propose(Task):
    """Problems that one seat writes for another.

    Attributes:
        problems: "proposed", or "published" for a solver that is trained on the dataset.
        dataset: Dataset of the `code` task for references, published problems and validation.
        test_dataset: Dataset for the test split.
        solvers: Number of solver's candidates per problem, N.
        no_signal: Proposer's reward for a problem that all or none of the candidates solve; −0.5 in the published code.
        penalty: Amount subtracted for an invalid proposal.
        references: Number of published problems in the proposer's prompt.
        n_examples: Number of different prompts of the proposer.
        seed: Random seed of the prompts.
        seconds: CPU time limit of a proposed program.
        continuation: Solver's candidate that counts if a published problem has several: "best", "random" or "first".
        sandbox: "auto" for real isolation or an error; "process" for limits only, for trusted programs.
    """

    problems: str = "proposed"
    dataset: str = "mbpp"
    test_dataset: str = "cruxeval_output"
    solvers: int = 4
    no_signal: float = 0.0
    penalty: float = 0.5
    references: int = 2
    n_examples: int = 1000
    seed: int = 0
    seconds: float = 1.0
    continuation: str = "best"
    sandbox: str = "auto"

    def __post_init__(self):
        ranges = dict(
            solvers=(4, 64), no_signal=(-1, 0), penalty=(0, 10), references=(0, 8), n_examples=(1, 10**6),
            seconds=(0.1, 60),
        )  # fmt: skip
        check_params(self, dict(problems=KINDS, continuation=CONTINUATIONS, sandbox=("auto", "process")), ranges)
        for name in (self.dataset, self.test_dataset):
            sources.check_name(name)

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the seats."""
        return ("solver", "proposer") if self.problems == "proposed" else ("solver",)

    def examples(self, part: str) -> Dataset:
        """Return the references of the proposer for training, or published problems."""
        check_split(part)
        if part == "train" and self.problems == "proposed":
            return problems.references(self.dataset, self.seed, self.n_examples, self.references)
        return problems.load(self.test_dataset if part == "test" else self.dataset, part)

    def prepare(self) -> None:
        """Start the sandbox.

        Raises:
            SandboxUnavailable: This machine does not allow isolation.
        """
        shared_sandbox(self.sandbox)

    def for_evaluation(self) -> Propose:
        """Return the task with a solver of published problems."""
        return dataclasses.replace(self, problems="published")

    async def play(self, ask: Ask, example: dict[str, Any]) -> Outcome:
        """Propose and solve, or solve a published problem."""
        if "references" not in example:
            return await play_prediction(ask, example, self.continuation, self._settings)
        return await _Episode(self, ask, example["references"]).play()

    def _settings(self) -> dict:
        return shared_sandbox(self.sandbox).settings


@dataclasses.dataclass
class Proposal:
    """A candidate of the proposer.

    Attributes:
        reply: The completion.
        result: Result of `programs.checked`, or only a problem and its detail.
        rate: Share of the solver's candidates that are right; None if the solver did not see it.
    """

    reply: Reply
    result: dict[str, Any]
    rate: float | None = None

    @property
    def valid(self) -> bool:
        """Whether the proposal is a problem, new or not."""
        return self.result["problem"] in ("", DUPLICATE)


class _Episode:
    def __init__(self, task: Propose, ask: Ask, references: Sequence[dict[str, str]]):
        self.task, self.ask, self.references = task, ask, references

    async def play(self) -> Outcome:
        """Propose, check, solve and reward."""
        chat = self.ask.chat(PROPOSER, system=prompts.SYSTEM)
        reply = await chat.say(prompts.propose(self.references), n=self.ask.candidates, label="propose")
        results = await asyncio.gather(*(self._checked(k, one) for k, one in enumerate(reply.replies)))
        proposals = [Proposal(*pair) for pair in zip(reply.replies, results, strict=True)]
        self._mark_duplicates(proposals)
        new = [(k, one) for k, one in enumerate(proposals) if not one.result["problem"]]
        chats = [self.ask.chat(SOLVER, system=solving.PREDICT) for _ in new]
        await asyncio.gather(*(self._solve(k, one, chat) for (k, one), chat in zip(new, chats, strict=True)))
        for one in proposals:
            self._reward(one)
        rates = [one.rate for one in proposals if one.rate is not None]
        return Outcome(statistics.fmean(rates) if rates else 0.0, _metrics(proposals), "solved" if rates else "invalid")

    async def _checked(self, k: int, reply: Reply) -> dict[str, Any]:
        settings, seconds = shared_sandbox(self.task.sandbox).settings, self.task.seconds
        try:
            return await self.ask.verify(
                programs.checked, settings, reply.text, seconds, limit=calls.limit(2, seconds), name=f"check_{k}"
            )
        except CallTimeout as error:
            return {"problem": "limit", "detail": str(error)}
        except CallFailed as error:
            return {"problem": "refused", "detail": str(error)}

    def _mark_duplicates(self, proposals: Sequence[Proposal]) -> None:
        seen = {(one["form"], one["call"]) for one in self.references}
        for one in proposals:
            if one.valid:
                key = one.result["form"], one.result["call"]
                one.result["problem"] = DUPLICATE if key in seen else ""
                seen.add(key)

    async def _solve(self, k: int, proposal: Proposal, chat) -> None:
        row = problems.problem(str(k), *(proposal.result[name] for name in ("program", "call", "expect")))
        reply = await chat.say(solving.predict(row), n=self.task.solvers, label="predict")
        judged = await judge_predictions(self.ask, row, reply, lambda: shared_sandbox(self.task.sandbox).settings)
        chat.keep(0)
        proposal.rate = sum(right for right, _ in judged) / len(judged)

    def _reward(self, proposal: Proposal) -> None:
        reason, rate = proposal.result["problem"], proposal.rate
        if not proposal.valid:
            proposal.reply.reward(process=-self.task.penalty)
        elif rate is not None:
            proposal.reply.reward(agent=1 - rate if 0 < rate < 1 else self.task.no_signal)
        if rate is not None:
            reason = f"solved by {rate:.0%}"
        text = programs.REASONS.get(reason, reason)
        detail = proposal.result.get("detail", "")
        proposal.reply.judge(proposal.valid, proposal.result.get("expect"), f"{text} {detail}".strip())


def _metrics(proposals: Sequence[Proposal]) -> dict[str, float]:
    """Return shares of the proposals by their fate, and the diversity of the valid ones."""
    n, valid = len(proposals), [one.result for one in proposals if one.valid]
    rates = [one.rate for one in proposals if one.rate is not None]
    reasons = [one.result["problem"] for one in proposals]
    metrics = {
        "valid": len(valid) / n,
        "duplicate": reasons.count(DUPLICATE) / n,
        "learnable": sum(0 < rate < 1 for rate in rates) / n,
        **{f"invalid_{reason}": reasons.count(reason) / n for reason in programs.REASONS},
    }
    if rates:
        metrics |= {"solve_rate": statistics.fmean(rates), "unsolved": rates.count(0) / len(rates)}
    if valid:
        operators = [program["operators"] for program in valid]
        metrics |= {
            "distinct_programs": len({program["form"] for program in valid}) / len(valid),
            "program_lines": statistics.fmean(program["lines"] for program in valid),
            "operators": statistics.fmean(map(len, operators)),
            "distinct_operators": float(len({kind for kinds in operators for kind in kinds})),
        }
    return metrics
