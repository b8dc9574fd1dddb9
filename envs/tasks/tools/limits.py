"""Tool calls of an episode within limits.

Bad calls become error messages that the policy reads.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import TYPE_CHECKING

from envs.tasks.chat import Chat
from envs.tasks.replies import CallFailed, EpisodeError, Reply, TaskError, ToolCall
from envs.tasks.tools.tools import ToolError, Tools, ToolTimeout

if TYPE_CHECKING:
    from envs.tasks.task import Ask

KINDS = ("valid", "failed", "unreadable", "unknown", "invalid", "refused", "late", "truncated")
"""Kinds of calls: run with a result or with an error, not JSON, of an unknown tool, with wrong arguments, over a limit,
too slow, and in a completion that was cut off at the token limit."""

CUT = " … (the result was cut off)"


class ToolFailed(EpisodeError):
    """An exception in a tool, which is no mistake of the policy."""

    reason = "tool_failed"


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of the tool calls in an episode.

    Attributes:
        calls: Maximum number of calls.
        per_turn: Maximum number of calls in a reply.
        result_tokens: Maximum number of tokens of a result.
        seconds: Time limit of a call.
    """

    calls: int = 8
    per_turn: int = 4
    result_tokens: int = 512
    seconds: float = 5.0

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"Limits.{field.name} is {value!r}, but must be > 0")


class ToolUse:
    """The tools of an episode, as its policies use them.

        async with ToolUse(ask, tools) as use:
            chat = ask.chat(0, system="…", tools=use.tools)
            reply = await chat.say(question)
            while reply.calls:
                reply = await chat.results(await use.run(chat, reply))

    Results are recorded before the episode continues, so that a resumed run does not repeat the calls.

    Args:
        ask: The episode.
        tools: The tools, which are closed at the end.
        limits: Limits of the calls.

    Attributes:
        counts: Number of calls of each kind so far, and of results that were cut.
    """

    def __init__(self, ask: Ask, tools: Tools, limits: Limits | None = None, name: str = "tool"):
        self.ask, self.tools, self.limits, self.name = ask, tools, limits or Limits(), name
        self.counts: Counter[str] = Counter()
        self._state = tools.state()

    async def run(self, chat: Chat, reply: Reply) -> list[str]:
        """Run the calls of a reply in order and return their results, for `chat.results`.

        Raises:
            ToolFailed: A tool raised an exception that is not a `ToolError`.
        """
        calls, most = reply.calls, self.limits.per_turn
        if reply.finish == "length":
            self.counts["truncated"] += len(calls)
            return ["Error: the message was cut off at the token limit, so its calls were not run."] if calls else []
        texts = [await self._run(chat, call) for call in calls[:most]]
        if len(calls) > most:
            self.counts["refused"] += len(calls) - most
            note = f"{len(calls) - most} further calls were not run; at most {most} are possible at a time."
            texts[-1] = f"{texts[-1]}\nError: {note}"
        return texts

    def fork(self, k: int) -> ToolUse:
        """Return a copy for candidate `k`, whose calls do not affect the others."""
        if not self.tools.forkable:
            raise TaskError("fork: the tools cannot be forked, so a turn must have one candidate")
        other = ToolUse(self.ask, self.tools.fork(), self.limits, f"tool.{k}")
        other.counts = self.counts.copy()
        return other

    def metrics(self) -> dict[str, float]:
        """Return the counts as metrics of the episode."""
        counts = {f"{kind}_calls": self.counts[kind] for kind in KINDS} | {"cut_results": self.counts["cut"]}
        return {name: float(count) for name, count in counts.items()}

    async def __aenter__(self) -> ToolUse:
        return self

    async def __aexit__(self, *error) -> None:
        await self.tools.close()

    async def _run(self, chat: Chat, call: ToolCall) -> str:
        """Run a call and return its result or an error message."""
        kind, text = await self._result(chat, call)
        self.counts[kind] += 1
        shown = chat.shorten(text, self.limits.result_tokens)
        if len(shown) < len(text):
            self.counts["cut"] += 1
            shown += CUT
        return shown if kind == "valid" else f"Error: {shown}"

    async def _result(self, chat: Chat, call: ToolCall) -> tuple[str, str]:
        """Return the kind of a call and its result."""
        if sum(self.counts[kind] for kind in KINDS) >= self.limits.calls:
            return "refused", f"all {self.limits.calls} calls were used. Answer without further calls."
        if call.problem:
            return "unreadable", call.problem
        if call.name not in self.tools.names:
            return "unknown", f"there is no tool {call.name!r}; the tools are: {', '.join(self.tools.names)}"
        try:
            arguments = json.loads(call.arguments)
            problem = self.tools.problem(call.name, arguments)
        except RecursionError:
            problem, arguments = "the arguments are nested too deeply", {}
        if problem is not None:
            return "invalid", problem
        path = ".".join(map(str, (chat.seat, *chat.path)))
        try:
            entry = await self.ask.record(f"{self.name} {path}", self._call(call.name, arguments))
        except CallFailed as error:
            raise ToolFailed(f"the tool {call.name} failed: {error}") from error
        self._state = entry["state"]
        self.tools.restore(self._state)
        return entry["kind"], entry["text"]

    async def _call(self, name: str, arguments: dict) -> dict:
        """Call a tool and return the entry of the journal."""
        try:
            kind, text = "valid", await self.tools.call(name, arguments, self.limits.seconds)
        except ToolTimeout as error:
            self.tools.restore(self._state)
            kind, text = "late", str(error)
        except ToolError as error:
            kind, text = "failed", str(error)
        text = text.encode("utf-8", "replace").decode()  # JSON may contain halves of characters
        return {"kind": kind, "text": text, "state": self.tools.state()}
