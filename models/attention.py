"""Attention over fresh tokens or over a cache, by the fastest implementation of the platform."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from models import cache as kv
from models import decode_kernel


@dataclasses.dataclass(frozen=True)
class Attend:
    """Who sees whom in one forward pass; made once and used by every layer.

    starts    int32 [B], tokens a row has in its cache already (None: no cache, the T new tokens are all there is)
    lengths   int32 [B], real new tokens per row
    segments  int32 [B, T] or None: a token sees earlier tokens of its own segment and of segment 0, the shared prefix
    window    a token sees itself and the `window` − 1 tokens before it
    positions int32 [B, T], by which the window is measured between segments: a branch may lie far from its prefix
    keep      return keys and values of fresh tokens, for a new cache
    kernel    "xla", "cudnn", or "pallas": cuDNN for fresh tokens and our own kernel for steps of one token
    """

    starts: jax.Array | None
    lengths: jax.Array
    segments: jax.Array | None
    window: int | None
    keep: bool
    kernel: str
    positions: jax.Array | None = None

    def __call__(self, q, k, v, layer):
        """q [B, T, N, H], k and v [B, T, K, H], the layer's cache or None -> ([B, T, N, H], the layer's cache)."""
        if self.starts is None:
            return self._fresh(q, k, v), (k, v) if self.keep else None
        layer = kv.write(layer, k, v, self.starts, self.lengths)
        return self._cached(q, *layer), layer

    def in_one_kernel(self, time: int) -> bool:
        """Whether a step of this many tokens goes through `step`."""
        return time == 1 and self.kernel == "pallas" and self.starts is not None

    def step(self, q, k, v, rope, layer):
        """One token per row, before rotation: [B, 1, …] as in `__call__`, with cos and sin [B, 1, 1, H/2] or None."""
        # XLA sees through this concatenation of the parts of one fused projection.
        qkv = jnp.concatenate([q, k, v], axis=2)[:, 0]
        half = (q.shape[0], q.shape[-1] // 2)
        cos, sin = (jnp.ones(half), jnp.zeros(half)) if rope is None else (angle[:, 0, 0] for angle in rope)
        out, *layer = decode_kernel.decode_attention(
            qkv, cos, sin, *layer, self.starts, self.lengths, heads=q.shape[2], window=self.window
        )
        return out[:, None], tuple(layer)

    def _fresh(self, q, k, v):
        if self.segments is None:
            window = None if self.window is None or self.window >= q.shape[1] else (self.window - 1, 0)
            kernel = "xla" if self.kernel == "xla" or q.dtype == jnp.float32 else "cudnn"
            return jax.nn.dot_product_attention(
                q, k, v, is_causal=True, local_window_size=window, implementation=kernel
            )
        seg = self.segments
        shared = (seg[:, None, :] == seg[:, :, None]) | (seg[:, None, :] == 0)
        time = jnp.arange(q.shape[1])
        mask = shared & _band(time[None, :, None], time[None, None, :], None)
        if self.window is not None:
            mask &= _band(self.positions[:, :, None], self.positions[:, None, :], self.window)
        return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None], implementation="xla")

    def _cached(self, q, k, v):
        time, slots = q.shape[1], k.shape[1]
        k, v = k.astype(q.dtype), v.astype(q.dtype)
        if time == 1 and self.kernel == "cudnn" and q.dtype != jnp.float32 and self.window is None:
            ones = jnp.ones_like(self.starts)
            seen = jnp.minimum(self.starts + 1, slots)  # an idle row may be full
            return jax.nn.dot_product_attention(
                q, k, v, query_seq_lengths=ones, key_value_seq_lengths=seen, implementation="cudnn"
            )
        query = self.starts[:, None, None] + jnp.arange(time)[None, :, None]
        mask = _band(query, jnp.arange(slots)[None, None, :], self.window)
        return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None], implementation="xla")


def _band(query, key, window):
    seen = key <= query
    return seen if window is None else seen & (key > query - window)


def default_kernel(size: int, slots: int) -> str:
    """The kernel for this platform, heads and cache.

    Our own on one NVIDIA GPU, cuDNN where XLA has to split it or where ours does not fit, XLA elsewhere.
    """
    if jax.default_backend() != "gpu":
        return "xla"
    mesh = jax.sharding.get_abstract_mesh()
    alone = mesh.empty or mesh.size == 1
    return "pallas" if alone and decode_kernel.supported(size, slots) else "cudnn"
