"""Tools of MCP servers: an unmodified one, and one that fails, hangs and dies. They need the package `mcp`."""

import asyncio
import importlib.util
import json
import sys
import time

import pytest

from envs.tasks import make_task
from envs.tasks.replies import TaskError
from envs.tasks.scripted import ScriptedAsk
from envs.tasks.tools import Limits, McpServer, ToolError, ToolFailed, ToolTimeout, ToolUse
from tests.envs.tasks.test_tools import OneRole, called

HAS_MCP = importlib.util.find_spec("mcp") is not None
needs_mcp = pytest.mark.skipif(not HAS_MCP, reason="needs the package mcp, which is an extra: marl_jax[mcp]")
SERVER = '''
import os, sys, time
from mcp.server.mcpserver import MCPServer

server, said = MCPServer("tests"), []

@server.tool()
def add(a: int, b: int = 1) -> str:
    """Add."""
    return str(a + b)

@server.tool()
def note(text: str) -> str:
    """Write a note, which is state."""
    said.append(text)
    return f"{os.getpid()} {' '.join(said)}"

@server.tool()
async def hang(seconds: float) -> str:
    """Hang."""
    import anyio
    await anyio.sleep(seconds)
    return "awake"

@server.tool()
def die() -> str:
    """Die."""
    print("out of paper", file=sys.stderr, flush=True)
    os._exit(3)

@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("no")

server.run()
'''


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    path = tmp_path_factory.mktemp("mcp") / "server.py"
    path.write_text(SERVER)
    return f"{sys.executable} {path}"


@needs_mcp
def test_an_unmodified_server_is_a_source_of_tools():
    if importlib.util.find_spec("mcp_server_time") is None:
        pytest.skip("needs the package mcp-server-time")
    server = McpServer(f"{sys.executable} -m mcp_server_time --local-timezone=UTC")
    server.prepare()

    async def calls():
        tools = server.tools()
        assert tools.names == ["get_current_time", "convert_time"]
        arguments = {"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "UTC"}
        assert tools.problem("convert_time", arguments) is None
        assert "arguments.time is 12" in str(tools.problem("convert_time", arguments | {"time": 12}))
        assert json.loads(await tools.call("convert_time", arguments))["time_difference"] == "-9.0h"
        with pytest.raises(ToolError, match="Nowhere"):
            await tools.call("convert_time", arguments | {"source_timezone": "Nowhere"})

    asyncio.run(calls())


@needs_mcp
def test_calls_share_processes_and_failures_are_explained(command):
    server = McpServer(command, processes=2)
    server.prepare()

    async def calls():
        tools = server.tools()
        assert not tools.forkable and tools.state() is None
        with pytest.raises(ToolError):
            await tools.call("fail", {})
        results = await asyncio.gather(*(tools.call("add", {"a": i}) for i in range(20)))
        assert results == [str(i + 1) for i in range(20)]
        pids = {(await tools.call("note", {"text": "x"})).split()[0] for _ in range(4)}
        assert len(pids) <= 2
        started = time.monotonic()
        with pytest.raises(ToolTimeout, match="the call took more than 0.3 s"):
            await tools.call("hang", {"seconds": 60}, 0.3)
        assert time.monotonic() - started < 10
        with pytest.raises(RuntimeError, match=r"ended\n(?s:.*)out of paper$"):  # after what earlier calls logged
            await tools.call("die", {})
        assert await tools.call("add", {"a": 2, "b": 3}) == "5"  # in a new process

    asyncio.run(calls())


@needs_mcp
def test_an_episode_may_have_a_process_of_its_own(command):
    server = McpServer(command, scope="episode")
    server.prepare()

    async def episode(word):
        tools = server.tools()
        try:
            return [(await tools.call("note", {"text": word})).split() for _ in range(2)], tools.state()
        finally:
            await tools.close()

    async def lost():
        tools = server.tools()
        tools.restore(2)  # two calls were replayed from the journal
        with pytest.raises(RuntimeError, match="the state of the MCP server was lost"):
            await tools.call("note", {"text": "x"})

    async def both():
        return await asyncio.gather(episode("a"), episode("b"), lost())

    (one, made), (other, _), _ = asyncio.run(both())
    assert [words[1:] for words in one] == [["a"], ["a", "a"]] and [words[1:] for words in other] == [["b"], ["b", "b"]]
    assert one[0][0] == one[1][0] != other[0][0] and made == 2


@needs_mcp
def test_calls_of_an_episode(command):
    task = make_task("tools", server=command, tools=(), per_turn=5, seconds=60.0)
    task.prepare()
    assert not task.forks
    use = ToolUse(ScriptedAsk(OneRole(), lambda *_: ""), task.episode_tools(), task.limits)
    chat = use.ask.chat(0, tools=use.tools)
    calls = ("add", {"a": 1}), ("add", {"a": "1"}), ("fail", {}), ("subtract", {})
    texts = asyncio.run(use.run(chat, called(*calls)))
    assert texts[:2] == ["2", 'Error: arguments.a is "1", but must be of type integer']
    assert "fail" in texts[2] and "there is no tool 'subtract'" in texts[3]
    use.limits = Limits(seconds=0.5)
    texts = asyncio.run(use.run(chat, called(("hang", {"seconds": 99}))))
    assert texts == ["Error: the call took more than 0.5 s"]
    assert [use.counts[kind] for kind in ("valid", "invalid", "late", "failed", "unknown")] == [1] * 5
    use.limits = task.limits
    with pytest.raises(ToolFailed, match="(?s)the tool die failed: .*out of paper"):
        asyncio.run(use.run(chat, called(("die", {}))))
    with pytest.raises(TaskError, match="cannot be forked"):
        use.fork(0)


@needs_mcp
@pytest.mark.parametrize(("command", "message"), [
    ("/nonexistent", "did not start: FileNotFoundError"), (f"{sys.executable} -c 'import nothing'", "No module named"),
    ("sleep 100", "no answer in 1 s"),
])  # fmt: skip
def test_a_server_that_does_not_start_ends_the_run_with_a_message(command, message):
    with pytest.raises(RuntimeError, match=f"(?s)the MCP server .*{message}"):
        McpServer(command, seconds=1.0 if "sleep" in command else 30.0).prepare()


def test_settings_without_meaning_are_refused(monkeypatch):
    for options, message in (
        (dict(command=""), "command is ''"), (dict(command="x", scope="all"), "scope is 'all'"),
        (dict(command="x", processes=0), "processes is 0"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            McpServer(**options)
    with pytest.raises(RuntimeError, match="is not prepared"):
        McpServer("x").tools()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="the package mcp is missing. Install it with"):
        McpServer("x").prepare()
    assert Limits().seconds == 5.0
