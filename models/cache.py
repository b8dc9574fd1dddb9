"""The key/value cache: per layer, keys and values apart, one length per row."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from models.config import ModelConfig
from models.sharding import ways


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


def write(layer, k: jax.Array, v: jax.Array, starts: jax.Array, lengths: jax.Array, rows: jax.Array | None = None):
    """Puts new keys and values [B, T, K, H] behind what their rows have; padding is dropped.

    starts   int32 [B], first slot to write
    lengths  int32 [B], how many of the T new tokens are real
    rows     int32 [B], rows of the cache to write to, see `pick`; None: all of them in order
    """
    batch, time = k.shape[:2]
    slots = layer[0].shape[1]
    offsets = jnp.arange(time)[None]
    # Padding goes out of bounds, each token to a place of its own, so that the indices are as unique as we say.
    where = starts[:, None] + offsets + jnp.where(offsets < lengths[:, None], 0, slots)
    front, split = _address(batch, len(layer[0]), rows)
    front = tuple(x[:, None] for x in front)

    def one(old, new):
        by_owner = old.reshape(*split, *old.shape[1:])
        after = by_owner.at[(*front, where)].set(new.astype(old.dtype), mode="drop", unique_indices=True)
        return after.reshape(old.shape)

    return tuple(one(old, new) for old, new in zip(layer, (k, v), strict=True))


def pick(layer, batch: int, rows: jax.Array | None):
    """The keys and values of some rows, [B, S, K, H] each.

    rows  int32 [B], or None for all. On a mesh that splits the batch the cache has the same number P of rows for each
          of the B, and rows[b] lies among b·P … b·P + P − 1, so that nothing travels; other rows are read as NaN.
    """
    if rows is None:
        return layer
    front, split = _address(batch, len(layer[0]), rows)
    return tuple(x.reshape(*split, *x.shape[1:]).at[front].get(mode="fill", fill_value=jnp.nan) for x in layer)


def take(cache: Cache, rows: jax.Array) -> Cache:
    """A cache of the rows `rows` int32 [B] only, copied (see `pick`): to try several answers and keep the cache."""
    return Cache(tuple(pick(layer, len(rows), rows) for layer in cache.layers), cache.lengths[rows])


def _address(batch, total, rows):
    """Indices of some of `total` rows, and the shape of the axes that they index."""
    if rows is None:
        return (jnp.arange(batch),), (total,)
    if ways("B", batch) == 1:
        return (rows,), (total,)
    if total % batch:
        raise ValueError(f"the cache has {total} rows, not a multiple of the {batch} that a mesh splits")
    owner, seats = jnp.arange(batch), total // batch
    seat = rows - owner * seats
    return (owner, jnp.where((seat >= 0) & (seat < seats), seat, seats)), (batch, seats)


def restart(cache: Cache, where: jax.Array) -> Cache:
    """The cache with the rows marked in `where` bool [B] forgotten: their next token is their first."""
    return dataclasses.replace(cache, lengths=jnp.where(where, 0, cache.lengths))


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
