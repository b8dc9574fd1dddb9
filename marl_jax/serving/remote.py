"""Models behind an OpenAI-compatible endpoint as players, for `--mode=eval` and `--mode=play`.

    http://127.0.0.1:8000/v1#solver      the model `solver` of a server; the key is in OPENAI_API_KEY, if it needs one

In tasks a remote model is a speaker whose tokens are bytes: chats are kept as for any other, and what the speaker is
asked is taken apart into messages again. In games it is a bot (`remote_bot.py`).
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
CONNECTING = 5.0  # seconds in which a server takes a connection
SLOW = 10.0  # seconds after which a wait is logged
MOST_BYTES = 1 << 20  # of a chat
MOST_ANSWER_BYTES = 16 << 20
log = logging.getLogger(__name__)


class RemoteError(RunError):
    """A remote model that cannot be reached, or that refuses."""


class RemoteLost(EpisodeError):
    """A remote model gave no answer, which costs the episode."""

    reason = "remote_failed"


def is_remote(name: str) -> bool:
    """Whether a player is a remote model."""
    return name.startswith(("http://", "https://"))


def check_reachable(names: Sequence[str], field: str) -> None:
    """Refuses remote models whose server takes no connection; to be called before anything is compiled."""
    for name in filter(is_remote, names):
        host, port = RemoteModel.parse(name).address
        try:
            socket.create_connection((host, port), timeout=CONNECTING).close()
        except OSError as error:
            problem = f"no connection to {host}:{port}: {error.strerror or error}"
            raise RemoteError(f"config.{field} has {name!r}, {problem}") from error


@dataclasses.dataclass(frozen=True)
class RemoteModel:
    """One model of a server.

    deadline     seconds for an answer, all attempts together
    connections  requests at once
    """

    url: str
    model: str
    deadline: float = 120.0
    connections: int = 32

    @classmethod
    def parse(cls, name: str) -> RemoteModel:
        """From URL#MODEL; the URL ends with the version of the API, such as /v1."""
        url, _, model = name.partition("#")
        remote = cls(url.rstrip("/"), model)
        try:
            whole = is_remote(name) and model and all(remote.address) and not urllib.parse.urlsplit(url).query
        except ValueError:  # a port that is no number, brackets that do not match
            whole = False
        if not whole:
            raise RemoteError(f"{name!r} is no remote model, but must be http://HOST:PORT/v1#MODEL")
        return remote

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the server."""
        parts = urllib.parse.urlsplit(self.url)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def name(self) -> str:
        """As it is written in configs."""
        return f"{self.url}#{self.model}"

    def ask(
        self, messages: Sequence[dict[str, str]], *, n: int = 1, temperature: float = 0.0, max_tokens: int = 256,
        seed: int | None = None, stop: Sequence[str] = (),
    ) -> list[tuple[str, str]]:  # fmt: skip
        """(text, why it ended) of each answer; blocks. Asks again where the server is busy, until the deadline."""
        body = {"model": self.model, "messages": list(messages), "n": n, "temperature": temperature,
                "max_tokens": max_tokens}  # fmt: skip
        body |= {} if seed is None else {"seed": seed}
        body |= {"stop": list(stop)} if stop else {}
        end, wait = time.monotonic() + self.deadline, 0.25
        while True:
            try:
                status, asked, found = self._send(json.dumps(body).encode(), end - time.monotonic())
                if status == 200:
                    return _choices(found, n, self.name)
                problem = f"status {status}: {_message(found)}"
                if status not in RETRIED:
                    raise RemoteError(f"{self.name} refused with {problem}")
            except (OSError, http.client.HTTPException) as error:
                problem, asked = str(error) or type(error).__name__, 0.0
            if time.monotonic() + max(wait, asked) >= end:
                raise RemoteError(f"{self.name} gave no answer in {self.deadline:g} s; last: {problem}")
            time.sleep(max(wait, asked))
            wait = min(2 * wait, LONGEST_WAIT)

    def ask_all(self, chats: Sequence[Sequence[dict[str, str]]], **settings: Any) -> list[str]:
        """One answer to each chat, asked side by side; equal chats are asked once where answers are greedy."""
        keys = [json.dumps(list(chat)) if settings.get("temperature", 0.0) == 0 else i for i, chat in enumerate(chats)]
        unique = dict(zip(keys, chats, strict=True))
        asked = {key: self.threads.submit(self.ask, chat, **settings) for key, chat in unique.items()}
        begin, waiting = time.monotonic(), asked.values()
        while waiting:
            done, waiting = wait(waiting, SLOW, FIRST_EXCEPTION)
            if failed := next(filter(None, (future.exception() for future in done)), None):
                for future in waiting:
                    future.cancel()
                raise failed
            if waiting:
                seconds = time.monotonic() - begin
                log.info("%s: %d of %d answers after %.0f s", self.name, len(asked) - len(waiting), len(asked), seconds)
        return [asked[key].result()[0][0] for key in keys]

    @functools.cached_property
    def threads(self) -> ThreadPoolExecutor:
        """Those in which requests wait."""
        return ThreadPoolExecutor(self.connections, thread_name_prefix="remote")

    def _send(self, body: bytes, seconds: float) -> tuple[int, float, Any]:
        """(status, seconds to wait that the server asks for, JSON value) of one attempt."""
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
        return response.status, min(float(after), 60.0) if after.isdigit() else 0.0, value


def _choices(found: Any, n: int, name: str) -> list[tuple[str, str]]:
    try:
        chosen = [(one["message"]["content"] or "", one["finish_reason"] or "stop") for one in found["choices"]]
        if len(chosen) == n and all(isinstance(text, str) for text, _ in chosen):
            return chosen
    except (TypeError, KeyError, LookupError):
        pass
    raise RemoteError(f"{name} answered with something else than {n} choices: {str(found)[:200]}")


def _message(found: Any) -> str:
    try:
        return str(found["error"]["message"])[:300]
    except (TypeError, KeyError):
        return str(found)[:300]


# ------------------------------------------------------------------------------------------------------------- tasks


@dataclasses.dataclass(frozen=True, eq=False)
class RemoteSampler:
    """Answers of a remote model where those of a sampler are expected; log-probs are unknown, and zero."""

    remote: RemoteModel

    @functools.cached_property
    def _codec(self) -> tuple[tokenizers.Tokenizer, ChatParts]:
        tokenizer = tokenizers.load("tiny")
        return tokenizer, chat_parts(tokenizer)

    async def answer(
        self, ids: Sequence[int], sampling: Sampling, policy: int = 0, n: int = 1, deadline: float | None = None
    ) -> list[Completion]:
        """As `BatcherThread.answer`; what the remote model refuses costs the episode."""
        tokenizer, parts = self._codec
        ask = functools.partial(
            self.remote.ask, messages_of(tokenizer.decode(ids), parts), n=n, temperature=sampling.temperature,
            max_tokens=sampling.max_new_tokens, seed=sampling.seed, stop=sampling.stop_strings,
        )  # fmt: skip
        try:
            found = await asyncio.get_running_loop().run_in_executor(self.remote.threads, ask)
        except RemoteError as error:
            raise RemoteLost(str(error)) from error
        return [self._answer(text, finish) for text, finish in found]

    def set_weights(self, policy: int, weights: Any, version: int) -> None:
        """Nothing: the weights are the server's."""

    def _answer(self, text: str, finish: str) -> Completion:
        tokenizer, _ = self._codec
        ids = tokenizer.encode(tokenizer.strip_special(text)) + [tokenizer.stop_ids[0]]
        zeros = np.zeros((len(ids),), np.float32)
        finish = "length" if finish == "length" else "stop"
        return Completion(np.asarray(ids, np.int32), zeros, finish, zeros.astype(np.int32))


def remote_speaker(name: str, sampling: Sampling) -> Speaker:
    """A remote model as a speaker of tasks; it does not learn."""
    sampler = RemoteSampler(RemoteModel.parse(name))
    return Speaker(sampler, sampler._codec[0], sampling, MOST_BYTES, backbone=name, number=-1)


def messages_of(text: str, parts: ChatParts) -> list[dict[str, str]]:
    """The messages of a chat from its text, which `Speaker` has put together from these parts."""
    *before, rest = text.split(parts.user_close_and_reply)
    if rest or not before:
        raise ValueError(f"the chat does not end where an answer begins: {text[-80:]!r}")
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
