"""The reward server: a verifier's scores over HTTP.

    POST /predict   {"query_responses": [[{"role", "content"}, …], …]}  ->  {"result": [0.93, …], "model", "version"}
    GET  /health    {"status": "ok", "model", "version", …}

Each chat ends with the answer to score, and the scores come in the order of the chats. Requests that arrive at the same
time share batches: one thread owns the device and takes whatever waits whenever it is free.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse

from marl_jax.agents.verifier import ChatError, Reading, Scorer
from marl_jax.serving.http import app as http
from marl_jax.serving.http.app import Route
from marl_jax.serving.http.errors import ApiError
from marl_jax.serving.http.guard import Limits, RequestGuard
from marl_jax.serving.http.keys import Keys
from marl_jax.serving.http.prometheus import ServerMetrics

log = logging.getLogger(__name__)

MAX_CHATS = 4096  # of one request
STOP_SECONDS = 30.0
MAX_WAITING = 1 << 16  # chats that wait for the device; more are asked to come again


class _Job(NamedTuple):
    readings: Sequence[Reading]
    loop: asyncio.AbstractEventLoop
    result: asyncio.Future


class ScoringThread:
    """Scores for many callers at once.

    score       of a list of chats that were read, as `Scorer.score`
    max_chats   that are scored in one go, so that nobody waits behind a pile of others' for ever
    """

    def __init__(
        self, score: Callable[[Sequence[Reading]], list[float]], metrics: ServerMetrics, max_chats: int = 1024
    ):
        self._score, self._metrics, self._max = score, metrics, max_chats
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.waiting = 0
        self._thread = threading.Thread(target=self._run, name="scores", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread behind the jobs that wait; one that hangs is left behind."""
        self._jobs.put(None)
        self._thread.join(STOP_SECONDS)

    async def score(self, readings: Sequence[Reading]) -> list[float]:
        """The scores of some chats; called from the event loop."""
        if self.waiting + len(readings) > MAX_WAITING:
            raise ApiError(429, f"{self.waiting} chats wait already; try again later", headers={"Retry-After": "1"})
        loop = asyncio.get_running_loop()
        job = _Job(readings, loop, loop.create_future())
        self.waiting += len(readings)
        try:
            self._jobs.put(job)
            return await job.result
        finally:
            self.waiting -= len(readings)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            jobs, size, last = [job], len(job.readings), False
            while size < self._max and not last:
                try:
                    more = self._jobs.get_nowait()
                except queue.Empty:
                    break
                last = more is None
                if more is not None:
                    jobs, size = [*jobs, more], size + len(more.readings)
            self._answer([job for job in jobs if not job.result.cancelled()])  # some callers have hung up
            if last:
                return

    def _answer(self, jobs: Sequence[_Job]) -> None:
        began = time.perf_counter()
        readings = [reading for job in jobs for reading in job.readings]
        try:
            scores, error = self._score(readings), None
        except Exception as failure:
            log.exception("scoring failed")
            scores, error = [], failure
        self._metrics.observe("reward_batch_seconds", "Seconds to score a batch.", time.perf_counter() - began)
        self._metrics.count("reward_chats_total", "Chats scored.", len(scores))
        self._metrics.count("reward_batches_total", "Batches scored.")
        for job in jobs:
            mine, scores = scores[: len(job.readings)], scores[len(job.readings) :]
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                job.loop.call_soon_threadsafe(_settle, job.result, mine, error)


def _settle(result: asyncio.Future, scores: list[float], error: Exception | None) -> None:
    if result.done():  # the caller has hung up
        return
    if error is None:
        result.set_result(scores)
    else:
        result.set_exception(RuntimeError(f"scoring failed: {error}"))


def reward_app(
    scorer: Scorer, *, model: str, version: str, keys: Keys, limits: Limits | None = None, step: int | None = None
) -> RequestGuard:
    """The application; `model`, `version` and `step` tell clients what scores."""
    metrics = ServerMetrics()
    thread = ScoringThread(scorer.score, metrics)

    @contextlib.asynccontextmanager
    async def running(app: RequestGuard):
        thread.start()
        yield
        await asyncio.to_thread(thread.stop)

    async def predict(request: Request) -> JSONResponse:
        chats = _chats(await http.read_json(request))
        readings = await asyncio.to_thread(_read, scorer, chats)
        scores = await http.unless_gone(request, thread.score(readings)) if readings else []
        return JSONResponse({"result": scores, "model": model, "version": version})

    def health() -> dict[str, Any]:
        about = {"model": model, "version": version, "max_length": scorer.max_length, "waiting": thread.waiting}
        return about if step is None else {**about, "step": step}

    routes = [Route("/predict", predict, methods=["POST"])]
    return http.application(routes, keys=keys, limits=limits, metrics=metrics, health=health, lifespan=running)


def _chats(body: dict[str, Any]) -> list[Any]:
    if unknown := sorted(body.keys() - {"query_responses"}):
        raise ApiError(400, f"unknown field {unknown[0]!r}; expected query_responses", param=unknown[0][:100])
    chats = body.get("query_responses")
    if not isinstance(chats, list):
        raise ApiError(400, "query_responses is missing or no list of chats", param="query_responses")
    if len(chats) > MAX_CHATS:
        message = f"query_responses has {len(chats)} chats; {MAX_CHATS} is the limit"
        raise ApiError(400, message, param="query_responses")
    return chats


def _read(scorer: Scorer, chats: list[Any]) -> list[Reading]:
    found = []
    for i, chat in enumerate(chats):
        try:
            found.append(scorer.read(chat))
        except ChatError as error:
            raise ApiError(400, str(error), param=f"query_responses[{i}]", code="invalid_chat") from None
    return found
