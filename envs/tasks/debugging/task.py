"""The task of debugging: a planter plants a bug, and the learner repairs it.

In the form "scripted" the planter applies one of `mutations.KINDS`, chosen by the schedule (`envs.tasks.partners`). In
the form "model" it is a second seat. Before the learner sees a program, the sandbox verifies that the original passes
all tests and that the bug breaks one. If a model plants no such bug, it is penalized, and a scripted one replaces it.
Rows with a published bug (QuixBugs) use that one.

The learner writes the whole program again, and after a failed attempt sees one test that fails. It is rewarded with 1
if its last program passes all tests. A planter that is a model is rewarded by the goal: "neutral" and "adversarial" if
its bug is not repaired, "cooperative" together with the learner if it is. A scripted planter gives a true hint if it is
cooperative and a false one if it is adversarial.
"""

from __future__ import annotations

import dataclasses
import difflib
import random

from envs.tasks.chat import Chat
from envs.tasks.code import calls, prompts, sources
from envs.tasks.code.extract import blocks, read_program
from envs.tasks.code.grading import SECONDS, Report
from envs.tasks.code.rows import Row, kind_of, some_tests
from envs.tasks.code.task import SANDBOXES
from envs.tasks.data import Dataset, from_list
from envs.tasks.debugging import planting
from envs.tasks.debugging.mutations import KINDS, mutants
from envs.tasks.judges.referee import PARTNER, REFERENCE, Contest, Ruling, ruled
from envs.tasks.partners import Partners
from envs.tasks.replies import EpisodeError, Reply
from envs.tasks.sandbox import shared_sandbox
from envs.tasks.task import Ask, Outcome, Task, check_params, check_split

FORMS = ("scripted", "model")
GOALS = ("neutral", "cooperative", "adversarial")
PUBLISHED = "published"
TRIES = 6
"""Maximum number of bugs of a kind that are tried for an episode."""

FIXER = (
    "You repair Python programs. Find the defect, then answer with the whole corrected program in one block that "
    "begins with ```python and ends with ```."
)
PLANTER = (
    "You test programmers. You put exactly one small bug into a working Python program, so that it still runs but some "
    "results are wrong. Answer with the whole changed program in one block that begins with ```python and ends with "
    "```."
)


class NoBug(EpisodeError):
    """No bug could be verified: the original fails its tests, or no change breaks one."""

    reason = "no_bug"


@dataclasses.dataclass(frozen=True)
class Debugging(Task):
    """Repair of programs with one bug.

    Attributes:
        dataset: Dataset of the `code` task for training and validation, with solutions.
        test_dataset: Dataset for the test split.
        form: "scripted" or "model", the kind of planter.
        goal: "neutral", "cooperative" or "adversarial".
        partners: Kinds of bugs: operators, constants, conditions, names, statements.
        schedule: "fixed", "pool", "switch" or "each" (`envs.tasks.partners`).
        switch_at: Updates at which the planter switches to the next kind.
        static: Whether an example has the same bug at every step, as in a dataset.
        turns: Maximum number of attempts of the learner.
        tests: Maximum number of tests used per program; 0 for all.
        penalty: Amount subtracted for a completion without a program, and for a bug that breaks no test.
        seconds: CPU time limit for all calls of a program.
        sandbox: "auto" for real isolation or an error; "process" for limits only, for trusted programs.
    """

    dataset: str = "mbpp"
    test_dataset: str = "quixbugs"
    form: str = "scripted"
    goal: str = "neutral"
    partners: tuple[str, ...] = ("operators",)
    schedule: str = "fixed"
    switch_at: tuple[int, ...] = ()
    static: bool = False
    turns: int = 2
    tests: int = 8
    penalty: float = 0.2
    seconds: float = 2.0
    sandbox: str = "auto"

    def __post_init__(self):
        ranges = dict(turns=(1, 4), tests=(0, 10**6), penalty=(0, 10), seconds=(0.1, 600))
        check_params(self, dict(form=FORMS, goal=GOALS, sandbox=SANDBOXES), ranges)
        self._partners.check(KINDS)
        for name in (self.dataset, self.test_dataset):
            sources.check_name(name)

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the seats."""
        return ("learner", "planter") if self.form == "model" else ("learner",)

    @property
    def contests(self) -> tuple[str, ...]:
        """Texts that a judge can compare the learner's with."""
        return REFERENCE, PARTNER

    @property
    def _partners(self) -> Partners:
        return Partners(tuple(self.partners), self.schedule, tuple(self.switch_at))

    def examples(self, part: str) -> Dataset:
        """Return the programs of a split: functions with a solution."""
        check_split(part)
        data = sources.load(self.test_dataset if part == "test" else self.dataset)[part]
        rows = [_example(row) for row in data if row["solution"] and row["entry_point"] and not row["predict"]]
        return self._partners.assign(from_list(rows, data.name))

    def prepare(self) -> None:
        """Start the sandbox.

        Raises:
            SandboxUnavailable: This machine does not allow isolation.
        """
        shared_sandbox(self.sandbox)

    def for_evaluation(self) -> Debugging:
        """Return the repair of all kinds of scripted bugs in turn, without hints."""
        return dataclasses.replace(
            self, form="scripted", goal="neutral", partners=tuple(KINDS), schedule="each", switch_at=(), static=True,
            seconds=max(self.seconds, SECONDS),
        )  # fmt: skip

    async def play(self, ask: Ask, example: Row) -> Outcome:
        """Plant a bug and let the learner repair it."""
        return await _Episode(self, ask, example, self._partners.at(ask.step, example)).play()


