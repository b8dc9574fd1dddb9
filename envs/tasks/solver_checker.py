"""Solver and checker for arithmetic: one role proposes, the other confirms or corrects.

After a correction the solver tries again. Every turn asks for as many candidates as the algorithm wants (K of AT-GRPO).
The task scores each of them, and the episode continues with one. Candidates are compared within their turn only, so
each is scored by its own content.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from envs.tasks.arithmetic import FORMAT, ArithmeticProblem, draw_problems, graded, voted
from envs.tasks.chat import CONTINUATIONS
from envs.tasks.task import Ask, Outcome, Task
from envs.tasks.workflow.graph import Workflow
from envs.tasks.workflow.play import Turn, play
from envs.tasks.workflow.reading import read

SOLVER = f"You solve the problem; a checker reads your solution. {FORMAT}"
CHECKER = f"You check a solution, step by step, and correct it if it is wrong. {FORMAT}"

_SOLVE = {"role": "solver", "system": SOLVER, "label": "solve", "rewards": ["right"]}
_CHECK = {"role": "checker", "system": CHECKER, "label": "check", "rewards": ["right"]}
_QUOTE = "The {0} wrote:\n```\n{{{0}}}\n```"
_VERDICT = [{"to": "end", "when": "agreed"}, "solve_again"]

NODES = {
    "solve": {**_SOLVE, "prompt": "{question}", "next": "check"},
    "check": {**_CHECK, "prompt": "{question}\n\n" + _QUOTE.format("solver"), "next": _VERDICT},
    "solve_again": {
        **_SOLVE, "prompt": _QUOTE.format("checker") + "\n\nSolve the problem again: {question}", "next": "check_again",
    },
    "check_again": {**_CHECK, "prompt": "The solver tried again.\n\n" + _QUOTE.format("solver"), "next": _VERDICT},
}  # fmt: skip


def agreed(values: Mapping[str, Any], scores: Mapping[str, Any]) -> bool:
    """Return whether the checker confirms the solver's answer."""
    return scores["checker"]["answer"] is not None and scores["checker"]["answer"] == scores["solver"]["answer"]


@dataclasses.dataclass(frozen=True)
class SolverChecker(Task):
    """Arithmetic problems for a solver and a checker.

    Attributes:
        rounds: Maximum number of rounds of solver and checker. An episode ends early if the two agree.
        continuation: Candidate to keep: "best", "random" or "first".
        process: Process reward for a reply with a readable number.
        levels: Difficulty levels; see `Arithmetic`.
        n_examples: Number of problems per split.
        seed: Random seed of the problems.
    """

    rounds: int = 2
    continuation: str = "best"
    process: float = 0.1
    levels: tuple[int, ...] = (1, 2, 3)
    n_examples: int = 1000
    seed: int = 0

    roles = ("solver", "checker")

    def __post_init__(self):
        if self.rounds < 1:
            raise ValueError(f"rounds is {self.rounds}, but must be >= 1")
        if self.continuation not in CONTINUATIONS:
            raise ValueError(f"continuation is {self.continuation!r}, but must be one of: {', '.join(CONTINUATIONS)}")

    @functools.cached_property
    def graph(self) -> Workflow:
        """Workflow that solves and checks until both agree or the rounds are over."""
        return read({"start": "solve", "nodes": NODES, "max_steps": 2 * self.rounds}, {"agreed": agreed})

    def examples(self, part: str) -> list[ArithmeticProblem]:
        """Return `n_examples` distinct problems of a split."""
        return draw_problems(part, self.levels, self.n_examples, self.seed)

    async def play(self, ask: Ask, example: ArithmeticProblem) -> Outcome:
        """Play one episode. It succeeds if the checker's last answer is correct."""

        async def score(turn: Turn) -> list[dict]:
            verdicts = await graded(ask, turn.reply.replies, example.answer)
            for candidate, verdict in zip(turn.reply.replies, verdicts, strict=True):
                candidate.reward(team=float(verdict["right"]), process=self.process * (verdict["answer"] is not None))
            return verdicts

        columns = {"question": example.question}
        turns = (await play(self.graph, ask, columns, score, continuation=self.continuation)).turns
        first, solved, checked = turns[0].score, turns[-2].score, turns[-1].score
        metrics = {
            "solver_right_first": first["right"], "solver_right_last": solved["right"], "rounds": len(turns) // 2,
            "checker_mended": checked["right"] and not solved["right"],
            "checker_spoiled": solved["right"] and not checked["right"],
        }  # fmt: skip
        agree = agreed({}, {"solver": solved, "checker": checked})
        answer = voted(checked["answer"])
        return Outcome(checked["right"], metrics, "agreed" if agree else "rounds", answer, score=float(agree))
