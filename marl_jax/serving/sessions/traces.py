"""Traces: all events of sessions as JSON lines in one file.

    {"event": "open", "session", "seed", "models", "metadata"}
    {"event": "call", "session", "call", "model", "after": [call, k] | null, "fork": reason | null,
     "start", "prompt": [ids that follow the completion `after`], "n", "sampling"}
    {"event": "tokens", "session", "call", "k", "tokens", "logps", "versions"}         while a completion is streamed
    {"event": "answer", "session", "call", "answers": [{"tokens", "logps", "versions", "finish", "text"}]}
    {"event": "cancelled", "session", "call", "reason"}
    {"event": "reward", "session", "call", "k", "level", "amount"}
    {"event": "end", "session"}

A line is passed to the operating system before the bytes that depend on it are sent, and it is on disk (fsync) before
a completion is finished for its client. A killed process therefore loses no completion that a client has received,
although its last line may be truncated. Log-probs have nine digits, which identify every float32, so `read_traces`
returns the exact values.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marl_jax.errors import RunError
from marl_jax.running.line_writer import LineWriter
from marl_jax.running.private_files import make_private, make_private_folder
from marl_jax.sampling.conversation import Completion

log = logging.getLogger(__name__)

encode = json.JSONEncoder(ensure_ascii=False).encode


class TraceError(RunError):
    """The traces cannot be written or read."""


class TraceFile:
    """A file that events are appended to.

    It belongs to one event loop at a time.

    Args:
        path: Path of the file; None records nothing.
        shared: Whether another process has opened the file and several append to it. Lines stay intact, because each
            batch of complete lines is one system call.
    """

    def __init__(self, path: str | Path | None, shared: bool = False):
        self.path = None if path is None else Path(path)
        self._lines: LineWriter | None = None
        if self.path is None:
            return
        try:
            make_private_folder(self.path.parent)
            whole = None if shared else _whole_bytes(self.path)
            file = open(make_private(self.path), "ab", buffering=0)  # noqa: SIM115 (closed by `close`)
            if whole is not None:
                file.truncate(whole)
        except OSError as error:
            raise TraceError(f"the traces {self.path} cannot be opened: {error}") from error
        self._lines = LineWriter(file, f"the traces {self.path}", TraceError)

    async def write(self, event: dict[str, Any], sync: bool = False) -> None:
        """Write an event in order; with `sync`, wait until it is on disk."""
        if self._lines is not None:
            await self._lines.write(encode(event), sync)

    async def write_line(self, line: str) -> None:
        """Write an event that is already JSON and wait until it is on disk."""
        if self._lines is not None:
            await self._lines.write(line, sync=True)

    def add(self, line: str, then: Callable[[], None] | None = None) -> None:
        """Write an event that is already JSON; `then` is called if it succeeds."""
        if self._lines is not None:
            self._lines.add(line, False, then)
        elif then is not None:
            then()

    @property
    def kept(self) -> bool:
        """Whether events are recorded."""
        return self._lines is not None

    def close(self) -> None:
        """Close the file after all events are written."""
        if self._lines is not None:
            self._lines.close()


def encode_floats(values: Sequence[float]) -> str:
    """Encode float32 values as JSON without brackets.

    Takes a quarter of the time of finding the shortest digits.
    """
    text = ", ".join(("%.9g",) * len(values)) % tuple(values)
    return encode(values)[1:-1] if "n" in text else text  # infinities and NaN have special names


def decode_floats(values: Sequence[float]) -> list[float]:
    """Return the exact values that `encode_floats` encoded, from parsed JSON numbers."""
    return np.asarray(values, np.float32).tolist()


class CallTrace:
    """Events of one call of a session.

    Numbers are encoded as JSON once, even if several events contain them.
    """

    def __init__(self, traces: TraceFile, session: str, call: str):
        self._traces = traces
        self._head = encode({"session": session, "call": call})[:-1]
        self._parts: dict[int, list[tuple[str, str, str]]] = {}  # columns of completion k as JSON without brackets
        self._counts: dict[int, int] = {}

    def add(self, event: dict[str, Any]) -> None:
        """Write an event without waiting; later events are written after it."""
        if self._traces.kept:
            self._traces.add(f"{self._head}, {encode(event)[1:]}")

    def add_tokens(self, k: int, new: Completion, then: Callable[[], None]) -> None:
        """Write new tokens of completion k and call `then` once the system has them."""
        if not self._traces.kept:
            return then()
        self._traces.add(f'{self._head}, "event": "tokens", "k": {k}, {_members(self._encode(k, new))}}}', then)

    async def write_answers(self, answers: Sequence[Completion], texts: Sequence[str]) -> None:
        """Write the completions, whose streamed tokens are encoded already, and wait for the disk."""
        if not self._traces.kept:
            return
        encoded = []
        for k, (answer, text) in enumerate(zip(answers, texts, strict=True)):
            n = self._counts.get(k, 0)
            self._encode(k, Completion(answer.tokens[n:], answer.logps[n:], answer.finish, answer.versions[n:]))
            columns = [", ".join(parts) for parts in zip(*self._parts.get(k, [("", "", "")]), strict=True)]
            encoded.append(f'{{{_members(columns)}, "finish": "{answer.finish}", "text": {encode(text)}}}')
        await self._traces.write_line(f'{self._head}, "event": "answer", "answers": [{", ".join(encoded)}]}}')

    def _encode(self, k: int, new: Completion) -> tuple[str, str, str]:
        """Encode the columns of new tokens and keep them for the final event."""
        tokens = new.tokens.tolist()
        columns = str(tokens)[1:-1], encode_floats(new.logps.tolist()), str(new.versions.tolist())[1:-1]
        if tokens:
            self._parts.setdefault(k, []).append(columns)
            self._counts[k] = self._counts.get(k, 0) + len(tokens)
        return columns


def _members(columns: Sequence[str]) -> str:
    """Return the columns of a completion as members of a JSON object."""
    tokens, logps, versions = columns
    return f'"tokens": [{tokens}], "logps": [{logps}], "versions": [{versions}]'


# ---------------------------------------------------------------------------------------------------------- reading


@dataclasses.dataclass
class TracedAnswer:
    """One completion; `finish` is None while it is incomplete."""

    tokens: list[int] = dataclasses.field(default_factory=list)
    logps: list[float] = dataclasses.field(default_factory=list)
    versions: list[int] = dataclasses.field(default_factory=list)
    finish: str | None = None
    text: str = ""
    rewards: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class TracedCall:
    """One call with its full prompt.

    `after` is the (call, k) that it continues, or None.
    """

    model: str
    prompt: list[int]
    after: tuple[str, int] | None
    fork: str | None
    answers: list[TracedAnswer]
    cancelled: bool = False


@dataclasses.dataclass
class SessionTrace:
    """One session from its events, with its calls by id, in order."""

    session: str
    models: tuple[str, ...] = ()
    metadata: Any = None
    calls: dict[str, TracedCall] = dataclasses.field(default_factory=dict)
    ended: bool = False


def read_events(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a file in order.

    A truncated last line is skipped. An invalid line elsewhere raises `TraceError`.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise TraceError(f"{path}:{number} is not JSON: {error}") from error


def read_traces(path: str | Path) -> dict[str, SessionTrace]:
    """Return all sessions of a file by id."""
    traces: dict[str, SessionTrace] = {}
    for event in read_events(path):
        _apply(traces.setdefault(event["session"], SessionTrace(event["session"])), event)
    return traces


def _apply(trace: SessionTrace, event: dict[str, Any]) -> None:
    kind = event["event"]
    if kind == "open":
        trace.models, trace.metadata = tuple(event["models"]), event["metadata"]
    elif kind == "call":
        after = None if event["after"] is None else tuple(event["after"])
        before: list[int] = []
        if after is not None:
            earlier = trace.calls[after[0]]
            answer = earlier.answers[after[1]].tokens
            before = (earlier.prompt + answer)[: event["start"]]
        trace.calls[event["call"]] = TracedCall(
            event["model"], before + event["prompt"], after, event["fork"], [TracedAnswer() for _ in range(event["n"])]
        )
    elif kind == "end":
        trace.ended = True
    else:
        _apply_to_call(trace.calls[event["call"]], event)


def _apply_to_call(call: TracedCall, event: dict[str, Any]) -> None:
    kind = event["event"]
    if kind == "tokens":
        answer = call.answers[event["k"]]
        answer.tokens += event["tokens"]
        answer.logps += decode_floats(event["logps"])
        answer.versions += event["versions"]
    elif kind == "answer":
        call.answers = [TracedAnswer(**one | {"logps": decode_floats(one["logps"])}) for one in event["answers"]]
    elif kind == "cancelled":
        call.cancelled = True
    elif kind == "reward":
        rewards = call.answers[event["k"]].rewards
        rewards[event["level"]] = rewards.get(event["level"], 0.0) + event["amount"]


def _whole_bytes(path: Path) -> int:
    """Return the size of a file without a truncated last line."""
    if not path.exists():
        return 0
    with open(path, "rb") as file:
        at = file.seek(0, os.SEEK_END)
        while at > 0:
            step = min(at, 1 << 16)
            file.seek(at - step)
            newline = file.read(step).rfind(b"\n")
            if newline >= 0:
                return at - step + newline + 1
            at -= step
    return 0
