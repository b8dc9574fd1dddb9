"""A thread that runs one `Batcher` per model and serves any thread or coroutine.

    with BatcherThread(batcher) as sampler:
        completions = sampler.ask(ids, sampling, n=4).result()         # in a thread
        completions = await sampler.answer(ids, sampling, n=4)         # in a coroutine; cancelling it frees the rows
        sampler.set_weights(0, params, version=7)                      # returns when the policy has them

Callers append commands to a queue. The thread runs them between chunks, and while the device decodes a chunk, which
a second thread waits for; it sleeps when there is nothing to do. Requests that arrive during a chunk take free rows at
once and are prefilled after it. Results do not depend on timing, provided that a caller waits for `set_weights` before
its next request (see `Batcher` for how exact that is). Callbacks of futures run in the thread: keep them short, and
never wait for the thread in one of them.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import functools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.loop_futures import LoopFutures
from marl_jax.sampling.requests import OnTokens, Usage
from marl_jax.sampling.settings import Sampling

if TYPE_CHECKING:  # server workers import the exceptions without JAX
    import numpy as np

    from marl_jax.sampling.batcher import Batcher

SWITCH = 0.0003
"""Python's thread switch interval in seconds. The default of 5 ms delays every return from the device; with hundreds of
episodes in the main thread that cost a quarter of the time."""

TOGETHER = 0.002
"""Seconds to collect requests that arrive during a chunk, so that the thread does not wake up for each of them."""


class BatcherClosed(RuntimeError):
    """The thread was closed before it had answered the request."""


class BatcherFailed(RuntimeError):
    """The thread raised an exception, which is the cause of this one."""


Route = tuple[int, int]
"""The batcher that serves a policy, and the policy's index there."""


