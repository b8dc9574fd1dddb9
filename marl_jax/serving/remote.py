"""Models at OpenAI-compatible endpoints as players.

    http://127.0.0.1:8000/v1#solver      the model `solver` of a server; set OPENAI_API_KEY if it needs a key

In tasks a remote model is a speaker (`remote_speaker.py`), in games a bot (`remote_bot.py`), which uses `RemoteModel`.
"""

from __future__ import annotations

import dataclasses
import functools
import http.client
import json
import logging
import os
import socket
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

from marl_jax.errors import RunError

RETRIED = (408, 409, 425, 429, 500, 502, 503, 504)
KEY = "OPENAI_API_KEY"
LONGEST_WAIT = 10.0
CONNECTING = 5.0  # seconds to wait for a connection
SLOW = 10.0  # seconds between log messages while waiting
MOST_ANSWER_BYTES = 16 << 20
log = logging.getLogger(__name__)


class RemoteError(RunError):
    """A remote model cannot be reached or rejects a request."""


def is_remote(name: str) -> bool:
    """Return whether a player is a remote model."""
    return name.startswith(("http://", "https://"))


def is_endpoint(name: str) -> bool:
    """Return whether a name is URL#MODEL."""
    return is_remote(name) and "#" in name


def check_reachable(names: Sequence[str], field: str) -> None:
    """Raise if the server of a remote model accepts no connection; call it before compilation."""
    for name in filter(is_remote, names):
        host, port = RemoteModel.parse(name).address
        try:
            socket.create_connection((host, port), timeout=CONNECTING).close()
        except OSError as error:
            problem = f"{host}:{port} cannot be reached: {error.strerror or error}"
            raise RemoteError(f"config.{field} has {name!r}, but {problem}") from error


@dataclasses.dataclass(frozen=True)
class RemoteModel:
    """One model of a server.

    Attributes:
        url: URL of the API, ending with its version, such as /v1.
        model: Name of the model.
        deadline: Time limit for a completion in seconds, including retries.
        connections: Maximum number of concurrent requests.
    """

    url: str
    model: str
    deadline: float = 120.0
    connections: int = 32

    @classmethod
    def parse(cls, name: str) -> RemoteModel:
        """Create a model from URL#MODEL; the URL ends with the API version, such as /v1."""
        url, _, model = name.partition("#")
        remote = cls(url.rstrip("/"), model)
        try:
            parts = urllib.parse.urlsplit(url)
            valid = is_remote(name) and model and all(remote.address) and not parts.query and parts.username is None
        except ValueError:  # an invalid port, or unmatched brackets
            valid = False
        if not valid:
            raise RemoteError(f"the remote model is {name!r}, but must be http://HOST:PORT/v1#MODEL")
        return remote

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the server."""
        parts = urllib.parse.urlsplit(self.url)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def name(self) -> str:
        """Name in configs, URL#MODEL."""
        return f"{self.url}#{self.model}"

    def ask(
        self, messages: Sequence[dict[str, str]], *, n: int = 1, temperature: float = 0.0, max_tokens: int = 256,
        seed: int | None = None, stop: Sequence[str] = (),
    ) -> list[tuple[str, str]]:  # fmt: skip
        """Return (text, finish reason) of each completion; blocks.

        Retries until the deadline while the server is busy.
        """
        body = request_body(self.model, messages, n, temperature, max_tokens, seed, stop)
        end, wait = time.monotonic() + self.deadline, 0.25
        while True:
            try:
                status, retry_after, value = self._send(json.dumps(body).encode(), end - time.monotonic())
                if status == 200:
                    return choices_of(value, n, self.name)
                problem = f"status {status}: {_message(value)}"
                if status not in RETRIED:
                    raise RemoteError(f"{self.name} rejected the request with {problem}")
            except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a header is no number
                problem, retry_after = str(error) or type(error).__name__, 0.0
            if time.monotonic() + max(wait, retry_after) >= end:
                raise RemoteError(f"{self.name} returned no completion in {self.deadline:g} s; last error: {problem}")
            time.sleep(max(wait, retry_after))
            wait = min(2 * wait, LONGEST_WAIT)

    def ask_all(self, chats: Sequence[Sequence[dict[str, str]]], **settings: Any) -> list[str]:
        """Return one completion for each conversation, requested concurrently.

        With greedy decoding, equal conversations are requested once.
        """
        keys = [json.dumps(list(chat)) if settings.get("temperature", 0.0) == 0 else i for i, chat in enumerate(chats)]
        unique = dict(zip(keys, chats, strict=True))
        futures = {key: self.threads.submit(self.ask, chat, **settings) for key, chat in unique.items()}
        begin, waiting = time.monotonic(), futures.values()
        while waiting:
            done, waiting = wait(waiting, SLOW, FIRST_EXCEPTION)
            if failed := next(filter(None, (future.exception() for future in done)), None):
                for future in waiting:
                    future.cancel()
                raise failed
            if waiting:
                seconds = time.monotonic() - begin
                finished = len(futures) - len(waiting)
                log.info("%s: %d of %d completions after %.0f s", self.name, finished, len(futures), seconds)
        return [futures[key].result()[0][0] for key in keys]

    @functools.cached_property
    def threads(self) -> ThreadPoolExecutor:
        """Threads that wait for responses."""
        return ThreadPoolExecutor(self.connections, thread_name_prefix="remote")

    def _send(self, body: bytes, seconds: float) -> tuple[int, float, Any]:
        """Send one attempt and return (status, Retry-After in seconds, JSON value)."""
        parts = urllib.parse.urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(*self.address, timeout=max(seconds, 0.1))
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY, ""):
            headers["Authorization"] = f"Bearer {key}"
        try:
            connection.request("POST", f"{parts.path}/chat/completions", body, headers)
            response = connection.getresponse()
            text, after = response.read(MOST_ANSWER_BYTES), response.getheader("Retry-After", "")
        finally:
            connection.close()
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if response.getheader("x-should-retry") == "false" and response.status in RETRIED:
            raise RemoteError(f"{self.name} failed with status {response.status}: {_message(value)}")
        return response.status, min(float(after), 60.0) if after.isascii() and after.isdigit() else 0.0, value


def request_body(
    model: str, messages: Sequence[Mapping[str, str]], n: int, temperature: float, max_tokens: int, seed: int | None,
    stop: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    """Return the body of a request for chat completions."""
    body: dict[str, Any] = {
        "model": model, "messages": [dict(message) for message in messages], "n": n, "temperature": temperature,
        "max_tokens": max_tokens,
    }  # fmt: skip
    body |= {} if seed is None else {"seed": seed}
    return body | ({"stop": list(stop)} if stop else {})


def choices_of(value: Any, n: int, name: str) -> list[tuple[str, str]]:
    """Return (text, finish reason) of each completion of a response.

    Raises:
        RemoteError: The response does not have n completions.
    """
    try:
        chosen = [(one["message"]["content"] or "", one["finish_reason"] or "stop") for one in value["choices"]]
        if len(chosen) == n and all(text.encode() is not None for text, _ in chosen):  # lone surrogates are no text
            return chosen
    except (AttributeError, LookupError, TypeError, ValueError):
        pass
    raise RemoteError(f"{name} did not return {n} choices: {str(value)[:200]}")


def _message(value: Any) -> str:
    try:
        return str(value["error"]["message"])[:300]
    except (TypeError, KeyError):
        return str(value)[:300]
