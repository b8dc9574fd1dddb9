"""The `code` task: write programs and test cases for problems with hidden tests.

In the form "roles", a coder and a tester act simultaneously in each turn, each from the problem alone. The program then
runs on the tester's cases, and in later turns both see which cases failed and with what output. An episode ends when
the program passes the tester's cases, or after the last turn. It succeeds if the last program passes the hidden gold
tests, which no agent ever sees. In the form "single", one agent writes the program and its test cases, with the same
turns.

If the run samples K candidates (AT-GRPO), each of them is graded and rewarded, and one is continued. Otherwise only the
completions of the last turn are rewarded: with a reward for every turn, an agent could earn more by not finishing.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from envs.tasks.chat import CONTINUATIONS, Chat, keep_one
from envs.tasks.code import calls, prompts, rewards, sources
from envs.tasks.code.extract import Cases, ExtractedProgram, read_program
from envs.tasks.code.grading import SECONDS, Report
from envs.tasks.code.predict import play_prediction
from envs.tasks.code.rows import Row, some_tests
from envs.tasks.data import Dataset
from envs.tasks.replies import Reply
from envs.tasks.sandbox import shared_sandbox
from envs.tasks.task import Ask, Outcome, Task, check_split

FORMS = ("roles", "single")
SANDBOXES = ("auto", "process")


@dataclasses.dataclass(frozen=True)
class Code(Task):
    """Programming problems for a coder and a tester, or for one agent.

    Attributes:
        dataset: A name in `sources.SOURCES`, "sample", or a .jsonl file of rows.
        test_dataset: Dataset for the test split; "" for the same dataset.
        form: "roles" for coder and tester, "single" for one agent.
        turns: Maximum number of turns.
        reward: "paper" or "cure" (`rewards`).
        tests: Maximum number of gold tests used per problem; 0 for all.
        cases: Maximum number of test cases read from a completion.
        shown: Number of gold tests shown with the problem, which are then not used for grading.
        continuation: Which candidate is kept: "best", "random" or "first".
        seconds: CPU time limit for all calls of a program, or for a program on one input. Evaluations allow at least 4.
        sandbox: "auto" for real isolation or an error; "process" for limits only, for trusted programs.
    """

    dataset: str = "mbpp"
    test_dataset: str = ""
    form: str = "roles"
    turns: int = 2
    reward: str = "paper"
    tests: int = 8
    cases: int = 8
    shown: int = 0
    continuation: str = "best"
    seconds: float = SECONDS
    sandbox: str = "auto"

    def __post_init__(self):
        choices = dict(form=FORMS, reward=rewards.PRESETS, continuation=CONTINUATIONS, sandbox=SANDBOXES)
        for name, accepted in choices.items():
            if getattr(self, name) not in accepted:
                raise ValueError(f"{name} is {getattr(self, name)!r}, but must be one of: {', '.join(accepted)}")
        ranges = dict(turns=(1, 4), tests=(0, 10**6), cases=(1, 64), shown=(0, 10), seconds=(0.1, 600))
        for name, (low, high) in ranges.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be between {low} and {high}")
        for name in (self.dataset, self.test_dataset or self.dataset):
            sources.check_name(name)
            if name.startswith("cruxeval") and self.form != "single":
                raise ValueError(f"form is {self.form!r} with dataset {name!r}, but must be 'single'")

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the roles."""
        return ("coder", "tester") if self.form == "roles" else ("coder",)

    def examples(self, part: str) -> Dataset:
        """Return the problems of a split as rows."""
        check_split(part)
        name = self.test_dataset or self.dataset if part == "test" else self.dataset
        return sources.load(name)[part]

    def prepare(self) -> None:
        """Start the sandbox.

        Raises:
            SandboxUnavailable: This machine does not allow isolation.
        """
        shared_sandbox(self.sandbox)

    def for_evaluation(self) -> Code:
        """Return the task with at least the time limit of published results.

        A slow program is not a wrong one.
        """
        return dataclasses.replace(self, seconds=max(self.seconds, SECONDS))

    async def play(self, ask: Ask, example: Row) -> Outcome:
        """Play one problem."""
        if example["predict"]:
            return await play_prediction(ask, example, self.continuation, lambda: shared_sandbox(self.sandbox).settings)
        return await _Episode(self, ask, example).play()


