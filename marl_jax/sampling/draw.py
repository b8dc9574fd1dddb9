"""Sampling one token per row from logits.

A categorical draw with Gumbel noise needs a random number for each of 152k logits. This implementation uses a single
uniform number u per row. The probabilities are summed in blocks; u·total selects one block, and inside that block one
token. This inverts the cumulative distribution in two levels, with one pass for the maximum and one for the sums.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

BLOCK = 128


def row_uniform(keys: jax.Array, positions: jax.Array) -> jax.Array:
    """Return uniform numbers in [0, 1) from each row's key and position, float32 [B].

    They do not depend on other rows.
    """
    return jax.vmap(lambda k, p: jax.random.uniform(jax.random.fold_in(k, p)))(keys, positions)


def scaled(logits: jax.Array, temperature: jax.Array) -> jax.Array:
    """Divide logits by the temperature of each row; rows with temperature 0 are unchanged."""
    t = temperature.reshape(-1, *(1,) * (logits.ndim - 1))
    return logits / jnp.where(t > 0, t, 1.0)


def categorical(logits: jax.Array, uniform: jax.Array, greedy: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sample from softmax(logits).

    Args:
        logits: float32 [B, V], already divided by the temperature; −inf is never sampled.
        uniform: float32 [B], in [0, 1).
        greedy: bool [B], whether to take the most likely token instead.

    Returns:
        Tokens int32 [B] and their log-probabilities float32 [B].
    """
    batch, vocab = logits.shape
    blocks = -(-vocab // BLOCK)
    padded = (
        logits
        if blocks * BLOCK == vocab
        else jnp.pad(logits, ((0, 0), (0, blocks * BLOCK - vocab)), constant_values=-jnp.inf)
    )
    tiles = padded.reshape(batch, blocks, BLOCK)
    peaks = jnp.max(tiles, axis=-1)
    top = jnp.max(peaks, axis=-1)
    sums = jnp.sum(jnp.exp(tiles - top[:, None, None]), axis=-1)
    cumulative = jnp.cumsum(sums, axis=-1)
    total = cumulative[:, -1]
    target = uniform * total
    block = jnp.where(greedy, jnp.argmax(peaks, axis=-1), _first_above(cumulative, target, sums > 0))
    tile = jnp.take_along_axis(tiles, block[:, None, None], axis=1)[:, 0]
    before = jnp.take_along_axis(cumulative - sums, block[:, None], axis=1)[:, 0]
    weights = jnp.exp(tile - top[:, None])
    inside = _first_above(jnp.cumsum(weights, axis=-1), target - before, weights > 0)
    inside = jnp.where(greedy, jnp.argmax(tile, axis=-1), inside)
    chosen = jnp.take_along_axis(tile, inside[:, None], axis=1)[:, 0]
    return (block * BLOCK + inside).astype(jnp.int32), chosen - top - jnp.log(total)


def _first_above(cumulative, target, possible):
    """Return the first index with a cumulative sum above the target.

    If rounding leaves none, the last possible index is returned.
    """
    above = (cumulative > target[:, None]) & possible
    last = possible.shape[1] - 1 - jnp.argmax(possible[:, ::-1], axis=1)
    return jnp.where(jnp.any(above, axis=1), jnp.argmax(above, axis=1), last)


def keep_top_k(logits: jax.Array, k: jax.Array) -> jax.Array:
    """Set logits below each row's k-th largest to −inf, keeping ties.

    Args:
        logits: float32 [B, V].
        k: int32 [B]; 0 keeps everything.
    """
    vocab = logits.shape[-1]
    ranked = jnp.sort(logits, axis=-1, descending=True)
    edge = jnp.take_along_axis(ranked, jnp.clip(k - 1, 0, vocab - 1)[:, None], axis=1)
    return jnp.where((k[:, None] > 0) & (logits < edge), -jnp.inf, logits)


def keep_top_p(logits: jax.Array, p: jax.Array) -> jax.Array:
    """Set logits outside the smallest set with probability p to −inf, keeping ties.

    Args:
        logits: float32 [B, V].
        p: float32 [B]; 1 keeps everything.
    """
    ranked = jnp.sort(logits, axis=-1, descending=True)
    probs = jax.nn.softmax(ranked, axis=-1)
    inside = jnp.cumsum(probs, axis=-1) - probs < p[:, None]
    edge = jnp.min(jnp.where(inside, ranked, jnp.inf), axis=-1, keepdims=True)
    return jnp.where((p[:, None] < 1) & (logits < edge), -jnp.inf, logits)


def penalise(logits: jax.Array, seen: jax.Array, penalty: jax.Array) -> jax.Array:
    """Lower the logits of tokens that have been seen.

    Args:
        logits: float32 [B, V].
        seen: bool [B, V].
        penalty: float32 [B]; 1 has no effect.
    """
    p = penalty[:, None]
    return jnp.where(seen, jnp.where(logits > 0, logits / p, logits * p), logits)
