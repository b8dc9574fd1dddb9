"""The rows of a `Batcher` on the device: prefilling contexts into pages and decoding chunks.

The device holds only the pages. The state of the rows is passed with every call, so rows can change places, and their
number can change, without moving data.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future

import jax
import numpy as np

from marl_jax.sampling import decode
from marl_jax.sampling.compiling import CompileClock, CompiledPrograms
from marl_jax.sampling.conversation import round_up
from marl_jax.sampling.engine import Engine
from marl_jax.sampling.images import ImageInputs
from marl_jax.sampling.pages import PagePool
from marl_jax.sampling.placing import Line, Part
from marl_jax.sampling.programs import Lines, RowBatch
from marl_jax.sampling.requests import Memory, Request, Sample, Usage
from marl_jax.sampling.slots import Slots
from models.blockwise import BLOCK

LINE = {"gpu": 64, "tpu": 128, "cpu": 32}  # tokens per line
LINES = {"gpu": (16, 128), "tpu": (8, 64), "cpu": (1, 8)}  # lines per prefill batch, for low and high load
MANY = 16  # waiting rows are many if they exceed 1/16 of the batch
PAIRS = 64  # pages that one call copies or clears

Finished = list[tuple[Sample, str]]
Begun = tuple[Sequence[np.ndarray], Callable[[], tuple]]
"""Decoding rows of each part, and a function that returns the pages, the new tokens and the duration of the chunk."""


class BatchRows:
    """Up to `rows` samples that share a pool of pages.

    Args:
        engine: The model.
        rows: Maximum number of samples that decode together.
        longest: Maximum number of tokens of a context.
        pages: Number of pages.
        size: Tokens per page.
        chunk: Decoding steps per chunk.
        tokenizer: Needed for stop strings only.
        fixed: Whether all programs have one shape, so that a sample's result does not depend on others, bit for bit.
        usage: Counters to update.
    """

    def __init__(
        self, engine: Engine, *, rows: int, longest: int, pages: int, size: int, chunk: int, tokenizer, fixed: bool,
        usage: Usage,
    ):  # fmt: skip
        self.engine, self.rows, self.chunk, self.size, self.usage = engine, rows, chunk, size, usage
        self.tokenizer, self.fixed = tokenizer, fixed
        n = engine.row_multiple
        # Columns of a page table, in complete blocks of `models.blockwise`.
        self.width = round_up(-(-longest // size), max(BLOCK // size, 1))
        self.parts = []
        for i in range(n):
            pool = PagePool(i * (pages // n), pages // n, size)
            slots = Slots(rows // n, self.width, longest, chunk, pool.first)
            self.parts.append(Part(pool, slots, lambda policy: engine.versions[policy], chunk, fixed, usage))
        self.pages = engine._empty_pages(pages // n * n, size)
        platform = jax.default_backend()
        self.line, few_many = LINE.get(platform, 32), LINES.get(platform, (1, 8))
        self._line_counts = tuple(sorted({round_up(count, n) for count in few_many[1 if fixed else 0 :]}))
        self._row_counts = [rows] if fixed else _row_counts(rows, n)
        self._compiled: CompiledPrograms | None = None
        self._called: set[tuple] = set()  # keys of programs that were compiled by their first call
        self.compile_clock = CompileClock()
        self._begun: Begun | None = None
        self._since: float | None = None  # time at which the first program of a chunk was started
        self._bound: Sequence[np.ndarray] = ()

    # Samples

    @property
    def active(self) -> list[Sample]:
        """Samples that have a row."""
        return [sample for part in self.parts for sample in part.active]

    @property
    def free(self) -> int:
        """Number of free rows."""
        return sum(part.slots.free for part in self.parts)

    def place(self, sample: Sample) -> bool:
        """Assign a row and pages to a sample; return False if none are free."""
        parts = [part for part in self.parts if part.slots.free]
        if len(parts) > 1:
            policy, tokens = sample.request.policy, sample.context[:-1]
            parts.sort(key=lambda part: (-len(part.pool.known(policy, tokens)), -part.slots.free))
        return any(part.place(sample) for part in parts)

    def release(self, sample: Sample) -> None:
        """Free the row of a sample."""
        next(part for part in self.parts if sample in part.slots.samples).release(sample)

    def close(self, request: Request) -> None:
        """Release a request's context, which no further sample will continue."""
        for part in self.parts:
            part.close(request)

    def forget(self, policy: int) -> list[Sample]:
        """Drop the cached contexts of a policy, and return its samples, which lose their rows."""
        return [sample for part in self.parts for sample in part.forget(policy)]

    def take_preempted(self) -> list[Sample]:
        """Return the samples that have lost their rows since the last call."""
        samples = [sample for part in self.parts for sample in part.preempted]
        for part in self.parts:
            part.preempted = []
        return samples

    def catch_up(self) -> None:
        """Pass new tokens to watched requests, and release the pages of finished rows."""
        for part in self.parts:
            for slot, sample in enumerate(part.slots.samples):
                if sample is not None and sample.request.on_tokens is not None:
                    part.slots.show(slot, self.engine.versions[sample.request.policy])
            part.settle()

    def memory(self) -> Memory:
        """Return the present use of the pages."""
        memories = [part.memory() for part in self.parts]
        return Memory(*(sum(getattr(m, name) for m in memories) for name in ("tokens", "slots", "total")))

    # Prefill

    def read(self) -> None:
        """Prefill one batch of lines, and more while many rows are waiting.

        A long prompt thus delays decoding by one batch at a time, while idle rows are filled quickly.
        """
        self._run_pairs("_wipe_pages", [[(page,) for page in part.pool.spoilt] for part in self.parts])
        for part in self.parts:
            part.pool.spoilt.clear()
        while True:
            most = max(part.unread_lines(self.line, self._line_counts[-1]) for part in self.parts)
            count = next((n for n in self._line_counts if n // len(self.parts) >= most), self._line_counts[-1])
            share = count // len(self.parts)
            lines = [part.lines(share, self.line) for part in self.parts]
            if any(lines):
                self._run_lines(lines, count)
            decoding = sum(int(part.slots.ready.sum()) for part in self.parts)
            waiting = self.rows - self.free - decoding
            if not any(lines) or waiting <= min(decoding, max(self.rows // MANY, 1)):
                break
        self._run_pairs("_copy_pages", [part.copies() for part in self.parts])

    def _run_lines(self, lines: list[list[Line]], count: int):
        """Prefill the lines of each part, padded to `count` lines."""
        batch = Lines(
            np.zeros((count, self.line), np.int32), np.zeros((count,), np.int32), np.zeros((count,), np.int32),
            self._empty_table(count), np.zeros((count,), np.int32), self._empty_images(count),
        )  # fmt: skip
        for d, own in enumerate(lines):
            for at, line in enumerate(own, d * (count // len(self.parts))):
                n = len(line.tokens)
                batch.tokens[at, :n], batch.lengths[at], batch.starts[at] = line.tokens, n, line.start
                batch.table[at, : len(line.pages)], batch.adapter_ids[at] = line.pages, line.policy
                if batch.images is not None and batch.images.positions is not None:
                    assert self.engine.images is not None and isinstance(batch.images.positions, np.ndarray)
                    positions = self.engine.images.positions(line.context)
                    batch.images.positions[:, at, :n] = positions[:, line.start : line.start + n]
        run = self._program(("read", count), self.engine._read_lines)
        self._since = self._since or time.perf_counter()
        self.pages = run(self.engine.weights, self.pages, batch)

    def _run_pairs(self, program: str, pairs: Sequence[Sequence[tuple[int, ...]]]):
        """Run a program over tuples of pages of each part, `PAIRS` per call."""
        while any(pairs):
            columns = len(next(p for p in pairs if p)[0])
            batch = np.full((columns, len(self.parts), PAIRS), len(self.parts) * self.parts[0].pool.count, np.int32)
            for d, (part, own) in enumerate(zip(self.parts, pairs, strict=True)):
                for i, pair in enumerate(own[:PAIRS]):
                    batch[:, d, i] = np.subtract(pair, part.pool.first)
            run = self._program((program,), getattr(self.engine, program))
            self.pages = run(self.pages, *batch)
            pairs = [own[PAIRS:] for own in pairs]

    def _empty_images(self, count: int) -> ImageInputs | None:
        """Return the images of lines, with positions of padding; None for a model of text."""
        if self.engine.images is None:
            return None
        mrope = self.engine.model.cfg.mrope_sections is not None
        positions = np.zeros((3, count, self.line), np.int32) if mrope else None
        return ImageInputs(self.engine.images.table, positions)

    def _empty_table(self, count: int) -> np.ndarray:
        """Return a page table of padding; it refers to a page of the same part."""
        firsts = np.asarray([part.pool.first for part in self.parts], np.int32)
        return np.repeat(firsts, count // len(self.parts))[:, None].repeat(self.width, axis=1)

    # Decoding

    def begin(self, device: Executor | None = None) -> Future | None:
        """Start a chunk for every prefilled sample, and one step for those with a constraint.

        Args:
            device: A thread that decodes the chunk; None to decode in `finish`.

        Returns:
            A future of the chunk if it was submitted to `device`, otherwise None.
        """
        going = [part.grow() for part in self.parts]
        bound = [part.slots.bound[slots] for part, slots in zip(self.parts, going, strict=True)]
        free = [slots[~own] for slots, own in zip(going, bound, strict=True)]
        self._bound = [slots[own] for slots, own in zip(going, bound, strict=True)]
        self._begun = self._chunk(free, self.chunk)
        if self._begun is None or device is None:
            return None
        slots, decode_chunk = self._begun
        chunk = device.submit(decode_chunk)
        self._begun = slots, chunk.result
        return chunk

    def finish(self) -> Finished:
        """Wait for the chunk of `begin` and return the samples that have finished."""
        begun, self._begun = self._begun, None
        finished = [] if begun is None else self._collect(*begun)
        constrained = self._chunk(self._bound, 1)
        return finished + ([] if constrained is None else self._collect(*constrained))

    def _chunk(self, going: Sequence[np.ndarray], steps: int) -> Begun | None:
        """Prepare up to `steps` decoding steps for these rows of each part; None without rows."""
        most = max(map(len, going))
        if not most:
            return None
        count = next(n for n in self._row_counts if n // len(self.parts) >= most)
        rows = self._row_batch(going, count)
        lazy = functools.partial(self._decode_lazily, steps=steps)
        run = self._program(_decode_key(count, rows), lazy)
        weights, pages, since = self.engine.weights, self.pages, self._since
        self._since = None

        def decode_chunk():
            started = since or time.perf_counter()
            kept, new = run(weights, pages, rows)  # blocks this thread while the chunk decodes
            return kept, jax.device_get(new), time.perf_counter() - started

        return going, decode_chunk

    def _collect(self, going: Sequence[np.ndarray], result: Callable) -> Finished:
        """Wait for a chunk, record its tokens and free the rows that have finished."""
        self.pages, (*new, taken), seconds = result()
        count = len(new[0])
        self.usage.device += seconds
        self.usage.slots += count * int(taken)
        share = count // len(self.parts)
        return [
            finished
            for d, (part, slots) in enumerate(zip(self.parts, going, strict=True))
            for finished in self._advance(part, slots, *(x[d * share : d * share + len(slots)] for x in new))
        ]

    def _row_batch(self, going: Sequence[np.ndarray], count: int) -> RowBatch[np.ndarray]:
        """Build the batch of rows that decode, padded to `count`."""
        pairs = list(zip((part.slots for part in self.parts), going, strict=True))
        stops = max(slots.stops(own) for slots, own in pairs)
        filters = any(slots.filters(own) for slots, own in pairs)
        vocab, share = self.engine.model.cfg.vocab_size, count // len(self.parts)
        mrope = self.engine.images is not None and self.engine.model.cfg.mrope_sections is not None
        batches = [slots.batch(own, share, vocab, stops, filters, mrope) for slots, own in pairs]
        if any(batch.allowed is not None for batch in batches):
            batches = [_with_allowed(batch, vocab) for batch in batches]
        if filters and any(batch.filters.seen is not None for batch in batches):
            batches = [_with_seen(batch, vocab) for batch in batches]
        return batches[0] if len(batches) == 1 else jax.tree.map(lambda *x: np.concatenate(x), *batches)

    def _advance(self, part: Part, slots: np.ndarray, tokens, logps, written, finish) -> Finished:
        """Record new tokens of one part and free the rows that have finished."""
        before = int(part.slots.written[slots].sum())
        part.slots.advance(slots, tokens, logps, written)
        part.slots.advance_constraints(slots, tokens, written)
        reasons = {int(slots[i]): decode.FINISH[finish[i]] for i in np.flatnonzero(finish != decode.GOING)}
        reasons |= dict.fromkeys(part.slots.cut_at_stop_strings(slots, self.tokenizer), "stop")
        self.usage.generated += int(part.slots.written[slots].sum()) - before
        finished = []
        for slot, reason in reasons.items():
            sample = part.slots.samples[slot]
            assert sample is not None
            part.release(sample, spoilt=reason == "invalid")
            finished.append((sample, reason))
        return finished

    # Programs

    def compile(self) -> None:
        """Start compiling all programs that plain requests need, in the background."""
        weights, pages, jobs = self.engine.weights, self.pages, {}
        for count in self._line_counts:
            zeros = np.zeros((count,), np.int32)
            lines = Lines(
                np.zeros((count, self.line), np.int32),
                zeros,
                zeros,
                self._empty_table(count),
                zeros,
                self._empty_images(count),
            )
            jobs["read", count] = self.engine._read_lines, (weights, pages, lines)
        reads = list(jobs)
        for count in self._row_counts:
            rows = self._row_batch([np.zeros((0,), np.int64) for _ in self.parts], count)
            jobs[_decode_key(count, rows)] = self.engine._decode_rows, (weights, pages, rows, self.chunk)
        decodes = list(jobs)[len(reads) :]
        pairs = np.zeros((len(self.parts), PAIRS), np.int32)
        jobs["_copy_pages",] = self.engine._copy_pages, (pages, pairs, pairs)
        # First the programs for one request, then those for many, then the sizes in between.
        order = dict.fromkeys([reads[0], decodes[0], ("_copy_pages",), decodes[-1], reads[-1], *decodes])
        self._compiled = CompiledPrograms([(key, jobs[key][0], jax.tree.map(_shape, jobs[key][1])) for key in order])

    def stop_compiling(self) -> None:
        """Cancel compilations that have not been started."""
        if self._compiled is not None:
            self._compiled.close()

    def wait(self) -> None:
        """Wait until all programs are compiled."""
        if self._compiled is not None:
            self._compiled.wait()

    def _program(self, key: tuple, lazy: Callable) -> Callable:
        """Return the program of a shape, compiled in the background or by its first call.

        Either way `compile_clock` counts the wait. A first call also runs the program, which is short by comparison.
        """
        if self._compiled is not None:
            with self.compile_clock.running():
                compiled = self._compiled.get(key)
            if compiled is not None:
                return compiled
        if key in self._called:
            return lazy
        self._called.add(key)

        def first_call(*arguments):
            with self.compile_clock.running():
                return lazy(*arguments)

        return first_call

    def _decode_lazily(self, weights, pages, rows, steps):
        """Call the decoding program, which compiles on first use."""
        return self.engine._decode_rows(weights, pages, rows, steps)


def _row_counts(rows: int, multiple: int) -> list[int]:
    """Return the possible batch sizes in increasing order.

    These are fractions of `rows` down to an eighth, with more sizes in between for large batches.
    """
    shares = (8, 4, 2, 1) if rows < 64 else (8, 4, 8 / 3, 2, 4 / 3, 1)
    counts = {int(rows / share) for share in shares if rows / share == int(rows / share)}
    return sorted(n for n in counts if n >= multiple and n % multiple == 0)


def _shape(x):
    """Return the shape, dtype and sharding of an array, for compilation."""
    if not hasattr(x, "shape"):
        return x
    placed = isinstance(x, jax.Array) and x.committed  # others are placed by the program
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding if placed else None)


def _decode_key(count: int, rows: RowBatch[np.ndarray]) -> tuple:
    """Return everything that the shapes of a decoding program depend on."""
    kind = None if rows.filters is None else rows.filters.seen is not None
    return "decode", count, rows.stop_ids.shape[1], kind, rows.allowed is not None


def _with_allowed(batch: RowBatch[np.ndarray], vocab: int) -> RowBatch[np.ndarray]:
    """Add a mask of allowed tokens if the batch has none."""
    if batch.allowed is not None:
        return batch
    return dataclasses.replace(batch, allowed=np.ones((len(batch.token), vocab), bool))


def _with_seen(batch: RowBatch[np.ndarray], vocab: int) -> RowBatch[np.ndarray]:
    """Add a mask of seen tokens if the batch has none."""
    assert batch.filters is not None
    if batch.filters.seen is not None:
        return batch
    seen = np.zeros((len(batch.token), vocab), bool)
    return dataclasses.replace(batch, filters=dataclasses.replace(batch.filters, seen=seen))
