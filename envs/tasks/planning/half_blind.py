"""The half-blind executor: it acts, and a scout sees the other half of the level.

In the form "team" the scout writes a message of at most `message_limit` characters. The executor reads it and answers
with a list of moves, which is played once by the game's rules. With `answer="moves"` the list ends its reply,
`#### […]`. With `answer="program"` its reply has a ```python block that prints `**Actions List**: […]` and runs in the
sandbox. Nothing of the level is passed to the program, so it knows only what the executor writes into it. With several
turns, the executor writes a message back before the scout writes again. In the form "executor" one agent acts with the
executor's view, in the form "all" with the complete level. `half_view.best_plan` computes the best success in the form
"executor".

Rewards: the quality of a list is 1 if it solves the level, otherwise `progress` times the achieved share of the way,
and 0 without a readable list. A list earns its quality as a team reward, and a process reward of -`penalty` if it is
not readable. A message earns the mean quality of the lists that follow it (`envs/tasks/exchange.py`), and a process
reward of -`penalty` if it is empty or too long; the executor then reads a note instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from envs.tasks.chat import CONTINUATIONS
from envs.tasks.data import Dataset
from envs.tasks.exchange import EMPTY, TOO_LONG, Exchange, Exchanged, History, quoted
from envs.tasks.planning import prompts
from envs.tasks.planning.actions import FINAL, show
from envs.tasks.planning.attempts import (
    KINDS,
    PROGRAM_FAILURES,
    UNPARSED,
    Attempt,
    attempt_by_program,
    checked,
)  # fmt: skip
from envs.tasks.planning.half_view import SPARE, is_divided, upper
from envs.tasks.planning.levels import Level, splits
from envs.tasks.replies import Reply
from envs.tasks.sandbox import shared_sandbox
from envs.tasks.task import Ask, Outcome, Task, check_params, check_split

FORMS = ("team", "executor", "all")
SCOUTS = ("half", "map")
MOVES, PROGRAM = "moves", "program"
SANDBOXES = ("auto", "process")
SCOUT, EXECUTOR = 0, 1
MAX_TURNS = 4
SYSTEM = {
    SCOUT: "You are the scout. You describe a map to an executor who cannot see your part of it.",
    EXECUTOR: "You are the executor. You guide a robot through a grid.",
}
HIDDEN = "?"
CELLS = "(3,1) R (3,2) R (3,3) D (4,3)"
"""Cells of the moves in `prompts.example`."""


@dataclasses.dataclass(frozen=True)
class Listed:
    """The verdict on a list of moves.

    Attributes:
        attempt: Verdict by the game's rules.
        quality: Quality of the list, 0 to 1.
    """

    attempt: Attempt
    quality: float


@dataclasses.dataclass(frozen=True)
class HalfBlind(Task):
    """Plan-Path for a scout and a half-blind executor, or for one agent.

    Attributes:
        form: "team" for both; "executor" or "all" for one agent with the executor's view or the complete level.
        scout: "half" if the scout sees the upper half of the level, "map" if it sees all of it.
        answer: "moves" if the executor writes the list itself, "program" if it writes a program that prints it.
        turns: Number of messages of the scout, 1 to 4.
        message_limit: Maximum number of characters of a message.
        size: Side of the grid, at least 5.
        walls: Share of cells that are walls.
        seed: Random seed of the levels.
        n_train: Number of train levels.
        n_validation: Number of validation levels.
        n_test: Number of test levels.
        pool: File with levels that the game can load; "" to generate them.
        progress: Quality of a list that achieves everything but the last step.
        penalty: Amount subtracted for an unreadable list or a message that is not delivered.
        continuation: Messages to keep in turns before the last: "best", "random" or "first".
        sandbox: "auto" for real isolation or an error; "process" for limits only, for trusted programs.
        wall: Time limit of a program in seconds.
    """

    form: str = "team"
    scout: str = "half"
    answer: str = MOVES
    turns: int = 1
    message_limit: int = 400
    size: int = 5
    walls: float = 0.22
    seed: int = 0
    n_train: int = 2048
    n_validation: int = 128
    n_test: int = 512
    pool: str = ""
    progress: float = 0.2
    penalty: float = 0.5
    continuation: str = "best"
    sandbox: str = "auto"
    wall: float = 3.0

    def __post_init__(self):
        ranges = dict(
            turns=(1, MAX_TURNS), message_limit=(1, 10_000), size=(5, 16), n_train=(1, 10**6), n_validation=(1, 10**6),
            n_test=(1, 10**6), progress=(0, 1), penalty=(0, 10), wall=(0.1, 60),
        )  # fmt: skip
        choices = dict(form=FORMS, scout=SCOUTS, answer=(MOVES, PROGRAM), continuation=CONTINUATIONS, sandbox=SANDBOXES)
        check_params(self, choices, ranges)

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the roles."""
        return ("scout", "executor") if self.form == "team" else ("executor",)

    def examples(self, part: str) -> Dataset:
        """Return the levels of a split that are divided (`half_view.is_divided`).

        Raises:
            DataError: If the levels cannot be generated or read, or if there are too few.
        """
        check_split(part)
        counts = self.n_train, self.n_validation, self.n_test
        spare = 1 if self.pool else SPARE + -(-64 // min(counts))
        return splits(
            "plan_path", self.size, self.walls, 1, self.seed, *counts, self.pool, keep=is_divided, spare=spare
        )[part]

    def prepare(self) -> None:
        """Start the sandbox if programs are run.

        Raises:
            SandboxUnavailable: This machine does not allow isolation.
        """
        if self.answer == PROGRAM:
            shared_sandbox(self.sandbox)

    async def play(self, ask: Ask, example: Level) -> Outcome:
        """Exchange messages, then play the executor's list once."""
        team = self.form == "team"
        exchange = Exchange(
            ask=ask, rounds=((SCOUT,), *((EXECUTOR,), (SCOUT,)) * (self.turns - 1)) if team else (),
            answering=(len(self.roles) - 1,), limit=self.message_limit, penalty=self.penalty,
            continuation=self.continuation, system=lambda seat: SYSTEM[seat if team else EXECUTOR],
            request=lambda seat, history, answers: self._request(example, seat if team else EXECUTOR, history, answers),
            judge=lambda seat, reply, name: self._judge(ask, example, reply, name),
        )  # fmt: skip
        played = await exchange.play()
        listed = [one for each in played for lists in each.answers.values() for one in lists]
        kept = listed[0].attempt
        return Outcome(
            success=sum(one.attempt.solved for one in listed) / len(listed), reason=kept.kind,
            metrics=self._metrics(played, listed), answer=None if kept.actions is None else show(kept.actions),
        )  # fmt: skip

    async def _judge(self, ask: Ask, level: Level, reply: Reply, name: str) -> Listed:
        if self.answer == MOVES:
            attempt = checked(level, reply.text, FINAL)
        else:
            sandbox = shared_sandbox(self.sandbox)
            attempt = await attempt_by_program(ask, level, reply.text, sandbox, self.wall, {}, f"program_{name}")
        quality = 1.0 if attempt.solved else self.progress * attempt.progress
        reply.judge(attempt.solved, None if attempt.actions is None else show(attempt.actions), attempt.reason)
        reply.reward(team=quality, process=-self.penalty * (attempt.kind in UNPARSED))
        return Listed(attempt, quality)

    def _metrics(self, played: Sequence[Exchanged], listed: Sequence[Listed]) -> dict[str, float]:
        """Return shares of all lists and messages of an episode, including all candidates."""
        metrics = {"progress": sum(one.attempt.progress for one in listed) / len(listed)}
        for kind in [kind for kind in KINDS[:-1] if self.answer == PROGRAM or kind not in PROGRAM_FAILURES]:
            metrics[kind] = sum(one.attempt.kind == kind for one in listed) / len(listed)
        if self.form == "team":
            for kind in (EMPTY, TOO_LONG):
                metrics[f"message_{kind}"] = sum(one.share(kind) for one in played) / len(played)
        return metrics

    # --------------------------------------------------------------------------------------------------- prompts

    def _view(self, level: Level, seat: int) -> list[str]:
        """Return the rows that a seat sees, with HIDDEN in all other cells."""
        size = len(level["grid"])
        sees_all = self.scout == "map" if seat == SCOUT else self.form == "all"
        shown = range(size) if sees_all else range(upper(size)) if seat == SCOUT else range(upper(size), size)
        return [row if i in shown else HIDDEN * size for i, row in enumerate(level["grid"])]

    def _request(self, level: Level, seat: int, history: History, answers: bool) -> str:
        if self.answer == PROGRAM:
            return self._program_request(level, seat, history, answers)
        rows, size = self._view(level, seat), len(level["grid"])
        hidden = f" You cannot see the cells marked '{HIDDEN}'." if HIDDEN in "".join(rows) else ""
        lines = [f"Row {i}: {' '.join(row)}" for i, row in enumerate(rows, 1)]
        text = f"{prompts.rules(level)}{hidden}\n\n" + "\n".join(lines) + f"\n\n{_said(seat, history)}"
        if answers:
            return (
                f"{text}Find a way from S to G. Do not write code. Write exactly one line: the cells (row,column) of "
                f"the way with the moves between them, then {FINAL} and the list of moves. For example:\n{CELLS} "
                f"{prompts.example(level)}"
            )
        if seat == SCOUT:
            wanted = f"The executor sees only rows {upper(size) + 1} to {size}. Write it where G and the walls are"
        else:
            wanted = "Write the scout what you still need to know"
        return f"{text}{wanted}, in at most {self.message_limit} characters and without code."

    def _program_request(self, level: Level, seat: int, history: History, answers: bool) -> str:
        size = len(level["grid"])
        rows = [(i, row) for i, row in enumerate(self._view(level, seat), 1) if HIDDEN not in row]
        seen = f"You see {_rows(rows, size)}:\n" + "\n".join(f"Row {i}: {row}" for i, row in rows)
        text = f"{prompts.rules(level)}\n\n{_said(seat, history)}{seen}\n\n"
        if answers:
            return text + prompts.program_with_rows(size)
        if seat == SCOUT:
            others = f"rows {upper(size) + 1} to {size}"
            wanted = f"The executor sees only {others}. Copy {_rows(rows, size)} for it, exactly as above"
        else:
            wanted = "Write the scout what you still need to know"
        return f"{text}{wanted}, in at most {self.message_limit} characters and without code."


def _rows(rows: Sequence[tuple[int, str]], size: int) -> str:
    return f"all {size} rows" if len(rows) == size else f"rows {rows[0][0]} to {rows[-1][0]}"


def _said(seat: int, history: History) -> str:
    names = ("The scout", "The executor")
    said = [(who, message) for messages in history for who, message in messages.items()]
    return "".join(quoted("You" if who == seat else names[who], message) for who, message in said)
