"""A thread that owns a `Batcher`, so that any thread or coroutine may ask and a chunk of decoding stalls none of them.

    with BatcherThread(batcher) as sampler:
        answers = sampler.ask(ids, sampling, n=4).result()         # in a thread
        answers = await sampler.answer(ids, sampling, n=4)         # in a coroutine; cancelling it frees the rows
        sampler.set_weights(0, params, version=7)                  # returns when the policy has them

Callers leave commands in a queue; the thread takes them between chunks and while the device decodes one, which another
thread waits for, and sleeps while there is nothing to do. Requests that come during a chunk get rows that are free at
once, and are read at its end. What a caller gets does not depend on timing as long as it
waits for `set_weights` before it asks (see `Batcher` for how exact that is). Callbacks of futures run in the thread:
they should be short, and must not wait for it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
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

if TYPE_CHECKING:  # its exceptions are known where there is no JAX
    from marl_jax.sampling.batcher import Batcher
    from marl_jax.sampling.batchers import Batchers

SWITCH = 0.0003
"""Seconds for which another thread may keep the interpreter from this one. Python's default of 5 ms comes up at every
return from the device, and cost a quarter of the time where hundreds of episodes run beside the sampler."""

TOGETHER = 0.002
"""Seconds for which requests that come during a chunk are gathered, so that the thread is not woken up for each."""


class BatcherClosed(RuntimeError):
    """The thread was closed before the request was answered."""


class BatcherFailed(RuntimeError):
    """The thread ended with an exception, which is the cause of this one."""


class BatcherThread:
    """Owns a batcher from here on: nobody else may call it."""

    def __init__(self, batcher: Batcher | Batchers, name: str = "batcher"):
        self._batcher = batcher
        self._wake = threading.Condition()
        # Shared, under the lock of `_wake`:
        self._commands: deque[tuple[Callable[[], None], Future | None, bool]] = deque()
        self._ended: Callable[[], Exception] | None = None  # makes the exception for calls that come too late
        # Of the thread alone:
        self._answers: dict[int, Future] = {}
        self._swaps: list[tuple[int, Future]] = []
        self._drains: list[tuple[set[int], Future]] = []
        self._paused = self._closing = False
        self._loops = LoopFutures()
        self._usage = batcher.usage
        self._device = ThreadPoolExecutor(1, f"{name}'s device")
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH))
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a daemon that is computing when the interpreter goes would crash it

    def __enter__(self) -> BatcherThread:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    # For any thread

    def ask(
        self, ids: Sequence[int], sampling: Sampling | None = None, policy: int = 0, n: int = 1,
        deadline: float | None = None, on_tokens: OnTokens | None = None,
    ) -> Future[list[Completion]]:  # fmt: skip
        """The n answers to a prompt, in a future; a request that can never be answered is refused at once.

        Cancelling the future frees the request's rows. `cancel` does the same and keeps what was written.
        `on_tokens` (see `Batcher.watch`) is called in the thread.
        """
        ids = list(ids)
        self._batcher.check_request(ids, sampling, policy, n)
        future: Future[list[Completion]] = Future()

        def submit():
            if future.cancelled():
                return
            request = self._batcher.submit(ids, sampling, policy, n, deadline)
            self._answers[request] = future
            if on_tokens is not None:
                self._batcher.watch(request, on_tokens)
            future.add_done_callback(functools.partial(self._forget, request))

        self._call(submit, future)
        return future

    async def answer(
        self, ids: Sequence[int], sampling: Sampling | None = None, policy: int = 0, n: int = 1,
        deadline: float | None = None, on_tokens: OnTokens | None = None,
    ) -> list[Completion]:  # fmt: skip
        """As `ask`, for coroutines; `on_tokens` is called in the coroutine's event loop."""
        show = None
        if on_tokens is not None:
            loop = asyncio.get_running_loop()

            def show(k: int, new: Completion) -> None:
                self._loops.call(loop, on_tokens, k, new)

        asked = self.ask(ids, sampling, policy, n, deadline, show)
        return await self._loops.wait_for(asked)

    def top_logprobs(self, ids: Sequence[int], start: int, sampling: Sampling, policy: int = 0, k: int = 5):
        """As `Engine.top_logprobs`, in the thread of the caller."""
        return self._batcher.top_logprobs(ids, start, sampling, policy, k)

    def cancel(self, future: Future[list[Completion]]) -> None:
        """Ends the request of a future from `ask`: its answers come soon, unfinished ones as "cancelled"."""

        def cancel():
            for request, own in self._answers.items():
                if own is future:
                    self._batcher.cancel(request)

        self._call(cancel)

    def submit_weights(self, policy: int, weights: dict, version: int) -> Future[None]:
        """As `set_weights`, without waiting: the future is done when the policy has the weights."""
        self._batcher.check_weights(policy, weights)
        future: Future[None] = Future()

        def swap():
            self._batcher.set_weights(policy, weights, version)
            self._swaps.append((policy, future))

        self._call(swap, future)
        return future

    def set_weights(self, policy: int, weights: dict, version: int, timeout: float | None = None) -> None:
        """Gives a policy new weights and returns when they are in place, for all who ask from then on."""
        self._wait(self.submit_weights(policy, weights, version), timeout)

    def drain(self, timeout: float | None = None) -> None:
        """Returns when all that was asked before the call has been answered."""
        future: Future[None] = Future()
        self._call(lambda: self._drains.append((set(self._answers), future)), future)
        self._wait(future, timeout)

    def pause(self, timeout: float | None = None) -> None:
        """Returns when nothing is being decoded; requests are kept, and only end by a deadline or when cancelled."""
        self._set_paused(True, timeout)

    def resume(self) -> None:
        """Continues after `pause`."""
        self._set_paused(False, None)

    def _set_paused(self, paused: bool, timeout: float | None):
        future: Future[None] = Future()

        def change():
            self._paused = paused
            _settle(future, None)

        self._call(change, future, waits=True)
        self._wait(future, timeout)

    def close(self) -> None:
        """Ends the thread after the chunk in progress; open futures get a `BatcherClosed`. May be called again."""

        def stop():
            self._closing = True

        with contextlib.suppress(BatcherClosed, BatcherFailed):
            self._call(stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._device.shutdown(wait=False)
        self._batcher.close()
        atexit.unregister(self.close)

    @property
    def running(self) -> bool:
        """Whether it takes requests: it was not closed and has not failed."""
        return self._ended is None

    @property
    def usage(self) -> Usage:
        """As of the last chunk."""
        return self._usage

    @property
    def compile_seconds(self) -> float:
        """As `Batcher.compile_seconds`."""
        return self._batcher.compile_seconds

    def _call(self, command: Callable[[], None], future: Future | None = None, waits: bool = False):
        """Leaves a command for the thread; `future` fails if the thread ends before it is done.

        waits  for the end of a chunk that is being decoded
        """
        with self._wake:
            if self._ended is not None:
                raise self._ended()
            self._commands.append((command, future, waits))
            self._wake.notify()

    def _wait(self, future: Future, timeout: float | None):
        if threading.current_thread() is self._thread:
            raise RuntimeError("the batcher's thread cannot wait for itself: call this from another thread")
        future.result(timeout)

    # In the thread

    def _main(self):
        error = None
        try:
            while not self._closing:
                self._work()
        except BaseException as e:  # whatever it is, those who wait have to hear of it
            error = e
            with contextlib.suppress(Exception):
                self._hand_out()  # of the chunk before
        self._end(error)

    def _work(self):
        """Waits until there is something to do, and does it: commands first, then one chunk.

        While the device decodes it, the answers of the chunk before are handed out, and requests are taken.
        """
        with self._wake:
            while not self._commands and not self._due():
                self._wake.wait(self._idle_seconds())
        self._run_commands()
        if self._paused:
            self._batcher.expire()
        if self._closing or self._paused or not self._batcher.busy:
            self._hand_out()
            return
        chunk = self._batcher.begin(self._device)
        self._hand_out()
        self._beside(chunk)
        self._batcher.finish()
        if self._closing or not self._batcher.busy:
            self._hand_out()

    def _beside(self, chunk: Future | None):
        """Takes requests and gives them rows that are free, until the device has decoded the chunk."""
        self._run_commands(beside=True)
        if chunk is None:
            return
        chunk.add_done_callback(lambda _: self._notify())
        while not chunk.done() and not self._closing:
            self._batcher.refill()
            with self._wake:
                while not chunk.done() and not (self._commands and not self._commands[0][-1]):
                    self._wake.wait()
            wait([chunk], TOGETHER)
            self._run_commands(beside=True)

    def _notify(self):
        with self._wake:
            self._wake.notify()

    def _run_commands(self, beside: bool = False):
        """Runs what callers have left by now, in its order; beside a chunk, only up to what has to wait for its end.

        What comes meanwhile is for the next time: hundreds who ask one after another must not keep the device waiting.
        """
        for _ in range(len(self._commands)):
            command, _, waits = self._commands[0]
            if self._closing or (beside and waits):
                return
            command()
            self._commands.popleft()  # afterwards: if it raises, its future is found there

    def _due(self) -> bool:
        """Whether there is something to do without a new command."""
        if not self._paused:
            return self._batcher.busy
        return (seconds := self._idle_seconds()) is not None and seconds <= 0

    def _idle_seconds(self) -> float | None:
        deadline = self._batcher.next_deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def _hand_out(self):
        self._usage = self._batcher.usage
        with self._loops.together():
            self._batcher.catch_up()
            for request, answers in self._batcher.results():
                _settle(self._answers.pop(request), answers)
        updating = self._batcher.updating
        for policy, future in self._swaps:
            if policy not in updating:
                _settle(future, None)
        for requests, future in self._drains:
            if requests.isdisjoint(self._answers):
                _settle(future, None)
        self._swaps = [swap for swap in self._swaps if not swap[1].done()]
        self._drains = [drain for drain in self._drains if not drain[1].done()]

    def _forget(self, request: int, future: Future):
        """Frees the rows of a request whose future was cancelled."""
        if future.cancelled():
            with contextlib.suppress(BatcherClosed, BatcherFailed):
                self._call(lambda: self._batcher.cancel(request))

    def _end(self, error: BaseException | None):
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


def _settle(future: Future, value) -> None:
    """Gives a future its value, unless it was cancelled."""
    if future.set_running_or_notify_cancel():
        future.set_result(value)
