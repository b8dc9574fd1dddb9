r"""The math task: one agent, or a reasoner and a tool agent, on problems with a final answer.

A turn is sequential. The reasoner solves the problem; with a tool, a program is written next by who has read that
solution: the tool agent, or in the single form the same agent in the same chat. The program runs in the sandbox. The
next turn shows its output and asks to keep the right solution or to correct it. The episode ends when the answer and
the output agree (without a tool: when an answer is repeated), or after the last turn. Success: the reasoner's last
answer is right.

Rewards: team 1 if the reasoner is right. Reasoner: agent 0.8 for a right answer, process 0.2 for a readable one. Tool
agent: agent 0.8 if the output is right, process 0.1 if the program runs and 0.1 if it prints an answer. Where a run
asks for K candidates (AT-GRPO), every candidate of every turn is tried and paid, for it is compared with those of its
own prompt only. Otherwise only the last turn pays: more turns, or a box in every one of them, never pay more.

With `answer="program"` a solution is a program (`programs.py`). It runs in the sandbox, and the number it comes to is
the answer; a later turn shows what it came to. A program that runs is worth 0.1 for the process, a readable answer 0.1.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from envs.tasks.chat import CONTINUATIONS, Chat, keep_one
from envs.tasks.math import extract, programs, prompts, tool
from envs.tasks.math.sources import MathProblem, check_name, problems, solutions
from envs.tasks.math.verifier import LIMIT, ballot, same, verify
from envs.tasks.replies import CallFailed, CallTimeout, Reply
from envs.tasks.sandbox import shared_sandbox
from envs.tasks.task import Ask, Outcome, Task

FORMS = ("single", "roles")
ANSWERS = (*extract.FORMS, "program")
MAX_TURNS = 4
SANDBOXES = ("auto", "process")
START_LIMIT = 30.0
"""Seconds beyond its own limit that a program may take: a sandbox starts."""

Found = dict[str, Any]
"""What was found in a reply: right, answer, reason; of a program also `ran`, `program` and `result`."""


@dataclasses.dataclass(frozen=True)
class Math(Task):
    """The task.

    dataset       of `envs/tasks/math/sources.py`: gsm8k, math, math500, aime2024 …, sample, or a .jsonl file
    test_dataset  another one for the part "test"; "" for the same
    form          "single" or "roles": reasoner and tool agent
    turns         1 to 4
    tool          single form: whether it writes and runs a program in each turn; roles always do
    answer        "boxed"; "final" to accept `#### X` and "the answer is X" as well; or "program", in the single form
                  without a tool
    continuation  the candidate that is kept: the "best" one, a "random" one or the "first"
    sandbox       "auto", or "process" for limits without isolation
    wall          seconds a program may run
    """

    dataset: str = "sample"
    test_dataset: str = ""
    form: str = "single"
    turns: int = 1
    tool: bool = False
    answer: str = "boxed"
    continuation: str = "best"
    sandbox: str = "auto"
    wall: float = 5.0

    def __post_init__(self):
        check_name(self.dataset)
        check_name(self.test_dataset or self.dataset, "test_dataset")
        for name, accepted in (
            ("form", FORMS), ("answer", ANSWERS), ("continuation", CONTINUATIONS), ("sandbox", SANDBOXES),
        ):  # fmt: skip
            if getattr(self, name) not in accepted:
                raise ValueError(f"{name} is {getattr(self, name)!r}, but must be one of: {', '.join(accepted)}")
        if self.answer == "program" and (self.form != "single" or self.tool):
            raise ValueError(
                f"answer is 'program', but form is {self.form!r} and tool is {self.tool}. "
                "Set form to 'single' and tool to False, or answer to 'boxed' or 'final'."
            )
        if not 1 <= self.turns <= MAX_TURNS:
            raise ValueError(f"turns is {self.turns}, but must be between 1 and {MAX_TURNS}")
        if not 0 < self.wall <= 60:
            raise ValueError(f"wall is {self.wall}, but must be > 0 and <= 60 seconds")

    @property
    def roles(self) -> tuple[str, ...]:
        """The seats of the form."""
        return ("reasoner", "tool_agent") if self.form == "roles" else ("reasoner",)

    def examples(self, part: str) -> tuple[MathProblem, ...]:
        """The problems of a part."""
        return problems((self.test_dataset or self.dataset) if part == "test" else self.dataset, part)

    def gold_reply(self, example: MathProblem) -> str | None:
        """The dataset's solution with the answer at its end; None where it has none."""
        solution = solutions(example.source).get(example.id)
        if not solution or "\\boxed" in solution:
            return solution
        last = f"#### {example.answer}" if self.answer == "final" else f"The answer is \\boxed{{{example.answer}}}."
        return f"{solution}\n{last}"

    def prepare(self) -> None:
        """Starts the sandbox where programs are run, or raises `SandboxUnavailable` if there is no isolation here."""
        if self.form == "roles" or self.tool or self.answer == "program":
            shared_sandbox(self.sandbox)

    async def play(self, ask: Ask, example: MathProblem) -> Outcome:
        """Up to `turns` turns of solving and checking."""
        roles = self.form == "roles"
        reasoner = ask.chat(0, system=prompts.reasoner_system(self.answer, roles))
        partner = ask.chat(1, system=prompts.tool_system()) if roles else reasoner
        judge = _Judge(self, ask, example)
        text, solved, ran, agreed = prompts.first(example.question), [], [], False
        for turn in range(self.turns):
            solution, found = await self._say(ask, reasoner, text, judge.solved)
            solved.append((solution, found))
            if roles or self.tool:
                request = prompts.program(example.question, solution.text, turn, same_agent=not roles)
                program, output = await self._say(ask, partner, request, judge.program)
                ran.append((program, output))
                agreed = await judge.agree(found, output)
                text = prompts.again(example.question, output["program"], output["result"], self.answer)
            else:
                agreed = turn > 0 and await judge.agree(found, solved[-2][1])
                text = prompts.alone(example.question, self.answer)
                if self.answer == "program":
                    text = prompts.rerun(example.question, found["result"])
            if agreed:
                break
        if ask.candidates == 1:
            for last in (solved[-1:], ran[-1:]):
                for reply, found in last:
                    reply.reward(**found["pay"])
        answer = solved[-1][1]["answer"]
        return Outcome(
            success=solved[-1][1]["right"], reason="agreed" if agreed else "turns",
            metrics=_metrics([f for _, f in solved], [f for _, f in ran], self.turns, judge),
            answer=None if answer is None else ballot(answer), score=float(agreed),
        )  # fmt: skip

    async def _say(
        self, ask: Ask, chat: Chat, text: str, judge: Callable[[int, Reply], Awaitable[Found]]
    ) -> tuple[Reply, Found]:
        """One turn of one seat: the reply that is kept, and what was found in it; all candidates are tried at once."""
        reply = await chat.say(text, n=ask.candidates)
        found = await asyncio.gather(*(judge(k, candidate) for k, candidate in enumerate(reply.replies)))
        for candidate, one in zip(reply.replies, found, strict=True):
            candidate.judge(one["right"], one["answer"], one["reason"])
            if ask.candidates > 1:
                candidate.reward(**one["pay"])
        kept = keep_one(ask, chat, reply, self.continuation)
        return kept, found[reply.replies.index(kept)]


