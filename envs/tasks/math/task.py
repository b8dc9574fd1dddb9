"""The math task, for one agent or for a reasoner and a tool agent.

A turn is sequential. The reasoner solves the problem. With a tool, a program is then written by the tool agent, which
has read the solution, or in the form "single" by the same agent in the same conversation. The program runs in the
sandbox. The next turn shows its output and asks to keep the right solution or to correct it. The episode ends when the
answer and the output agree (without a tool: when an answer is repeated), or after the last turn. It succeeds if the
reasoner's last answer is right.

Rewards: the team reward is 1 if the reasoner is right. The reasoner gets an agent reward of 0.8 for a right answer and
a process reward of 0.2 for a readable one. The tool agent gets an agent reward of 0.8 if the output is right, and
process rewards of 0.1 if the program runs and 0.1 if it prints an answer. If the run samples K candidates (AT-GRPO),
every candidate of every turn is graded and rewarded, because it is compared only with candidates for the same prompt.
Otherwise only the last turn is rewarded, so that more turns, or a box in every turn, never earn more.

With `answer="program"`, a solution is a program (`programs.py`). It runs in the sandbox, and the number it computes is
the answer, which later turns show. The process reward is 0.1 for a program that runs and 0.1 for a readable answer.
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

Found = dict[str, Any]
"""The verdict on a completion: right, answer and reason; for a program also `ran`, `program` and `result`."""


@dataclasses.dataclass(frozen=True)
class Math(Task):
    """Math problems for one agent, or for a reasoner and a tool agent.

    Attributes:
        dataset: A name in `sources.SOURCES`, such as gsm8k, math, math500 or aime2024, "sample", or a .jsonl file.
        test_dataset: Dataset for the test split; "" for the same dataset.
        form: "single" for one agent, "roles" for a reasoner and a tool agent.
        turns: Maximum number of turns, 1 to 4.
        tool: Whether the single agent writes and runs a program in each turn; the tool agent always does.
        answer: "boxed"; "final" to accept `#### X` and "the answer is X" as well; or "program", which requires the form
            "single" without a tool.
        continuation: Which candidate is kept: "best", "random" or "first".
        sandbox: "auto" for real isolation or an error; "process" for limits only, for trusted programs.
        wall: Wall-clock limit of a program in seconds.
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
        """Names of the roles."""
        return ("reasoner", "tool_agent") if self.form == "roles" else ("reasoner",)

    def examples(self, part: str) -> tuple[MathProblem, ...]:
        """Return the problems of a split."""
        return problems((self.test_dataset or self.dataset) if part == "test" else self.dataset, part)

    def gold_reply(self, example: MathProblem) -> str | None:
        """Return the dataset's worked solution ending with the answer, or None."""
        solution = solutions(example.source).get(example.id)
        if not solution or "\\boxed" in solution:
            return solution
        last = f"#### {example.answer}" if self.answer == "final" else f"The answer is \\boxed{{{example.answer}}}."
        return f"{solution}\n{last}"

    def prepare(self) -> None:
        """Start the sandbox if programs are run.

        Raises:
            SandboxUnavailable: This machine does not allow isolation.
        """
        if self.form == "roles" or self.tool or self.answer == "program":
            shared_sandbox(self.sandbox)

    async def play(self, ask: Ask, example: MathProblem) -> Outcome:
        """Play up to `turns` turns of solving and checking."""
        roles = self.form == "roles"
        reasoner = ask.chat(0, system=prompts.reasoner_system(self.answer, roles))
        partner = ask.chat(1, system=prompts.tool_system()) if roles else reasoner
        judge = _Judge(self, ask, example)
        text, solved, ran, agreed = prompts.first(example.question), [], [], False
        for turn in range(self.turns):
            solution, verdict = await self._say(ask, reasoner, text, judge.solved)
            solved.append((solution, verdict))
            if roles or self.tool:
                request = prompts.program(example.question, solution.text, turn, same_agent=not roles)
                program, output = await self._say(ask, partner, request, judge.program)
                ran.append((program, output))
                agreed = await judge.agree(verdict, output)
                text = prompts.again(example.question, output["program"], output["result"], self.answer)
            else:
                agreed = turn > 0 and await judge.agree(verdict, solved[-2][1])
                text = prompts.alone(example.question, self.answer)
                if self.answer == "program":
                    text = prompts.rerun(example.question, verdict["result"])
            if agreed:
                break
        if ask.candidates == 1:
            for last in (solved[-1:], ran[-1:]):
                for reply, verdict in last:
                    reply.reward(**verdict["pay"])
        answer = solved[-1][1]["answer"]
        return Outcome(
            success=solved[-1][1]["right"], reason="agreed" if agreed else "turns",
            metrics=_metrics([f for _, f in solved], [f for _, f in ran], self.turns, judge),
            answer=None if answer is None else ballot(answer), score=float(agreed),
        )  # fmt: skip

    async def _say(
        self, ask: Ask, chat: Chat, text: str, judge: Callable[[int, Reply], Awaitable[Found]]
    ) -> tuple[Reply, Found]:
        """Play one turn of one seat, with all candidates judged concurrently.

        Returns:
            The completion that is kept, and its verdict.
        """
        reply = await chat.say(text, n=ask.candidates)
        verdicts = await asyncio.gather(*(judge(k, candidate) for k, candidate in enumerate(reply.replies)))
        for candidate, one in zip(reply.replies, verdicts, strict=True):
            candidate.judge(one["right"], one["answer"], one["reason"])
            if ask.candidates > 1:
                candidate.reward(**one["pay"])
        kept = keep_one(ask, chat, reply, self.continuation)
        return kept, verdicts[reply.replies.index(kept)]


