"""Two roles on arithmetic: a solver proposes, a checker agrees or corrects, the solver hears of it and tries again.

Every turn asks for as many candidates as the run wants (K of AT-GRPO). The task scores each of them, and the episode
continues with one. A turn's candidates are compared with each other only, so each is scored by what it says itself.
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
    """Whether the checker gives the solver's answer."""
    return scores["checker"]["answer"] is not None and scores["checker"]["answer"] == scores["solver"]["answer"]


@dataclasses.dataclass(frozen=True)
class SolverChecker(Task):
    """The task.

    rounds        solver and checker, this many times at most; ends when the checker confirms
    continuation  the candidate that is kept: the "best" one, a "random" one or the "first"
    process       reward of an answer in which a number can be read
    levels, n_examples, seed  of the problems, as in `Arithmetic`
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
            raise ValueError(f"rounds is {self.rounds}; accepted: 1 or more")
        if self.continuation not in CONTINUATIONS:
            raise ValueError(f"continuation is {self.continuation!r}; accepted: {', '.join(CONTINUATIONS)}")

    @functools.cached_property
    def graph(self) -> Workflow:
        """Solve and check, until both agree or the rounds are over."""
        return read({"start": "solve", "nodes": NODES, "max_steps": 2 * self.rounds}, {"agreed": agreed})

    def examples(self, part: str) -> list[ArithmeticProblem]:
        """Problems without repetition."""
        return draw_problems(part, self.levels, self.n_examples, self.seed)

    async def play(self, ask: Ask, example: ArithmeticProblem) -> Outcome:
        """Success: the checker's last answer is right."""

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
