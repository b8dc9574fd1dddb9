"""The interface of tools, and several sources of tools as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envs.tasks.tools import schemas


class ToolError(Exception):
    """An error that the policy reads, such as a division by zero."""


class ToolTimeout(ToolError):
    """A call that took too long."""


class Tools:
    """Base class of the tools of one episode.

    Attributes:
        schemas: Schemas of the tools in OpenAI's format, `{"type": "function", "function": {"name", …}}`.
        forkable: Whether `fork` is possible.
    """

    schemas: Sequence[dict[str, Any]] = ()
    forkable: bool = True

    async def call(self, name: str, arguments: dict[str, Any], seconds: float = 5.0) -> str:
        """Call a tool with arguments that match its schema.

        Args:
            name: Name of the tool.
            arguments: Arguments.
            seconds: Time limit. Waiting for a free process does not count.

        Returns:
            The result as text.

        Raises:
            ToolError: The call failed, and the policy gets the message.
            ToolTimeout: The call took longer than the limit.
        """
        raise NotImplementedError

    def problem(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Return what is wrong with the arguments of a call, or None."""
        return schemas.problem(self.schema(name)["parameters"], arguments, "arguments")

    def schema(self, name: str) -> dict[str, Any]:
        """Return the schema of a tool: name, description and parameters."""
        return next(one["function"] for one in self.schemas if one["function"]["name"] == name)

    @property
    def names(self) -> list[str]:
        """Names of the tools."""
        return [one["function"]["name"] for one in self.schemas]

    def fork(self) -> Tools:
        """Return tools with a copy of the state; tools without state return themselves."""
        return self

    def state(self) -> Any:
        """Return the state as a JSON value, or None without state.

        It is recorded after every call, because a resumed run does not repeat the calls.
        """
        return None

    def restore(self, state: Any) -> None:
        """Set the state to one that `state` returned."""

    async def close(self) -> None:
        """Release resources at the end of the episode."""


class Combined(Tools):
    """Several sources of tools with different names."""

    def __init__(self, *sources: Tools):
        self.sources = sources
        self.schemas = [schema for source in sources for schema in source.schemas]
        self.forkable = all(source.forkable for source in sources)
        check_names(self.names)

    async def call(self, name: str, arguments: dict[str, Any], seconds: float = 5.0) -> str:
        """Call a tool of the source that has it."""
        return await self._source(name).call(name, arguments, seconds)

    def problem(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Return what is wrong with the arguments of a call, or None."""
        return self._source(name).problem(name, arguments)

    def fork(self) -> Combined:
        """Fork all sources."""
        return Combined(*(source.fork() for source in self.sources))

    def state(self) -> Any:
        """Return the states of all sources."""
        states = [source.state() for source in self.sources]
        return None if all(state is None for state in states) else states

    def restore(self, state: Any) -> None:
        """Set the states of all sources."""
        for source, one in zip(self.sources, state or [], strict=False):
            source.restore(one)

    async def close(self) -> None:
        """Close all sources."""
        for source in self.sources:
            await source.close()

    def _source(self, name: str) -> Tools:
        return next(source for source in self.sources if name in source.names)


def check_names(names: Sequence[str]) -> None:
    """Raise a ValueError if two tools have the same name."""
    if double := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the tools are {', '.join(names)}, but names must differ: {double[0]} occurs twice")
