"""Traces: everything that happens in sessions, as JSON lines in one file.

    {"event": "open", "session", "seed", "models", "metadata"}
    {"event": "call", "session", "call", "model", "after": [call, k] | null, "fork": reason | null,
     "start", "prompt": [ids that follow the answer `after`], "n", "sampling"}
    {"event": "tokens", "session", "call", "k", "tokens", "logps", "versions"}         while an answer is streamed
    {"event": "answer", "session", "call", "answers": [{"tokens", "logps", "versions", "finish", "text"}]}
    {"event": "cancelled", "session", "call", "reason"}
    {"event": "reward", "session", "call", "k", "level", "amount"}
    {"event": "end", "session"}

A line is with the operating system before the bytes that depend on it are sent, and on disk (fsync) before an answer is
complete for its client. So a process that is killed loses no answer that a client has; its last line may be torn.
Log-probs have nine digits, which tell every float32 from its neighbours: `read_traces` gives back the exact values.
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
from marl_jax.sampling.conversation import Completion

log = logging.getLogger(__name__)

encode = json.JSONEncoder(ensure_ascii=False).encode


class TraceError(RunError):
    """The traces cannot be written or read."""


class TraceFile:
    """Appends events to a file.

    path    None: nothing is kept
    shared  the file has been opened by another process, and several append to it; lines are not torn, because each
            write of a batch of whole lines is one of the system's

    A file belongs to one event loop at a time.
    """

    def __init__(self, path: str | Path | None, shared: bool = False):
        self.path = None if path is None else Path(path)
        self._lines: LineWriter | None = None
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            whole = None if shared else _whole_bytes(self.path)
            file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (closed by `close`)
            if whole is not None:
                file.truncate(whole)
        except OSError as error:
            raise TraceError(f"the traces {self.path} cannot be opened: {error}") from error
        self._lines = LineWriter(file, f"the traces {self.path}", TraceError)

    async def write(self, event: dict[str, Any], sync: bool = False) -> None:
        """Returns when the event is written; with `sync` it is on disk. Events keep their order."""
        if self._lines is not None:
            await self._lines.write(encode(event), sync)

    async def write_line(self, line: str) -> None:
        """Returns when an event that is JSON already is on disk."""
        if self._lines is not None:
            await self._lines.write(line, sync=True)

    def add(self, line: str, then: Callable[[], None] | None = None) -> None:
        """Writes an event that is JSON already; `then` is called when that is done, and not if it fails."""
        if self._lines is not None:
            self._lines.add(line, False, then)
        elif then is not None:
            then()

    @property
    def kept(self) -> bool:
        """Whether anything is written."""
        return self._lines is not None

    def close(self) -> None:
        """Closes the file; what was written is complete."""
        if self._lines is not None:
            self._lines.close()


def encode_floats(values: Sequence[float]) -> str:
    """Values of a float32 array as JSON, without brackets: a quarter of the time that the shortest digits take."""
    text = ", ".join(("%.9g",) * len(values)) % tuple(values)
    return encode(values)[1:-1] if "n" in text else text  # infinities and NaN have names of their own


def decode_floats(values: Sequence[float]) -> list[float]:
    """What `encode_floats` was given, from the numbers that JSON has."""
    return np.asarray(values, np.float32).tolist()


class CallTrace:
    """The events of one call of a session. Numbers are written as JSON once, however many events have them."""

    def __init__(self, traces: TraceFile, session: str, call: str):
        self._traces = traces
        self._head = encode({"session": session, "call": call})[:-1]
        self._parts: dict[int, list[tuple[str, str, str]]] = {}  # of answer k: its columns as JSON without brackets
        self._counts: dict[int, int] = {}

    def add(self, event: dict[str, Any]) -> None:
        """Writes an event for which nobody has to wait: those that come later are behind it."""
        if self._traces.kept:
            self._traces.add(f"{self._head}, {encode(event)[1:]}")

    def add_tokens(self, k: int, new: Completion, then: Callable[[], None]) -> None:
        """Writes what is new of answer k; `then` is called when it is with the operating system."""
        if not self._traces.kept:
            return then()
        self._traces.add(f'{self._head}, "event": "tokens", "k": {k}, {_members(self._encode(k, new))}}}', then)

    async def write_answers(self, answers: Sequence[Completion], texts: Sequence[str]) -> None:
        """Returns when the answers are on disk; what has been streamed of each is its beginning."""
        if not self._traces.kept:
            return
        found = []
        for k, (answer, text) in enumerate(zip(answers, texts, strict=True)):
            n = self._counts.get(k, 0)
            self._encode(k, Completion(answer.tokens[n:], answer.logps[n:], answer.finish, answer.versions[n:]))
            columns = [", ".join(parts) for parts in zip(*self._parts.get(k, [("", "", "")]), strict=True)]
            found.append(f'{{{_members(columns)}, "finish": "{answer.finish}", "text": {encode(text)}}}')
        await self._traces.write_line(f'{self._head}, "event": "answer", "answers": [{", ".join(found)}]}}')

    def _encode(self, k: int, new: Completion) -> tuple[str, str, str]:
        """The columns of what is new, which are kept for the whole answer."""
        tokens = new.tokens.tolist()
        found = str(tokens)[1:-1], encode_floats(new.logps.tolist()), str(new.versions.tolist())[1:-1]
        if tokens:
            self._parts.setdefault(k, []).append(found)
            self._counts[k] = self._counts.get(k, 0) + len(tokens)
        return found


def _members(columns: Sequence[str]) -> str:
    """The numbers of an answer as members of a JSON object."""
    tokens, logps, versions = columns
    return f'"tokens": [{tokens}], "logps": [{logps}], "versions": [{versions}]'


# ---------------------------------------------------------------------------------------------------------- reading


@dataclasses.dataclass
class TracedAnswer:
    """One answer; `finish` is None while it is incomplete."""

    tokens: list[int] = dataclasses.field(default_factory=list)
    logps: list[float] = dataclasses.field(default_factory=list)
    versions: list[int] = dataclasses.field(default_factory=list)
    finish: str | None = None
    text: str = ""
    rewards: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class TracedCall:
    """One call with its whole prompt; `after` is the answer (call, k) that it continues, or None."""

    model: str
    prompt: list[int]
    after: tuple[str, int] | None
    fork: str | None
    answers: list[TracedAnswer]
    cancelled: bool = False


@dataclasses.dataclass
class SessionTrace:
    """One session as its events tell it; calls by their ids, in order."""

    session: str
    models: tuple[str, ...] = ()
    metadata: Any = None
    calls: dict[str, TracedCall] = dataclasses.field(default_factory=dict)
    ended: bool = False


def read_events(path: str | Path) -> Iterator[dict[str, Any]]:
    """The events of a file in order; a last line that was cut short is left out, a damaged one elsewhere refused."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield json.loads(line)
            except ValueError as error:
                raise TraceError(f"{path}:{number} is no JSON: {error}") from error


def read_traces(path: str | Path) -> dict[str, SessionTrace]:
    """Every session of a file."""
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
    """The size of a file without a last line that was cut short."""
    if not path.exists():
        return 0
    with open(path, "rb") as file:
        at = file.seek(0, os.SEEK_END)
        while at > 0:
            step = min(at, 1 << 16)
            file.seek(at - step)
            found = file.read(step).rfind(b"\n")
            if found >= 0:
                return at - step + found + 1
            at -= step
    return 0
