"""Task `program`: each episode runs a program that calls the models over HTTP.

    config.task.name = "program"
    config.task.params = dict(program="my_agent.py", train="train.jsonl", roles=("solver", "verifier"))

The program is started with OPENAI_BASE_URL and OPENAI_API_KEY, which OpenAI's SDK and most others read. It gets the
example as a JSON object on stdin. Its models are the roles: the solver's policy replies to requests with
`model="solver"`. The last line of stdout is the reward of the team, or an object:

    {"reward": 1.0, "rewards": {"verifier": 0.5}, "success": 1.0, "answer": "42", "metrics": {"rounds": 2}}

All fields are optional if rewards were posted to the session (`POST $OPENAI_BASE_URL/sessions/current/reward`).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeGuard

from envs.tasks import arithmetic
from envs.tasks.data import Dataset, from_list, make_splits, open_dataset
from envs.tasks.program import process
from envs.tasks.program.preload import Preloaded
from envs.tasks.replies import EpisodeError
from envs.tasks.task import SPLITS, Ask, Outcome, Task, check_split

LARGEST = 1e30  # maximum absolute value of numbers in a result, so that sums are finite
LONGEST_ERROR = 500  # maximum number of characters of stderr in an error
PROBLEMS = {"train": 500, "validation": 100, "test": 100}


class ProgramFailed(EpisodeError):
    """The program exited with a nonzero code, or a signal ended it."""

    reason = "program_failed"


class NoReward(EpisodeError):
    """The program ended without a reward, or with an invalid one."""

    reason = "program_no_reward"


class NoModelCalls(EpisodeError):
    """The program called no model, so there is nothing to reward."""

    reason = "program_no_answer"


@dataclasses.dataclass(frozen=True)
class AgentProgram(Task):
    """Episodes that are runs of a program.

    Attributes:
        program: A Python file, which runs with this interpreter, or a command; arguments may follow.
        roles: Names of the models that the program requests.
        train: Source of examples (see `open_dataset`); "" for small arithmetic problems.
        validation: Source of validation examples; "" to cut them from train.
        test: Source of test examples; "" to cut them from train.
        key: Field that identifies an example; "" uses the full row.
        concurrency: Maximum number of programs that run at the same time.
        preload: Whether a Python file is loaded once and forked for every episode; see `preload.py`.
    """

    program: str
    roles: tuple[str, ...] = ("agent",)
    train: str = ""
    validation: str = ""
    test: str = ""
    key: str = ""
    concurrency: int = 32
    preload: bool = False

    serves = True

    def __post_init__(self):
        object.__setattr__(self, "roles", tuple(self.roles))
        if not self.roles or len(set(self.roles)) < len(self.roles) or not all(
            isinstance(role, str) and role for role in self.roles
        ):  # fmt: skip
            raise ValueError(f"roles is {self.roles!r}, but must be one or more different names")
        if self.concurrency < 1:
            raise ValueError(f"concurrency is {self.concurrency}, but must be >= 1")
        if not self.train and (self.validation or self.test):
            raise ValueError("validation or test is set without train; set train as well")
        python_file = [word.endswith(".py") for word in self.command[1:2]] == [True]  # raises if there is no program
        if self.preload and not python_file:
            raise ValueError(f"program is {self.program!r} with preload, but must be a Python file")

    @functools.cached_property
    def command(self) -> list[str]:
        """Words of the command."""
        return process.command_of(self.program)

    @functools.cached_property
    def _run(self) -> Callable[[bytes, Mapping[str, str]], Awaitable[process.Ended]]:
        return Preloaded(self.command).run if self.preload else functools.partial(process.run, self.command)

    def examples(self, part: str) -> Dataset:
        """Return the rows of a split."""
        check_split(part)
        return self._parts[part]

    @functools.cached_property
    def _parts(self) -> dict[str, Dataset]:
        given = {part: getattr(self, part) for part in SPLITS if getattr(self, part)}
        if not given:
            return {part: from_list(_arithmetic(part), f"arithmetic ({part})") for part in SPLITS}
        return make_splits(**{part: open_dataset(source, part) for part, source in given.items()}, key=self.key or None)

    async def play(self, ask: Ask, example: Mapping[str, Any]) -> Outcome:
        """Run the program to its end and give the rewards that it reports."""
        async with ask.session() as session:
            given = json.dumps(dict(example)).encode() + b"\n"
            variables = environment(session.url, session.key, self.roles[0], ask.candidates)
            ended = await self._run(given, variables)
            if ended.code:
                raise ProgramFailed(f"exit code {ended.code}: {ended.errors.strip()[-LONGEST_ERROR:]}")
            result = read_result(ended.output, self.roles)
            if not session.answers:
                raise NoModelCalls(f"{self.program} called no model")
            if result.reward is not None:
                await session.reward(result.reward)
            for role, amount in result.rewards.items():
                await session.reward(amount, role)
            if session.paid is None:
                raise NoReward(f"{self.program} reported no reward; its output ends with {ended.output[-200:]!r}")
            success = min(max(session.paid, 0.0), 1.0) if result.success is None else result.success
            return Outcome(success, result.metrics, answer=result.answer)


def environment(url: str, key: str, model: str, candidates: int = 1) -> dict[str, str]:
    """Return the environment variables with which a program finds its models.

    The server is never accessed through a proxy.

    Args:
        url: Address of the API.
        key: Key of the episode.
        model: Default model.
        candidates: K of AT-GRPO: the `n` of the program's requests. The program then rewards each choice.
    """
    direct = ",".join(filter(None, (os.environ.get("NO_PROXY", os.environ.get("no_proxy", "")), "127.0.0.1")))
    return {
        "OPENAI_BASE_URL": url, "OPENAI_API_KEY": key, "OPENAI_MODEL": model,
        "MARL_JAX_CANDIDATES": str(candidates), "NO_PROXY": direct, "no_proxy": direct,
    }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ProgramResult:
    """Result of a program: rewards of the team and of roles, and fields of `Outcome`."""

    reward: float | None = None
    rewards: Mapping[str, float] = dataclasses.field(default_factory=dict)
    success: float | None = None
    answer: str | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


def read_result(output: str, roles: tuple[str, ...]) -> ProgramResult:
    """Read the result from the last line of an output.

    The result is empty if that line is not a JSON number or object. An object with unknown fields or roles or invalid
    values raises `NoReward`; otherwise a misspelled reward would go unnoticed.
    """
    lines = output.strip().splitlines()
    try:
        parsed = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return ProgramResult()
    if _number(parsed):
        return ProgramResult(reward=float(parsed))
    if not isinstance(parsed, dict):
        return ProgramResult()
    names = [field.name for field in dataclasses.fields(ProgramResult)]
    for name in parsed:
        if name not in names:
            raise NoReward(f"the result has the field {name!r:.100}, but fields must be one of: {', '.join(names)}")
    given = {name: value for name, value in parsed.items() if value is not None}
    for name in ("reward", "success"):
        if not _number(given.get(name, 0)):
            raise NoReward(f"the result has {name} {given[name]!r:.100}, but must have a finite number")
    for name in ("rewards", "metrics"):
        numbers = given.get(name, {})
        if not isinstance(numbers, dict) or not all(map(_number, numbers.values())):
            raise NoReward(f"the result has {name} {numbers!r:.100}, but must have finite numbers by name")
    if unknown := sorted(set(given.get("rewards", {})) - set(roles)):
        raise NoReward(f"the result has a reward for {unknown[0]!r:.100}, but roles must be one of: {', '.join(roles)}")
    if "answer" in given:
        given["answer"] = str(given["answer"])
    return ProgramResult(**given)


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and -LARGEST <= value <= LARGEST


def _arithmetic(part: str) -> list[dict[str, Any]]:
    """Return problems with one or two operations."""
    problems = arithmetic.draw_problems(part, (1, 2), PROBLEMS[part], seed=0)
    return [{"question": problem.question, "answer": problem.answer} for problem in problems]
