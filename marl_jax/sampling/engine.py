"""The sampling engine for the host: buckets, compiled programs and checks around the pure functions.

A `Conversation` is a batch of rows and what they have read. `prefill` starts one, `append` adds prompt tokens to it,
`generate` and `choose` let the model answer; all of them take and return the conversation, so that many turns never
read the past twice. Shapes are rounded up to buckets and everything else is an array, so nothing recompiles within a
bucket. A conversation that was passed in is consumed: its buffers are donated.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from marl_jax.sampling import choice, decode
from marl_jax.sampling.settings import Sampling, row_keys, settings_for
from models import cache as kv
from models import lora
from models.cache import Cache
from models.model import Model
from models.sharding import param_shardings

# Triton's small matrix products were slower than cuBLAS at every decoding shape tried (docs/performance.md).
GPU_OPTIONS = {"xla_gpu_enable_triton_gemm": False}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Weights:
    """What changes with an update: parameters and adapters laid out for decoding, and the adapters' scale [n]."""

    params: dict
    adapters: tuple | None
    scale: jax.Array | None

    def lora(self, ids: jax.Array) -> lora.Lora | None:
        return None if self.adapters is None else lora.Lora(self.adapters, self.scale, ids)


@dataclasses.dataclass(frozen=True)
class Conversation:
    """A batch of rows between turns.

    cache, hidden  on the device: what was read, and the last hidden state [B, D]
    adapter_ids    int32 [B] on the device
    history        every token of each row so far, on the host; rows beyond it fill the bucket
    unread         bool per row: its last token was written by the model and has not been read yet
    """

    cache: Cache
    hidden: jax.Array
    adapter_ids: jax.Array
    history: list[list[int]]
    unread: np.ndarray

    @property
    def rows(self) -> int:
        return len(self.history)

    def room(self, row: int) -> int:
        return self.cache.slots - len(self.history[row])


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one row wrote: token ids, the log-probability of each when it was drawn, and why it ended."""

    tokens: np.ndarray
    logps: np.ndarray
    finish: str


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def batch_bucket(n: int, multiple: int = 1) -> int:
    """The next power of two, and a multiple of what the mesh needs."""
    return round_up(1 << max(n - 1, 0).bit_length(), multiple)


def pad_rows(rows: Sequence[Sequence[int]], batch: int, time: int) -> tuple[np.ndarray, np.ndarray]:
    """Right-padded tokens int32 [batch, time] and lengths int32 [batch]."""
    tokens, lengths = np.zeros((batch, time), np.int32), np.zeros((batch,), np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)], lengths[i] = row, len(row)
    return tokens, lengths


def last(hidden: jax.Array, lengths: jax.Array) -> jax.Array:
    """hidden [B, T, D] at each row's last real token -> [B, D]."""
    where = jnp.maximum(lengths - 1, 0)[:, None, None]
    return jnp.take_along_axis(hidden, where, axis=1)[:, 0]


