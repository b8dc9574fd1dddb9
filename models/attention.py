"""Attention over fresh tokens or over a cache, by the fastest implementation of the platform."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from models import cache as kv


@dataclasses.dataclass(frozen=True)
class Attend:
    """Who sees whom in one forward pass; made once and used by every layer.

    starts    int32 [B], tokens a row has in its cache already (None: no cache, the T new tokens are all there is)
    lengths   int32 [B], real new tokens per row
    segments  int32 [B, T] or None: a token sees earlier tokens of its own segment and of segment 0, the shared prefix
    window    a token sees itself and the `window` − 1 tokens before it
    keep      return keys and values of fresh tokens, for a new cache
    kernel    "xla" or "cudnn"
    """

    starts: jax.Array | None
    lengths: jax.Array
    segments: jax.Array | None
    window: int | None
    keep: bool
    kernel: str

    def __call__(self, q, k, v, layer):
        """q [B, T, N, H], k and v [B, T, K, H], the layer's cache or None -> ([B, T, N, H], the layer's cache)."""
        if self.starts is None:
            return self._fresh(q, k, v), (k, v) if self.keep else None
        layer = kv.write(layer, k, v, self.starts, self.lengths)
        return self._cached(q, *layer), layer

    def _fresh(self, q, k, v):
        if self.segments is None:
            window = None if self.window is None or self.window >= q.shape[1] else (self.window - 1, 0)
            kernel = self.kernel if q.dtype != jnp.float32 else "xla"
            return jax.nn.dot_product_attention(
                q, k, v, is_causal=True, local_window_size=window, implementation=kernel
            )
        seg = self.segments
        shared = (seg[:, None, :] == seg[:, :, None]) | (seg[:, None, :] == 0)
        time = jnp.arange(q.shape[1])
        mask = shared & _band(time[None, :, None], time[None, None, :], self.window)
        return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None], implementation="xla")

    def _cached(self, q, k, v):
        time, slots = q.shape[1], k.shape[1]
        k, v = k.astype(q.dtype), v.astype(q.dtype)
        if time == 1 and self.kernel == "cudnn" and q.dtype != jnp.float32 and self.window is None:
            ones = jnp.ones_like(self.starts)
            return jax.nn.dot_product_attention(
                q, k, v, query_seq_lengths=ones, key_value_seq_lengths=self.starts + 1, implementation="cudnn"
            )
        query = self.starts[:, None, None] + jnp.arange(time)[None, :, None]
        mask = _band(query, jnp.arange(slots)[None, None, :], self.window)
        return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None], implementation="xla")


def _band(query, key, window):
    seen = key <= query
    return seen if window is None else seen & (key > query - window)


def default_kernel() -> str:
    """cuDNN on NVIDIA GPUs, XLA elsewhere."""
    return "cudnn" if jax.default_backend() == "gpu" else "xla"
