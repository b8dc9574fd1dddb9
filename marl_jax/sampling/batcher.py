"""Continuous batching: requests come one by one, rows that finish are refilled between chunks of decoding.

The rows share one cache. A new request is read together with others of its length bucket and its keys and values are
copied into a free row; from then on it decodes with whatever else is there. What a request gets depends on its prompt
and its seed only. When the queue runs dry and at least half of the rows idle, the batch shrinks, so that the last long
answers do not drag empty rows along; it grows again when more requests wait than rows are free.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from marl_jax.sampling import checks, decode
from marl_jax.sampling.conversation import Answer, batch_bucket, pad_rows, round_up
from marl_jax.sampling.engine import Engine
from marl_jax.sampling.settings import Sampling, settings_for

IDLE = Sampling()  # for rows without a request, which never get to draw


@dataclasses.dataclass(eq=False)
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
        if rows < 1 or rows % engine.row_multiple:
            raise ValueError(f"rows is {rows}; accepted: multiples of {engine.row_multiple}")
        self.engine, self.chunk, self.tokenizer = engine, chunk, tokenizer
        self.slots, self.limit = round_up(slots, engine.bucket), engine.limit(slots)
        self.most_rows, self.usage = rows, Usage()
        self._queue: deque[_Request] = deque()
        self._done: list[tuple[int, Answer]] = []
        self._invalid: list[_Request] = []
        self._ids = 0
        self._clear(rows)

    def _clear(self, rows: int):
        self._rows = None  # before its successor, so that two caches never stand side by side
        self._rows = self.engine._idle(rows, self.slots)
        self._active: list[_Request | None] = [None] * rows
        self._plan = None

    def submit(self, prompt: Sequence[int], sampling: Sampling | None = None, adapter: int = 0) -> int:
        """Queues a request and returns its number."""
        sampling = sampling or Sampling()
        checks.check_prompts(self.engine.model.cfg, [prompt], self.limit)
        checks.check_adapters([adapter], self.engine.n_adapters)
        if len(prompt) + sampling.max_new_tokens > self.limit:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens and max_new_tokens {sampling.max_new_tokens} do not fit into "
                f"{self.limit} slots"
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
        """Refills free rows and decodes one chunk.

        A request whose logits are not finite is dropped and reported when the step is over; the others go on.
        """
        started = time.perf_counter()
        self._resize()
        self._admit()
        if any(self._active):
            self._decode()
        self.usage.seconds += time.perf_counter() - started
        invalid, self._invalid = self._invalid, []
        for request in invalid:
            raise FloatingPointError(
                f"request {request.id}: the logits are not finite after {len(request.tokens)} tokens"
            )

    # Rows

    def _resize(self):
        """As many rows as there is work for, `rows` halved and halved again; fewer only when nobody waits for them."""
        busy, rows = [i for i, r in enumerate(self._active) if r is not None], len(self._active)
        need, size = len(busy) + len(self._queue), self.most_rows
        while need and need <= size // 2 and (size // 2) % self.engine.row_multiple == 0:
            size //= 2
        if size == rows or not need or (size < rows and busy and self._queue):
            return
        if not busy:
            return self._clear(size)
        source = np.asarray(busy + [-1] * (size - len(busy)), np.int32)
        self._rows = self.engine._move(self._rows, source)
        self._active = [self._active[i] for i in busy] + [None] * (size - len(busy))
        self._plan = None

    def _admit(self):
        """Reads waiting prompts into free rows, those of one length bucket together."""
        free = [i for i, r in enumerate(self._active) if r is None]
        waiting = [self._queue.popleft() for _ in range(min(len(free), len(self._queue)))]
        if any(r.sampling.filters for r in waiting) and self._rows.seen is None:
            seen = jnp.zeros((len(self._active), self.engine.model.cfg.vocab_size), bool)
            self._rows = dataclasses.replace(self._rows, seen=seen)
        buckets: dict[int, list[_Request]] = {}
        for request in waiting:
            width = min(_length_bucket(len(request.prompt), self.engine.bucket), self.slots)
            buckets.setdefault(width, []).append(request)
        for width, requests in buckets.items():
            rows = [free.pop() for _ in requests]
            for row, request in zip(rows, requests, strict=True):
                self._active[row] = request
            self._read(width, rows, requests)
            self._plan = None

    def _read(self, width: int, rows: list[int], requests: list[_Request]):
        batch = min(max(batch_bucket(len(requests), self.engine.row_multiple), 8), self.most_rows)
        tokens, lengths = pad_rows([r.prompt for r in requests], batch, width)
        where = np.full((batch,), len(self._active), np.int32)
        where[: len(rows)] = rows
        vocab = self.engine.model.cfg.vocab_size
        settings = settings_for([r.sampling for r in requests], batch, [r.prompt for r in requests], vocab)
        ids = np.zeros((batch,), np.int32)
        ids[: len(rows)] = [r.adapter for r in requests]
        self._rows, first = self.engine._admission(
            self.engine.weights, self._rows, tokens, lengths, where, ids, settings
        )
        self._collect(rows, *jax.device_get(first))

    def _decode(self):
        if self._plan is None:
            self._plan = self._make_plan()
        rows, tokens, logps, taken = self.engine._chunk(self.engine.weights, self._rows, *self._plan, self.chunk)
        self._rows = rows
        *new, taken = jax.device_get((tokens, logps, rows.written, rows.finish, taken))
        self.usage.slots += len(self._active) * int(taken)
        self.usage.tokens += self._collect(range(len(self._active)), *new)

    def _make_plan(self) -> tuple[decode.Settings, np.ndarray]:
        """How the rows sample from here on, and their adapters: the same until a row changes hands."""
        samplings = [IDLE if r is None else r.sampling for r in self._active]
        settings = settings_for(samplings, len(samplings))
        if settings.filters is None:
            self._rows = dataclasses.replace(self._rows, seen=None)
        return settings, np.asarray([0 if r is None else r.adapter for r in self._active], np.int32)

    def _collect(self, rows: Sequence[int], tokens, logps, written, finish) -> int:
        """Hands out new tokens, line i to row rows[i], and frees the rows that are done; returns tokens kept."""
        kept, halted = 0, []
        for i, row in enumerate(rows):
            request = self._active[row]
            if request is None:
                continue
            before = len(request.tokens)
            new = written[i] - before
            request.tokens += tokens[i, :new].tolist()
            request.logps += logps[i, :new].tolist()
            reason = decode.FINISH[finish[i]]
            if self._cut_at_stop_string(request):
                halted += [row] if reason == "going" else []
                reason = "stop"
            kept += len(request.tokens) - before
            if reason == "going":
                continue
            self._active[row] = None
            if request.sampling.filters:
                self._plan = None  # perhaps nobody needs filters any more
            if reason == "invalid":
                self._invalid.append(request)
                continue
            answer = Answer(np.asarray(request.tokens, np.int32), np.asarray(request.logps, np.float32), reason)
            self._done.append((request.id, answer))
        if halted:
            finish = np.array(self._rows.finish)
            finish[halted] = decode.STOP
            finish = jax.device_put(finish, self._rows.finish.sharding)
            self._rows = dataclasses.replace(self._rows, finish=finish)
        return kept

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


def _length_bucket(n: int, bucket: int) -> int:
    """`bucket` doubled until it holds n tokens: few programs for any length."""
    while bucket < n:
        bucket *= 2
    return bucket