@dataclasses.dataclass
class Attempt:
    """A candidate of the coder; `gold` is None if it contains no program."""

    reply: Reply
    program: ExtractedProgram
    gold: Report | None = None

    @property
    def right(self) -> bool:
        """Whether the program passes all gold tests."""
        return self.gold is not None and self.gold["passed"]

    def judge(self, gold: Report | None) -> None:
        """Record the report on the gold tests."""
        self.gold = gold
        self.reply.judge(self.right, self.program.text, _reason(self))


@dataclasses.dataclass
class Suite:
    """A candidate of the tester.

    `right` says for each case whether it is correct; it is None if that is unknown.
    """

    reply: Reply
    cases: Cases
    right: list[bool] | None = None


class _Episode:
    def __init__(self, task: Code, ask: Ask, row: Row):
        self.task, self.ask, self.row = task, ask, row
        shown = min(task.shown, len(row["tests"]) - 1)
        self.tests = some_tests({**row, "tests": row["tests"][shown:]}, task.tests)
        self.question = prompts.problem(row) + prompts.examples(row["tests"][:shown])
        self.single = task.form == "single"

    async def play(self) -> Outcome:
        form = prompts.cases_form(self.row, self.task.cases)
        coder = self.ask.chat(0, system=prompts.SINGLE if self.single else prompts.CODER)
        tester = None if self.single else self.ask.chat(1, system=prompts.TESTER)
        to_coder = f"{self.question}\n\n{form}" if self.single else self.question
        to_tester = f"{self.question}\n\n{form}"
        first, turns, done = None, 0, False
        while turns < self.task.turns and not done:
            turns += 1
            attempt, suite, report, feedback = await self._turn(coder, tester, to_coder, to_tester)
            first, done = attempt.right if first is None else first, report["passed"]
            to_coder = (prompts.single_again if self.single else prompts.coder_again)(feedback)
            to_tester = prompts.tester_again(feedback)
        if self.ask.candidates == 1:
            await self._reward([attempt], [suite])
        return Outcome(
            attempt.right, self._metrics(attempt, suite, bool(first), turns), "agreed" if done else "turns",
            score=report["share"],
        )  # fmt: skip

    async def _turn(self, coder: Chat, tester: Chat | None, to_coder: str, to_tester: str):
        """Play one turn.

        Returns:
            The kept attempt and suite, the report of the program on the cases, and the feedback for the next turn.
        """
        n = self.ask.candidates
        saying = [coder.say(to_coder, n=n, label="code")]
        if tester is not None:
            saying.append(tester.say(to_tester, n=n, label="tests"))
        said = await asyncio.gather(*saying)
        attempts = [Attempt(reply, read_program(reply.text)) for reply in said[0].replies]
        if n == 1:
            return await self._tried(attempts[0], said[-1])
        gold, cases = await asyncio.gather(
            self._run("gold", attempts, self.tests),
            asyncio.gather(*(self._cases(k, reply) for k, reply in enumerate(said[-1].replies))),
        )
        suites = [Suite(reply, extracted) for reply, extracted in zip(said[-1].replies, cases, strict=True)]
        for attempt, report in zip(attempts, gold, strict=True):
            attempt.judge(report)
        await self._reward(attempts, suites)
        attempt = attempts[said[0].replies.index(keep_one(self.ask, coder, said[0], self.task.continuation))]
        if tester is None:
            suite = suites[attempts.index(attempt)]
        else:
            suite = suites[said[1].replies.index(keep_one(self.ask, tester, said[1], self.task.continuation))]
        kept = None
        if attempt.gold is not None and suite.cases.tests:
            [kept] = await self._run("kept", [attempt], suite.cases.tests)
        return self._turned(attempt, suite, kept)

    async def _tried(self, attempt: Attempt, said: Reply):
        """Grade a turn with one candidate per role in a single call."""
        arguments = (attempt.program.text, self.tests, said.text, self.task.cases, self.task.seconds)
        results = await self._call(calls.tried, *arguments, tests=len(self.tests) + self.task.cases, name="tried")
        attempt.judge(results["gold"])
        return self._turned(attempt, Suite(said, Cases(**results["cases"])), results["kept"])

    def _turned(self, attempt: Attempt, suite: Suite, kept: Report | None):
        """Return the results of a turn, see `_turn`."""
        pairs = None if attempt.gold is None else []
        if kept is not None:
            pairs = list(zip(suite.cases.tests, kept["tests"], strict=True))
        feedback = prompts.after_cases(pairs, "your" if self.single else "the")
        return attempt, suite, kept or {"passed": False, "share": 0.0}, feedback

    async def _cases(self, k: int, reply: Reply) -> Cases:
        arguments = (reply.text, self.row["entry_point"], self.task.cases)
        return Cases(**await self.ask.verify(calls.cases_in, *arguments, limit=calls.STARTING, name=f"read_{k}"))

    async def _run(self, name: str, attempts: Sequence[Attempt], tests: Sequence[dict]) -> list[Report | None]:
        """Grade programs concurrently, equal ones only once; None if there is no program."""
        programs = list(dict.fromkeys(a.program.text for a in attempts if a.program.text is not None))
        reports = await asyncio.gather(*(self._graded(f"{name}_{k}", p, tests) for k, p in enumerate(programs)))
        by_program: dict[str | None, Report] = dict(zip(programs, reports, strict=True))
        return [by_program.get(attempt.program.text) for attempt in attempts]

    async def _graded(self, name: str, program: str, tests: Sequence[dict]) -> Report:
        return await self._call(calls.graded, program, tests, self.task.seconds, tests=len(tests), name=name)

    async def _call(self, function: Callable, *args: Any, tests: int, name: str) -> Any:
        """Call a function of `calls` with a time limit for the given number of tests."""
        sandbox, limit = shared_sandbox(self.task.sandbox).settings, calls.limit(tests, self.task.seconds)
        return await self.ask.verify(function, sandbox, calls.needed(self.row), *args, limit=limit, name=name)

    # ------------------------------------------------------------------------------------------------ rewards

    async def _reward(self, attempts: Sequence[Attempt], suites: Sequence[Suite]) -> None:
        """Set the rewards of the candidates of one turn."""
        for attempt in attempts:
            gold = attempt.gold or {"built": False, "ran": False, "share": 0.0}
            if self.task.reward == "paper":
                process, agent = rewards.paper_coder(gold["built"], gold["ran"], gold["share"])
            else:
                process, agent = 0.0, rewards.cure_coder(gold["share"])
            attempt.reply.reward(process=process, agent=agent)
        if not self.single:
            await self._reward_tester(attempts, suites)

    async def _reward_tester(self, attempts: Sequence[Attempt], suites: Sequence[Suite]) -> None:
        """Run every program and the solution on all suites and reward the tester."""
        written = [attempt for attempt in attempts if attempt.gold is not None]
        right = [attempt.right for attempt in written]
        programs = list(dict.fromkeys(a.program.text for a in written if a.program.text is not None))
        solution = [self.row["solution"]] if self.row["solution"] else []
        results = await asyncio.gather(
            *(self._on_suites(f"cases_{k}", text, suites) for k, text in enumerate([*programs, *solution]))
        )
        # The solution's results, which come last, belong to no program.
        by_program: dict[str | None, list[list[bool]]] = dict(zip(programs, results, strict=False))
        for k, suite in enumerate(suites):
            passes = [by_program[attempt.program.text][k] for attempt in written]  # [program][case]
            by_case = [[each[n] for each in passes] for n in range(len(suite.cases.tests))]
            suite.right = results[-1][k] if solution else _by_right_programs(by_case, right)
            self._reward_suite(suite, by_case, right)

    def _reward_suite(self, suite: Suite, by_case: list[list[bool]], right: list[bool]) -> None:
        """Set the tester's reward for one completion; `by_case` is indexed [case][program]."""
        n = len(by_case)
        if suite.right is not None:
            suite.reply.judge(sum(suite.right) / max(n, 1), reason=f"{sum(suite.right)} of {n} cases are right")
        if self.task.reward == "cure":
            suite.reply.reward(agent=rewards.cure_tester(by_case, right))
            return
        sound = suite.right or [False] * n
        good = [passes for passes, fine in zip(by_case, sound, strict=True) if fine]
        caught = [not all(passes[k] for passes in good) for k, fine in enumerate(right) if not fine]
        process, agent = rewards.paper_tester(sound, caught)
        suite.reply.reward(process=process, agent=agent)

    async def _on_suites(self, name: str, program: str, suites: Sequence[Suite]) -> list[list[bool]]:
        """Return whether a program passes each case of each suite.

        All distinct cases run together and share the limits. If one of them hits a limit, every suite runs again
        separately, so that a completion is never judged by another one's cases.
        """
        cases = list({str(case): case for suite in suites for case in suite.cases.tests}.values())
        if not cases:
            return [[] for _ in suites]
        report = await self._graded(name, program, cases)
        outcome = {str(case): test["outcome"] for case, test in zip(cases, report["tests"], strict=True)}
        if self.row["entry_point"] is None or len(suites) == 1 or "limit" not in outcome.values():
            return [[outcome[str(case)] == "passed" for case in suite.cases.tests] for suite in suites]
        alone = (self._graded(f"{name}_suite_{k}", program, suite.cases.tests) for k, suite in enumerate(suites))
        return [[test["outcome"] == "passed" for test in report["tests"]] for report in await asyncio.gather(*alone)]

    def _metrics(self, attempt: Attempt, suite: Suite, first: bool, turns: int) -> dict[str, float]:
        gold = attempt.gold or {"built": False, "ran": False, "share": 0.0, "tests": []}
        metrics = {
            "gold_share": gold["share"], "built": gold["built"], "ran": gold["ran"], "turns": turns,
            "success_first_turn": first, "program_missing": attempt.program.problem == "missing",
            "answer_too_long": attempt.program.problem == "too_long", "cases": len(suite.cases.tests),
            "cases_unreadable": suite.cases.unreadable,
            "limit_hit": any(test["outcome"] == "limit" for test in gold["tests"]),
            "sandbox_refused": any(test["outcome"] == "refused" for test in gold["tests"]),
        }  # fmt: skip
        if suite.right:
            metrics["cases_right"] = sum(suite.right) / len(suite.right)
        if self.task.turns > 1:
            metrics |= {"wrong_to_right": attempt.right > first, "right_to_wrong": attempt.right < first}
        return {name: float(value) for name, value in metrics.items()}


def _by_right_programs(by_case: list[list[bool]], right: list[bool]) -> list[bool] | None:
    """Return which cases are correct, judged by the correct programs.

    Without a solution, a case counts as correct if every correct program passes it. The result is None if there is no
    correct program.
    """
    if not any(right):
        return None
    return [all(passed for passed, fine in zip(passes, right, strict=True) if fine) for passes in by_case]


def _reason(attempt: Attempt) -> str:
    """Summarize the verdict on a program."""
    if attempt.gold is None:
        return f"program: {attempt.program.problem}"
    tests = attempt.gold["tests"]
    failed = next((test for test in tests if test["outcome"] not in ("passed", "void")), None)
    passed = sum(test["outcome"] == "passed" for test in tests)
    return f"{passed} of {len(tests)} gold tests" + (f"; {failed['outcome']}: {failed['note']}"[:200] if failed else "")
