"""Continuous batching: requests come one by one, rows that finish are refilled between chunks of decoding.

The rows share one cache. A new request is read together with others of its length bucket and its keys and values are
copied into a free row; from then on it decodes with whatever else is there. What a request gets depends on its prompt
and its seed only. When the queue runs dry and at least half of the rows idle, the batch shrinks, so that the last long
answers do not drag empty rows along.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import deque
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from marl_jax.sampling import decode
from marl_jax.sampling.engine import Answer, Engine, last, pad_rows, round_up
from marl_jax.sampling.settings import Sampling, settings_for
from models import cache as kv


@dataclasses.dataclass
class _Request:
    id: int
    prompt: list[int]
    sampling: Sampling
    adapter: int
    tokens: list[int] = dataclasses.field(default_factory=list)
    logps: list[float] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Usage:
    """Where decoding slots went: `tokens` useful ones out of `slots`, in `seconds` of work."""

    tokens: int = 0
    slots: int = 0
    seconds: float = 0.0

    @property
    def useful(self) -> float:
        return self.tokens / max(self.slots, 1)


class Batcher:
    """`submit` requests, `run` until all are answered, or `step` and take `results` as they come.

    rows       requests that decode together
    slots      longest prompt + answer
    chunk      decoding steps between refills
    tokenizer  only needed for stop strings
    """

    def __init__(self, engine: Engine, *, rows: int, slots: int, chunk: int = 16, tokenizer=None):
        if rows % engine.row_multiple:
            raise ValueError(f"rows is {rows}; the mesh needs a multiple of {engine.row_multiple}")
        self.engine, self.slots, self.chunk, self.tokenizer = engine, round_up(slots, engine.bucket), chunk, tokenizer
        self.most_rows, self.usage = rows, Usage()
        self._queue: deque[_Request] = deque()
        self._done: list[tuple[int, Answer]] = []
        self._ids = 0
        self._clear(rows)

    def _clear(self, rows: int):
        cache = kv.empty(self.engine.model.cfg, rows, self.slots, self.engine.dtype)
        column = lambda value: jnp.full((rows,), value, jnp.int32)  # noqa: E731
        self._rows = decode.Rows(cache, column(0), column(0), column(decode.LENGTH))
        self._active: list[_Request | None] = [None] * rows

    def submit(self, prompt: Sequence[int], sampling: Sampling | None = None, adapter: int = 0) -> int:
        """Queues a request and returns its number."""
        sampling = sampling or Sampling()
        self.engine.check_prompts([prompt], self.slots)
        if len(prompt) + sampling.max_new_tokens > self.slots:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens and max_new_tokens {sampling.max_new_tokens} do not fit into "
                f"{self.slots} slots"
            )
        if sampling.stop_strings and self.tokenizer is None:
            raise ValueError("stop_strings need a tokenizer: give one to the Batcher")
        self._ids += 1
        self._queue.append(_Request(self._ids, list(prompt), sampling, adapter))
        return self._ids

    def results(self) -> Iterator[tuple[int, Answer]]:
        """Answers that have finished since the last call, as (request number, answer)."""
        done, self._done = self._done, []
        yield from done

    def run(self) -> dict[int, Answer]:
        """Answers everything that was submitted, longest budgets first, so that few rows wait for the last one."""
        self._queue = deque(sorted(self._queue, key=lambda r: -r.sampling.max_new_tokens))
        while self._queue or any(self._active):
            self.step()
        return dict(self.results())

    def step(self) -> None:
        """Refills free rows and decodes one chunk."""
        started = time.perf_counter()
        self._resize()
        self._admit()
        if any(self._active):
            self._decode()
        self.usage.seconds += time.perf_counter() - started

    # Rows

    def _resize(self):
        """Half as many rows when nobody waits for them; all of them again when somebody does."""
        busy, rows = sum(r is not None for r in self._active), len(self._active)
        if self._queue and busy == 0 and rows < self.most_rows:
            self._clear(self.most_rows)
        while not self._queue and busy and busy <= rows // 2 and (rows // 2) % self.engine.row_multiple == 0:
            keep = sorted(range(rows), key=lambda i: self._active[i] is None)[: rows // 2]
            self._rows = self._shrink(self._rows, np.asarray(keep, np.int32))
            self._active = [self._active[i] for i in keep]
            rows //= 2

    def _admit(self):
        """Reads waiting prompts into free rows, those of one length bucket together."""
        free = [i for i, r in enumerate(self._active) if r is None]
        waiting = [self._queue.popleft() for _ in range(min(len(free), len(self._queue)))]
        buckets: dict[int, list[_Request]] = {}
        for request in waiting:
            buckets.setdefault(round_up(len(request.prompt), self.engine.bucket), []).append(request)
        for width, requests in buckets.items():
            rows = [free.pop() for _ in requests]
            for row, request in zip(rows, requests, strict=True):
                self._active[row] = request
            self._read(width, rows, requests)

    def _read(self, width: int, rows: list[int], requests: list[_Request]):
        batch = min(_admission_bucket(len(requests)), self.most_rows)
        tokens, lengths = pad_rows([r.prompt for r in requests], batch, width)
        where = np.full((batch,), len(self._active), np.int32)
        where[: len(rows)] = rows
        self._rows, first = self._admission(
            self.engine.weights, self._rows, tokens, lengths, where, self._adapters(requests, batch),
            self._settings(requests, batch),
        )
        self._collect(requests, *(np.asarray(x) for x in first))

    def _decode(self):
        rows = len(self._active)
        before = np.asarray(self._rows.written)
        self._rows, tokens, logps, taken = self._chunk(
            self.engine.weights, self._rows, self._settings(self._active, rows), self._adapters(self._active, rows),
            self.chunk,
        )
        tokens, logps = np.asarray(tokens), np.asarray(logps)
        count = np.asarray(self._rows.written) - before
        self.usage.slots += rows * int(taken)
        self.usage.tokens += int(count.sum())
        self._collect(self._active, tokens, logps, count, np.asarray(self._rows.finish))

    def _collect(self, requests, tokens, logps, count, finish):
        """Hands out new tokens and frees the rows whose request is finished."""
        for i, request in enumerate(requests):
            if request is None:
                continue
            request.tokens += tokens[i, : count[i]].tolist()
            request.logps += logps[i, : count[i]].tolist()
            reason = decode.FINISH[finish[i]]
            if reason == "invalid":
                raise FloatingPointError(
                    f"request {request.id}: the logits are not finite after {len(request.tokens)} tokens"
                )
            if self._cut_at_stop_string(request):
                reason = "stop"
            if reason != "going":
                answer = Answer(np.asarray(request.tokens, np.int32), np.asarray(request.logps, np.float32), reason)
                self._done.append((request.id, answer))
                row = self._active.index(request)
                self._active[row] = None
                if finish[i] == decode.GOING:
                    self._rows = dataclasses.replace(self._rows, finish=self._rows.finish.at[row].set(decode.STOP))

    def _cut_at_stop_string(self, request: _Request) -> bool:
        """Drops the tokens behind the first stop string; those that complete it stay."""
        if not request.sampling.stop_strings:
            return False
        text = self.tokenizer.decode(request.tokens)
        if not any(s in text for s in request.sampling.stop_strings):
            return False
        kept = next(
            n for n in range(1, len(request.tokens) + 1)
            if any(s in self.tokenizer.decode(request.tokens[:n]) for s in request.sampling.stop_strings)
        )
        del request.tokens[kept:], request.logps[kept:]
        return True

    def _settings(self, requests, batch: int) -> decode.Settings:
        idle = Sampling()
        samplings = [idle if r is None else r.sampling for r in requests]
        prompts = [[] if r is None else r.prompt + r.tokens for r in requests]
        return settings_for(samplings, batch, prompts, self.engine.model.cfg.vocab_size)

    @staticmethod
    def _adapters(requests, batch: int) -> np.ndarray:
        ids = [0 if r is None else r.adapter for r in requests]
        return np.asarray(ids + [0] * (batch - len(ids)), np.int32)

    # Compiled programs

    @functools.cached_property
    def _admission(self):
        model, dtype = self.engine.model, self.engine.dtype

        def run(weights, rows, tokens, lengths, where, ids, settings):
            slots, adapters = tokens.shape[1], weights.lora(ids)
            hidden, fresh = model.forward(
                weights.params, tokens, lengths=lengths, new_cache=slots, adapters=adapters, dtype=dtype
            )
            begun, token, logp = decode.begin(model, weights.params, last(hidden, lengths), fresh, settings)
            put = lambda old, new: old.at[where].set(new, mode="drop")  # noqa: E731
            front = lambda old, new: old.at[where, : new.shape[1]].set(new, mode="drop")  # noqa: E731
            cache = kv.Cache(
                jax.tree.map(front, rows.cache.layers, fresh.layers), put(rows.cache.lengths, begun.cache.lengths)
            )
            token_, written, finish = (
                put(getattr(rows, f), getattr(begun, f)) for f in ("token", "written", "finish")
            )
            first = token[:, None], logp[:, None], begun.written, begun.finish
            return decode.Rows(cache, token_, written, finish), first

        return self.engine.jit(run, donate_argnums=1)

    @functools.cached_property
    def _chunk(self):
        model, dtype = self.engine.model, self.engine.dtype

        def run(weights, rows, settings, ids, steps):
            seen = None if settings.filters is None else settings.filters.seen
            rows = dataclasses.replace(rows, seen=seen)
            rows, *rest = decode.chunk(model, weights.params, rows, settings, steps, weights.lora(ids), dtype)
            return dataclasses.replace(rows, seen=None), *rest

        return self.engine.jit(run, static_argnums=4, donate_argnums=1)

    @functools.cached_property
    def _shrink(self):
        return self.engine.jit(lambda rows, keep: jax.tree.map(lambda x: x[keep], rows))


def _admission_bucket(n: int) -> int:
    """Powers of four: few programs, at most three quarters of an admission wasted."""
    size = 1
    while size < n:
        size *= 4
    return size
