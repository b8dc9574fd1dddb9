"""Tasks built from a dataset, a prompt and reward functions.

    def right(completion, answer):
        return float(answer in completion)

    TASKS.add("capitals", dataset_task(
        data="capitals.jsonl",                       # rows with the columns country and answer
        prompt="What is the capital of {country}?",
        rewards=right,
    ))

The parameters of a reward function name its inputs: `completion`, `prompt`, or a column of the dataset. It returns a
number. A function with a parameter `completions` is called as in TRL, with lists: `prompts`, `completions` and every
column as a list. It returns a list. Functions may be async. Their results are recorded, so an interrupted run reuses
them.

A task with several roles or turns needs a workflow: see `envs/tasks/workflow/reading.py`. For anything else, subclass
`Task` and implement `play`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import itertools
import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any

from envs.tasks.chat import CONTINUATIONS
from envs.tasks.data import DataError, Dataset, NoSplit, check_fields, from_list, make_splits, open_dataset
from envs.tasks.judges.referee import RECORD, REFERENCE, Contest
from envs.tasks.replies import Reply
from envs.tasks.rewards import RewardFunction, named
from envs.tasks.task import SPLITS, Ask, Outcome, Task, check_split
from envs.tasks.workflow.graph import Function, Workflow
from envs.tasks.workflow.play import Turn, play
from envs.tasks.workflow.reading import read

log = logging.getLogger(__name__)

LEVELS = ("team", "agent", "process")


def dataset_task(
    data: str | Sequence[Mapping] | Mapping[str, Any] | Dataset, rewards: Any = (), **settings: Any
) -> Callable[..., DatasetTask]:
    """Return a factory of `DatasetTask` to register as a task.

    The factory takes `task.params`, which override `settings`.

    Args:
        data: A source (see `open_dataset`), a list of rows, a dataset, or {"train": …, "test": …} of these.
        rewards: One function, several, or {name: function}; a function may be given as "module:function".
        **settings: Other attributes of `DatasetTask`.
    """
    DatasetTask(data, rewards, **settings)  # report errors where the task is defined
    return functools.partial(DatasetTask, data, rewards, **settings)


@dataclasses.dataclass(frozen=True, eq=False)
class DatasetTask(Task):
    """A task built from a dataset, a prompt or a workflow, and reward functions.

    Attributes:
        data: The examples; see `dataset_task`.
        rewards: The reward functions; see `dataset_task`.
        weights: Weights of the reward functions, in their order; all 1 by default.
        prompt: Prompt template of a task with one role and one turn. The default is the column "prompt", which holds a
            string or a list of messages.
        completion: Template of the reference completion, which supervised training imitates. Without reward functions,
            a completion is rewarded if it equals the reference.
        system: System prompt of a task with one role and one turn.
        workflow: Workflow of a task with several roles or turns: a list of steps, or a start and nodes.
        conditions: Functions of (values, scores) by name, which the workflow's edges may use.
        pays: Receiver of the rewards: the "team", the "agent" that replied, or its "process".
        success: Name of the reward function that defines the success of an episode, clipped to [0, 1]. The default is
            the first one.
        key: Column that identifies an example; "" uses the full row.
        continuation: Candidate to keep if a turn has several: "best", "random" or "first".
        limit: Time limit of a reward function in seconds.
    """

    data: Any
    rewards: Any = ()
    weights: Sequence[float] | None = None
    prompt: str = "{prompt}"
    completion: str = ""
    system: str | None = None
    workflow: Any = ()
    conditions: Mapping[str, Function] = dataclasses.field(default_factory=dict)
    pays: str = "team"
    success: str = ""
    key: str = ""
    continuation: str = "best"
    limit: float = 30.0

    def __post_init__(self):
        if not self.data:
            raise ValueError("data is empty, but must be a JSONL file, tfds:FOLDER, hub:OWNER/NAME or rows")
        if self.weights is not None and len(self.weights) != len(self.functions):
            raise ValueError(
                f"weights is {self.weights}, but must have one value for each of: {', '.join(self.functions)}"
            )
        self._check()

    @functools.cached_property
    def functions(self) -> dict[str, RewardFunction]:
        """Reward functions by name."""
        if not self.rewards and self.completion:
            return named({"exact": self._equals_reference})
        return named(self.rewards)

    def _equals_reference(self, prompts: list, completions: list, **columns: list) -> list[float]:
        row = {"prompt": prompts[0], **{name: values[0] for name, values in columns.items()}}
        texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
        return [float(text.strip() == self.completion.format_map(row).strip()) for text in texts]

    @functools.cached_property
    def graph(self) -> Workflow:
        """Workflow of the task; a single turn if none was given."""
        single = [{"role": "agent", "prompt": self.prompt, "system": self.system}]
        return read(self.workflow or single, self.conditions)

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles, in the order in which they first speak."""
        return self.graph.roles

    @functools.cached_property
    def _success(self) -> str:
        return self.success or next(iter(self.functions))

    @functools.cached_property
    def _weights(self) -> dict[str, float]:
        given = (1.0,) * len(self.functions) if self.weights is None else tuple(self.weights)
        return dict(zip(self.functions, given, strict=True))

    def examples(self, part: str) -> Dataset:
        """Return the rows of a split."""
        check_split(part)
        return self._parts[part]

    def gold_reply(self, example: dict[str, Any]) -> str | None:
        """Return the reference completion of a row, if the task has a template for it."""
        return self.completion.format_map(example) if self.completion else None

    async def play(self, ask: Ask, example: dict[str, Any]) -> Outcome:
        """Play the workflow.

        An error in a reward function ends the episode, not the run.
        """
        system, values = _messages(example)
        score = functools.partial(self._score, ask, example)
        walk = await play(self.graph, ask, values, score, continuation=self.continuation, system=system)
        scores: dict[str, float] = {}  # function -> mean over the roles of the last node that it scored
        for _, turns in itertools.groupby(walk.turns, lambda turn: turn.number):
            scored = [turn.score for turn in turns if turn.score is not None]
            for name in dict.fromkeys(name for score in scored for name in score):
                scores[name] = statistics.fmean(score[name] for score in scored if name in score)
        if self._success not in scores:
            raise LookupError(f"no step of the episode has the reward {self._success!r}, which defines success")
        metrics = {f"reward_{name}" if name in self.functions else name: value for name, value in scores.items()}
        return Outcome(_share(scores[self._success]), metrics, "done" if walk.ended else "max_steps")

    async def _score(self, ask: Ask, row: dict, turn: Turn) -> list[dict[str, float]]:
        """Reward every candidate with the weighted sum and return its {function: value}."""
        replies = turn.reply.replies
        scores: list[dict[str, float]] = [{} for _ in replies]
        for name in self.functions if turn.step.rewards is None else turn.step.rewards:
            call = f"{name}_{turn.number}_{turn.step.role}"
            values = await self.functions[name].call(ask, call, turn.prompt, replies, row, self.limit)
            for score, value in zip(scores, values, strict=True):
                score[name] = value
        values = [sum(self._weights[name] * value for name, value in score.items()) for score in scores]
        for reply, score in zip(replies, scores, strict=True):
            if self._success in score:
                reason = ", ".join(f"{name} {value:g}" for name, value in score.items())
                reply.judge(_share(score[self._success]), reason=reason)
        if ask.judge is not None and self._success in scores[0]:
            start = f"{RECORD}_{turn.number}_{turn.step.role}"
            rulings = await asyncio.gather(*(
                ask.judge.decide(ask, self._contest(row, turn.prompt, reply, score), value, 0.0, f"{start}_{k}")
                for k, (reply, score, value) in enumerate(zip(replies, scores, values, strict=True))
            ))  # fmt: skip
            values = [ruling.own for ruling in rulings]
            for score, ruling in zip(scores, rulings, strict=True):
                score.update(ruling.metrics)
        for reply, value in zip(replies, values, strict=True):
            reply.reward(**{self.pays: value})
        return scores

    def _contest(self, row: dict, prompt: str, reply: Reply, score: Mapping[str, float]) -> Contest:
        """Compare a completion with the reference, which the rule considers right."""
        reference = self.gold_reply(row)
        assert reference is not None  # see `contests`
        return Contest(prompt, reply.text, reference, (_share(score[self._success]), 1.0))

    @property
    def contests(self) -> tuple[str, ...]:
        """Texts that a judge can compare the learner's with: references, if there are any."""
        return (REFERENCE,) if self.completion else ()

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
                raise ValueError(f"{name} is {value!r}, but must be one of: {', '.join(accepted)}")
        if all(step.rewards is not None and self._success not in step.rewards for step in self.graph.steps):
            raise ValueError(f"no step of the workflow has the reward {self._success!r}, which defines success")

    @functools.cached_property
    def _parts(self) -> dict[str, Dataset]:
        given = self.data if isinstance(self.data, Mapping) else {"train": self.data}
        if "train" not in given or set(given) - set(SPLITS):
            raise DataError(
                f"data has the splits {', '.join(given)}, but must have train and may have validation and test"
            )
        parts = {part: _opened(source, part) for part, source in given.items()}
        if given.keys() == {"train"} and isinstance(self.data, str) and self.data.startswith(("hub:", "tfds:")):
            parts |= _others(self.data)
        for data in parts.values():
            self._check_columns(data)
        return make_splits(**parts, key=self.key or None)

    def _check_columns(self, data: Dataset) -> None:
        """Check that every column named by prompts and reward functions exists."""
        wanted = [*self.graph.columns, *(name for _, name, _, _ in Formatter().parse(self.completion) if name)]
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
    """Return the splits of a source other than train."""
    splits = {}
    for part in SPLITS[1:]:
        try:
            splits[part] = open_dataset(source, part)
        except NoSplit as error:
            log.info("split %s does not exist, so it is cut from train: %s", part, error)
    return splits


def _messages(row: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the system prompt of a row and its values for templates.

    A column "prompt" with messages has a user message, optionally after a system message.
    """
    prompt = row.get("prompt")
    if not isinstance(prompt, list):
        return None, dict(row)
    kinds = [message.get("role") if isinstance(message, Mapping) else None for message in prompt]
    if kinds not in (["user"], ["system", "user"]):
        raise ValueError(
            f"the prompt has messages of {kinds}, but must have a user message, optionally after a system message"
        )
    system = prompt[0]["content"] if len(prompt) == 2 else None
    return system, {**row, "prompt": prompt[-1]["content"]}


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)
