"""Limits of requests to remote models: rate, cost, and changes of served models.

All state is in files of the run folder that are appended to or replaced before a request is sent or its response is
used, so that it survives an interruption.
"""

from __future__ import annotations

import asyncio
import collections
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from marl_jax.errors import RunStopped
from marl_jax.running.private_files import make_private_folder

log = logging.getLogger(__name__)

MINUTE = 60.0
LOOK = 0.05
"""Seconds between checks whether other requests have cost less than their reservation."""
MILLION = 1e6

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]


class RateLimit:
    """A maximum number of requests in any minute.

    Args:
        per_minute: The maximum; 0 for no limit.
        clock: Returns the time in seconds.
        sleep: Waits for a number of seconds.
    """

    def __init__(self, per_minute: int, clock: Clock = time.monotonic, sleep: Sleep = asyncio.sleep):
        self._most, self._clock, self._sleep = per_minute, clock, sleep
        self._sent: collections.deque[float] = collections.deque()

    async def wait(self) -> None:
        """Wait until another request is allowed, and count it."""
        while self._most:
            now = self._clock()
            while self._sent and now >= self._sent[0] + MINUTE:
                self._sent.popleft()
            if len(self._sent) < self._most:
                self._sent.append(now)
                return
            await self._sleep(self._sent[0] + MINUTE - now)


class CostMeter:
    """The cost of all requests of a run.

    The highest possible cost of a request is reserved before it is sent, and replaced by that of its usage afterwards.
    A request without a response, for example because the run was killed, keeps counting with its reservation.

    Args:
        path: File of the costs, one JSON line {"request": number, "cost": …} for each reservation and each settlement;
            None keeps no file.
        prices: Prices of a million prompt tokens and of a million completion tokens.
        most: Maximum cost; 0 for no limit.
        sleep: Waits for a number of seconds.
    """

    def __init__(self, path: Path | None, prices: tuple[float, float], most: float, sleep: Sleep = asyncio.sleep):
        self._path, self._prices, self._most, self._sleep = path, prices, most, sleep
        self._costs: dict[int, float] = {}
        self._open: set[int] = set()
        data = path.read_bytes() if path is not None and path.exists() else b""
        for line in data.splitlines():
            try:
                value = json.loads(line)
                self._costs[int(value["request"])] = float(value["cost"])
            except (ValueError, KeyError, TypeError):
                continue  # a line that was cut off
        self._start = b"" if data.endswith(b"\n") or not data else b"\n"
        self._next = max(self._costs, default=-1) + 1
        self._total = sum(self._costs.values())

    @property
    def total(self) -> float:
        """Cost so far, including reservations."""
        return self._total

    async def reserve(self, prompt_tokens: int, completion_tokens: int) -> int:
        """Reserve the cost of a request and return its number.

        Waits while requests in flight may turn out to be cheaper than their reservations.

        Raises:
            RunStopped: The request could exceed the maximum cost.
        """
        cost = self._cost(prompt_tokens, completion_tokens)
        while self._most and self._total + cost > self._most:
            if not self._open:
                raise RunStopped(
                    f"config.remote.max_cost is {self._most:g}, but {self._total:.6g} are spent and the next request "
                    f"may cost {cost:.3g}. Raise it to continue the run"
                )
            await self._sleep(LOOK)
        number, self._next = self._next, self._next + 1
        self._open.add(number)
        self._note(number, cost)
        return number

    def settle(self, number: int, usage: Any) -> None:
        """Replace a reservation by the cost of the usage.

        Raises:
            RunStopped: There is a maximum cost, but the response has no usage.
        """
        try:
            prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
            if not all(isinstance(count, int) and count >= 0 for count in (prompt, completion)):
                raise ValueError
        except (TypeError, KeyError, ValueError):
            if self._most:
                raise RunStopped(
                    f"config.remote.max_cost is {self._most:g}, but the endpoint returned no usage to compute costs "
                    "from. Set it to 0 to continue the run without a limit"
                ) from None
            return
        self._note(number, self._cost(prompt, completion))

    def end(self, number: int) -> None:
        """Note that a request is no longer in flight."""
        self._open.discard(number)

    def _cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        return (prompt_tokens * self._prices[0] + completion_tokens * self._prices[1]) / MILLION

    def _note(self, number: int, cost: float) -> None:
        self._total += cost - self._costs.get(number, 0.0)
        self._costs[number] = cost
        if self._path is not None and any(self._prices):
            make_private_folder(self._path.parent)
            with self._path.open("ab") as file:
                file.write(self._start + json.dumps({"request": number, "cost": cost}).encode() + b"\n")
            self._start = b""


class ServedModels:
    """The model and the system_fingerprint that every endpoint returned.

    Args:
        path: File of what was returned, {place: [[model, fingerprint], …]}; None keeps no file.
        drift: "stop" to stop the run at a change, "log" to log it.
    """

    def __init__(self, path: Path | None, drift: str):
        self._path, self._drift = path, drift
        self._seen: dict[str, list[list[Any]]] = {}
        if path is not None and path.exists():
            self._seen = json.loads(path.read_text(encoding="utf-8"))

    def check(self, place: str, answer: Mapping[str, Any]) -> None:
        """Compare a response with earlier ones.

        Raises:
            RunStopped: The endpoint serves another model than before.
        """
        now = [_text(answer.get("model")), _text(answer.get("system_fingerprint"))]
        seen = self._seen.setdefault(place, [])
        if now in seen:
            return
        if seen:
            change = f"{place} now returns {_named(now)}, but it returned {_named(seen[-1])} before"
            if self._drift == "stop":
                raise RunStopped(f"{change}. Set config.remote.drift to 'log' to continue the run with it")
            log.warning("%s", change)
        seen.append(now)
        if self._path is not None:
            make_private_folder(self._path.parent)
            part = self._path.with_suffix(".part")
            part.write_text(json.dumps(self._seen, indent=1) + "\n", encoding="utf-8")
            part.replace(self._path)


def _text(value: Any) -> str | None:
    return value[:200] if isinstance(value, str) else None


def _named(identity: list[Any]) -> str:
    return f"model {identity[0]!r} with system_fingerprint {identity[1]!r}"
