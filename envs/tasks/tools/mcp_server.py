"""Tools of MCP servers, which are started here and answer over standard output.

A connection of the package `mcp` must be opened and closed in the same coroutine, so every process has one
(`_Process._serve`), which runs until the process is closed. Servers are trusted: they are not sandboxed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shlex
import tempfile
import weakref
from collections.abc import AsyncIterator, Mapping
from typing import Any, TextIO

from envs.tasks.tools import schemas
from envs.tasks.tools.tools import ToolError, Tools, ToolTimeout, check_names

START_LIMIT = 60.0
"""Time limit in seconds for starting a server."""
SCOPES = ("run", "episode")
LONGEST_SHOWN = 500
"""Characters of a server's last words in an error."""


class McpServer:
    """A pool of processes of one MCP server.

    Args:
        command: Command line of the server. It is not run by a shell.
        env: Environment variables, in addition to those that `mcp` inherits.
        scope: "run" if the server has no state, so that all episodes share the processes; "episode" starts a process
            per episode.
        processes: Maximum number of processes. Further calls, or episodes, wait.
        seconds: Time limit for starting a process.
    """

    def __init__(
        self, command: str, env: Mapping[str, str] | None = None, scope: str = "run", processes: int = 4,
        seconds: float = START_LIMIT,
    ):  # fmt: skip
        if scope not in SCOPES:
            raise ValueError(f"scope is {scope!r}, but must be one of: {', '.join(SCOPES)}")
        if processes < 1:
            raise ValueError(f"processes is {processes}, but must be >= 1")
        if not shlex.split(command):
            raise ValueError(f"command is {command!r}, but must be the command line of an MCP server")
        self.command, self.env, self.scope, self.processes = command, env, scope, processes
        self.seconds = seconds
        self._schemas: list[dict[str, Any]] | None = None
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = weakref.WeakKeyDictionary()

    def prepare(self) -> None:
        """Start the server once and read its tools.

        Raises:
            RuntimeError: The package is missing, the server does not start, or a schema is not supported.
        """
        if importlib.util.find_spec("mcp") is None:
            raise RuntimeError("the package mcp is missing. Install it with: pip install 'mcp>=2.3,<3'")
        if self._schemas is None:
            self._schemas = asyncio.run(self._read_schemas())

    def tools(self) -> Tools:
        """Return the tools for an episode, after `prepare`."""
        if self._schemas is None:
            raise RuntimeError(
                f"the MCP server {self.command!r} is not prepared. Call prepare() before the first episode."
            )
        return _McpTools(self, self._schemas)

    async def _read_schemas(self) -> list[dict[str, Any]]:
        process = _Process(self)
        try:
            await process.start()
            listed = await process.request("list_tools")
        finally:
            await process.close()
        functions = [
            {"name": one.name, "description": one.description or "", "parameters": one.input_schema}
            for one in listed.tools
        ]
        listed_schemas = [{"type": "function", "function": function} for function in functions]
        try:
            for one in listed_schemas:
                schemas.check(one["function"]["parameters"], one["function"]["name"])
            check_names([one["function"]["name"] for one in listed_schemas])
        except ValueError as error:
            raise RuntimeError(f"the MCP server {self.command!r} cannot be used: {error}") from error
        if not listed_schemas:
            raise RuntimeError(f"the MCP server {self.command!r} has no tools, but must have at least one")
        return listed_schemas

    @contextlib.asynccontextmanager
    async def process(self) -> AsyncIterator[_Process]:
        """Take a process out of the pool, and return it if it still works."""
        loop = asyncio.get_running_loop()
        pool = self._pools.setdefault(loop, _Pool(self.processes))
        async with pool.places:
            process = pool.idle.pop() if pool.idle else _Process(self)
            try:
                await process.start()
                yield process
            finally:
                if process.alive and self.scope == "run":
                    pool.idle.append(process)
                else:
                    await process.close()


class _Pool:
    def __init__(self, processes: int):
        self.places, self.idle = asyncio.Semaphore(processes), []


