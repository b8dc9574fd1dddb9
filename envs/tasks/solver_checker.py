"""Two roles on arithmetic: a solver proposes, a checker agrees or corrects, the solver hears of it and tries again.

Every turn asks for as many candidates as the run wants (K of AT-GRPO). The task scores each of them, and the episode
continues with one. A turn's candidates are compared with each other only, so each is scored by what it says itself.
"""

from __future__ import annotations

import dataclasses

from envs.tasks.arithmetic import FORMAT, Problem, draw_problems, graded, voted
from envs.tasks.chat import CONTINUATIONS, Chat, keep_one
from envs.tasks.task import Ask, Outcome

SOLVER = f"You solve the problem; a checker reads your solution. {FORMAT}"
CHECKER = f"You check a solution, step by step, and correct it if it is wrong. {FORMAT}"


@dataclasses.dataclass(frozen=True)
class SolverChecker:
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

    def examples(self, part: str) -> list[Problem]:
        """Problems without repetition."""
        return draw_problems(part, self.levels, self.n_examples, self.seed)

    async def play(self, ask: Ask, example: Problem) -> Outcome:
        """Success: the checker's last answer is right."""
        solver, checker = ask.chat(0, system=SOLVER), ask.chat(1, system=CHECKER)
        text, first = example.question, None
        for round_ in range(self.rounds):
            proposal, solved = await self._turn(ask, solver, text, example, "solve")
            first = solved if first is None else first
            text = f"{example.question if round_ == 0 else 'The solver tried again.'}\n\n{_quote('solver', proposal)}"
            check, checked = await self._turn(ask, checker, text, example, "check")
            if checked["answer"] is not None and checked["answer"] == solved["answer"]:
                break
            text = f"{_quote('checker', check)}\n\nSolve the problem again: {example.question}"
        metrics = {
            "solver_right_first": first["right"], "solver_right_last": solved["right"], "rounds": round_ + 1,
            "checker_mended": checked["right"] and not solved["right"],
            "checker_spoiled": solved["right"] and not checked["right"],
        }  # fmt: skip
        agreed = checked["answer"] is not None and checked["answer"] == solved["answer"]
        reason = "agreed" if agreed else "rounds"
        return Outcome(checked["right"], metrics, reason, voted(checked["answer"]), score=float(agreed))

    async def _turn(self, ask: Ask, chat: Chat, text: str, example: Problem, label: str) -> tuple[str, dict]:
        """One role's turn: the text that is kept and its verdict."""
        reply = await chat.say(text, n=ask.candidates, label=label)
        verdicts = await graded(ask, reply.replies, example.answer)
        for candidate, verdict in zip(reply.replies, verdicts, strict=True):
            candidate.reward(team=float(verdict["right"]), process=self.process * (verdict["answer"] is not None))
        kept = keep_one(ask, chat, reply, self.continuation)
        return kept.text, verdicts[reply.replies.index(kept)]


def _quote(role: str, text: str) -> str:
    return f"The {role} wrote:\n```\n{text.strip()}\n```"
