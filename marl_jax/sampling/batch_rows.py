"""The rows of a `Batcher` on the device: which sample has which row, reading contexts into rows, decoding chunks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from marl_jax.sampling import decode
from marl_jax.sampling.conversation import batch_bucket, pad_rows, round_up
from marl_jax.sampling.engine import Engine
from marl_jax.sampling.requests import Sample, Usage
from marl_jax.sampling.settings import Sampling, settings_for

IDLE = Sampling()  # for rows without a sample, which never get to draw
READ_ROWS = 8  # prompts read together at least, and with fixed shapes always

Finished = list[tuple[Sample, str]]


class BatchRows:
    """Up to `most` rows over one cache of `slots` tokens each; `active` has the sample of each row, or None.

    Reading and decoding return the samples that have finished, each with the reason; their rows are free again.
    """

    def __init__(self, engine: Engine, most: int, slots: int, chunk: int, tokenizer, fixed: bool, usage: Usage):
        self.engine, self.most, self.slots, self.chunk = engine, most, slots, chunk
        self.tokenizer, self.fixed, self.usage = tokenizer, fixed, usage
        self._clear(most)

    def _clear(self, rows: int):
        self.state = None  # before its successor, so that two caches never stand side by side
        self.state = self.engine._idle(rows, self.slots)
        self.active: list[Sample | None] = [None] * rows
        self._plan = None

    @property
    def free(self) -> list[int]:
        return [i for i, s in enumerate(self.active) if s is None]

    def of_policy(self, policy: int) -> list[int]:
        """The rows that a policy has in flight."""
        return [i for i, s in enumerate(self.active) if s is not None and s.request.policy == policy]

    def resize(self, waiting: int) -> None:
        """As many rows as there is work for, `most` halved and halved again; fewer only when nobody waits for them."""
        if self.fixed:
            return
        busy, rows = [i for i, s in enumerate(self.active) if s is not None], len(self.active)
        need, size = len(busy) + waiting, self.most
        while need and need <= size // 2 and (size // 2) % self.engine.row_multiple == 0:
            size //= 2
        if size == rows or not need or (size < rows and busy and waiting):
            return
        if not busy:
            return self._clear(size)
        source = np.asarray(busy + [-1] * (size - len(busy)), np.int32)
        self.state = self.engine._move(self.state, source)
        self.active = [self.active[i] for i in busy] + [None] * (size - len(busy))
        self._plan = None

    def admit(self, samples: Sequence[Sample]) -> Finished:
        """Gives each sample a free row and reads its context."""
        free, rows = self.free, []
        for sample in samples:
            rows.append(free.pop())
            self.active[rows[-1]] = sample
        return self.read(rows)

    def read(self, rows: Sequence[int]) -> Finished:
        """Lets the samples of these rows read their context and draw a token, those of one length bucket together."""
        if any(self.active[row].sampling.filters for row in rows) and self.state.seen is None:
            seen = jnp.zeros((len(self.active), self.engine.model.cfg.vocab_size), bool)
            self.state = dataclasses.replace(self.state, seen=seen)
        buckets: dict[int, list[int]] = {}
        for row in rows:
            width = min(_length_bucket(len(self.active[row].context), self.engine.bucket), self.slots)
            buckets.setdefault(width, []).append(row)
        finished = []
        for width, rows in buckets.items():
            batch = self._read_size(len(rows))
            for start in range(0, len(rows), batch):
                finished += self._read_together(rows[start : start + batch], batch, width)
        return finished

    def _read_size(self, rows: int) -> int:
        """How many prompts the program reads at once that reads this many."""
        multiple = self.engine.row_multiple
        size = round_up(READ_ROWS, multiple) if self.fixed else max(batch_bucket(rows, multiple), READ_ROWS)
        return min(size, self.most)

    def _read_together(self, rows: list[int], batch: int, width: int) -> Finished:
        samples = [self.active[row] for row in rows]
        contexts = [s.context for s in samples]
        tokens, lengths = pad_rows(contexts, batch, width)
        where = np.full((batch,), len(self.active), np.int32)
        where[: len(rows)] = rows
        settings = settings_for([s.remaining for s in samples], batch, contexts, self.engine.model.cfg.vocab_size)
        ids = np.zeros((batch,), np.int32)
        ids[: len(rows)] = [s.request.policy for s in samples]
        self.state, first = self.engine._admission(
            self.engine.weights, self.state, tokens, lengths, where, ids, settings
        )
        self._plan = None
        self.usage.read += sum(map(len, contexts))
        return self._collect(rows, *jax.device_get(first))

    def decode(self) -> Finished:
        """One chunk for every row that has a sample."""
        if not any(self.active):
            return []
        if self._plan is None:
            self._plan = self._make_plan()
        self.state, tokens, logps, taken = self.engine._chunk(
            self.engine.weights, self.state, *self._plan, self.chunk
        )
        *new, taken = jax.device_get((tokens, logps, self.state.written, self.state.finish, taken))
        self.usage.slots += len(self.active) * int(taken)
        before = self.usage.generated
        finished = self._collect(range(len(self.active)), *new)
        self.usage.decoded += self.usage.generated - before
        return finished

    def _make_plan(self) -> tuple[decode.Settings, np.ndarray]:
        """How the rows sample from here on, and their adapters: the same until a row changes hands."""
        samplings = [IDLE if s is None else s.remaining for s in self.active]
        settings = settings_for(samplings, len(samplings))
        if settings.filters is None:
            self.state = dataclasses.replace(self.state, seen=None)
        return settings, np.asarray([0 if s is None else s.request.policy for s in self.active], np.int32)

    def _collect(self, rows: Sequence[int], tokens, logps, written, finish) -> Finished:
        """Hands out new tokens, line i to row rows[i], and frees the rows that are done."""
        finished, stopped, invalid = [], [], []
        for i, row in enumerate(rows):
            sample = self.active[row]
            if sample is None:
                continue
            before = len(sample.tokens)
            new = written[i] - (before - sample.before)
            sample.extend(tokens[i, :new], logps[i, :new], self.engine.versions[sample.request.policy])
            reason = decode.FINISH[finish[i]]
            if sample.cut_at_stop_string(self.tokenizer):
                stopped += [row] if reason == "going" else []
                reason = "stop"
            self.usage.generated += len(sample.tokens) - before
            if reason == "going":
                continue
            self.active[row] = None
            if sample.sampling.filters:
                self._plan = None  # perhaps nobody needs filters any more
            invalid += [row] if reason == "invalid" else []
            finished.append((sample, reason))
        self._stop(stopped)
        if invalid:
            self.state = self.engine._wipe(self.state, np.isin(np.arange(len(self.active)), invalid))
        return finished

    def release(self, rows: list[int]) -> list[Sample]:
        """Takes the samples out of rows in flight."""
        samples = [self.active[row] for row in rows]
        for row in rows:
            self.active[row] = None
        self._stop(rows)
        return samples

    def _stop(self, rows: list[int]):
        """Marks rows in flight as done on the device."""
        if rows:
            finish = np.array(self.state.finish)
            finish[rows] = decode.STOP
            finish = jax.device_put(finish, self.state.finish.sharding)
            self.state = dataclasses.replace(self.state, finish=finish)


def _length_bucket(n: int, bucket: int) -> int:
    """`bucket` doubled until it holds n tokens: few programs for any length."""
    while bucket < n:
        bucket *= 2
    return bucket
