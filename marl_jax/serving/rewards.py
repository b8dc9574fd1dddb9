"""The reward server: scores of a verifier over HTTP.

    POST /predict   {"query_responses": [[{"role", "content"}, …], …]}  ->  {"result": [0.93, …], "model", "version"}
    GET  /health    {"status": "ok", "model", "version", …}

Each conversation ends with the completion to score. Scores are returned in the order of the conversations. Requests
that arrive at the same time share batches: one thread owns the device and takes all waiting requests whenever it is
free.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse

from marl_jax.agents.verifier import ChatError, Reading, Scorer
from marl_jax.errors import RunError
from marl_jax.serving.http import app as http
from marl_jax.serving.http.app import Route
from marl_jax.serving.http.errors import ApiError
from marl_jax.serving.http.guard import Limits, RequestGuard
from marl_jax.serving.http.keys import Keys
from marl_jax.serving.http.prometheus import ServerMetrics

log = logging.getLogger(__name__)

STOP_SECONDS = 30.0
MAX_WAITING = 1 << 16  # waiting conversations; excess requests get status 429


class _Job(NamedTuple):
    readings: Sequence[Reading]
    loop: asyncio.AbstractEventLoop
    result: asyncio.Future


class ScoringThread:
    """A thread that scores conversations for many callers.

    Args:
        score: Scores tokenized conversations, like `Scorer.score`.
        metrics: Metrics of the server.
        max_chats: Number of conversations after which a batch takes no more requests, so that no caller waits forever.
    """

    def __init__(
        self, score: Callable[[Sequence[Reading]], list[float]], metrics: ServerMetrics, max_chats: int = 1024
    ):
        self._score, self._metrics, self._max = score, metrics, max_chats
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.waiting = 0
        self._thread = threading.Thread(target=self._run, name="scores", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the waiting jobs; a thread that hangs is abandoned."""
        self._jobs.put(None)
        self._thread.join(STOP_SECONDS)

    async def score(self, readings: Sequence[Reading]) -> list[float]:
        """Return the scores of some conversations; called from the event loop."""
        if self.waiting + len(readings) > MAX_WAITING:
            raise ApiError(
                429, f"{self.waiting} conversations are already waiting; try again later", headers={"Retry-After": "1"}
            )
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
            self._answer([job for job in jobs if not job.result.cancelled()])  # some callers have disconnected
            if last:
                return

    def _answer(self, jobs: Sequence[_Job]) -> None:
        began = time.perf_counter()
        readings = [reading for job in jobs for reading in job.readings]
        try:
            scores, error = self._score(readings), None
            if not all(map(math.isfinite, scores)):
                raise RunError("the scores are not finite")
        except RunError as failure:  # another attempt would fail too
            log.error("scoring failed: %s", failure)
            message, headers = f"scoring failed: {failure}", {"x-should-retry": "false"}
            scores, error = [], ApiError(500, message, code="scoring_failed", headers=headers)
        except Exception as failure:
            log.exception("scoring failed")
            scores, error = [], RuntimeError(f"scoring failed: {failure}")
        self._metrics.observe("reward_batch_seconds", "Seconds to score a batch.", time.perf_counter() - began)
        self._metrics.count("reward_chats_total", "Conversations scored.", len(scores))
        self._metrics.count("reward_batches_total", "Batches scored.")
        for job in jobs:
            part, scores = scores[: len(job.readings)], scores[len(job.readings) :]
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                job.loop.call_soon_threadsafe(_settle, job.result, part, error)


def _settle(result: asyncio.Future, scores: list[float], error: Exception | None) -> None:
    if result.done():  # the caller has disconnected
        return
    if error is None:
        result.set_result(scores)
    else:
        result.set_exception(error)


def reward_app(
    scorer: Scorer, *, model: str, version: str, keys: Keys, limits: Limits | None = None, step: int | None = None
) -> RequestGuard:
    """Return the application of a reward server.

    Args:
        scorer: Verifier that scores the conversations.
        model: Name of the model, as reported to clients.
        version: Version of the model, as reported to clients.
        keys: Keys that clients may use.
        limits: Limits on requests; None uses the defaults.
        step: Training step of the model, as reported by /health; None omits it.
    """
    metrics, limits = ServerMetrics(), limits or Limits()
    thread = ScoringThread(scorer.score, metrics)

    @contextlib.asynccontextmanager
    async def running(app: RequestGuard):
        thread.start()
        yield
        await asyncio.to_thread(thread.stop)

    async def predict(request: Request) -> JSONResponse:
        chats = _chats(await http.read_json(request), limits)
        readings = await asyncio.to_thread(_read, scorer, chats, limits)
        scores = await http.unless_gone(request, thread.score(readings)) if readings else []
        return JSONResponse({"result": scores, "model": model, "version": version})

    def health() -> dict[str, Any]:
        about = {"model": model, "version": version, "max_length": scorer.max_length, "waiting": thread.waiting}
        return about if step is None else {**about, "step": step}

    routes = [Route("/predict", predict, methods=["POST"])]
    return http.application(routes, keys=keys, limits=limits, metrics=metrics, health=health, lifespan=running)


def _chats(body: dict[str, Any], limits: Limits) -> list[Any]:
    if unknown := sorted(body.keys() - {"query_responses"}):
        raise ApiError(400, f"the field is {unknown[0]!r}, but must be query_responses", param=unknown[0][:100])
    chats = body.get("query_responses")
    if not isinstance(chats, list):
        raise ApiError(400, "query_responses must be a list of conversations", param="query_responses")
    limits.check("completions", len(chats), "query_responses")
    for i, chat in enumerate(chats):
        if isinstance(chat, list):
            limits.check("messages", len(chat), f"query_responses[{i}]")
    return chats


def _read(scorer: Scorer, chats: list[Any], limits: Limits) -> list[Reading]:
    readings, tokens = [], 0
    for i, chat in enumerate(chats):
        try:
            readings.append(scorer.read(chat))
        except ChatError as error:
            raise ApiError(400, str(error), param=f"query_responses[{i}]", code="invalid_chat") from None
        tokens += len(readings[-1].tokens)
        limits.check("request_tokens", tokens, "query_responses")
    return readings
