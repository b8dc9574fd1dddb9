"""The rows of a `Batcher` on the device: reading contexts into pages and decoding chunks.

The device holds the pages and nothing else; what a row is comes with every call. So rows change places, and their
number, without anything being moved.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import jax
import numpy as np

from marl_jax.sampling import decode
from marl_jax.sampling.conversation import round_up
from marl_jax.sampling.engine import Engine
from marl_jax.sampling.pages import PagePool, page_keys
from marl_jax.sampling.placing import Line, Part
from marl_jax.sampling.programs import Lines, RowBatch
from marl_jax.sampling.requests import Memory, Request, Sample, Usage
from marl_jax.sampling.settings import Sampling, stop_width
from models.blockwise import BLOCK

LINE = {"gpu": 64, "tpu": 128, "cpu": 32}  # tokens of a line
LINES = {"gpu": (16, 128), "tpu": (8, 64), "cpu": (1, 8)}  # lines that are read together: when few wait, and many
SMALLEST = 8  # the batch is halved as long as an eighth of its rows is left
PAIRS = 64  # pages that are copied, or wiped, by one call
PLAIN = Sampling()

Finished = list[tuple[Sample, str]]


class BatchRows:
    """Up to `rows` samples in `pages` pages of `size` tokens; reading and decoding return those that have finished.

    longest  tokens of the longest context
    chunk    steps between two looks from the host
    fixed    all programs have one shape, and nothing that a sample gets depends on the others, to the last bit
    """

    def __init__(
        self, engine: Engine, *, rows: int, longest: int, pages: int, size: int, chunk: int, tokenizer, fixed: bool,
        usage: Usage,
    ):  # fmt: skip
        self.engine, self.rows, self.chunk, self.size, self.usage = engine, rows, chunk, size, usage
        self.tokenizer, self.fixed = tokenizer, fixed
        n = engine.row_multiple
        self.width = round_up(-(-longest // size), max(BLOCK // size, 1))  # of a table: whole blocks, see `blockwise`
        self.parts = [
            Part(PagePool(i * (pages // n), pages // n, size), rows // n, chunk, fixed, usage) for i in range(n)
        ]
        self.pages = engine._empty_pages(pages // n * n, size)
        platform = jax.default_backend()
        self.line, few_many = LINE.get(platform, 32), LINES.get(platform, (1, 8))
        self._line_counts = tuple(sorted({round_up(count, n) for count in few_many[1 if fixed else 0 :]}))
        self._row_counts = [rows]
        while not fixed and self._row_counts[0] > max(rows // SMALLEST, n) and self._row_counts[0] % (2 * n) == 0:
            self._row_counts.insert(0, self._row_counts[0] // 2)
        self._ready: dict[tuple, Callable] = {}

    # Samples

    @property
    def active(self) -> list[Sample]:
        """The samples that have a row."""
        return [sample for part in self.parts for sample in part.active]

    @property
    def free(self) -> int:
        return self.rows - sum(len(part.active) for part in self.parts)

    def place(self, sample: Sample) -> bool:
        """Gives a sample a row and pages; False if there is no room for it now."""
        keys = page_keys(sample.request.policy, sample.context[:-1], self.size)
        parts = [part for part in self.parts if len(part.active) < part.rows]
        if len(parts) > 1:
            parts.sort(key=lambda part: (-part.known(keys), len(part.active)))
        return any(part.place(sample, keys) for part in parts)

    def release(self, sample: Sample) -> None:
        """Takes the row from a sample."""
        next(part for part in self.parts if sample in part.active).release(sample)

    def close(self, request: Request) -> None:
        """No further sample will continue the context of this request."""
        for part in self.parts:
            part.close(request)

    def forget(self, policy: int) -> list[Sample]:
        """Lets go of everything that a policy has read; returns its samples, which have no row any more."""
        return [sample for part in self.parts for sample in part.forget(policy)]

    def take_preempted(self) -> list[Sample]:
        """Samples that lost their row since the last call."""
        found = [sample for part in self.parts for sample in part.preempted]
        for part in self.parts:
            part.preempted = []
        return found

    def memory(self) -> Memory:
        """What pages hold now."""
        found = [part.memory() for part in self.parts]
        return Memory(*(sum(getattr(m, name) for m in found) for name in ("tokens", "slots", "total")))

    # Reading

    def read(self) -> None:
        """Reads what samples wait for: one batch of lines, and more while a quarter of the rows has nothing to do.

        So a long prompt stalls the rows that decode for one batch at a time, and idle rows are filled quickly.
        """
        self._run_pairs("_wipe_pages", [[(page,) for page in part.pool.spoilt] for part in self.parts])
        for part in self.parts:
            part.pool.spoilt.clear()
        while True:
            unread = sum(part.unread for part in self.parts)
            count = next((n for n in self._line_counts if n * self.line >= unread), self._line_counts[-1])
            share = count // len(self.parts)
            lines = [part.lines(share, self.line) for part in self.parts]
            if any(lines):
                self._run_lines(lines, count)
            waiting = sum(sample.read is not None for part in self.parts for sample in part.active)
            if not any(lines) or not waiting or self.free + waiting < self.rows // 4:
                break
        self._run_pairs("_copy_pages", [part.copies() for part in self.parts])

    def _run_lines(self, lines: list[list[Line]], count: int):
        batch = Lines(
            np.zeros((count, self.line), np.int32), np.zeros((count,), np.int32), np.zeros((count,), np.int32),
            self._empty_table(count), np.zeros((count,), np.int32),
        )  # fmt: skip
        for at, line in self._positions(lines, count):
            n = len(line.tokens)
            batch.tokens[at, :n], batch.lengths[at], batch.starts[at] = line.tokens, n, line.start
            batch.table[at, : len(line.pages)], batch.adapter_ids[at] = line.pages, line.policy
        run = self._ready.get(("read", count), self.engine._read_lines)
        self.pages = run(self.engine.weights, self.pages, batch)

    def _run_pairs(self, program: str, pairs: Sequence[Sequence[tuple[int, ...]]]):
        """Runs a program over tuples of pages of each part, as many at once as it takes."""
        while any(pairs):
            columns = len(next(p for p in pairs if p)[0])
            batch = np.full((columns, len(self.parts), PAIRS), len(self.parts) * self.parts[0].pool.count, np.int32)
            for d, (part, own) in enumerate(zip(self.parts, pairs, strict=True)):
                for i, pair in enumerate(own[:PAIRS]):
                    batch[:, d, i] = np.subtract(pair, part.pool.first)
            run = self._ready.get((program,), getattr(self.engine, program))
            self.pages = run(self.pages, *batch)
            pairs = [own[PAIRS:] for own in pairs]

    def _positions(self, of_parts: Sequence[Sequence], count: int) -> Iterator[tuple[int, object]]:
        """Everything with its place in a batch of `count`, of which each part has its share."""
        share = count // len(self.parts)
        for d, items in enumerate(of_parts):
            yield from ((d * share + i, item) for i, item in enumerate(items))

    def _empty_table(self, count: int) -> np.ndarray:
        """A table whose lines name a page of their own part, which is never attended to."""
        firsts = np.asarray([part.pool.first for part in self.parts], np.int32)
        return np.repeat(firsts, count // len(self.parts))[:, None].repeat(self.width, axis=1)

    # Decoding

    def decode(self) -> Finished:
        """One chunk for every sample whose context has been read."""
        going = [part.grow() for part in self.parts]
        most = max(map(len, going))
        if not most:
            return []
        count = next(n for n in self._row_counts if n // len(self.parts) >= most)
        rows = self._row_batch(going, count)
        kind = rows.filters is not None, rows.stop_ids.shape[1]
        key, arguments = ("decode", count, *kind), (self.engine.weights, self.pages, rows)
        if key in self._ready:
            self.pages, new = self._ready[key](*arguments)
        else:
            self.pages, new = self.engine._decode_rows(*arguments, self.chunk)
        *new, taken = jax.device_get(new)
        self.usage.slots += count * int(taken)
        return self._collect(going, count, *new)

    def _row_batch(self, going: Sequence[Sequence[Sample]], count: int) -> RowBatch:
        placed = list(self._positions(going, count))
        samplings = [sample.sampling for _, sample in placed]
        at = np.asarray([i for i, _ in placed])

        def column(values, dtype, rest=0):
            full = np.full((count,), rest, dtype)
            full[at] = values
            return full

        stop_ids = np.full((count, max(map(stop_width, samplings))), -1, np.int32)
        table = self._empty_table(count)
        for i, sample in placed:
            table[i, : len(sample.pages)] = sample.pages
            if sample.sampling.stop_ids:
                stop_ids[i, : len(sample.sampling.stop_ids)] = sample.sampling.stop_ids
        return RowBatch(
            token=column([s.tokens[-1] if s.tokens else s.request.prompt[-1] for _, s in placed], np.int32),
            lengths=column([s.length for _, s in placed], np.int32),
            budget=column([s.budget for _, s in placed], np.int32),
            seeds=column([s.seed for s in samplings], np.uint32),
            temperature=column([s.temperature for s in samplings], np.float32, 1.0),
            stop_ids=stop_ids,
            adapter_ids=column([s.request.policy for _, s in placed], np.int32),
            table=table,
            filters=self._filters(placed, column, count),
        )

    def _filters(self, placed, column, count: int) -> decode.Filters | None:
        samplings = [sample.sampling for _, sample in placed]
        if not any(s.filters for s in samplings):
            return None
        seen = None
        if any(s.repetition_penalty != 1 for s in samplings):
            seen = np.zeros((count, self.engine.model.cfg.vocab_size), bool)
            for i, sample in placed:
                if sample.sampling.repetition_penalty != 1:
                    seen[i, sample.context] = True
        return decode.Filters(
            column([s.top_k for s in samplings], np.int32),
            column([s.top_p for s in samplings], np.float32, 1.0),
            column([s.repetition_penalty for s in samplings], np.float32, 1.0),
            seen,
        )

    def _collect(self, going, count: int, tokens, logps, written, finish) -> Finished:
        """Hands out new tokens and frees the rows that are done."""
        finished = []
        for at, sample in self._positions(going, count):
            part = self.parts[at * len(self.parts) // count]
            before, n = len(sample.tokens), written[at]
            sample.extend(tokens[at, :n], logps[at, :n], self.engine.versions[sample.request.policy])
            reason = decode.FINISH[finish[at]]
            if sample.cut_at_stop_string(self.tokenizer):
                reason = "stop"
            self.usage.generated += len(sample.tokens) - before
            if reason == "going":
                continue
            part.release(sample, spoilt=reason == "invalid")
            finished.append((sample, reason))
        return finished

    # Programs

    def compile(self, workers: int = 8) -> None:
        """Compiles every program that plain requests need, several at once, before the first one comes."""
        start, jobs = time.perf_counter(), {}
        for count in self._row_counts:
            rows = self._idle_rows(count)
            jobs["decode", count, False, rows.stop_ids.shape[1]] = (
                self.engine._decode_rows, (self.engine.weights, self.pages, rows, self.chunk)
            )  # fmt: skip
        for count in self._line_counts:
            zeros = np.zeros((count,), np.int32)
            lines = Lines(np.zeros((count, self.line), np.int32), zeros, zeros, self._empty_table(count), zeros)
            jobs["read", count] = self.engine._read_lines, (self.engine.weights, self.pages, lines)
        pairs = np.zeros((len(self.parts), PAIRS), np.int32)
        jobs["_copy_pages",] = self.engine._copy_pages, (self.pages, pairs, pairs)

        def make(program, arguments):
            return program.lower(*arguments).compile()

        log = logging.getLogger(__name__)
        with ThreadPoolExecutor(workers) as threads:
            futures = {threads.submit(make, *job): key for key, job in jobs.items()}
            for done, future in enumerate(as_completed(futures), 1):
                self._ready[futures[future]] = future.result()
                seconds = time.perf_counter() - start
                log.info("compiled %d of %d programs of the sampler after %.0f s", done, len(jobs), seconds)

    def _idle_rows(self, count: int) -> RowBatch:
        zeros = np.zeros((count,), np.int32)
        return RowBatch(
            zeros, zeros, zeros, zeros.astype(np.uint32), zeros.astype(np.float32),
            np.full((count, stop_width(PLAIN)), -1, np.int32), zeros, self._empty_table(count),
        )  # fmt: skip