def _example(row: Row) -> Row:
    """Return a row with a key, and with its published bug, if any."""
    programs = [block.text for block in blocks(row["question"]) if block.label == "python"]
    published = {"buggy": programs[-1]} if row["source"] == "quixbugs" and programs else {}
    return {**row, "key": f"{row['source']} {row['id']}", **published}


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A completion of the learner; `program` and `report` are None if it contains no program."""

    reply: Reply
    program: str | None
    report: Report | None

    @property
    def fixed(self) -> bool:
        """Whether the program passes all tests."""
        return self.report is not None and self.report["passed"]


class _Episode:
    def __init__(self, task: Debugging, ask: Ask, row: Row, kind: str):
        self.task, self.ask, self.row = task, ask, row
        self.kind = PUBLISHED if "buggy" in row else kind
        self.tests = some_tests(row, task.tests)
        self.rng = random.Random(f"bug {0 if task.static else ask.step} {row['key']}")
        self.planter: Reply | None = None
        self.planted = False

    async def play(self) -> Outcome:
        """Plant, repair and reward."""
        bug = await self._bug()
        chat, text = self.ask.chat(0, system=FIXER), (request := self._request(bug))
        attempts: list[Attempt] = []
        while len(attempts) < self.task.turns and not (attempts and attempts[-1].fixed):
            attempts.append(await self._attempt(chat, text, len(attempts)))
            text = f"{self._feedback(attempts[-1].report)}\n\nFind the defect, and write the whole program again."
        last, fixed = attempts[-1], float(attempts[-1].fixed)

        def contest(against: str) -> Contest:
            other, score = (self.row["solution"], 1.0) if against == REFERENCE else (bug, 0.0)
            return Contest(request, last.program or "", other, (fixed, score))

        ruling = await ruled(self.ask, fixed, 1 - fixed, contest)
        self._reward(last.reply, ruling)
        metrics = {
            **ruling.metrics,
            "first_try": float(attempts[0].fixed), "turns": len(attempts), "no_program": float(last.program is None),
            "share": 0.0 if last.report is None else last.report["share"],
            f"success_vs_{self.kind}": float(last.fixed),
        }  # fmt: skip
        if last.program is not None:
            metrics["changed_lines"] = _changed_lines(bug, last.program)
        if self.planter is not None:
            metrics["planted"] = float(self.planted)
        return Outcome(last.fixed, metrics, "fixed" if last.fixed else "not_fixed", answer=last.program)

    async def _attempt(self, chat: Chat, text: str, number: int) -> Attempt:
        """Ask the learner for a program and run its tests."""
        reply = await chat.say(text, label="fix")
        program = read_program(reply.text).text
        report = None if program is None else await self._graded(program, f"attempt_{number}")
        attempt = Attempt(reply, program, report)
        reply.judge(attempt.fixed, program, "" if attempt.fixed else self._feedback(report))
        if program is None:
            reply.reward(process=-self.task.penalty)
        return attempt

    def _reward(self, reply: Reply, ruling: Ruling) -> None:
        """Reward the learner's last attempt, and a model whose bug was used."""
        if self.task.goal == "cooperative" and self.planted:
            reply.reward(team=ruling.own)
            return
        reply.reward(agent=ruling.own)
        if self.planter is not None and self.planted:
            self.planter.reward(agent=ruling.other)

    # ------------------------------------------------------------------------------------------------ planting

    async def _bug(self) -> str:
        """Return a program whose bug breaks a test."""
        if self.kind == PUBLISHED:
            return await self._first("published", [self.row["buggy"]]) or self._none()
        if self.task.form == "model" and (program := await self._written()) is not None:
            return program
        others = [kind for kind in KINDS if kind != self.kind]
        for kind in (self.kind, *self.rng.sample(others, len(others))):
            programs = mutants(self.row["solution"], kind)
            chosen = self.rng.sample(programs, min(TRIES, len(programs)))
            if chosen and (bug := await self._first(kind, chosen)) is not None:
                self.kind = kind
                return bug
        return self._none()

    def _none(self) -> str:
        raise NoBug(f"{self.row['key']}: no change breaks one of the {len(self.tests)} tests")

    async def _written(self) -> str | None:
        """Return the program of the model that plants, if its bug breaks a test."""
        prompt = f"{KINDS[self.kind].prompt} This is the program:\n\n{_block(self.row['solution'])}"
        self.planter = await self.ask.chat(1, system=PLANTER).say(prompt, label="plant")
        program = read_program(self.planter.text).text
        bug = None if program is None else await self._first("written", [program])
        self.planted = bug is not None
        self.planter.judge(self.planted, program, "" if self.planted else "the bug breaks no test")
        if bug is None:
            self.planter.reward(process=-self.task.penalty)
        return bug

    async def _first(self, name: str, programs: list[str]) -> str | None:
        """Return the first program with a bug that breaks a test."""
        limit = calls.limit((len(programs) + 1) * len(self.tests), self.task.seconds)
        sandbox = shared_sandbox(self.task.sandbox).settings
        arguments = (calls.needed(self.row), self.row["solution"], programs, self.tests, self.task.seconds)
        result = await self.ask.verify(planting.first_bug, sandbox, *arguments, limit=limit, name=f"plant_{name}")
        if result["original"] == planting.BROKEN:
            raise NoBug(f"{self.row['key']}: the original program fails its tests")
        return None if result["number"] is None else programs[result["number"]]

    async def _graded(self, program: str, name: str) -> Report:
        sandbox, limit = shared_sandbox(self.task.sandbox).settings, calls.limit(len(self.tests), self.task.seconds)
        arguments = (calls.needed(self.row), program, self.tests, self.task.seconds)
        return await self.ask.verify(calls.graded, sandbox, *arguments, limit=limit, name=name)

    def _request(self, bug: str) -> str:
        if self.kind == PUBLISHED:
            return self.row["question"]
        text = f"This program has one defect. Repair it.\n\n{self.row['question']}\n\n{_block(bug)}"
        others = [kind for kind in KINDS if kind != self.kind]
        hints = {"cooperative": self.kind, "adversarial": self.rng.choice(others)}
        return f"{text}\n\nHint: {KINDS[hints[self.task.goal]].hint}." if self.task.goal in hints else text

    def _feedback(self, report: Report | None) -> str:
        """Describe the first test that fails."""
        if report is None:
            return prompts.after_cases(None, "the")
        pairs = zip(self.tests, report["tests"], strict=True)
        failed = [pair for pair in pairs if pair[1]["outcome"] not in ("passed", "void")]
        shown = [pair for pair in failed if kind_of(pair[0]) == "call" and "expect" in pair[0]][:1]
        return prompts.after_cases(shown, "the") if shown else "The program fails a test."


def _block(program: str) -> str:
    return f"```python\n{program.strip()}\n```"


def _changed_lines(before: str, after: str) -> int:
    """Return the number of lines that were added or removed."""
    lines = difflib.unified_diff(before.strip().splitlines(), after.strip().splitlines(), lineterm="", n=0)
    return sum(line.startswith(("+", "-")) and not line.startswith(("+++", "---")) for line in lines)
