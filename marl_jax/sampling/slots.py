"""State of a batcher's rows as columns, which avoids loops over rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from marl_jax.sampling import decode
from marl_jax.sampling.programs import RowBatch
from marl_jax.sampling.requests import Sample
from marl_jax.sampling.settings import Sampling, stop_width

PLAIN_STOPS = stop_width(Sampling())


class Slots:
    """Columns with one entry per row; some rows have a sample.

    Args:
        rows: Number of rows.
        width: Columns of the page table.
        longest: Maximum number of tokens of a context.
        chunk: Decoding steps per chunk.
        filler: Page for unused entries of the page table, which is never attended to.

    Attributes:
        samples: Sample of each row, or None.
        ready: bool, whether the context has been prefilled.
        bound: bool, whether the sample has a constraint.
        came: int64, order in which samples got their rows.
        lengths: int32, tokens in the cache.
        budget: int32, tokens that may still be generated.
        most: int32, tokens in the cache when the full budget is used.
        offset: int32, next position minus the number of tokens.
        table: int32 [rows, M], pages of each row.
        n_pages: int32, number of its pages.
        written: int32, tokens generated since the sample got its row.
    """

    def __init__(self, rows: int, width: int, longest: int, chunk: int, filler: int):
        def column(dtype: npt.DTypeLike = np.int32) -> np.ndarray:
            return np.zeros((rows,), dtype)

        self.samples: list[Sample | None] = [None] * rows
        self.filler, self._chunk, self._count = filler, chunk, 0
        self.ready, self.bound, self.came = column(bool), column(bool), column(np.int64)
        self.lengths, self.budget, self.most, self.n_pages, self.written = (column() for _ in range(5))
        self.table = np.full((rows, width), filler, np.int32)
        self._token, self._adapter_ids, self._seeds = column(), column(), column(np.uint32)
        self._temperature, self._top_p, self._penalty = (column(np.float32) for _ in range(3))
        self._top_k, self._filters, self._stop_width = column(), column(bool), column()
        self._stop_strings, self.offset = column(bool), column()
        self._stop_ids = np.full((rows, PLAIN_STOPS), -1, np.int32)
        self._tokens = np.zeros((rows, longest + chunk), np.int32)
        self._logps = np.zeros((rows, longest + chunk), np.float32)
        self._free = list(range(rows))[::-1]

    @property
    def free(self) -> int:
        """Number of free rows."""
        return len(self._free)

    def pages(self, slot: int) -> list[int]:
        """Return the pages of a row, in order."""
        return self.table[slot, : self.n_pages[slot]].tolist()

    def put(self, sample: Sample, pages: Sequence[int], prefilled: bool) -> int:
        """Assign a row to a sample and return its index."""
        slot, sampling = self._free.pop(), sample.sampling
        self._count += 1
        self.samples[slot], self.ready[slot], self.came[slot], sample.slot = sample, prefilled, self._count, slot
        self.lengths[slot] = len(sample.request.prompt) + len(sample.tokens) - 1
        self.budget[slot], self.written[slot] = sampling.max_new_tokens - len(sample.tokens), 0
        self.most[slot] = sample.most
        self.table[slot, : len(pages)], self.n_pages[slot] = pages, len(pages)
        self._token[slot] = sample.tokens[-1] if len(sample.tokens) else sample.request.prompt[-1]
        self.offset[slot] = sample.request.offset
        self._adapter_ids[slot], self._seeds[slot] = sample.request.policy, sampling.seed
        self._temperature[slot], self._filters[slot] = sampling.temperature, sampling.filters
        self.bound[slot] = sample.constraint is not None
        self._top_k[slot], self._top_p[slot] = sampling.top_k, sampling.top_p
        self._penalty[slot] = sampling.repetition_penalty
        self._stop_strings[slot], self._stop_width[slot] = bool(sampling.stop_strings), stop_width(sampling)
        more = stop_width(sampling) - self._stop_ids.shape[1]
        if more > 0:
            self._stop_ids = np.pad(self._stop_ids, ((0, 0), (0, more)), constant_values=-1)
        self._stop_ids[slot] = -1
        self._stop_ids[slot, : len(sampling.stop_ids)] = sampling.stop_ids
        return slot

    def clear(self, slot: int, version: int) -> None:
        """Free a row; its sample keeps the generated tokens, with the version of their weights."""
        n, sample = self.written[slot], self.samples[slot]
        assert sample is not None
        sample.extend(self._tokens[slot, :n], self._logps[slot, :n], version)
        self.samples[slot], sample.slot = None, None
        self.ready[slot], self.budget[slot], self.n_pages[slot] = False, 0, 0
        self.table[slot] = self.filler
        self._free.append(slot)

    def add_pages(self, slots: np.ndarray, counts: np.ndarray, pages: Sequence[int]) -> None:
        """Append pages to rows: the first `counts[0]` to the first row, and so on."""
        lines = np.repeat(slots, counts)
        inside = np.arange(len(lines)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.table[lines, self.n_pages[lines] + inside] = pages
        self.n_pages[slots] += counts

    def batch(
        self, slots: np.ndarray, count: int, vocab: int, stops: int, filters: bool, mrope: bool = False
    ) -> RowBatch[np.ndarray]:
        """Build a batch of `count` rows from these rows.

        Args:
            slots: int [n], the rows.
            count: Number of rows of the batch, including padding.
            vocab: Size of the vocabulary.
            stops: Columns for stop ids.
            filters: Whether any row of the batch has filters.
            mrope: Whether the model has mRoPE and encodes images, so that rows have offsets.
        """

        def column(values: np.ndarray, rest: int = 0) -> np.ndarray:
            full = np.full((count, *values.shape[1:]), rest, values.dtype)
            full[: len(slots)] = values[slots]
            return full

        kept = None
        if filters:
            seen = None
            penalised = [i for i, slot in enumerate(slots) if self._penalty[slot] != 1]
            if penalised:
                seen = np.zeros((count, vocab), bool)
                for i in penalised:
                    context = self.context(slots[i])
                    seen[i, context[context < vocab]] = True  # ids after the vocabulary are images
            kept = decode.Filters(column(self._top_k), column(self._top_p, 1), column(self._penalty, 1), seen)
        allowed = None
        if self.bound[slots].any():
            allowed = np.ones((count, vocab), bool)
            for i, slot in enumerate(slots):
                allowed[i] = self.samples[slot].constraint.mask()
        stop_ids = np.full((count, stops), -1, np.int32)
        own = min(stops, self._stop_ids.shape[1])
        stop_ids[: len(slots), :own] = self._stop_ids[slots, :own]
        return RowBatch(
            token=column(self._token), lengths=column(self.lengths), budget=column(self.budget),
            seeds=column(self._seeds), temperature=column(self._temperature, 1), stop_ids=stop_ids,
            adapter_ids=column(self._adapter_ids), table=column(self.table, self.filler), filters=kept,
            allowed=allowed, offset=column(self.offset) if mrope else None,
        )  # fmt: skip

    def stops(self, slots: np.ndarray) -> int:
        """Return the number of columns for stop ids of these rows."""
        return int(np.max(self._stop_width[slots], initial=PLAIN_STOPS))

    def filters(self, slots: np.ndarray) -> bool:
        """Return whether any of these rows has filters."""
        return bool(np.any(self._filters[slots]))

    def context(self, slot: int) -> np.ndarray:
        """Return all tokens of a row, int32 [n], including the last uncached one."""
        sample = self.samples[slot]
        assert sample is not None
        return np.concatenate([sample.context, self._tokens[slot, : self.written[slot]]])

    def advance(self, slots: np.ndarray, tokens: np.ndarray, logps: np.ndarray, new: np.ndarray) -> None:
        """Append the tokens that these rows have generated in a chunk.

        Args:
            slots: int [n], the rows.
            tokens: int32 [n, chunk].
            logps: float32 [n, chunk].
            new: int32 [n], number of new tokens of each row.
        """
        at = self.written[slots][:, None] + np.arange(tokens.shape[1])
        self._tokens[slots[:, None], at], self._logps[slots[:, None], at] = tokens, logps
        self.written[slots] += new
        self.lengths[slots] += new
        self.budget[slots] -= new
        some = new > 0
        self._token[slots[some]] = tokens[some, new[some] - 1]

    def advance_constraints(self, slots: np.ndarray, tokens: np.ndarray, new: np.ndarray) -> None:
        """Pass the first `new` tokens [n, steps] of each row to its constraint."""
        for i in np.flatnonzero(self.bound[slots]):
            for token in tokens[i, : new[i]].tolist():
                self.samples[slots[i]].constraint.advance(token)

    def show(self, slot: int, version: int) -> None:
        """Pass the new tokens of a row to its request, which must be watched."""
        n, sample = self.written[slot], self.samples[slot]
        assert sample is not None
        sample.show(self._tokens[slot, :n], self._logps[slot, :n], version)

    def cut_at_stop_strings(self, slots: np.ndarray, tokenizer) -> list[int]:
        """Drop tokens after a stop string, and return the rows that have completed one."""
        stopped = []
        for slot in slots[self._stop_strings[slots]]:
            sample, n = self.samples[slot], self.written[slot]
            kept = sample.up_to_stop_string(self._tokens[slot, :n], tokenizer)
            if kept is not None:
                self.written[slot] = kept
                self.lengths[slot] -= n - kept
                stopped.append(int(slot))
        return stopped
