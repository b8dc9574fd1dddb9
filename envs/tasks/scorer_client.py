"""Client of a reward server: how likely answers are correct, by a verifier over HTTP.

    client = ScorerClient("http://127.0.0.1:8000", version="1f0e…")
    scores = await ask.record("score", client.score([[{"role": "user", …}, {"role": "assistant", …}], …]))

All failures (a server that is down, slow or has another version, or an invalid response) raise a `ScorerError`, which
ends the episode and not the run. The client only needs the standard library and never blocks the event loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import re
import ssl
import urllib.parse
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from envs.tasks.replies import EpisodeError

RETRIED = (408, 409, 425, 429, 500, 502, 503, 504)
SHOULD_RETRY = "x-should-retry"  # "false" in the head of an error that will not pass
MAX_HEAD = 64 << 10
FIRST_WAIT, LONGEST_WAIT = 0.25, 10.0
# str.isdigit accepts digits that int refuses, such as a superscript two, and int refuses thousands of digits.
STATUS, LENGTH = re.compile(r"[1-9][0-9]{2}(?![0-9])"), re.compile(r"[0-9]{1,18}")
CHUNK_LENGTH = re.compile(rb"[0-9a-fA-F]{1,16}")

Chat = Sequence[Mapping[str, str]]

_places: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
"""Semaphores that limit the connections to each server, by event loop."""


class ScorerError(EpisodeError):
    """A score could not be obtained."""

    reason = "scorer"


class ScorerUnavailable(ScorerError):
    """The server could not be reached, or did not respond in time."""

    reason = "scorer_unavailable"


class ScorerRefused(ScorerError):
    """The server rejected the request, for example because of a wrong key.

    Attributes:
        status: HTTP status of the response.
    """

    reason = "scorer_refused"

    def __init__(self, message: str, status: int = 0):
        super().__init__(message)
        self.status = status


class WrongScorer(ScorerError):
    """The server has another version of the verifier than required."""

    reason = "scorer_version"


class BadScores(ScorerError):
    """The response is invalid: not JSON, too few scores, or scores that are no probabilities."""

    reason = "scorer_nonsense"


class _TryAgain(Exception):
    """A failure that is worth a retry.

    Attributes:
        wait: Seconds to wait, as requested by the server.
    """

    def __init__(self, message: str, wait: float = 0.0):
        super().__init__(message)
        self.wait = wait


@dataclasses.dataclass(frozen=True)
class ScorerClient:
    """A client of one reward server.

    Attributes:
        url: http://HOST:PORT or https://…; /predict is appended.
        version: Version that the server must have, as GET /health shows it; "" accepts any.
        key_env: Environment variable with the API key. Keys do not belong in configs.
        deadline: Time limit of a call in seconds, including all retries.
        connections: Maximum number of open connections per event loop.
        max_bytes: Maximum size of a response.
    """

    url: str
    version: str = ""
    key_env: str = "MARL_JAX_KEY"
    deadline: float = 60.0
    connections: int = 64
    max_bytes: int = 4 << 20

    def __post_init__(self):
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"url is {self.url!r}, but must be http://HOST:PORT or https://…, optionally with a path")
        if not self.deadline > 0 or self.connections < 1 or self.max_bytes < 1:
            raise ValueError("deadline, connections and max_bytes must be positive")

    async def score(self, chats: Sequence[Chat]) -> list[float]:
        """Return the probability that the last message of each chat is a correct answer."""
        if not chats:
            return []
        body = json.dumps({"query_responses": [[dict(message) for message in chat] for chat in chats]}).encode()
        answer = await self._call("POST", "/predict", body)
        self._check_version(answer)
        scores = answer.get("result")
        if not isinstance(scores, list) or len(scores) != len(chats):
            result = f"{len(scores)} scores" if isinstance(scores, list) else f"result {str(scores)[:80]!r}"
            raise BadScores(f"{self.url} returned {result} for {len(chats)} chats")
        for i, score in enumerate(scores):
            number = isinstance(score, int | float) and not isinstance(score, bool)
            if not number or not 0 <= score <= 1:  # this also rejects NaN
                raise BadScores(f"{self.url} returned {str(score)[:80]} as score {i}, but scores must be 0 to 1")
        return [float(score) for score in scores]

    async def health(self) -> dict[str, Any]:
        """Return the server's health report, after a check of its version."""
        answer = await self._call("GET", "/health", b"")
        self._check_version(answer)
        return answer

    def _check_version(self, answer: Mapping[str, Any]) -> None:
        if self.version and answer.get("version") != self.version:
            version = str(answer.get("version", "none"))[:80]
            raise WrongScorer(f"{self.url} has version {version}, but must have {self.version}")

    async def _call(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        """Return the JSON object of the response, with retries until the deadline."""
        last, wait = "no attempt was made", FIRST_WAIT
        try:
            async with asyncio.timeout(self.deadline):
                while True:
                    try:
                        async with self._place():
                            status, headers, text = await self._exchange(method, path, body)
                        return self._read(status, headers, text)
                    except (_TryAgain, OSError, EOFError) as error:  # refused, reset or closed early
                        last = str(error) or type(error).__name__
                        requested = getattr(error, "wait", 0.0)
                    await asyncio.sleep(max(requested, wait * random.uniform(0.5, 1.0)))
                    await self._before_retry()
                    wait = min(2 * wait, LONGEST_WAIT)
        except TimeoutError:
            raise ScorerUnavailable(
                f"{self.url} did not respond within {self.deadline:g} s; last error: {last}"
            ) from None

    async def _before_retry(self) -> None:
        """Wait until another attempt is allowed; subclasses may limit their rate."""

    def _place(self) -> asyncio.Semaphore:
        places = _places.setdefault(asyncio.get_running_loop(), {})
        return places.setdefault((self.url, self.connections), asyncio.Semaphore(self.connections))

    def _read(self, status: int, headers: Mapping[str, str], text: bytes) -> dict[str, Any]:
        """Return the JSON object of a response, or raise the error that it reports."""
        if status in RETRIED and headers.get(SHOULD_RETRY) != "false":
            raise _TryAgain(f"status {status}: {_message(text)}", _seconds(headers.get("retry-after", "")))
        if status != 200:
            problem = f"{self.url} rejected the request with status {status}: {_message(text)}"
            raise ScorerRefused(problem, status)
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            raise BadScores(f"{self.url} returned invalid JSON: {text[:80]!r}") from None
        if not isinstance(answer, dict):
            raise BadScores(f"{self.url} returned a JSON {type(answer).__name__}, but must return an object")
        return answer

    async def _exchange(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send one request over a new connection and return status, headers and body."""
        parts = urllib.parse.urlsplit(self.url)
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or (443 if secure else 80)
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure, limit=MAX_HEAD)
        try:
            writer.write(self._head(method, parts, path, len(body)) + body)
            await writer.drain()
            return await self._response(reader)
        except asyncio.LimitOverrunError:
            raise BadScores(f"{self.url} returned a line of more than {MAX_HEAD} bytes") from None
        finally:
            writer.transport.abort()

    def _head(self, method: str, parts: urllib.parse.SplitResult, path: str, length: int) -> bytes:
        lines = [
            f"{method} {parts.path.rstrip('/')}{path} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}",
            "Content-Type: application/json", f"Content-Length: {length}", "Accept: application/json",
            "Connection: close",
        ]  # fmt: skip
        key = os.environ.get(self.key_env, "") if self.key_env else ""
        lines += [f"Authorization: Bearer {key}"] if key else []
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    async def _response(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, _, rest = head[0].partition(" ")
        if not version.startswith("HTTP/1.") or not STATUS.match(rest):
            raise BadScores(f"{self.url} does not speak HTTP: {head[0][:80]!r}")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        return int(rest[:3]), headers, await self._body(reader, headers)

    async def _body(self, reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await self._chunks(reader)
        length = headers.get("content-length", "")
        if length and not LENGTH.fullmatch(length):
            raise BadScores(f"{self.url} returned the content length {length[:80]!r}")
        if length:
            if int(length) > self.max_bytes:
                raise self._too_large()
            return await reader.readexactly(int(length))
        text = bytearray()
        while part := await reader.read(64 << 10):
            text += part
            if len(text) > self.max_bytes:
                raise self._too_large()
        return bytes(text)

    async def _chunks(self, reader: asyncio.StreamReader) -> bytes:
        text = bytearray()  # chunks may be many and small
        while True:
            line = (await reader.readuntil(b"\r\n")).partition(b";")[0].strip()
            if not CHUNK_LENGTH.fullmatch(line):
                raise BadScores(f"{self.url} returned a chunk of length {line[:80]!r}")
            size = int(line, 16)
            if len(text) + size > self.max_bytes:
                raise self._too_large()
            if size == 0:
                return bytes(text)
            chunk = await reader.readexactly(size + 2)
            if not chunk.endswith(b"\r\n"):
                raise BadScores(f"{self.url} returned a chunk without an end")
            text += chunk[:-2]

    def _too_large(self) -> BadScores:
        return BadScores(f"{self.url} returned more than {self.max_bytes} bytes")


def _message(text: bytes) -> str:
    """Return the message of an error response, in OpenAI's format or as plain text."""
    try:
        return str(json.loads(text)["error"]["message"])[:200]
    except (ValueError, KeyError, TypeError, RecursionError):
        return text[:200].decode("utf-8", "replace")


def _seconds(text: str) -> float:
    """Parse a Retry-After header as seconds; dates and invalid values are 0."""
    return min(float(text), LONGEST_WAIT) if text.isascii() and text.isdigit() else 0.0
