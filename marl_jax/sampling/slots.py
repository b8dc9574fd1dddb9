"""What the samples of some rows are doing, as columns with a line for each row: a chunk needs no loop over rows."""

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
    """Columns of `rows` lines, of which some have a sample.

    samples  the sample of each line, or None
    ready    bool, whether its context has been read
    bound    bool, whether its sample has a constraint
    came     int64, when it got its line: later ones have larger numbers
    lengths  int32, tokens it has in the cache
    budget   int32, tokens that it may still write
    most     int32, tokens in the cache when it has used its budget up
    table    int32 [rows, M], its pages, `n_pages` of them
    written  int32, tokens it has written since it got its line
    filler   a page for the rest of the table, which is never attended to
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
        self._stop_strings = column(bool)
        self._stop_ids = np.full((rows, PLAIN_STOPS), -1, np.int32)
        self._tokens = np.zeros((rows, longest + chunk), np.int32)
        self._logps = np.zeros((rows, longest + chunk), np.float32)
        self._free = list(range(rows))[::-1]

    @property
    def free(self) -> int:
        return len(self._free)

    def pages(self, slot: int) -> list[int]:
        """The pages of a line, in order."""
        return self.table[slot, : self.n_pages[slot]].tolist()

    def put(self, sample: Sample, pages: Sequence[int], ready: bool) -> int:
        """Gives a sample a line, and returns its number."""
        slot, sampling = self._free.pop(), sample.sampling
        self._count += 1
        self.samples[slot], self.ready[slot], self.came[slot], sample.slot = sample, ready, self._count, slot
        self.lengths[slot] = len(sample.request.prompt) + len(sample.tokens) - 1
        self.budget[slot], self.written[slot] = sampling.max_new_tokens - len(sample.tokens), 0
        self.most[slot] = sample.most
        self.table[slot, : len(pages)], self.n_pages[slot] = pages, len(pages)
        self._token[slot] = sample.tokens[-1] if len(sample.tokens) else sample.request.prompt[-1]
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
        """Takes the line from its sample, which keeps what it has written, under one version of the weights."""
        n, sample = self.written[slot], self.samples[slot]
        assert sample is not None
        sample.extend(self._tokens[slot, :n], self._logps[slot, :n], version)
        self.samples[slot], sample.slot = None, None
        self.ready[slot], self.budget[slot], self.n_pages[slot] = False, 0, 0
        self.table[slot] = self.filler
        self._free.append(slot)

    def add_pages(self, slots: np.ndarray, counts: np.ndarray, pages: Sequence[int]) -> None:
        """Gives each of these lines some more pages: the first line the first `counts[0]` of them, and so on."""
        lines = np.repeat(slots, counts)
        inside = np.arange(len(lines)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.table[lines, self.n_pages[lines] + inside] = pages
        self.n_pages[slots] += counts

    def batch(self, slots: np.ndarray, count: int, vocab: int, stops: int, filters: bool) -> RowBatch[np.ndarray]:
        """These lines as rows of a batch of `count`.

        stops    columns of stop ids
        filters  whether any row of the batch has some
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
                    seen[i, self.context(slots[i])] = True
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
            allowed=allowed,
        )  # fmt: skip

    def stops(self, slots: np.ndarray) -> int:
        """Columns that the stop ids of these lines need."""
        return int(np.max(self._stop_width[slots], initial=PLAIN_STOPS))

    def filters(self, slots: np.ndarray) -> bool:
        """Whether any of these lines filters what it draws from."""
        return bool(np.any(self._filters[slots]))

    def context(self, slot: int) -> np.ndarray:
        """All tokens of a line, int32 [n]: the last one is not in the cache."""
        sample = self.samples[slot]
        assert sample is not None
        return np.concatenate([sample.context, self._tokens[slot, : self.written[slot]]])

    def advance(self, slots: np.ndarray, tokens: np.ndarray, logps: np.ndarray, new: np.ndarray) -> None:
        """Adds what these lines have written in a chunk: the first `new` int32 [n] of tokens and logps [n, chunk]."""
        at = self.written[slots][:, None] + np.arange(tokens.shape[1])
        self._tokens[slots[:, None], at], self._logps[slots[:, None], at] = tokens, logps
        self.written[slots] += new
        self.lengths[slots] += new
        self.budget[slots] -= new
        some = new > 0
        self._token[slots[some]] = tokens[some, new[some] - 1]

    def advance_constraints(self, slots: np.ndarray, tokens: np.ndarray, new: np.ndarray) -> None:
        """Tells the constraints of these lines what was written: the first `new` of tokens [n, steps]."""
        for i in np.flatnonzero(self.bound[slots]):
            for token in tokens[i, : new[i]].tolist():
                self.samples[slots[i]].constraint.advance(token)

    def show(self, slot: int, version: int) -> None:
        """Hands to the request of a line what it has written, if somebody wants to see it."""
        n, sample = self.written[slot], self.samples[slot]
        assert sample is not None
        sample.show(self._tokens[slot, :n], self._logps[slot, :n], version)

    def cut_at_stop_strings(self, slots: np.ndarray, tokenizer) -> list[int]:
        """Takes back what these lines have written behind a stop string; returns those that have completed one."""
        stopped = []
        for slot in slots[self._stop_strings[slots]]:
            sample, n = self.samples[slot], self.written[slot]
            kept = sample.up_to_stop_string(self._tokens[slot, :n], tokenizer)
            if kept is not None:
                self.written[slot] = kept
                self.lengths[slot] -= n - kept
                stopped.append(int(slot))
        return stopped
