"""Writing free text: a loop of single steps over a batch of rows, in chunks of a fixed number of steps.

A row reads its last token, draws the next one, and stops at a stop token or at its budget. Rows that have stopped
ride along without writing anything. All that differs between rows or calls is an array, so nothing recompiles.
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

CHECK_EVERY = 8  # steps between looks at whether every row is done: each look makes a GPU wait for the host


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Settings:
    """How each row samples.

    keys         PRNG keys [B]
    temperature  float32 [B], 0 takes the most likely token
    stop_ids     int32 [B, n], padded with −1
    budget       int32 [B], most tokens to write
    filters      None, or `Filters`: off for reinforcement learning, where they would change the distribution
    allowed      None, or bool [B, V] of tokens that the next one may be; then only one step is taken
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
    """top_k int32 [B] (0: off), top_p and penalty float32 [B] (1: off), seen bool [B, V] of what was read.

    Without `seen` there is no penalty.
    """

    top_k: Array
    top_p: Array
    penalty: Array
    seen: Array | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows in the middle of an answer.

    cache    what they have read: everything but `token`
    token    int32 [B], the last token, not yet read
    written  int32 [B], tokens written in this answer
    finish   int32 [B], GOING, or why the row stopped
    seen     bool [B, V] tokens that the repetition penalty counts, or None
    """

    cache: Cache
    token: jax.Array
    written: jax.Array
    finish: jax.Array
    seen: jax.Array | None = None


def _next(model: Model, params, hidden, position, settings: Settings, seen):
    """Draws the token that follows; hidden [B, D], position int32 [B] tokens read -> tokens, logps, valid, all [B]."""
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
    """Takes the drawn tokens into the rows that are going; returns the rows and what to record."""
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
    """Draws the first token of an answer from the last hidden state [B, D] of what was read."""
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
    """One token for every row that is going: (rows, tokens int32 [B], logps float32 [B]).

    prefix  what the rows continue besides their cache, see `Model.forward`
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
    """Up to `steps` tokens per row, fewer when every row is done: (rows, tokens and logps [B, steps], steps taken).

    A row's tokens stand at the front of its line only if it was going at the start of the chunk, which is so for
    every row but those that had finished, whose line is zero.
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

    # Time in front: one row of the buffer is written at a time.
    buffers = jnp.zeros((steps, batch), jnp.int32), jnp.zeros((steps, batch), jnp.float32)
    taken, rows, tokens, logps = jax.lax.while_loop(more, several, (jnp.int32(0), rows, *buffers))
    return rows, tokens.T, logps.T, taken