class _Judge:
    """Verdicts on the completions of one episode.

    Attributes:
        timeouts: Number of verifier calls that timed out; their answers count as wrong.
        crashes: Number of verifier calls that failed; their answers count as wrong.
    """

    def __init__(self, task: Math, ask: Ask, example: MathProblem):
        self._task, self._ask, self._gold = task, ask, example.answer
        self.timeouts = self.crashes = 0

    @property
    def solved(self) -> Callable[[int, Reply], Awaitable[Found]]:
        """Function that judges a completion of the reasoner."""
        return self.computed if self._task.answer == "program" else self.solution

    async def computed(self, k: int, reply: Reply) -> Found:
        """Judge a program that is the solution by its result."""
        verdict = await self._ran(k, programs.program_in(reply.text), programs.to_run)
        verdict["pay"] |= {"team": float(verdict["right"])}
        return verdict

    async def solution(self, k: int, reply: Reply) -> Found:
        """Judge a solution by its answer."""
        verdict = await self._verified(verify, (self._gold, reply.text, self._task.answer), f"verify_{k}")
        right = float(verdict["right"])
        pay = {"team": right, "agent": 0.8 * right, "process": 0.2 * (verdict["answer"] is not None)}
        return {**verdict, "pay": pay}

    async def program(self, k: int, reply: Reply) -> Found:
        """Judge a program that checks a solution by its output."""
        return await self._ran(k, tool.program_of(reply.text))

    async def _ran(self, k: int, program: str | None, prepare: Callable[[str], str] = str) -> Found:
        verdict: Found = {"right": False, "answer": None, "reason": "no program"}
        result, ran = None, False
        if program is not None:
            result = await self._run(k, prepare(program))
            ran = result["status"] == "ok"
            verdict["reason"] = result["limit"] or result["status"]
            if ran:
                verdict = await self._verified(tool.verify_output, (self._gold, result["stdout"]), f"output_{k}")
        pay = {"agent": 0.8 * verdict["right"], "process": 0.1 * ran + 0.1 * (verdict["answer"] is not None)}
        return {**verdict, "pay": pay, "ran": ran, "program": program, "result": result}

    async def agree(self, one: Found, other: Found) -> bool:
        """Check whether two answers are the same, right or wrong."""
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
        settings = shared_sandbox(self._task.sandbox).settings
        return await tool.run_in_episode(self._ask, settings, program, self._task.wall, f"program_{k}")

    def _count(self, error: Exception) -> None:
        if isinstance(error, CallTimeout):
            self.timeouts += 1
        else:
            self.crashes += 1


def _metrics(solved: list[Found], ran: list[Found], turns: int, judge: _Judge) -> dict[str, float]:
    """Return the metrics of an episode.

    They say for each turn whether the answer is right, where an episode that ended early keeps its last answer, and
    report the use of the tool.
    """
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
