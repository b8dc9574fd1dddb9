"""A task of one's own in ten lines: a dataset, a prompt, and plain Python functions that reward.

    def right(completion, answer):
        return float(answer in completion)

    TASKS.add("capitals", dataset_task(
        data="capitals.jsonl",                       # rows with the columns country and answer
        prompt="What is the capital of {country}?",
        rewards=right,
    ))

A reward function takes what its parameters name: `completion`, `prompt`, or a column of the dataset, and returns a
number. One with a parameter `completions` is called as TRL calls it, with lists: `prompts`, `completions`, and every
column as a list; it returns a list. Functions may be async. What they return is written down, so that an interrupted
run repeats it.

Several roles and turns are a workflow: see `envs/tasks/workflow/reading.py`. For anything else, write a task with a
`play` of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envs.tasks.chat import CONTINUATIONS
from envs.tasks.data import DataError, Dataset, NoSplit, check_fields, from_list, make_splits, open_dataset
from envs.tasks.rewards import RewardFunction, named
from envs.tasks.task import SPLITS, Ask, Outcome, Task, check_split
from envs.tasks.workflow.graph import Function, Workflow
from envs.tasks.workflow.play import Turn, play
from envs.tasks.workflow.reading import read

log = logging.getLogger(__name__)

LEVELS = ("team", "agent", "process")


def dataset_task(
    data: str | Sequence[Mapping] | Mapping[str, Any] | Dataset, rewards: Any, **settings: Any
) -> Callable[..., OwnTask]:
    """What a registry of tasks takes: called with `task.params`, which change the settings, it gives the task.

    data      a source (see `open_dataset`), a list of rows, a dataset, or {"train": …, "test": …} of these
    rewards   one function, several, or {name: function}
    settings  of `OwnTask`
    """
    OwnTask(data, rewards, **settings)  # what cannot work is reported where it is written
    return functools.partial(OwnTask, data, rewards, **settings)


@dataclasses.dataclass(frozen=True, eq=False)
class OwnTask(Task):
    """The task.

    data, rewards  as for `dataset_task`
    weights       of the reward functions, in their order; all 1 by default
    prompt        of a task with one role and one turn; by default the column "prompt", a text or a list of messages
    system        its system text
    workflow      of a task with several roles or turns: a list of steps, or a start and nodes
    conditions    {name: function of (values, scores)}, which the workflow's edges may name
    pays          whom rewards go to: the "team", the "agent" that replied, or its "process"
    success       name of the function whose value is the success of an episode, cut to 0 … 1; the first by default
    key           column that tells examples apart; "" is the whole row
    continuation  the candidate that is kept, where the run asks for several
    limit         seconds for a reward function
    """

    data: Any
    rewards: Any
    weights: Sequence[float] | None = None
    prompt: str = "{prompt}"
    system: str | None = None
    workflow: Any = ()
    conditions: Mapping[str, Function] = dataclasses.field(default_factory=dict)
    pays: str = "team"
    success: str = ""
    key: str = ""
    continuation: str = "best"
    limit: float = 30.0

    def __post_init__(self):
        if self.weights is not None and len(self.weights) != len(self.functions):
            raise ValueError(f"weights are {self.weights}; expected one for each of {', '.join(self.functions)}")
        self._check()

    @functools.cached_property
    def functions(self) -> dict[str, RewardFunction]:
        """The reward functions by name."""
        return named(self.rewards)

    @functools.cached_property
    def graph(self) -> Workflow:
        """The workflow; without one, a single turn."""
        single = [{"role": "agent", "prompt": self.prompt, "system": self.system}]
        return read(self.workflow or single, self.conditions)

    @property
    def roles(self) -> tuple[str, ...]:
        """In the order in which they first speak."""
        return self.graph.roles

    @functools.cached_property
    def _success(self) -> str:
        return self.success or next(iter(self.functions))

    @functools.cached_property
    def _weights(self) -> dict[str, float]:
        given = (1.0,) * len(self.functions) if self.weights is None else tuple(self.weights)
        return dict(zip(self.functions, given, strict=True))

    def examples(self, part: str) -> Dataset:
        """Rows with the columns of the dataset."""
        check_split(part)
        return self._parts[part]

    async def play(self, ask: Ask, example: dict[str, Any]) -> Outcome:
        """The workflow. What a reward function raises costs the episode, not the run."""
        system, values = _messages(example)
        score = functools.partial(self._score, ask, example)
        walk = await play(self.graph, ask, values, score, continuation=self.continuation, system=system)
        scores: dict[str, float] = {}  # by function, of the last node that it scored: the mean over its roles
        for _, turns in itertools.groupby(walk.turns, lambda turn: turn.number):
            found = [turn.score for turn in turns if turn.score is not None]
            for name in dict.fromkeys(name for score in found for name in score):
                scores[name] = statistics.fmean(score[name] for score in found if name in score)
        if self._success not in scores:
            raise LookupError(f"no step that was taken has the reward {self._success!r}, which says what success is")
        metrics = {f"reward_{name}": value for name, value in scores.items()}
        return Outcome(_share(scores[self._success]), metrics, "done" if walk.ended else "max_steps")

    async def _score(self, ask: Ask, row: dict, turn: Turn) -> list[dict[str, float]]:
        """{function: value} of every candidate; the weighted sum is paid."""
        replies = turn.reply.replies
        scores: list[dict[str, float]] = [{} for _ in replies]
        for name in self.functions if turn.step.rewards is None else turn.step.rewards:
            call = f"{name}_{turn.number}_{turn.step.role}"
            values = await self.functions[name].call(ask, call, turn.prompt, replies, row, self.limit)
            for score, value in zip(scores, values, strict=True):
                score[name] = value
        for reply, score in zip(replies, scores, strict=True):
            reply.reward(**{self.pays: sum(self._weights[name] * value for name, value in score.items())})
            if self._success in score:
                reason = ", ".join(f"{name} {value:g}" for name, value in score.items())
                reply.judge(_share(score[self._success]), reason=reason)
        return scores

    # ------------------------------------------------------------------------------------------------ checks and data

    def _check(self) -> None:
        for name, value, accepted in (
            ("pays", self.pays, LEVELS),
            ("success", self._success, tuple(self.functions)),
            ("continuation", self.continuation, CONTINUATIONS),
            *(
                ("a step's reward", name, tuple(self.functions))
                for step in self.graph.steps
                for name in step.rewards or ()
            ),
        ):
            if value not in accepted:
                raise ValueError(f"{name} is {value!r}; accepted: {', '.join(accepted)}")
        if all(step.rewards is not None and self._success not in step.rewards for step in self.graph.steps):
            raise ValueError(f"no step of the workflow has the reward {self._success!r}, which says what success is")

    @functools.cached_property
    def _parts(self) -> dict[str, Dataset]:
        given = self.data if isinstance(self.data, Mapping) else {"train": self.data}
        if "train" not in given or set(given) - set(SPLITS):
            raise DataError(f"data has the parts {', '.join(given)}; accepted: train, and validation and test or not")
        parts = {part: _opened(source, part) for part, source in given.items()}
        if given.keys() == {"train"} and isinstance(self.data, str) and self.data.startswith(("hub:", "tfds:")):
            parts |= _others(self.data)
        for data in parts.values():
            self._check_columns(data)
        return make_splits(**parts, key=self.key or None)

    def _check_columns(self, data: Dataset) -> None:
        """Every column that prompts and functions name is there."""
        wanted = list(self.graph.columns)
        for function in self.functions.values():
            wanted += function.columns
        check_fields(data, list(dict.fromkeys([*wanted, *([self.key] if self.key else [])])))
        for i in range(len(data)):
            row = data.row(i)
            if clash := set(self.roles) & set(row):
                raise DataError(f"{data.where(i)}: the column {min(clash)!r} has the name of a role")
            try:
                _messages(row)
            except ValueError as error:
                raise DataError(f"{data.where(i)}: {error}") from None


def _opened(source: Any, part: str) -> Dataset:
    if isinstance(source, Dataset):
        return source
    return open_dataset(source, part) if isinstance(source, str) else from_list(source, f"the rows of {part}")


def _others(source: str) -> dict[str, Dataset]:
    """The splits besides train that a source has."""
    found = {}
    for part in SPLITS[1:]:
        try:
            found[part] = open_dataset(source, part)
        except NoSplit as error:
            log.info("no part %s, so it is cut from train: %s", part, error)
    return found


def _messages(row: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """(the system text, the values for templates) of a row; a prompt of messages is a system text and a user's."""
    prompt = row.get("prompt")
    if not isinstance(prompt, list):
        return None, dict(row)
    kinds = [message.get("role") if isinstance(message, Mapping) else None for message in prompt]
    if kinds not in (["user"], ["system", "user"]):
        raise ValueError(f"the prompt has messages of {kinds}; accepted: a user's, with a system text or without")
    system = prompt[0]["content"] if len(prompt) == 2 else None
    return system, {**row, "prompt": prompt[-1]["content"]}


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)
