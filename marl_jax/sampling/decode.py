"""Decoding of free text: a loop of single steps over a batch of rows.

A row processes its last token, samples the next one, and stops at a stop token or at its budget. Rows that have stopped
remain in the batch without writing anything. All differences between rows or calls are arrays, so nothing is
recompiled.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from marl_jax.sampling import draw
from models.cache import Cache
from models.lora import Lora
from models.model import Model

GOING, STOP, LENGTH, INVALID = 0, 1, 2, 3
FINISH = ("going", "stop", "length", "invalid")
Array = TypeVar("Array", jax.Array, np.ndarray)

CHECK_EVERY = 8  # steps between checks whether all rows are done; each check makes a GPU wait for the host


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Settings:
    """Sampling settings of each row.

    Attributes:
        keys: PRNG keys [B].
        temperature: float32 [B], 0 for greedy decoding.
        stop_ids: int32 [B, n], padded with −1.
        budget: int32 [B], maximum number of tokens to generate.
        filters: Optional filters of the distribution, off in reinforcement learning.
        allowed: bool [B, V], tokens that the next one may be, or None. With it only one step is taken.
    """

    keys: jax.Array
    temperature: jax.Array
    stop_ids: jax.Array
    budget: jax.Array
    filters: Filters[jax.Array] | None = None
    allowed: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Filters(Generic[Array]):
    """Filters of the distribution.

    Attributes:
        top_k: int32 [B], 0 is off.
        top_p: float32 [B], 1 is off.
        penalty: float32 [B], repetition penalty, 1 is off.
        seen: bool [B, V], tokens that the penalty applies to; None for no penalty.
    """

    top_k: Array
    top_p: Array
    penalty: Array
    seen: Array | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    """State of rows in the middle of a completion.

    Attributes:
        cache: KV cache of everything but `token`.
        token: int32 [B], the last token, not yet in the cache.
        written: int32 [B], tokens generated in this completion.
        finish: int32 [B], `GOING`, or why the row stopped.
        seen: bool [B, V], tokens that the repetition penalty applies to, or None.
    """

    cache: Cache
    token: jax.Array
    written: jax.Array
    finish: jax.Array
    seen: jax.Array | None = None


def _next(model: Model, params, hidden, position, settings: Settings, seen):
    """Sample the next token of each row.

    Args:
        model: The model.
        params: Its parameters.
        hidden: [B, D].
        position: int32 [B], tokens so far.
        settings: Sampling settings.
        seen: See `Rows`.

    Returns:
        Tokens, log-probabilities, and whether these are finite, all [B].
    """
    logits = model.logits(params, hidden)
    if seen is not None:
        assert settings.filters is not None
        logits = draw.penalise(logits, seen, settings.filters.penalty)
    if settings.allowed is not None:
        logits = jnp.where(settings.allowed, logits, -jnp.inf)
    logits = draw.scaled(logits, settings.temperature)
    if settings.filters is not None:
        logits = draw.keep_top_p(draw.keep_top_k(logits, settings.filters.top_k), settings.filters.top_p)
    uniform = draw.row_uniform(settings.keys, position)
    token, logp = draw.categorical(logits, uniform, settings.temperature <= 0)
    return token, logp, jnp.isfinite(logp)


def _advance(rows: Rows, cache: Cache, token, logp, valid, settings: Settings):
    """Add the sampled tokens to unfinished rows, and return rows, tokens and log-probabilities."""
    going = rows.finish == GOING
    written = rows.written + (going & valid)
    stopped = jnp.any(token[:, None] == settings.stop_ids, axis=1)
    reason = jnp.where(stopped, STOP, jnp.where(written >= settings.budget, LENGTH, GOING))
    reason = jnp.where(valid, reason, INVALID)
    seen = rows.seen
    if seen is not None:
        seen = seen.at[jnp.arange(token.shape[0]), token].max(going & valid)
    token = jnp.where(going, token, rows.token)
    rows = Rows(cache, token, written, jnp.where(going, reason, rows.finish).astype(jnp.int32), seen)
    return rows, jnp.where(going & valid, token, 0), jnp.where(going & valid, logp, 0.0)


def begin(model: Model, params, hidden: jax.Array, cache: Cache, settings: Settings):
    """Sample the first token of a completion from the last hidden states [B, D]."""
    batch = hidden.shape[0]
    zeros = jnp.zeros((batch,), jnp.int32)
    seen = None if settings.filters is None else settings.filters.seen
    rows = Rows(cache, zeros, zeros, jnp.where(settings.budget > 0, GOING, LENGTH).astype(jnp.int32), seen)
    return _advance(rows, cache, *_next(model, params, hidden, cache.lengths, settings, seen), settings)


def step(
    model: Model,
    params,
    rows: Rows,
    settings: Settings,
    adapters: Lora | None = None,
    dtype=jnp.bfloat16,
    kernel=None,
    prefix=None,
):
    """Generate one token for every unfinished row.

    Args:
        model: The model.
        params: Its parameters.
        rows: State of the rows.
        settings: Sampling settings.
        adapters: LoRA adapters of the rows, or None.
        dtype: Dtype of the computation.
        kernel: See `Model.forward`.
        prefix: Shared prefix before the cache, see `Model.forward`.

    Returns:
        Rows, tokens int32 [B] and logps float32 [B].
    """
    going = (rows.finish == GOING).astype(jnp.int32)
    hidden, cache = model.forward(
        params,
        rows.token[:, None],
        lengths=going,
        cache=rows.cache,
        adapters=adapters,
        dtype=dtype,
        kernel=kernel,
        prefix=prefix,
    )
    assert cache is not None
    drawn = _next(model, params, hidden[:, 0], cache.lengths, settings, rows.seen)
    return _advance(rows, cache, *drawn, settings)


def chunk(
    model: Model,
    params,
    rows: Rows,
    settings: Settings,
    steps: int,
    adapters: Lora | None = None,
    dtype=jnp.bfloat16,
    kernel=None,
    prefix=None,
):
    """Generate up to `steps` tokens per row, fewer if all rows finish.

    See `step` for the other arguments.

    Returns:
        Rows, tokens and logps [B, steps], and the number of steps taken. Tokens of a row are at the front; a row that
            had finished before the chunk is all zeros.
    """
    batch = rows.token.shape[0]

    def one(_, carry):
        i, rows, tokens, logps = carry
        rows, token, logp = step(model, params, rows, settings, adapters, dtype, kernel, prefix)
        return i + 1, rows, tokens.at[i].set(token), logps.at[i].set(logp)

    def several(carry):
        return jax.lax.fori_loop(0, math.gcd(CHECK_EVERY, steps), one, carry)

    def more(carry):
        return (carry[0] < steps) & jnp.any(carry[1].finish == GOING)

    # Time comes first, so that a step writes one row of the buffer.
    buffers = jnp.zeros((steps, batch), jnp.int32), jnp.zeros((steps, batch), jnp.float32)
    taken, rows, tokens, logps = jax.lax.while_loop(more, several, (jnp.int32(0), rows, *buffers))
    return rows, tokens.T, logps.T, taken
