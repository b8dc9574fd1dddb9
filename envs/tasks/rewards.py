"""Reward functions in plain Python, sync or async, per completion or in TRL's list form."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.tasks.replies import CallFailed, EpisodeError, Reply
from envs.tasks.task import Ask
from registries import Registry, describe_failure, import_object

REWARDS = Registry("rewards")
"""Reward functions by name."""

GIVEN = ("prompt", "completion")
GIVEN_AS_LISTS = ("prompts", "completions", "completion_ids")


class RewardFailed(EpisodeError):
    """A reward function raised, or did not return a finite number."""

    reason = "reward_failed"


@dataclasses.dataclass(frozen=True)
class RewardFunction:
    """A reward function and its calling convention.

    Attributes:
        name: Name of the reward.
        function: The function.
        lists: Whether the function takes lists, as in TRL.
        wanted: Names of its parameters, or None if it takes everything (`**columns`).
        columns: Parameters without a default that are columns of the dataset.
    """

    name: str
    function: Callable
    lists: bool
    wanted: tuple[str, ...] | None
    columns: tuple[str, ...]

    async def call(
        self, ask: Ask, name: str, prompt: str, replies: Sequence[Reply], row: Mapping[str, Any], limit: float
    ) -> list[float]:
        """Return the rewards of some replies to one prompt.

        Args:
            ask: The episode.
            name: Name under which the results are recorded.
            prompt: The prompt.
            replies: Replies to the prompt.
            row: The example.
            limit: Time limit in seconds.

        Raises:
            RewardFailed: The function raised, or did not return finite numbers.
            CallTimeout: The function exceeded the time limit.
        """
        texts = [reply.text for reply in replies]
        if self.lists:
            messages = isinstance(row.get("prompt"), list)  # TRL: conversations in, conversations out
            trl_completions = [[{"role": "assistant", "content": text}] for text in texts] if messages else list(texts)
            trl_prompt = row["prompt"] if messages else prompt
            columns = {k: [v] * len(texts) for k, v in row.items() if k not in ("prompt", *GIVEN_AS_LISTS)}
            given = [trl_prompt] * len(texts), trl_completions, [list(reply.tokens) for reply in replies]
            calls = [(name, {**dict(zip(GIVEN_AS_LISTS, given, strict=True)), **columns})]
        else:
            columns = {column: value for column, value in row.items() if column not in GIVEN}
            calls = [(f"{name}_{k}", {"prompt": prompt, "completion": text, **columns}) for k, text in enumerate(texts)]
        results = await asyncio.gather(*(self._one(ask, key, values, limit) for key, values in calls))
        values = results[0] if self.lists else results
        if not isinstance(values, list) or len(values) != len(texts):
            raise RewardFailed(
                f"reward {self.name!r} returned {values!r:.80}, but must return {len(texts)} numbers in a list"
            )
        for value in values:
            if isinstance(value, str) or not isinstance(value, int | float) or not math.isfinite(value):
                raise RewardFailed(f"reward {self.name!r} returned {value!r:.80}, but must return a finite number")
        return [float(value) for value in values]

    async def _one(self, ask: Ask, key: str, values: dict[str, Any], limit: float) -> Any:
        if self.wanted is not None:
            values = {name: value for name, value in values.items() if name in self.wanted}
        try:
            if _is_async(self.function):
                return await ask.record(key, self._awaited(values), limit)
            where = place_of(self.function)
            if where and self.function.__module__ != "__main__":  # in another process, which is killed at the limit
                return await ask.verify(call, where, values, limit=limit, name=key)
            return await ask.record(key, self._in_thread(values), limit)
        except CallFailed as error:
            raise RewardFailed(f"reward {self.name!r} failed: {error}") from error

    async def _awaited(self, values: dict[str, Any]) -> Any:
        return _plain(await self.function(**values))

    async def _in_thread(self, values: dict[str, Any]) -> Any:
        return _plain(await asyncio.to_thread(self.function, **values))


def named(rewards: Any) -> dict[str, RewardFunction]:
    """Return reward functions by name.

    Args:
        rewards: One function, several, or {name: function}. A string is the name of a registered function or a place,
            "module:function" or "script.py:function", optionally after "NAME=".
    """
    if isinstance(rewards, Mapping):
        several = list(rewards.items())
    else:
        several = list(rewards) if isinstance(rewards, Iterable) and not isinstance(rewards, str) else [rewards]
        several = [("", function) for function in several]
    pairs = [_imported(name, function) for name, function in several]
    functions = dict(pairs)
    if len(functions) < len(pairs):
        raise ValueError("two reward functions have the same name; pass them as {name: function} or NAME=PLACE")
    if not functions:
        raise ValueError("rewards is empty, but must have at least one function")
    return {name: _reward(name, function) for name, function in functions.items()}


def _imported(name: str, function: Any) -> tuple[str, Any]:
    """Return the name of a reward, by default that of its function, and the function."""
    if not isinstance(function, str):
        return name or getattr(function, "__name__", type(function).__name__), function
    first, _, place = function.rpartition("=")
    name = name or first or place.rpartition(":")[2].rpartition(".")[2]
    if ":" not in place:
        return name, REWARDS.get(place)
    try:
        return name, import_object(place)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"rewards has {function!r}, which cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:
        raise ValueError(f"rewards has {function!r}, whose file failed: {describe_failure(error)}") from error


def name_rewards(rewards: Any) -> tuple[str, ...]:
    """Return reward functions as strings for a config, in their order.

    A function that another process cannot import, such as one of a notebook, is registered under its name.
    """
    return tuple(_place(name, reward.function) for name, reward in named(rewards).items())


def _place(name: str, function: Callable) -> str:
    place = place_of(function)
    if place is None:
        REWARDS.add(name, function, origin="notebook")
        return name
    return place if place.endswith(f":{name}") else f"{name}={place}"


def call(where: str, values: dict[str, Any]) -> Any:
    """Call the function "module:function" or "script.py:function". Runs in a process of `ask.verify`."""
    return _plain(import_object(where)(**values))


def _reward(name: str, function: Callable) -> RewardFunction:
    if not callable(function):
        raise ValueError(f"reward {name!r} is {function!r}, but must be a function")
    parameters = inspect.signature(function).parameters.values()
    lists = any(p.name == "completions" for p in parameters)
    given = GIVEN_AS_LISTS if lists else GIVEN
    if any(p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY) for p in parameters):
        raise ValueError(f"reward {name!r} takes positional arguments, but must have named parameters only")
    if not any(p.name in given or p.kind == p.VAR_KEYWORD for p in parameters):
        raise ValueError(f"reward {name!r} has neither a parameter completion nor completions; add one of them")
    own = [p for p in parameters if p.kind != p.VAR_KEYWORD]
    columns = tuple(p.name for p in own if p.name not in given and p.default is p.empty)
    everything = len(own) < len(parameters)
    return RewardFunction(name, function, lists, None if everything else tuple(p.name for p in own), columns)


def _is_async(function: Callable) -> bool:
    """Return whether a function, or the `__call__` of an object, is async."""
    return any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None))))  # noqa: B004


def place_of(function: Callable) -> str | None:
    """Return "module:function" or "script.py:function", from which another process can import a function, or None."""
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__qualname__", "<")
    loaded = sys.modules.get(module)
    if loaded is None or not name.isidentifier() or getattr(loaded, name, None) is not function:
        return None
    file = getattr(loaded, "__file__", None) or ""
    if module == "__main__" and loaded.__spec__ is not None:  # python -m
        return f"{loaded.__spec__.name}:{name}"
    if "." not in module and file.endswith(".py"):  # such as a file next to a script, which need not be on the path
        return f"{Path(file).resolve()}:{name}"
    return None if getattr(loaded, "__spec__", None) is None else f"{module}:{name}"


def _plain(value: Any) -> Any:
    """Convert NumPy numbers to Python numbers, which can be written as JSON."""
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else value
