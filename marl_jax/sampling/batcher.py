"""Continuous batching: rows that finish are refilled with new requests between decoding chunks.

The rows share one pool of KV cache pages. A row holds the pages of its context and of the next chunk. Common prefixes
of requests, the samples of one request and later turns of a conversation share pages and are prefilled once. Prompts
are prefilled in lines of a fixed width between chunks, so that a long prompt does not stall others. When pages run out,
the most recent sample is preempted and prefilled again later. When few rows are active, a smaller batch decodes.

The result of a request depends only on its prompt, its seed and the weights. How exactly this holds depends on
`fixed_shapes`. Without it, batch shapes follow the load. Matrix products may then round differently for another number
of rows, and decoded tokens differently from prefilled ones. Results are equal up to rounding (1e-6 in the log-probs of
a float32 model on the CPU), which in rare cases changes a sampled token. With it, they are equal bit for bit for the
same `rows` and machine, regardless of other requests, their order and memory pressure. In-flight weight updates are
excepted, since their timing varies.
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

MEMORY_FRAC = 0.3  # fraction of a device's memory for pages


class Batcher:
    """Serves requests of one model: `submit` them, then call `run` or `step`.

    A step is `begin` and `finish`; in between the device decodes, and the host is free for other work. A batcher
    belongs to one thread; `BatcherThread` serves requests from others.

    Args:
        engine: The model. Its adapters are the policies; without adapters the model is policy 0.
        rows: Maximum number of samples that decode together.
        max_length: Maximum number of tokens of prompt and completion.
        chunk: Decoding steps between refills.
        tokenizer: Needed for stop strings only.
        in_flight_updates: Whether new weights apply between two chunks. Otherwise they apply when no row of their
            policy is in flight.
        fixed_shapes: Whether to use one batch size for decoding and one for prefill, reserve pages for the full
            completion of a row, and not share decoded tokens. This gives bit-equal results at the cost of some unused
            rows and pages. Requests with top-k, top-p or a penalty do not decode together with plain ones.
        page_size: Tokens per page.
        cache_tokens: Tokens in all pages. By default as many as `rows` conversations of `max_length` need, limited by
            `memory_frac`.
        memory_frac: Maximum fraction of a device's memory for pages.
    """

    def __init__(
        self, engine: Engine, *, rows: int, max_length: int, chunk: int = 16, tokenizer=None,
        in_flight_updates: bool = False, fixed_shapes: bool = False, page_size: int = 16,
        cache_tokens: int | None = None, memory_frac: float = MEMORY_FRAC,
    ):  # fmt: skip
        if rows < 1 or rows % engine.row_multiple:
            raise ValueError(f"rows is {rows}, but must be a positive multiple of {engine.row_multiple}")
        if not 1 <= max_length <= engine.model.cfg.max_positions:
            most = engine.model.cfg.max_positions
            raise ValueError(f"max_length is {max_length}, but must be 1 to {most}, the positions of the model")
        if page_size < 1 or page_size & (page_size - 1):
            raise ValueError(f"page_size is {page_size}, but must be a power of two")
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
        """Return the number of pages.

        Every shard of the batch must be able to hold one context of maximum length.
        """
        parts, wanted = self.engine.row_multiple, rows * -(-self.max_length // size)
        if tokens is not None:
            pages, field = tokens // size, f"cache_tokens is {tokens}"
        else:
            each = self.engine.page_bytes(size)
            pages, field = min(wanted, parts * int(frac * _device_bytes() / each)), f"memory_frac is {frac}"
        least = parts * -(-self.max_length // size)
        if pages < least:
            raise ValueError(
                f"{field}, which gives a cache of {pages * size} tokens, but at least {least * size} are needed for a "
                f"conversation of max_length {self.max_length}{f' in each of {parts} shards' if parts > 1 else ''}"
            )
        return pages

    def compile(self) -> None:
        """Start compiling the programs of plain requests in the background.

        A request waits only for the programs that it needs.
        """
        self._rows.compile()

    def wait_until_compiled(self) -> None:
        """Wait until all programs of `compile` are compiled."""
        self._rows.wait()

    def close(self) -> None:
        """Cancel compilations that have not been started."""
        self._rows.stop_compiling()

    # Requests

    def submit(
        self, ids: Sequence[int], sampling: Sampling | None = None, policy: int = 0, n: int = 1,
        deadline: float | None = None,
    ) -> int:  # fmt: skip
        """Queue n samples of one prompt and return the request's number.

        Args:
            ids: Token ids of the prompt.
            sampling: Sampling settings.
            policy: Index of the policy.
            n: Number of samples.
            deadline: A value of `time.monotonic()`; unfinished samples end there with the tokens they have.
        """
        sampling = sampling or Sampling()
        self.check_request(ids, sampling, policy, n)
        self._ids += 1
        prompt, images = np.asarray(ids, np.int32), self.engine.images
        offset = images.offset(prompt) if images is not None and self.engine.model.cfg.mrope_sections else 0
        request = Request(self._ids, prompt, policy, deadline, [None] * n, offset=offset)
        self._open[request.id] = request
        self._enqueue(samples_of(request, sampling))
        return request.id

    def check_request(self, ids: Sequence[int], sampling: Sampling | None = None, policy: int = 0, n: int = 1) -> None:
        """Reject a request that can never be served. Thread-safe."""
        sampling = sampling or Sampling()
        checks.check_prompts(self.engine.model.cfg, [ids], self.max_length, self.engine.images)
        checks.check_policy(policy, self.engine.n_policies)
        if n < 1:
            raise ValueError(f"n is {n}, but must be >= 1")
        if len(ids) + sampling.max_new_tokens > self.max_length:
            raise ValueError(
                f"a prompt of {len(ids)} tokens with max_new_tokens {sampling.max_new_tokens} exceeds max_length "
                f"{self.max_length}"
            )
        if sampling.stop_strings and self.tokenizer is None:
            raise ValueError("stop_strings need a tokenizer; pass one to the Batcher")

    def top_logprobs(self, ids: Sequence[int], start: int, sampling: Sampling, policy: int, k: int):
        """See `Engine.top_logprobs`. Thread-safe."""
        return self.engine.top_logprobs(ids, start, sampling, policy, k)

    def logprobs(self, ids: Sequence[int], start: int, policy: int) -> list[float]:
        """See `Engine.logprobs`. Thread-safe."""
        return self.engine.logprobs(ids, start, policy)

    def cancel(self, request: int) -> bool:
        """End a request before the next chunk, with the tokens it has.

        Returns:
            False if the request is not open any more.
        """
        if request not in self._open:
            return False
        self._open[request].ended = "cancelled"
        return True

    def watch(self, request: int, on_tokens: OnTokens) -> None:
        """Call `on_tokens(k, new)` after every chunk with the new tokens of sample k.

        Tokens of a sample's last chunk are only part of its completion.
        """
        self._open[request].on_tokens = on_tokens

    def results(self) -> list[tuple[int, list[Completion]]]:
        """Return the requests finished since the last call, as (number, completions)."""
        done, self._done = self._done, []
        return done

    def run(self) -> dict[int, list[Completion]]:
        """Serve all submitted requests and return their completions by request number.

        Requests with the largest budgets come first, so that few rows idle at the end.
        """
        self._queue = deque(sorted(self._queue, key=lambda s: -s.sampling.max_new_tokens))
        while self.busy:
            self.step()
        return dict(self.results())

    def step(self) -> None:
        """Decode one chunk."""
        self.begin()
        self.finish()
        self.catch_up()

    def begin(self, device: Executor | None = None) -> Future | None:
        """Expire requests, apply new weights, refill rows, prefill, and start decoding a chunk.

        Args:
            device: A thread that decodes the chunk. Until `finish`, the calling thread may submit and cancel requests,
                refill, catch up, and take the results of the previous chunk.

        Returns:
            A future of the chunk, or None if there is none.
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
        """Wait for the chunk of `begin`."""
        finished = self._rows.finish()
        self._decoding = False
        self._finish(finished)
        self._enqueue(self._rows.take_preempted(), first=True)
        self._counts.seconds += time.perf_counter() - self._began

    def catch_up(self) -> None:
        """Do the work that can be postponed after a chunk.

        This passes new tokens to watched requests and releases pages.
        """
        self._rows.catch_up()

    def expire(self) -> None:
        """End requests that were cancelled or are past their deadline, without decoding."""
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
        """Add samples to the end or the front of the queue."""
        for sample in samples:
            sample.request.unplaced += not len(sample.tokens)
        if first:
            self._queue.extendleft(reversed(samples))
        else:
            self._queue.extend(samples)

    def refill(self) -> None:
        """Assign free rows to waiting samples.

        Requests that have not begun wait if their policy is about to get new weights. With fixed shapes only samples of
        one program decode together. A sample of another program waits, and so do all samples after it in the queue.
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
        """Record finished samples, and close the requests that are complete."""
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
        """Whether there are open requests or pending weights."""
        return bool(self._open or self._updates)

    @property
    def updating(self) -> set[int]:
        """Policies with pending weights."""
        return set(self._updates)

    @property
    def n_policies(self) -> int:
        """Number of policies."""
        return self.engine.n_policies

    @property
    def next_deadline(self) -> float | None:
        """Earliest deadline, 0 for a cancelled request, or None."""
        deadlines = (0.0 if request.ended else request.deadline for request in self._open.values())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    @property
    def usage(self) -> Usage:
        """Counters so far, with the present number of requests."""
        running = sum(r.begun for r in self._open.values())
        versions = tuple(self.engine.versions)
        return dataclasses.replace(self._counts, running=running, waiting=len(self._open) - running, versions=versions)

    @property
    def compile_seconds(self) -> float:
        """Seconds that requests have waited for compilation so far. Thread-safe."""
        return self._rows.compile_clock.seconds

    def memory(self) -> Memory:
        """Return the present use of the pages."""
        return self._rows.memory()

    # Weights

    def check_weights(self, policy: int, weights: dict) -> None:
        """Reject weights that do not match a policy. Thread-safe."""
        self.engine.check_weights(policy, weights)

    def set_weights(self, policy: int, weights: dict, version: int) -> None:
        """Update the weights of a policy, see `Engine.check_weights`.

        A request that has begun finishes with its weights, and the policy's other requests wait for the new ones. With
        `in_flight_updates` no request waits: rows in flight prefill their prompt and their tokens again. If several
        updates are pending, the last one applies.
        """
        self.check_weights(policy, weights)
        self._updates[policy] = weights, version
        if not self._decoding:
            self._swap()

    def _swap(self):
        """Apply pending weights of policies that have no rows in flight."""
        for policy in list(self._updates):
            if not self.in_flight_updates and any(r.begun and r.policy == policy for r in self._open.values()):
                continue
            self._enqueue(self._rows.forget(policy), first=True)
            self.engine.set_weights(policy, *self._updates.pop(policy))


def _device_bytes() -> int:
    """Return the memory of one device, or this machine's divided by its CPU devices."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // jax.local_device_count()