class _Process:
    """One process of a server and the connection to it."""

    def __init__(self, server: McpServer):
        self._server = server
        self._task: asyncio.Task | None = None
        self._client: Any = None
        self._words = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed by `_serve`)
        self._end = asyncio.Event()

    @property
    def alive(self) -> bool:
        """Whether the connection is open."""
        return self._client is not None and not self._end.is_set() and self._task is not None and not self._task.done()

    async def start(self) -> None:
        """Start the process if it is not running."""
        if self.alive:
            return
        started = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve(started))
        await started

    async def _serve(self, started: asyncio.Future) -> None:
        """Keep the connection open until `close`."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self._server.seconds):
                    self._client = await stack.enter_async_context(_client(self._server, self._words))
                if not started.done():
                    started.set_result(None)
                await self._end.wait()
        except BaseException as error:
            if started.done():
                raise
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            late = isinstance(error, TimeoutError)
            reason = f"no answer in {self._server.seconds:g} s" if late else f"{type(error).__name__}: {error}"
            started.set_exception(RuntimeError(self.problem(f"did not start: {reason}")))
        finally:
            self._words.close()

    def problem(self, words: str) -> str:
        """Return a message with the end of what the server wrote to standard error."""
        self._words.seek(0)
        said = self._words.read().strip()
        return f"the MCP server {self._server.command!r} {words}" + (f"\n{said[-LONGEST_SHOWN:]}" if said else "")

    async def request(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the client."""
        assert self._task is not None
        request = asyncio.ensure_future(getattr(self._client, method)(*args, **options))
        try:
            await asyncio.wait({request, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not request.done():
                request.cancel()
                await asyncio.wait({request})
        if request.cancelled():
            raise RuntimeError(f"the connection to the MCP server {self._server.command!r} was closed")
        return request.result()

    async def close(self) -> None:
        """End the process."""
        self._end.set()
        if self._task is not None:
            await asyncio.wait({self._task})
            if not self._task.cancelled():
                self._task.exception()  # mark it as retrieved


def _client(server: McpServer, words: TextIO) -> Any:
    from mcp import Client, StdioServerParameters  # pyright: ignore[reportMissingImports]
    from mcp.client.stdio import stdio_client  # pyright: ignore[reportMissingImports]

    command, *args = shlex.split(server.command)
    parameters = StdioServerParameters(command=command, args=args, env=dict(server.env) if server.env else None)
    return Client(stdio_client(parameters, errlog=words))


class _McpTools(Tools):
    """The tools of a server in one episode."""

    forkable = False

    def __init__(self, server: McpServer, known: list[dict[str, Any]]):
        self.schemas, self._server = known, server
        self._stack, self._process = contextlib.AsyncExitStack(), None
        self._made = 0  # calls that the process has answered
        self._recorded = 0  # calls of the episode

    async def call(self, name: str, arguments: dict[str, Any], seconds: float = 5.0) -> str:
        """Call a tool of the server."""
        if self._server.scope == "run":
            async with self._server.process() as process:
                return await self._answer(process, name, arguments, seconds)
        if self._recorded != self._made:
            raise RuntimeError("the state of the MCP server was lost when the run was interrupted")
        if self._process is None:
            self._process = await self._stack.enter_async_context(self._server.process())
        try:
            return await self._answer(self._process, name, arguments, seconds)
        finally:
            self._made += 1
            self._recorded += 1

    async def _answer(self, process: _Process, name: str, arguments: dict[str, Any], seconds: float) -> str:
        from mcp import MCPError  # pyright: ignore[reportMissingImports]
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT  # pyright: ignore[reportMissingImports]

        try:
            result = await process.request("call_tool", name, arguments, read_timeout_seconds=seconds)
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                if self._server.scope == "run":
                    await process.close()  # it may hang
                raise ToolTimeout(f"the call took more than {seconds:g} s") from None
            if error.code == CONNECTION_CLOSED:
                problem = process.problem("ended")
                await process.close()
                raise RuntimeError(problem) from None
            raise ToolError(error.message) from None
        text = "\n".join(getattr(part, "text", f"({part.type})") for part in result.content)
        if result.is_error:
            raise ToolError(text)
        return text

    def state(self) -> Any:
        """Return the number of calls that the process has answered, if its state matters."""
        return self._made if self._server.scope == "episode" else None

    def restore(self, state: Any) -> None:
        """Note the number of calls of the episode; the process itself cannot be restored."""
        self._recorded = state or 0

    async def close(self) -> None:
        """End the process of the episode."""
        await self._stack.aclose()
