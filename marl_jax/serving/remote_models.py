"""Remote models of a run: requests with a cache, limits and a journal.

    models = RemoteModels(RemoteSettings(requests_per_minute=60), folder)
    models.check({"config.agents.user": "http://127.0.0.1:8000/v1#main"})        # before anything compiles
    [(text, finish)] = await models.complete("http://127.0.0.1:8000/v1#main", messages, max_tokens=64)

Every response is stored by the hash of its whole request, so that an interrupted run repeats none. A request that fails
until its deadline fails its episode only. A limit of cost and a change of the served model stop the run (`RunStopped`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from envs.tasks.judges import ChatClient, VerdictCache
from envs.tasks.scorer_client import ScorerError, ScorerRefused
from marl_jax.rollouts.host.conversation import RemoteLost
from marl_jax.running.private_files import make_private, make_private_folder
from marl_jax.serving.remote import CONNECTING, RemoteError, RemoteModel, choices_of, request_body
from marl_jax.serving.remote_limits import Clock, CostMeter, RateLimit, ServedModels, Sleep

FOLDER = "remote"
"""Folder of a run for responses, costs and names of served models."""
IN_RUN = "run"  # value of `remote.cache`
MESSAGE_TOKENS = 16
"""Maximum number of tokens that a chat template adds to a message."""
NO_LIST = (404, 405, 501)  # statuses of servers without a list of models


@dataclasses.dataclass(frozen=True)
class RemoteSettings:
    """Values of `config.remote`; see their help texts."""

    cache: str = IN_RUN
    max_cost: float = 0.0
    price_in: float = 0.0
    price_out: float = 0.0
    requests_per_minute: int = 0
    drift: str = "stop"
    key_env: str = "OPENAI_API_KEY"
    deadline: float = 120.0
    connections: int = 32

    @classmethod
    def from_config(cls, config: ConfigDict) -> RemoteSettings:
        """Create settings from `config.remote`."""
        return cls(**config.to_dict())


@dataclasses.dataclass(frozen=True)
class _Client(ChatClient):
    """A client whose retries respect the rate limit."""

    rate: RateLimit = RateLimit(0)

    async def _before_retry(self) -> None:
        await self.rate.wait()


class RemoteModels:
    """The remote models of a run, which share its limits.

    Args:
        settings: Limits.
        folder: Folder for responses, costs and names of served models; None keeps nothing.
        process: Index of this process and number of processes, among which the limits are divided.
        clock: Returns the time in seconds.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        settings: RemoteSettings,
        folder: Path | None = None,
        process: tuple[int, int] = (0, 1),
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ):
        number, count = process
        suffix = f".process_{number}" if number else ""
        file = lambda name, end: None if folder is None else folder / f"{name}{suffix}{end}"  # noqa: E731
        per_minute, prices = settings.requests_per_minute, (settings.price_in, settings.price_out)
        self.settings = settings
        self._rate = RateLimit(max(per_minute // count, 1) if per_minute else 0, clock, sleep)
        self._meter = CostMeter(file("cost", ".jsonl"), prices, settings.max_cost / count, sleep)
        self._served = ServedModels(file("models", ".json"), settings.drift)
        place = file("responses", ".jsonl") if settings.cache == IN_RUN else settings.cache and Path(settings.cache)
        self._cache = VerdictCache(place) if place else None
        self._requests = self._cached = 0

    @property
    def totals(self) -> dict[str, float]:
        """Numbers of requests and of cached responses, and the cost so far."""
        return {"requests": self._requests, "cached": self._cached, "cost": self._meter.total}

    async def complete(
        self, place: str, messages: Sequence[Mapping[str, str]], *, n: int = 1, temperature: float = 0.0,
        max_tokens: int = 256, seed: int | None = None, stop: Sequence[str] = (),
    ) -> list[tuple[str, str]]:  # fmt: skip
        """Return (text, finish reason) of each completion.

        Raises:
            RemoteLost: There is no usable response before the deadline.
            RunStopped: The next request may exceed the maximum cost, or the endpoint serves another model.
        """
        remote = RemoteModel.parse(place)
        body = request_body(remote.model, messages, n, temperature, max_tokens, seed, stop)
        key = (remote.url, json.dumps(body, sort_keys=True))
        known = None if self._cache is None else self._cache.get(key)
        if known is not None:
            self._cached += 1
            self._served.check(place, known)
            return [(text, finish) for text, finish in known["choices"]]
        await self._rate.wait()
        length = sum(len(text.encode("utf-8", "replace")) + MESSAGE_TOKENS for m in messages for text in m.values())
        number = await self._meter.reserve(length, n * max_tokens)
        self._requests += 1
        try:
            answer = await self._client(remote).request(body)
            chosen = choices_of(answer, n, place)
            self._served.check(place, answer)
            self._store(key, answer, chosen)
            self._meter.settle(number, answer.get("usage"))
        except (ScorerError, RemoteError) as error:
            raise RemoteLost(self._clean(str(error))) from None
        finally:
            self._meter.end(number)
        return chosen

    def check(self, places: Mapping[str, str]) -> None:
        """Check that endpoints can be reached, accept the key and serve their model.

        Args:
            places: URL#MODEL by the name of its field.

        Raises:
            RemoteError: One of them does not.
        """
        for field, place in places.items():
            try:
                asyncio.run(self._check(place))
            except (ScorerError, RemoteError) as error:
                raise RemoteError(f"{field} is {place!r}, but {self._clean(str(error))}") from None

    async def _check(self, place: str) -> None:
        remote = RemoteModel.parse(place)
        client = dataclasses.replace(self._client(remote), deadline=min(CONNECTING, self.settings.deadline))
        try:
            served = await client.models()
        except ScorerRefused as error:
            if error.status not in NO_LIST:
                raise
            return
        if remote.model not in served:
            known = ", ".join(sorted(served)[:20]) or "none"
            raise RemoteError(f"{remote.url} does not serve {remote.model!r}; its models: {known}")

    def _client(self, remote: RemoteModel) -> _Client:
        s = self.settings
        return _Client(
            remote.url, key_env=s.key_env, deadline=s.deadline, connections=s.connections, model=remote.model,
            rate=self._rate,
        )  # fmt: skip

    def _store(self, key: tuple[str, str], answer: Mapping[str, Any], chosen: list[tuple[str, str]]) -> None:
        if self._cache is None:
            return
        if not self._cache.path.exists():
            make_private_folder(self._cache.path.parent)
            make_private(self._cache.path)
        kept = {name: answer.get(name) for name in ("model", "system_fingerprint")}
        self._cache.put(key, kept | {"choices": chosen})

    def _clean(self, text: str) -> str:
        """Remove the API key from a message, which a server may have repeated."""
        key = os.environ.get(self.settings.key_env, "") if self.settings.key_env else ""
        return text.replace(key, "***") if key else text