class Engine:
    """A model ready to answer.

    bucket  prompts are padded to a multiple of this, and so are cache slots
    chunk   decoding steps between two looks from the host
    mesh    rows are split over `data` and `fsdp`, heads over `tensor`
    """

    def __init__(
        self,
        model: Model,
        params: dict,
        *,
        adapters: dict | None = None,
        lora_scale: jax.Array | None = None,
        dtype=jnp.bfloat16,
        bucket: int = 128,
        chunk: int = 64,
        mesh: jax.sharding.Mesh | None = None,
    ):
        self.model, self.dtype, self.bucket, self.chunk, self.mesh = model, dtype, bucket, chunk, mesh
        tensor = mesh.shape["tensor"] if mesh is not None else 1
        self.row_multiple = mesh.size // tensor if mesh is not None else 1
        self._lay_out = self.jit(functools.partial(model.unstack, dtype=dtype, fuse=tensor == 1))
        self.update(params, adapters, lora_scale)

    def update(self, params: dict, adapters: dict | None = None, lora_scale: jax.Array | None = None) -> None:
        """Takes new weights (stacked, as they are trained) and lays them out for decoding."""
        if self.mesh is not None:
            params = jax.device_put(params, param_shardings(self.mesh, self.model.axes(), params))
        layers = None if adapters is None else lora.unstack(adapters, self.model.cfg.n_layers, self.dtype)
        self.weights = Weights(self._lay_out(params), layers, lora_scale)

    def jit(self, function, **kwargs):
        """Compiles under this engine's mesh and options."""
        options = GPU_OPTIONS if jax.default_backend() == "gpu" else None
        jitted = jax.jit(function, compiler_options=options, **kwargs)
        if self.mesh is None:
            return jitted

        def under_mesh(*args):
            with jax.set_mesh(self.mesh):
                return jitted(*args)

        under_mesh._cache_size = jitted._cache_size
        return under_mesh

    # Reading

    def prefill(self, prompts: Sequence[Sequence[int]], *, slots: int, adapter_ids=None) -> Conversation:
        """Reads one prompt per row into a fresh cache with room for `slots` tokens."""
        self.check_prompts(prompts, slots)
        batch = batch_bucket(len(prompts), self.row_multiple)
        slots = round_up(slots, self.bucket)
        tokens, lengths = pad_rows(prompts, batch, round_up(max(map(len, prompts)), self.bucket))
        ids = self._adapter_ids(adapter_ids, batch)
        cache, hidden = self._prefill(self.weights, tokens, lengths, ids, slots)
        return Conversation(cache, hidden, ids, [list(p) for p in prompts], np.zeros(len(prompts), bool))

    def append(self, conversation: Conversation, prompts: Sequence[Sequence[int]]) -> Conversation:
        """Reads more prompt tokens behind what each row has; an empty list adds nothing to a row."""
        if len(prompts) != conversation.rows:
            raise ValueError(f"append got {len(prompts)} prompts for a conversation of {conversation.rows} rows")
        for i, prompt in enumerate(prompts):
            if len(prompt) > conversation.room(i):
                raise ValueError(
                    f"row {i}: {len(prompt)} more tokens behind {len(conversation.history[i])} do not fit into the "
                    f"cache of {conversation.cache.slots} slots"
                )
        late = [
            ([past[-1]] if unread else []) + list(prompt)
            for past, unread, prompt in zip(conversation.history, conversation.unread, prompts, strict=True)
        ]
        time = round_up(max(1, *map(len, late)), min(self.bucket, 32))
        tokens, lengths = pad_rows(late, len(conversation.hidden), time)
        cache, hidden = self._append(
            self.weights, conversation.cache, conversation.hidden, tokens, lengths, conversation.adapter_ids
        )
        history = [past + list(new) for past, new in zip(conversation.history, prompts, strict=True)]
        unread = np.zeros_like(conversation.unread)
        return dataclasses.replace(conversation, cache=cache, hidden=hidden, history=history, unread=unread)

    def repeat(self, conversation: Conversation, times: int) -> Conversation:
        """Every row `times` times, neighbours together: K samples of prompts that were read once."""
        batch = batch_bucket(conversation.rows * times, self.row_multiple)
        source = np.minimum(np.arange(batch) // times, conversation.rows - 1).astype(np.int32)
        arrays = (conversation.cache, conversation.hidden, conversation.adapter_ids)
        cache, hidden, ids = self._take(arrays, source)
        history = [list(past) for past in conversation.history for _ in range(times)]
        return Conversation(cache, hidden, ids, history, np.repeat(conversation.unread, times))

    def share(self, prefix: Conversation, batch: int, *, slots: int, adapter_ids=None) -> Conversation:
        """A one-row conversation (the rules of a game) as the common start of `batch` rows; the prefix stays usable."""
        if prefix.rows != 1:
            raise ValueError(f"a shared prefix is one row; this conversation has {prefix.rows}")
        slots, size = round_up(slots, self.bucket), batch_bucket(batch, self.row_multiple)
        if slots < prefix.cache.slots:
            raise ValueError(f"slots is {slots}; the prefix alone has {prefix.cache.slots}")
        row = jax.tree.map(lambda x: x[:1], (prefix.cache, prefix.hidden))
        cache, hidden = self._share(*row, size, slots)
        history = [list(prefix.history[0]) for _ in range(batch)]
        unread = np.repeat(prefix.unread, batch)
        return Conversation(cache, hidden, self._adapter_ids(adapter_ids, size), history, unread)

    # Answering

    def generate(self, conversation: Conversation, sampling: Sampling | Sequence[Sampling]):
        """Free text, each row until a stop token or its budget: (list of `Answer`, conversation)."""
        requests = [sampling] * conversation.rows if isinstance(sampling, Sampling) else list(sampling)
        self._check_requests(requests, conversation)
        conversation = self._caught_up(conversation)
        batch, vocab = len(conversation.hidden), self.model.cfg.vocab_size
        settings = settings_for(requests, batch, conversation.history, vocab)
        rows, *first = self._begin(self.weights, conversation.hidden, conversation.cache, settings)
        pieces = [[np.asarray(x)[:, None] for x in first]]
        while (np.asarray(rows.finish) == decode.GOING).any():
            rows, *more, _ = self._chunk(self.weights, rows, settings, conversation.adapter_ids, self.chunk)
            pieces.append([np.asarray(x) for x in more])
        written, finish = np.asarray(rows.written), np.asarray(rows.finish)
        for i in np.flatnonzero(finish[: conversation.rows] == decode.INVALID):
            raise FloatingPointError(f"the logits of row {i} are not finite after {written[i]} new tokens")
        tokens, logps = (np.concatenate(x, axis=1) for x in zip(*pieces, strict=True))
        answers = [
            Answer(tokens[i, :n], logps[i, :n], decode.FINISH[finish[i]])
            for i, n in enumerate(written[: conversation.rows])
        ]
        history = [past + a.tokens.tolist() for past, a in zip(conversation.history, answers, strict=True)]
        unread = np.ones_like(conversation.unread)
        return answers, dataclasses.replace(conversation, cache=rows.cache, history=history, unread=unread)

    def choose(self, conversation: Conversation, choices: choice.Choices, legal, *, temperature=1.0, seeds=0):
        """One legal action per row, legal bool [rows, A]: (`Choice` on the host, conversation)."""
        legal = np.asarray(legal, bool)
        if legal.shape != (conversation.rows, choices.ids.shape[0]):
            raise ValueError(f"legal has shape {legal.shape}; expected {(conversation.rows, choices.ids.shape[0])}")
        for i in np.flatnonzero(~legal.any(axis=1)):
            raise ValueError(f"row {i} has no legal action")
        for i in range(conversation.rows):
            if conversation.room(i) < choices.width:
                raise ValueError(f"row {i}: {conversation.room(i)} free slots; a name may have {choices.width} tokens")
        conversation = self._caught_up(conversation)
        batch, rows = len(conversation.hidden), conversation.rows
        mask = np.ones((batch, legal.shape[1]), bool)
        mask[:rows] = legal
        spread = lambda x, dtype: np.pad(np.broadcast_to(np.asarray(x, dtype), (rows,)), (0, batch - rows))  # noqa: E731
        result = self._choose(
            self.weights, conversation.hidden, conversation.cache, choices, mask, spread(temperature, np.float32),
            spread(seeds, np.uint32), conversation.adapter_ids,
        )
        host = jax.tree.map(lambda x: np.asarray(x)[:rows], dataclasses.replace(result, cache=None))
        history = [
            past + t[:n].tolist() for past, t, n in zip(conversation.history, host.tokens, host.lengths, strict=True)
        ]
        unread = np.ones_like(conversation.unread)
        return host, dataclasses.replace(conversation, cache=result.cache, history=history, unread=unread)

    def _caught_up(self, conversation):
        return self.append(conversation, [[]] * conversation.rows) if conversation.unread.any() else conversation

    # Compiled programs

    @functools.cached_property
    def _prefill(self):
        def run(weights, tokens, lengths, ids, slots):
            hidden, cache = self.model.forward(
                weights.params, tokens, lengths=lengths, new_cache=slots, adapters=weights.lora(ids), dtype=self.dtype
            )
            return cache, last(hidden, lengths)

        return self.jit(run, static_argnums=4)

    @functools.cached_property
    def _append(self):
        def run(weights, cache, before, tokens, lengths, ids):
            hidden, cache = self.model.forward(
                weights.params, tokens, lengths=lengths, cache=cache, adapters=weights.lora(ids), dtype=self.dtype
            )
            return cache, jnp.where((lengths > 0)[:, None], last(hidden, lengths), before)

        return self.jit(run, donate_argnums=1)

    @functools.cached_property
    def _take(self):
        return self.jit(lambda arrays, source: jax.tree.map(lambda x: x[source], arrays))

    @functools.cached_property
    def _share(self):
        def run(cache, hidden, batch, slots):
            return kv.broadcast(cache, batch, slots), jnp.broadcast_to(hidden, (batch, hidden.shape[1]))

        return self.jit(run, static_argnums=(2, 3))

    @functools.cached_property
    def _begin(self):
        def run(weights, hidden, cache, settings):
            return decode.begin(self.model, weights.params, hidden, cache, settings)

        return self.jit(run, donate_argnums=2)

    @functools.cached_property
    def _chunk(self):
        def run(weights, rows, settings, ids, steps):
            return decode.chunk(self.model, weights.params, rows, settings, steps, weights.lora(ids), self.dtype)

        return self.jit(run, static_argnums=4, donate_argnums=1)

    @functools.cached_property
    def _choose(self):
        def run(weights, hidden, cache, choices, legal, temperature, seeds, ids):
            return choice.choose(
                self.model, weights.params, hidden, cache.lengths, choices, legal, temperature, row_keys(seeds),
                cache=cache, adapters=weights.lora(ids), dtype=self.dtype,
            )

        return self.jit(run, donate_argnums=2)

    # Checks

    def _adapter_ids(self, ids, batch: int) -> jax.Array:
        ids = np.zeros((0,), np.int32) if ids is None else np.asarray(ids, np.int32)
        return jnp.asarray(np.pad(ids, (0, batch - len(ids))))

    def check_prompts(self, prompts, slots: int) -> None:
        """Refuses what cannot be read: no prompt, an empty one, one beyond the cache, a cache beyond the model."""
        if not len(prompts):
            raise ValueError("the batch is empty: give at least one prompt")
        for i, prompt in enumerate(prompts):
            if not len(prompt):
                raise ValueError(f"prompt {i} is empty: a row needs at least one token to answer from")
            if len(prompt) > slots:
                raise ValueError(f"prompt {i} has {len(prompt)} tokens; the cache was asked for {slots} slots")
        if slots > self.model.cfg.max_positions:
            raise ValueError(f"slots is {slots}; the model has positions for {self.model.cfg.max_positions}")

    def _check_requests(self, requests, conversation):
        if len(requests) != conversation.rows:
            raise ValueError(f"got {len(requests)} sampling settings for {conversation.rows} rows")
        for i, request in enumerate(requests):
            if request.max_new_tokens > conversation.room(i):
                raise ValueError(
                    f"row {i}: max_new_tokens is {request.max_new_tokens}, but {conversation.room(i)} of its "
                    f"{conversation.cache.slots} cache slots are free; ask for more slots at prefill"
                )
            if request.stop_strings:
                raise ValueError("stop_strings need a tokenizer: use batching.Batcher")
