"""Python functions, and methods of objects with state, as tools."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import json
from collections.abc import Callable
from typing import Any, TypeVar

from envs.tasks.tools import schemas
from envs.tasks.tools.tools import Tools, ToolTimeout, check_names

F = TypeVar("F", bound=Callable)
_MARK = "_tool_schema"


def tool(function: F) -> F:
    """Make a function or a method a tool.

    Its schema is made from its type hints and docstring, which has Google style.

    The function may be a coroutine. Others must be quick, because they run in the event loop. A result that is not a
    string is shown as JSON. A `ToolError` is shown to the policy; any other exception is a bug and ends the episode.
    """
    setattr(function, _MARK, schemas.schema_of(function))
    return function


class Functions(Tools):
    """Functions with the decorator `tool`, and objects whose methods have it.

    The attributes of such an object are its state, and must be JSON values. Those with a leading underscore are not
    part of it.
    """

    def __init__(self, *members: Any):
        self._members, self._functions = members, {}
        for member in members:
            if not (own := list(_tools_of(member))):
                raise ValueError(f"the member {member!r} of Functions has no tools, but must have the decorator @tool")
            self._functions |= {getattr(one, _MARK)["function"]["name"]: one for one in own}
        self.schemas = [getattr(one, _MARK) for member in members for one in _tools_of(member)]
        check_names(self.names)

    async def call(self, name: str, arguments: dict[str, Any], seconds: float = 5.0) -> str:
        """Call a function and return its result, as JSON if it is not a string."""
        function = self._functions[name]
        result = function(**self._converted(name, arguments))
        if inspect.isawaitable(result):
            try:
                async with asyncio.timeout(seconds) as limit:
                    result = await result
            except TimeoutError:
                if not limit.expired():
                    raise
                raise ToolTimeout(f"the call took more than {seconds:g} s") from None
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)

    def problem(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Return what is wrong with the arguments; further ones are not possible."""
        parameters = self.schema(name)["parameters"] | {"additionalProperties": False}
        return schemas.problem(parameters, arguments, "arguments")

    def fork(self) -> Functions:
        """Return tools with copies of the objects."""
        if not self._objects:
            return self
        return Functions(*(one if inspect.isroutine(one) else _copied(one) for one in self._members))

    def state(self) -> Any:
        """Return the attributes of the objects."""
        return [_attributes(one) for one in self._objects] or None

    def restore(self, state: Any) -> None:
        """Set the attributes of the objects."""
        for one, attributes in zip(self._objects, state or [], strict=False):
            for name in set(_attributes(one)) - set(attributes):
                delattr(one, name)
            vars(one).update(copy.deepcopy(attributes))

    @functools.cached_property
    def _objects(self) -> list[Any]:
        return [member for member in self._members if not inspect.isroutine(member)]

    def _converted(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return arguments in which 2.0 is an integer where the schema wants one."""
        kinds = {key: one.get("type") for key, one in self.schema(name)["parameters"]["properties"].items()}
        return {key: int(v) if kinds[key] == "integer" and isinstance(v, float) else v for key, v in arguments.items()}


def _tools_of(member: Any) -> list[Callable]:
    """Return the tools of a function or an object, in the order of their definition."""
    if inspect.isroutine(member):
        return [member] if hasattr(member, _MARK) else []
    names = dict.fromkeys(name for kind in reversed(type(member).__mro__) for name in vars(kind))
    return [getattr(member, name) for name in names if hasattr(getattr(type(member), name, None), _MARK)]


def _attributes(one: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(one).items() if not name.startswith("_")}


def _copied(one: Any) -> Any:
    """Return a copy of an object that shares its private attributes."""
    other = copy.copy(one)
    vars(other).update(copy.deepcopy(_attributes(one)))
    return other
