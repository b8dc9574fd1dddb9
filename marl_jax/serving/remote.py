"""Models at OpenAI-compatible endpoints as players, for `--mode=eval` and `--mode=play`.

    http://127.0.0.1:8000/v1#solver      the model `solver` of a server; set OPENAI_API_KEY if it needs a key

In tasks a remote model is a speaker that uses bytes as tokens. Conversations are stored like any other, and a prompt is
split into messages again before it is sent. In games it is a bot (`remote_bot.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import http.client
import json
import logging
import os
import socket
import time
import urllib.parse
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from envs.tasks.replies import EpisodeError
from marl_jax.errors import RunError
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.settings import Sampling
from models import tokenizers
from models.chat import ChatParts, chat_parts

RETRIED = (408, 409, 425, 429, 500, 502, 503, 504)
KEY = "OPENAI_API_KEY"
LONGEST_WAIT = 10.0
CONNECTING = 5.0  # seconds to wait for a connection
SLOW = 10.0  # seconds between log messages while waiting
MOST_BYTES = 1 << 20  # maximum size of a conversation
MOST_ANSWER_BYTES = 16 << 20
log = logging.getLogger(__name__)


class RemoteError(RunError):
    """A remote model cannot be reached or rejects a request."""


class RemoteLost(EpisodeError):
    """A remote model returned no completion, so the episode fails."""

    reason = "remote_failed"


def is_remote(name: str) -> bool:
    """Return whether a player is a remote model."""
    return name.startswith(("http://", "https://"))


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
            valid = is_remote(name) and model and all(remote.address) and not urllib.parse.urlsplit(url).query
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
        body = {"model": self.model, "messages": list(messages), "n": n, "temperature": temperature,
                "max_tokens": max_tokens}  # fmt: skip
        body |= {} if seed is None else {"seed": seed}
        body |= {"stop": list(stop)} if stop else {}
        end, wait = time.monotonic() + self.deadline, 0.25
        while True:
            try:
                status, retry_after, value = self._send(json.dumps(body).encode(), end - time.monotonic())
                if status == 200:
                    return _choices(value, n, self.name)
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


def _choices(value: Any, n: int, name: str) -> list[tuple[str, str]]:
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


# ------------------------------------------------------------------------------------------------------------- tasks


@dataclasses.dataclass(frozen=True, eq=False)
class RemoteSampler:
    """A sampler whose completions come from a remote model.

    Log-probs are unknown and set to zero.
    """

    remote: RemoteModel

    @functools.cached_property
    def _codec(self) -> tuple[tokenizers.Tokenizer, ChatParts]:
        tokenizer = tokenizers.load("tiny")
        return tokenizer, chat_parts(tokenizer)

    async def answer(
        self, ids: Sequence[int], sampling: Sampling, policy: int = 0, n: int = 1, deadline: float | None = None
    ) -> list[Completion]:
        """See `BatcherThread.answer`. A failed request fails the episode."""
        tokenizer, parts = self._codec
        ask = functools.partial(
            self.remote.ask, messages_of(tokenizer.decode(ids), parts), n=n, temperature=sampling.temperature,
            max_tokens=sampling.max_new_tokens, seed=sampling.seed, stop=sampling.stop_strings,
        )  # fmt: skip
        try:
            completions = await asyncio.get_running_loop().run_in_executor(self.remote.threads, ask)
        except RemoteError as error:
            raise RemoteLost(str(error)) from error
        return [self._answer(text, finish) for text, finish in completions]

    def set_weights(self, policy: int, weights: Any, version: int) -> None:
        """Do nothing; the server has the weights."""

    def _answer(self, text: str, finish: str) -> Completion:
        tokenizer, _ = self._codec
        ids = tokenizer.encode(tokenizer.strip_special(text)) + [tokenizer.stop_ids[0]]
        zeros = np.zeros((len(ids),), np.float32)
        finish = "length" if finish == "length" else "stop"
        return Completion(np.asarray(ids, np.int32), zeros, finish, zeros.astype(np.int32))


def remote_speaker(name: str, sampling: Sampling) -> Speaker:
    """Return a speaker for tasks that uses a remote model and does not learn."""
    sampler = RemoteSampler(RemoteModel.parse(name))
    return Speaker(sampler, sampler._codec[0], sampling, MOST_BYTES, backbone=name, number=-1)


def messages_of(text: str, parts: ChatParts) -> list[dict[str, str]]:
    """Split the text of a conversation, as built by `Speaker`, into messages."""
    *before, rest = text.split(parts.user_close_and_reply)
    if rest or not before:
        raise ValueError(f"the conversation does not end with the start of a completion: {text[-80:]!r}")
    messages = []
    for i, piece in enumerate(before):
        if i:
            answer, close, piece = piece.partition(parts.reply_close_and_user)
            messages.append({"role": "assistant", "content": answer})
        elif piece.startswith(parts.system_open):
            system, _, piece = piece.removeprefix(parts.system_open).partition(parts.system_close + parts.user_open)
            messages.append({"role": "system", "content": system})
        else:
            piece = piece.removeprefix(parts.start)
        messages.append({"role": "user", "content": piece})
    return messages
