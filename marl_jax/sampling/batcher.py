"""Continuous batching: requests come one by one, rows that finish are refilled between chunks of decoding.

The rows share one pool of pages. A row holds what it has read and written, and pages for the next chunk; contexts that
several requests begin with, the samples of one request and later turns of a conversation are read once and shared.
Prompts are read in lines of a fixed width between chunks, so that a long one stalls nobody. When pages run out, the
sample that came last gives its row up and is read again later. When few rows have work, a smaller batch decodes.

What a request gets depends on its prompt, its seed and the weights only. How exactly: a matrix product may round
differently for another number of rows, what was decoded may round differently from what was read, and without
`fixed_shapes` both follow the load. Then answers are equal up to rounding (1e-6 in the log-probs of a float32 model on
the CPU), which in rare cases changes a sampled token. With `fixed_shapes` they are equal bit for bit, whatever else is
there, in whichever order it came and however short memory is, for the same `rows` and machine. Updates in flight end
this promise: when they happen depends on the time.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor, Future

import jax
import numpy as np

from marl_jax.sampling import checks
from marl_jax.sampling.batch_rows import BatchRows, Finished
from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.engine import Engine
from marl_jax.sampling.requests import Memory, OnTokens, Request, Sample, Usage, samples_of
from marl_jax.sampling.settings import Sampling

MEMORY_FRAC = 0.3  # of a device's memory, for pages


class Batcher:
    """`submit` requests, `run` until all are answered, or `step` and take `results` as they come.

    A step is `begin` and `finish`; between the two the device decodes, and the host is free for other things.

    engine             one model; its adapters, if it has any, are the policies, otherwise it is policy 0
    rows               samples that decode together
    max_length         longest prompt + answer
    chunk              decoding steps between refills
    tokenizer          only needed for stop strings
    in_flight_updates  new weights are taken between two chunks; otherwise when no row of their policy is in flight
    fixed_shapes       one size of batch for decoding and one for reading, a row has pages for its whole answer, and
                       what was decoded is not shared: bit-equal answers, for some wasted rows and pages. Requests
                       with top-k, top-p or a penalty do not decode beside plain ones.
    page_size          tokens of a page
    cache_tokens       tokens that all pages hold; None: as many as `rows` of `max_length` need, at most `memory_frac`
                       of a device's memory

    A batcher belongs to one thread; `BatcherThread` lets others ask.
    """

    def __init__(
        self, engine: Engine, *, rows: int, max_length: int, chunk: int = 16, tokenizer=None,
        in_flight_updates: bool = False, fixed_shapes: bool = False, page_size: int = 16,
        cache_tokens: int | None = None, memory_frac: float = MEMORY_FRAC,
    ):  # fmt: skip
        if rows < 1 or rows % engine.row_multiple:
            raise ValueError(f"rows is {rows}, but must be multiples of {engine.row_multiple}")
        if not 1 <= max_length <= engine.model.cfg.max_positions:
            most = engine.model.cfg.max_positions
            raise ValueError(f"max_length is {max_length}, but must be 1 to {most}, the positions of the model")
        if page_size < 1 or page_size & (page_size - 1):
            raise ValueError(f"page_size is {page_size}, but must be powers of two")
        self.engine, self.tokenizer, self.max_length = engine, tokenizer, max_length
        self.in_flight_updates, self.fixed_shapes = in_flight_updates, fixed_shapes
        self._counts, self._ids = Usage(), 0
        pages = self._page_count(rows, page_size, cache_tokens, memory_frac)
        self._rows = BatchRows(
            engine, rows=rows, longest=max_length, pages=pages, size=page_size, chunk=chunk, tokenizer=tokenizer,
            fixed=fixed_shapes, usage=self._counts,
        )  # fmt: skip
        self._queue: deque[Sample] = deque()
        self._open: dict[int, Request] = {}
        self._done: list[tuple[int, list[Completion]]] = []
        self._updates: dict[int, tuple[dict, int]] = {}
        self._decoding, self._began = False, 0.0

    def _page_count(self, rows: int, size: int, tokens: int | None, frac: float) -> int:
        """Pages of all parts of the batch; each part must hold one context of any length."""
        parts, wanted = self.engine.row_multiple, rows * -(-self.max_length // size)
        if tokens is not None:
            pages, field = tokens // size, f"cache_tokens is {tokens}"
        else:
            each = self.engine.page_bytes(size)
            pages, field = min(wanted, parts * int(frac * _device_bytes() / each)), f"memory_frac is {frac}"
        least = parts * -(-self.max_length // size)
        if pages < least:
            raise ValueError(
                f"{field}, which is room for {pages * size} tokens, but must be at least {least * size}, a conversation "
                f"of max_length {self.max_length}{f' for each of {parts} parts of the batch' if parts > 1 else ''}"
            )
        return pages

    def compile(self) -> None:
        """Begins to compile what plain requests need, beside the work; the first request waits for what it needs."""
        self._rows.compile()

    def wait_until_compiled(self) -> None:
        """Returns when everything that `compile` began is there."""
        self._rows.wait()

    def close(self) -> None:
        """Ends what is being compiled."""
        self._rows.stop_compiling()

    # Requests

    def submit(
        self, ids: Sequence[int], sampling: Sampling | None = None, policy: int = 0, n: int = 1,
        deadline: float | None = None,
    ) -> int:  # fmt: skip
        """Queues n samples of one prompt and returns the request's number.

        deadline  a value of time.monotonic(); what is not finished by then ends with what it has
        """
        sampling = sampling or Sampling()
        self.check_request(ids, sampling, policy, n)
        self._ids += 1
        request = Request(self._ids, np.asarray(ids, np.int32), policy, deadline, [None] * n)
        self._open[request.id] = request
        self._enqueue(samples_of(request, sampling))
        return request.id

    def check_request(self, ids: Sequence[int], sampling: Sampling | None = None, policy: int = 0, n: int = 1) -> None:
        """Refuses a request that can never be answered; any thread may ask."""
        sampling = sampling or Sampling()
        checks.check_prompts(self.engine.model.cfg, [ids], self.max_length)
        checks.check_policy(policy, self.engine.n_policies)
        if n < 1:
            raise ValueError(f"n is {n}, but must be >= 1 samples")
        if len(ids) + sampling.max_new_tokens > self.max_length:
            raise ValueError(
                f"a prompt of {len(ids)} tokens and max_new_tokens {sampling.max_new_tokens} do not fit into "
                f"max_length {self.max_length}"
            )
        if sampling.stop_strings and self.tokenizer is None:
            raise ValueError("stop_strings need a tokenizer: give one to the Batcher")

    def top_logprobs(self, ids: Sequence[int], start: int, sampling: Sampling, policy: int, k: int):
        """As `Engine.top_logprobs`; any thread may ask."""
        return self.engine.top_logprobs(ids, start, sampling, policy, k)

    def cancel(self, request: int) -> bool:
        """Ends a request before the next chunk, with what it has; False when it is not open any more."""
        if request not in self._open:
            return False
        self._open[request].ended = "cancelled"
        return True

    def watch(self, request: int, on_tokens: OnTokens) -> None:
        """Calls `on_tokens(k, new)` after every chunk with what sample k has written since the last call.

        What a sample writes in its last chunk is in its answer only.
        """
        self._open[request].on_tokens = on_tokens

    def results(self) -> list[tuple[int, list[Completion]]]:
        """What has finished since the last call, as (request number, its n answers)."""
        done, self._done = self._done, []
        return done

    def run(self) -> dict[int, list[Completion]]:
        """Answers everything that was submitted, longest budgets first, so that few rows wait for the last one."""
        self._queue = deque(sorted(self._queue, key=lambda s: -s.sampling.max_new_tokens))
        while self.busy:
            self.step()
        return dict(self.results())

    def step(self) -> None:
        """One chunk, from beginning to end."""
        self.begin()
        self.finish()
        self.catch_up()

    def begin(self, device: Executor | None = None) -> Future | None:
        """Ends what has to end, takes new weights if it may, refills free rows, reads, and begins to decode a chunk.

        device  decodes in a thread of its own: until `finish`, this one may submit requests, cancel them, refill,
                catch up, and take the results of the chunk before. The chunk is returned; None: there is none
        """
        started = time.perf_counter()
        self.expire()
        self._swap()
        self.refill()
        self._rows.read()
        chunk = self._rows.begin(device)
        self._decoding, self._began = True, started
        return chunk

    def finish(self) -> None:
        """Waits for the chunk that `begin` has begun."""
        finished = self._rows.finish()
        self._decoding = False
        self._finish(finished)
        self._enqueue(self._rows.take_preempted(), first=True)
        self._counts.seconds += time.perf_counter() - self._began

    def catch_up(self) -> None:
        """What a chunk leaves to do and the next one can begin without: new tokens for requests that are watched, and
        pages to give up."""
        self._rows.catch_up()

    def expire(self) -> None:
        """Ends cancelled requests and those past their deadline, without decoding."""
        now = time.monotonic()
        ends = {r.id: why for r in self._open.values() if (why := r.overdue(now))}
        if not ends:
            return
        samples = [s for s in self._rows.active if s.request.id in ends]
        for sample in samples:
            self._rows.release(sample)
        samples += [s for s in self._queue if s.request.id in ends]
        self._queue = deque(s for s in self._queue if s.request.id not in ends)
        self._finish([(s, ends[s.request.id]) for s in samples])

    def _enqueue(self, samples: Sequence[Sample], first: bool = False):
        for sample in samples:
            sample.request.unplaced += not len(sample.tokens)
        if first:
            self._queue.extendleft(reversed(samples))
        else:
            self._queue.extend(samples)

    def refill(self) -> None:
        """Gives free rows to samples that wait; those whose policy waits for new weights stay, if they have not begun.

        With fixed shapes only samples that run in one program decode together: others wait, and so do those behind
        them.
        """
        held = []
        active = self._rows.active if self.fixed_shapes else ()
        program = next((s.program for s in active), None)
        while self._queue and self._rows.free:
            sample = self._queue[0]
            if sample.request.policy in self._updates and not sample.request.begun:
                held.append(self._queue.popleft())
                continue
            program = program or sample.program
            if (self.fixed_shapes and sample.program != program) or not self._rows.place(sample):
                break
            self._queue.popleft()
            sample.request.begun = True
        self._queue.extendleft(reversed(held))

    def _finish(self, finished: Finished):
        for sample, reason in finished:
            request = sample.request
            request.answers[sample.k] = sample.answer(reason)
            answers = [a for a in request.answers if a is not None]
            if len(answers) == len(request.answers):
                self._rows.close(request)
                del self._open[request.id]
                self._done.append((request.id, answers))

    # State

    @property
    def busy(self) -> bool:
        """Whether there are requests to answer or new weights to take."""
        return bool(self._open or self._updates)

    @property
    def updating(self) -> set[int]:
        """The policies whose new weights wait for rows in flight."""
        return set(self._updates)

    @property
    def n_policies(self) -> int:
        return self.engine.n_policies

    @property
    def next_deadline(self) -> float | None:
        """When `expire` has something to do: the earliest deadline, 0 for a cancelled request, or None."""
        deadlines = (0.0 if request.ended else request.deadline for request in self._open.values())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    @property
    def usage(self) -> Usage:
        running = sum(r.begun for r in self._open.values())
        versions = tuple(self.engine.versions)
        return dataclasses.replace(self._counts, running=running, waiting=len(self._open) - running, versions=versions)

    @property
    def compile_seconds(self) -> float:
        """Seconds that requests have waited for the compiler so far, including now; any thread may read this."""
        return self._rows.compile_clock.seconds

    def memory(self) -> Memory:
        """What pages hold at this moment."""
        return self._rows.memory()

    # Weights

    def check_weights(self, policy: int, weights: dict) -> None:
        """Refuses weights that are not those of a policy; any thread may ask."""
        self.engine.check_weights(policy, weights)

    def set_weights(self, policy: int, weights: dict, version: int) -> None:
        """Gives a policy new weights (see `Engine.check_weights`), at once or when the rows it has in flight are done.

        A request that has begun is finished with the weights it began with; the policy's other requests, those in the
        queue and those to come, wait for the new ones. With `in_flight_updates` nobody waits: rows in flight read
        their prompt and what they wrote again. Of several updates that wait, the last one counts.
        """
        self.check_weights(policy, weights)
        self._updates[policy] = weights, version
        if not self._decoding:
            self._swap()

    def _swap(self):
        for policy in list(self._updates):
            if not self.in_flight_updates and any(r.begun and r.policy == policy for r in self._open.values()):
                continue
            self._enqueue(self._rows.forget(policy), first=True)
            self.engine.set_weights(policy, *self._updates.pop(policy))


def _device_bytes() -> int:
    """Memory of one device, or of this machine divided among its CPU devices."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // jax.local_device_count()
