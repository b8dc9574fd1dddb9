"""Plain Python functions as rewards, one sample at a time or in lists as TRL calls them, sync or async."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from envs.tasks.replies import CallFailed, EpisodeError, Reply
from envs.tasks.task import Ask

GIVEN = ("prompt", "completion")
GIVEN_AS_LISTS = ("prompts", "completions", "completion_ids")


class RewardFailed(EpisodeError):
    """A reward function raised, or returned something that is no finite number; it costs the episode."""

    reason = "reward_failed"


@dataclasses.dataclass(frozen=True)
class RewardFunction:
    """A function and how it is called.

    lists    whether it takes lists, as for TRL
    wanted   names of its parameters; None: it takes everything (**columns)
    columns  those of them that are columns of the dataset and have no default
    """

    name: str
    function: Callable
    lists: bool
    wanted: tuple[str, ...] | None
    columns: tuple[str, ...]

    async def call(
        self, ask: Ask, name: str, prompt: str, replies: Sequence[Reply], row: Mapping[str, Any], limit: float
    ) -> list[float]:
        """The rewards of some replies to one prompt. Raises `RewardFailed`, or `CallTimeout` after `limit`."""
        texts = [reply.text for reply in replies]
        if self.lists:
            messages = isinstance(row.get("prompt"), list)  # TRL: conversations in, conversations out
            said = [[{"role": "assistant", "content": text}] for text in texts] if messages else list(texts)
            asked = row["prompt"] if messages else prompt
            columns = {k: [v] * len(texts) for k, v in row.items() if k not in ("prompt", *GIVEN_AS_LISTS)}
            given = [asked] * len(texts), said, [list(reply.tokens) for reply in replies]
            calls = [(name, {**dict(zip(GIVEN_AS_LISTS, given, strict=True)), **columns})]
        else:
            columns = {column: value for column, value in row.items() if column not in GIVEN}
            calls = [(f"{name}_{k}", {"prompt": prompt, "completion": text, **columns}) for k, text in enumerate(texts)]
        found = await asyncio.gather(*(self._one(ask, key, values, limit) for key, values in calls))
        values = found[0] if self.lists else found
        if not isinstance(values, list) or len(values) != len(texts):
            raise RewardFailed(f"reward {self.name!r} returned {values!r:.80}; expected a list of {len(texts)} numbers")
        for value in values:
            if isinstance(value, str) or not isinstance(value, int | float) or not math.isfinite(value):
                raise RewardFailed(f"reward {self.name!r} returned {value!r:.80}; expected a finite number")
        return [float(value) for value in values]

    async def _one(self, ask: Ask, key: str, values: dict[str, Any], limit: float) -> Any:
        if self.wanted is not None:
            values = {name: value for name, value in values.items() if name in self.wanted}
        try:
            if _is_async(self.function):
                return await ask.record(key, self._awaited(values), limit)
            if _importable(self.function):  # in another process, which is ended at the limit
                where = f"{self.function.__module__}:{self.function.__qualname__}"
                return await ask.verify(call, where, values, limit=limit, name=key)
            return await ask.record(key, self._in_thread(values), limit)
        except CallFailed as error:
            raise RewardFailed(f"reward {self.name!r} failed: {error}") from error

    async def _awaited(self, values: dict[str, Any]) -> Any:
        return _plain(await self.function(**values))

    async def _in_thread(self, values: dict[str, Any]) -> Any:
        return _plain(await asyncio.to_thread(self.function, **values))


def named(rewards: Any) -> dict[str, RewardFunction]:
    """One function, several, or {name: function}, by their names."""
    if isinstance(rewards, Mapping):
        functions = dict(rewards)
    else:
        several = list(rewards) if isinstance(rewards, Iterable) else [rewards]
        functions = {getattr(function, "__name__", type(function).__name__): function for function in several}
        if len(functions) < len(several):
            raise ValueError("two reward functions have the same name; give them as {name: function}")
    if not functions:
        raise ValueError("a task needs a reward function")
    return {name: _reward(name, function) for name, function in functions.items()}


def call(where: str, values: dict[str, Any]) -> Any:
    """Calls a function of a module by "module:function"; for the processes of `ask.verify`."""
    import importlib
    import operator

    module, name = where.split(":")
    return _plain(operator.attrgetter(name)(importlib.import_module(module))(**values))


def _reward(name: str, function: Callable) -> RewardFunction:
    if not callable(function):
        raise ValueError(f"the reward {name!r} is {function!r}; expected a function")
    parameters = inspect.signature(function).parameters.values()
    lists = any(p.name == "completions" for p in parameters)
    given = GIVEN_AS_LISTS if lists else GIVEN
    if any(p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY) for p in parameters):
        raise ValueError(f"the reward {name!r} takes positional arguments; expected named parameters")
    if not any(p.name in given or p.kind == p.VAR_KEYWORD for p in parameters):
        raise ValueError(f"the reward {name!r} takes neither completion nor completions, so it cannot judge a reply")
    own = [p for p in parameters if p.kind != p.VAR_KEYWORD]
    columns = tuple(p.name for p in own if p.name not in given and p.default is p.empty)
    everything = len(own) < len(parameters)
    return RewardFunction(name, function, lists, None if everything else tuple(p.name for p in own), columns)


def _is_async(function: Callable) -> bool:
    """Also for an object with an async `__call__`."""
    return any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None))))  # noqa: B004


def _importable(function: Callable) -> bool:
    """Whether another process finds the function where it says it is."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<")
    found = sys.modules.get(module or "")
    known = found is not None and getattr(found, "__spec__", None) is not None and module != "__main__"
    return known and name.isidentifier() and getattr(found, name, None) is function


def _plain(value: Any) -> Any:
    """Numbers of NumPy as Python's, so that they can be written down."""
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else value