class BatcherThread:
    """Runs batchers in a separate thread; nothing else may call them afterwards.

    Args:
        *batchers: One per model. Without any, the thread is not started yet.
        routes: The batcher and its policy for policy 0, 1, …. By default the policies of all batchers in order.
        name: Name of the thread.
    """

    def __init__(self, *batchers: Batcher, routes: Sequence[Route] | None = None, name: str = "batcher"):
        self.name = name
        self.batchers: Sequence[Batcher] = ()
        self.routes: list[Route] = []
        self._usage = Usage()
        self._wake = threading.Condition()
        # Returns the exception for calls before the start or after the end; guarded by `_wake`.
        self._ended: Callable[[], Exception] | None = lambda: BatcherClosed("the batcher has not been started")
        if batchers:
            self._start(batchers, routes)

    def _start(self, batchers: Sequence[Batcher], routes: Sequence[Route] | None = None):
        """Start the thread with some batchers."""
        self.routes = check_routes([b.n_policies for b in batchers], routes)
        self.batchers = batchers
        # Guarded by `_wake`:
        self._commands: deque[tuple[Callable[[], object], Future | None, bool]] = deque()
        # Used by the thread only. A request is (index of its batcher, number there).
        self._answers: dict[tuple[int, int], Future] = {}
        self._swaps: list[tuple[int, Future]] = []
        self._drains: list[tuple[set[tuple[int, int]], Future]] = []
        self._paused = self._closing = False
        self._loops = LoopFutures()
        self._usage = self._total_usage()
        self._device = ThreadPoolExecutor(1, f"{self.name}'s device")
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH))
        self._ended = None
        self._thread = threading.Thread(target=self._main, name=self.name, daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a daemon thread that computes while the interpreter exits would crash it

    def __enter__(self) -> BatcherThread:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    # Called from any thread

    def ask(
        self, ids: Sequence[int], sampling: Sampling | None = None, policy: int = 0, n: int = 1,
        deadline: float | None = None, on_tokens: OnTokens | None = None,
    ) -> Future[list[Completion]]:  # fmt: skip
        """Return a future with n completions of a prompt.

        Cancelling the future frees the request's rows. `cancel` does too, but keeps what has been generated.

        Args:
            ids: Token ids of the prompt.
            sampling: Temperature, token budget and the like.
            policy: Index of the policy.
            n: Number of completions.
            deadline: A value of `time.monotonic()`; unfinished completions end there.
            on_tokens: Called in the thread with new tokens, see `Batcher.watch`.

        Raises:
            ValueError: No batcher could ever serve the request.
        """
        ids = list(ids)
        which, own = self._route(policy)
        batcher = self.batchers[which]
        batcher.check_request(ids, sampling, own, n)
        future: Future[list[Completion]] = Future()

        def submit():
            if future.cancelled():
                return
            number = batcher.submit(ids, sampling, own, n, deadline)
            self._answers[which, number] = future
            if on_tokens is not None:
                batcher.watch(number, on_tokens)
            future.add_done_callback(functools.partial(self._forget, which, number))

        self._call(submit, future)
        return future

    async def answer(
        self, ids: Sequence[int], sampling: Sampling | None = None, policy: int = 0, n: int = 1,
        deadline: float | None = None, on_tokens: OnTokens | None = None,
    ) -> list[Completion]:  # fmt: skip
        """Wait for `ask` in a coroutine; `on_tokens` is called in its event loop."""
        show = None
        if on_tokens is not None:
            show = functools.partial(self._loops.call, asyncio.get_running_loop(), on_tokens)
        return await self._loops.wait_for(self.ask(ids, sampling, policy, n, deadline, show))

    def hold_image(self, image: np.ndarray, policy: int = 0) -> tuple[list[int], Callable[[], None]]:
        """Encode an image, uint8 [H, W, 3], in the caller's thread.

        Returns:
            Its token ids for a prompt of the policy, and a function to call when no request needs it any more.
        """
        engine = self.batchers[self._route(policy)[0]].engine
        held = engine.hold_image(image)
        assert engine.images is not None
        return engine.images.ids(held), functools.partial(engine.images.release, held)

    def top_logprobs(self, ids: Sequence[int], start: int, sampling: Sampling, policy: int = 0, k: int = 5):
        """Call `Engine.top_logprobs` in the caller's thread."""
        which, own = self._route(policy)
        return self.batchers[which].top_logprobs(ids, start, sampling, own, k)

    def logprobs(self, ids: Sequence[int], start: int, policy: int = 0) -> list[float]:
        """Call `Engine.logprobs` in the caller's thread."""
        which, own = self._route(policy)
        return self.batchers[which].logprobs(ids, start, own)

    def cancel(self, future: Future[list[Completion]]) -> None:
        """End the request of a future from `ask`; unfinished completions have the finish reason "cancelled"."""

        def cancel():
            for (which, number), own in self._answers.items():
                if own is future:
                    self.batchers[which].cancel(number)

        self._call(cancel)

    def submit_weights(self, policy: int, weights: dict, version: int) -> Future[None]:
        """Return a future that is done when the policy has its new weights."""
        which, own = self._route(policy)
        batcher = self.batchers[which]
        batcher.check_weights(own, weights)
        future: Future[None] = Future()

        def swap():
            batcher.set_weights(own, weights, version)
            self._swaps.append((policy, future))

        self._call(swap, future)
        return future

    def set_weights(self, policy: int, weights: dict, version: int, timeout: float | None = None) -> None:
        """Give a policy new weights, and return when later requests will use them."""
        self._wait(self.submit_weights(policy, weights, version), timeout)

    def drain(self, timeout: float | None = None) -> None:
        """Wait until all earlier requests have been answered."""
        future: Future[None] = Future()
        self._call(lambda: self._drains.append((set(self._answers), future)), future)
        self._wait(future, timeout)

    def pause(self, timeout: float | None = None) -> None:
        """Stop decoding after the current chunk.

        Requests are kept; while paused they end only by their deadline or by being cancelled.
        """
        self._set_paused(True, timeout)

    def resume(self) -> None:
        """Continue after `pause`."""
        self._set_paused(False, None)

    def _set_paused(self, paused: bool, timeout: float | None):
        """Pause or resume the thread and wait for it."""
        future: Future[None] = Future()

        def change():
            self._paused = paused
            _settle(future, None)

        self._call(change, future, waits=True)
        self._wait(future, timeout)

    def close(self) -> None:
        """End the thread after the current chunk; open futures raise `BatcherClosed`. Idempotent."""
        if not self.batchers:
            return

        def stop():
            self._closing = True

        with contextlib.suppress(BatcherClosed, BatcherFailed):
            self._call(stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._device.shutdown(wait=False)
        for batcher in self.batchers:
            batcher.close()
        atexit.unregister(self.close)

    @property
    def running(self) -> bool:
        """Whether it accepts requests: it has been started, and has neither been closed nor failed."""
        return self._ended is None

    @property
    def usage(self) -> Usage:
        """Totals over the batchers as of the last chunk; versions by policy."""
        return self._usage

    @property
    def compile_seconds(self) -> float:
        """Seconds that requests have waited for compilation; batchers run in turn, so they add up."""
        return sum(batcher.compile_seconds for batcher in self.batchers)

    def _route(self, policy: int) -> Route:
        """Return the batcher of a policy and the policy's index there."""
        if self._ended is not None:
            raise self._ended()
        if not 0 <= policy < len(self.routes):
            raise ValueError(f"policy is {policy}, but must be 0 to {len(self.routes) - 1}")
        return self.routes[policy]

    def _total_usage(self) -> Usage:
        """Sum the counters of all batchers."""
        usages = [batcher.usage for batcher in self.batchers]
        names = [f.name for f in dataclasses.fields(Usage) if f.name != "versions"]
        versions = tuple(usages[which].versions[own] for which, own in self.routes)
        return Usage(**{name: sum(getattr(u, name) for u in usages) for name in names}, versions=versions)

    def _call(self, command: Callable[[], object], future: Future | None = None, waits: bool = False):
        """Queue a command for the thread.

        Args:
            command: Called in the thread.
            future: Raises if the thread ends before it is done.
            waits: Whether the command has to wait for the end of the current chunk.
        """
        with self._wake:
            if self._ended is not None:
                raise self._ended()
            self._commands.append((command, future, waits))
            self._wake.notify()

    def _wait(self, future: Future, timeout: float | None):
        """Wait for a future from another thread."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("the batcher's thread cannot wait for itself: call this from another thread")
        future.result(timeout)

    # Called in the thread

    def _main(self):
        """Work until the batcher is closed or fails."""
        error = None
        try:
            while not self._closing:
                self._work()
        except BaseException as e:  # every waiting caller gets it
            error = e
            with contextlib.suppress(Exception):
                self._hand_out()  # results of the previous chunk
        self._end(error)

    def _work(self):
        """Wait for work, run the queued commands and decode one chunk.

        While the device decodes, completions of the previous chunk are delivered and new requests are accepted.
        """
        with self._wake:
            while not self._commands and not self._due():
                self._wake.wait(self._idle_seconds())
        self._run_commands()
        if self._paused:
            for batcher in self.batchers:
                batcher.expire()
        if self._closing or self._paused or not self._busy():
            self._hand_out()
            return
        # Programs of several models never run at the same time: on a mesh they could deadlock.
        *earlier, last = [batcher for batcher in self.batchers if batcher.busy]
        for batcher in earlier:
            batcher.begin(self._device)
            batcher.finish()
        chunk = last.begin(self._device)
        self._hand_out()
        self._take_requests_during(chunk)
        last.finish()
        if self._closing or not self._busy():
            self._hand_out()

    def _busy(self) -> bool:
        """Return whether any batcher has work."""
        return any(batcher.busy for batcher in self.batchers)

    def _take_requests_during(self, chunk: Future | None):
        """Give new requests free rows until the device has decoded the chunk."""
        self._run_commands(decoding=True)
        if chunk is None:
            return
        chunk.add_done_callback(lambda _: self._notify())
        while not chunk.done() and not self._closing:
            for batcher in self.batchers:
                batcher.refill()
            with self._wake:
                while not chunk.done() and not (self._commands and not self._commands[0][-1]):
                    self._wake.wait()
            wait([chunk], TOGETHER)
            self._run_commands(decoding=True)

    def _notify(self):
        """Wake up the thread."""
        with self._wake:
            self._wake.notify()

    def _run_commands(self, decoding: bool = False):
        """Run the queued commands in order.

        While decoding, stop at a command that has to wait for the end of the chunk. Commands that arrive meanwhile
        wait, or a burst of requests would keep the device idle.
        """
        for _ in range(len(self._commands)):
            command, _, waits = self._commands[0]
            if self._closing or (decoding and waits):
                return
            command()
            self._commands.popleft()  # only now, since `_end` fails the future of a command that raised

    def _due(self) -> bool:
        """Return whether there is work without a new command."""
        if not self._paused:
            return self._busy()
        return (seconds := self._idle_seconds()) is not None and seconds <= 0

    def _idle_seconds(self) -> float | None:
        """Return the seconds until the next deadline, or None."""
        deadline = min((d for b in self.batchers if (d := b.next_deadline) is not None), default=None)
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def _hand_out(self):
        """Deliver finished completions, and resolve futures of weights and drains."""
        self._usage = self._total_usage()
        with self._loops.together():
            for which, batcher in enumerate(self.batchers):
                batcher.catch_up()
                for number, completions in batcher.results():
                    _settle(self._answers.pop((which, number)), completions)
        for policy, future in self._swaps:
            which, own = self.routes[policy]
            if own not in self.batchers[which].updating:
                _settle(future, None)
        for requests, future in self._drains:
            if requests.isdisjoint(self._answers):
                _settle(future, None)
        self._swaps = [swap for swap in self._swaps if not swap[1].done()]
        self._drains = [drain for drain in self._drains if not drain[1].done()]

    def _forget(self, which: int, number: int, future: Future):
        """Free the rows of a request whose future was cancelled."""
        if future.cancelled():
            with contextlib.suppress(BatcherClosed, BatcherFailed):
                self._call(lambda: self.batchers[which].cancel(number))

    def _end(self, error: BaseException | None):
        """Fail all pending futures, and reject further calls."""

        def exception() -> Exception:
            if error is None:
                return BatcherClosed("the batcher was closed")
            failure = BatcherFailed(f"the batcher's thread failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            return failure

        with self._wake:
            self._ended = exception
            commands, self._commands = self._commands, deque()
        waiting = [future for _, future, *_ in (*commands, *self._swaps, *self._drains) if future is not None]
        for future in {*self._answers.values(), *waiting}:
            if not future.done() and future.set_running_or_notify_cancel():
                future.set_exception(exception())
        self._answers.clear()


def check_routes(counts: Sequence[int], routes: Sequence[Route] | None) -> list[Route]:
    """Check routes, by default the policies of all batchers in order.

    Args:
        counts: Number of policies of each batcher.
        routes: The batcher and its policy for policy 0, 1, …, or None.
    """
    if routes is None:
        return [(which, own) for which, count in enumerate(counts) for own in range(count)]
    for policy, (which, own) in enumerate(routes):
        if not (0 <= which < len(counts) and 0 <= own < counts[which]):
            raise ValueError(f"routes[{policy}] is {(which, own)}, but must be a batcher and one of its policies")
    if len(set(routes)) < len(routes):
        raise ValueError(f"routes is {list(routes)}, but must name every policy of a batcher at most once")
    return list(routes)


def _settle(future: Future, value) -> None:
    """Set the result of a future, unless it was cancelled."""
    if future.set_running_or_notify_cancel():
        future.set_result(value)