class _Judge:
    """Verdicts on the replies of one episode.

    timeouts, crashes  verifier calls that ended so; their answers count as wrong
    """

    def __init__(self, task: Math, ask: Ask, example: MathProblem):
        self._task, self._ask, self._gold = task, ask, example.answer
        self.timeouts = self.crashes = 0

    @property
    def solved(self) -> Callable[[int, Reply], Awaitable[Found]]:
        """What judges a reasoner's reply."""
        return self.computed if self._task.answer == "program" else self.solution

    async def computed(self, k: int, reply: Reply) -> Found:
        """A program that is the solution, by the number it comes to."""
        found = await self._ran(k, programs.program_in(reply.text), programs.to_run)
        found["pay"] |= {"team": float(found["right"])}
        return found

    async def solution(self, k: int, reply: Reply) -> Found:
        """A solution, by its answer."""
        found = await self._verified(verify, (self._gold, reply.text, self._task.answer), f"verify_{k}")
        right = float(found["right"])
        pay = {"team": right, "agent": 0.8 * right, "process": 0.2 * (found["answer"] is not None)}
        return {**found, "pay": pay}

    async def program(self, k: int, reply: Reply) -> Found:
        """A program that checks a solution, by what it prints."""
        return await self._ran(k, tool.program_of(reply.text))

    async def _ran(self, k: int, program: str | None, prepare: Callable[[str], str] = str) -> Found:
        found: Found = {"right": False, "answer": None, "reason": "no program"}
        result, ran = None, False
        if program is not None:
            result = await self._run(k, prepare(program))
            ran = result["status"] == "ok"
            found["reason"] = result["limit"] or result["status"]
            if ran:
                found = await self._verified(tool.verify_output, (self._gold, result["stdout"]), f"output_{k}")
        pay = {"agent": 0.8 * found["right"], "process": 0.1 * ran + 0.1 * (found["answer"] is not None)}
        return {**found, "pay": pay, "ran": ran, "program": program, "result": result}

    async def agree(self, one: Found, other: Found) -> bool:
        """Whether two answers are the same, right or wrong."""
        if one["answer"] is None or other["answer"] is None or one["right"] != other["right"]:
            return False
        if one["right"] or one["answer"] == other["answer"]:
            return True
        try:
            return await self._ask.verify(same, one["answer"], other["answer"], limit=LIMIT, name="agree")
        except (CallTimeout, CallFailed) as error:
            self._count(error)
            return False

    async def _verified(self, function: Callable, arguments: tuple, name: str) -> Found:
        try:
            return dict(await self._ask.verify(function, *arguments, limit=LIMIT, name=name))
        except (CallTimeout, CallFailed) as error:
            self._count(error)
            return {"right": False, "answer": None, "reason": f"verifier: {error}"}

    async def _run(self, k: int, program: str) -> dict[str, Any]:
        sandbox, wall = shared_sandbox(self._task.sandbox).settings, self._task.wall
        limit, name = wall + START_LIMIT, f"program_{k}"
        try:
            return await self._ask.verify(tool.run_program, sandbox, program, wall, limit=limit, name=name)
        except CallTimeout:
            return {"status": "limit", "stdout": "", "stderr": "", "limit": "wall"}

    def _count(self, error: Exception) -> None:
        if isinstance(error, CallTimeout):
            self.timeouts += 1
        else:
            self.crashes += 1


def _metrics(solved: list[Found], ran: list[Found], turns: int, judge: _Judge) -> dict[str, float]:
    """Per turn whether the answer is right, an episode that has ended keeping its last one; and what the tool did."""
    right = [float(f["right"]) for f in solved]
    right += [right[-1]] * (turns - len(right))
    metrics = {f"right_turn_{t + 1}": r for t, r in enumerate(right)} if turns > 1 else {}
    metrics |= {
        "parse_failure": float(solved[-1]["answer"] is None), "turns": float(len(solved)),
        "verifier_timeouts": float(judge.timeouts), "verifier_crashes": float(judge.crashes),
    }  # fmt: skip
    if turns > 1:
        metrics |= {"wrong_to_right": float(right[-1] > right[0]), "right_to_wrong": float(right[-1] < right[0])}
    if "ran" in solved[-1]:
        metrics |= {"program_ran": float(solved[-1]["ran"])}
    if ran:
        metrics |= {"tool_right": float(ran[-1]["right"]), "tool_ran": float(ran[-1]["ran"])}
    return metrics
