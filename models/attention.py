"""Attention over fresh tokens or over a cache, by the fastest implementation of the platform."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from models import cache as kv
from models import decode_kernel
from models.layouts import Branches, Packed


@dataclasses.dataclass(frozen=True)
class Attend:
    """Who sees whom in one forward pass; made once and used by every layer.

    starts   int32 [B], tokens a row has in its cache already (None: no cache)
    lengths  int32 [B], real new tokens per row
    window   a token sees itself and the `window` − 1 tokens before it
    keep     return keys and values of fresh tokens, for a new cache
    kernel   "xla", "cudnn", or "pallas": cuDNN for fresh tokens and our own kernel for steps of one token
    layout   how samples lie in the rows of fresh tokens; None: one in each
    readers  float32 [B, n], one-hot: which row of a prefix each row continues; None: the only one
    """

    starts: jax.Array | None
    lengths: jax.Array
    window: int | None
    keep: bool
    kernel: str
    layout: Packed | Branches | None = None
    readers: jax.Array | None = None

    def __call__(self, q, k, v, layer):
        """q [B, T, N, H], k and v [B, T, K, H] -> ([B, T, N, H], the layer's cache).

        layer  keys and values: the layer's cache, or without one a prefix [n, P, K, H] that all rows continue, or None
        """
        if self.starts is None:
            return self._fresh(q, k, v, layer), (k, v) if self.keep else None
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

    def _fresh(self, q, k, v, prefix):
        def causal(q, k, v, repeat=1):
            if prefix is None:
                return self._causal(q, k, v)
            before = (self._of_rows(x, len(q), repeat).astype(q.dtype) for x in prefix)
            return self._behind(q, k, v, *before)

        return causal(q, k, v) if self.layout is None else self.layout.attend(q, k, v, causal)

    def _of_rows(self, prefix, rows, repeat):
        """A prefix [n, P, K, H] for every row."""
        if self.readers is None:
            return jnp.broadcast_to(prefix, (rows, *prefix.shape[1:]))
        # As a product: the gradient of picking rows would be a scatter.
        own = jnp.einsum("bn,npkh->bpkh", self.readers.astype(prefix.dtype), prefix)
        return own if repeat == 1 else jnp.repeat(own, repeat, axis=0)

    def _causal(self, q, k, v):
        window = None if self.window is None or self.window >= q.shape[1] else (self.window - 1, 0)
        if self.kernel == "xla" or q.dtype == jnp.float32:
            return jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=window, implementation="xla")
        # cuDNN's backward pass wants an even number of tokens; one more at the end is seen by nobody.
        time = q.shape[1]
        q, k, v = (jnp.pad(x, ((0, 0), (0, time % 2), (0, 0), (0, 0))) for x in (q, k, v))
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=window, implementation="cudnn")
        return out[:, :time]

    def _behind(self, q, k, v, first_k, first_v):
        """Causal attention of tokens that stand behind a prefix, [B, P, K, H]."""
        start, time = first_k.shape[1], q.shape[1]
        k, v = jnp.concatenate([first_k, k], axis=1), jnp.concatenate([first_v, v], axis=1)
        if self.kernel == "xla" or q.dtype == jnp.float32:
            mask = _band(start + jnp.arange(time)[:, None], jnp.arange(start + time), self.window)
            return jax.nn.dot_product_attention(q, k, v, mask=mask[None, None], implementation="xla")
        # cuDNN counts queries from the first key on; a mask would cost more than queries that nobody asks.
        q = jnp.pad(q, ((0, 0), (start, 0), (0, 0), (0, 0)))
        return self._causal(q, k, v)[:, start:]

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
    """The kernel for these heads and this cache, on the platform of the mesh in scope (without one: the default).

    Our own on one NVIDIA GPU, cuDNN where XLA has to split it or where ours does not fit, XLA elsewhere.
    """
    mesh = jax.sharding.get_abstract_mesh()
    # A program may be compiled here for a machine elsewhere: then its mesh knows, and this process does not.
    platform = jax.default_backend() if mesh.empty or mesh.abstract_device is None else mesh.abstract_device.platform
    if platform != "gpu":
        return "xla"
    alone = mesh.empty or mesh.size == 1
    return "pallas" if alone and decode_kernel.supported(size, slots) else "cudnn"
