"""The key/value cache: per layer, keys and values apart, one length per row."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from models.config import ModelConfig


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """What a batch of rows has read so far.

    layers   one `(k, v)` per layer, each [B, S, K, H]; slot s of a row holds its token at position s
    lengths  int32 [B], how many slots of a row are filled; what lies beyond is never attended to
    """

    layers: tuple[tuple[jax.Array, jax.Array], ...]
    lengths: jax.Array

    @property
    def slots(self) -> int:
        return self.layers[0][0].shape[1]


def empty(cfg: ModelConfig, batch: int, slots: int, dtype=jnp.bfloat16) -> Cache:
    """A cache for `batch` rows in which nothing has been read."""
    shape = (batch, slots, cfg.n_kv_heads, cfg.head_dim)
    layers = tuple((jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(cfg.n_layers))
    return Cache(layers, jnp.zeros((batch,), jnp.int32))


def nbytes(cfg: ModelConfig, batch: int, slots: int, dtype=jnp.bfloat16) -> int:
    """Bytes that a cache of this shape holds."""
    return 2 * cfg.n_layers * batch * slots * cfg.n_kv_heads * cfg.head_dim * jnp.dtype(dtype).itemsize


def write(layer, k: jax.Array, v: jax.Array, starts: jax.Array, lengths: jax.Array):
    """Puts each row's new keys and values [B, T, K, H] behind what it has; padding is dropped.

    starts   int32 [B], first slot to write
    lengths  int32 [B], how many of the T new tokens are real
    """
    batch, time = k.shape[:2]
    slots = layer[0].shape[1]
    offsets = jnp.arange(time)[None]
    # Padding goes out of bounds, each token to a place of its own, so that the indices are as unique as we say.
    where = starts[:, None] + offsets + jnp.where(offsets < lengths[:, None], 0, slots)
    rows = jnp.arange(batch)[:, None]
    return tuple(
        old.at[rows, where].set(new.astype(old.dtype), mode="drop", unique_indices=True)
        for old, new in zip(layer, (k, v), strict=True)
    )


def repeat(cache: Cache, times: int) -> Cache:
    """Row b becomes rows b·times … b·times + times − 1: K samples of a prompt that was read once."""
    return jax.tree.map(lambda x: jnp.repeat(x, times, axis=0), cache)


def broadcast(cache: Cache, batch: int, slots: int) -> Cache:
    """A one-row cache (the rules of a game) given to every row of a batch, with room to grow to `slots`."""

    def one(x):
        room = jnp.zeros((batch, slots - x.shape[1], *x.shape[2:]), x.dtype)
        return jnp.concatenate([jnp.broadcast_to(x, (batch, *x.shape[1:])), room], axis=1)

    layers = tuple((one(k), one(v)) for k, v in cache.layers)
    return Cache(layers, jnp.broadcast_to(cache.lengths, (batch,)))
