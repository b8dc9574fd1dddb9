"""Attention over fresh tokens or over a cache, by the fastest implementation of the platform."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from models import blockwise, decode_kernel, read_kernel, tpu_attention
from models import cache as kv
from models.exact_sums import for_rows
from models.layouts import Branches, Conversations, Packed, band
from models.sharding import platform

OWN = ("pallas", "mosaic")
HIDDEN = -(2.0**41)  # far below any score, and a number that cuDNN can subtract from itself


@dataclasses.dataclass(frozen=True)
class Attend:
    """Who sees whom in one forward pass; made once and used by every layer.

    starts   int32 [B], tokens a row has in its cache already (None: no cache)
    lengths  int32 [B], real new tokens per row
    window   a token sees itself and the `window` − 1 tokens before it
    keep     return keys and values of fresh tokens, for a new cache
    kernel   "xla"; "loop": `blockwise` over a cache; "cudnn"; "pallas": cuDNN for fresh tokens and our own kernels for
             steps of one token and for reading into pages; "mosaic": the same, with the kernel for Hopper GPUs for
             steps without a prefix; "tpu": `tpu_attention` over a cache whose layers are combined, without a prefix
    layout   how samples lie in the rows of fresh tokens; None: one in each
    readers  int32 [B], which row of a prefix each row continues; None: the only one
    table    int32 [B, M], the pages of the cache that each row continues, see `models.cache.Cache`
    mask     who sees whom among fresh tokens, from `conversation_mask`; None: as the layout says
    ordered  no token of a row sees one behind it, whatever the mask says besides
    """

    starts: jax.Array | None
    lengths: jax.Array
    window: int | None
    keep: bool
    kernel: str
    layout: Packed | Branches | None = None
    readers: jax.Array | None = None
    table: jax.Array | None = None
    mask: jax.Array | None = None
    ordered: bool = False

    def __call__(self, q, k, v, layer):
        """q [B, T, N, H], k and v [B, T, K, H] -> ([B, T, N, H], the layer's cache).

        layer  keys and values: the layer's cache, and behind it those of a prefix [n, P, K, H] that all rows
               continue, if there is one; without a cache the prefix alone, or None
        """
        if self.starts is None:
            return self._fresh(q, k, v, layer), (k, v) if self.keep else None
        if self.kernel == "tpu":
            cache = kv.write(layer, k, v, self.starts, self.lengths, self.table)
            assert self.table is not None
            rows = self.table, self.starts, self.lengths
            return tpu_attention.attend(q, cache[0], *rows, kv_heads=k.shape[2], window=self.window), cache
        cache, prefix = layer[:2], layer[2:]
        cache = kv.write(cache, k, v, self.starts, self.lengths, self.table)
        return self._cached(q, cache, prefix), cache

    def in_one_kernel(self, time: int) -> bool:
        """Whether a step of this many tokens goes through `step`."""
        return time == 1 and self.kernel in OWN and self.starts is not None

    def step(self, q, k, v, rope, layer):
        """One token per row, before rotation: [B, 1, …] as in `__call__`, with cos and sin [B, 1, 1, H/2] or None."""
        # XLA sees through this concatenation of the parts of one fused projection.
        qkv = jnp.concatenate([q, k, v], axis=2)[:, 0]
        half = (q.shape[0], q.shape[-1] // 2)
        cos, sin = (jnp.ones(half), jnp.zeros(half)) if rope is None else (angle[:, 0, 0] for angle in rope)
        step = functools.partial(decode_kernel.decode_attention, prefix=layer[2:] or None, readers=self.readers)
        if self.kernel == "mosaic" and not layer[2:]:
            from models import mosaic_decode

            slots, size = layer[0].shape[1::2]
            if mosaic_decode.supported(slots, size, qkv.dtype):
                step = mosaic_decode.decode_attention
        out, *layer = step(
            qkv, cos, sin, *layer[:2], self.starts, self.lengths, heads=q.shape[2], window=self.window, table=self.table
        )
        return out[:, None], tuple(layer)

    def _fresh(self, q, k, v, prefix):
        if self.mask is not None:
            return self._conversations(q, k, v, prefix)

        def causal(q, k, v, repeat=1):
            if prefix is None:
                return self._causal(q, k, v)
            before = (self._of_rows(x, len(q), repeat).astype(q.dtype) for x in prefix)
            return self._behind(q, k, v, *before)

        return causal(q, k, v) if self.layout is None else self.layout.attend(q, k, v, causal)

    def _of_rows(self, prefix: jax.Array, rows: int, repeat: int = 1) -> jax.Array:
        """A prefix [n, P, K, H] for every row."""
        if self.readers is None:
            return for_rows(prefix, rows)
        # As a product: the gradient of picking rows would be a scatter.
        own = jnp.einsum("bn,npkh->bpkh", jax.nn.one_hot(self.readers, len(prefix), dtype=prefix.dtype), prefix)
        return own if repeat == 1 else jnp.repeat(own, repeat, axis=0)

    def _causal(self, q, k, v):
        window = None if self.window is None or self.window >= q.shape[1] else (self.window - 1, 0)
        if not fused(self.kernel, q.dtype):
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
        if not fused(self.kernel, q.dtype):
            mask = band(start + jnp.arange(time)[:, None], jnp.arange(start + time), self.window)
            return jax.nn.dot_product_attention(q, k, v, mask=mask[None, None], implementation="xla")
        # cuDNN counts queries from the first key on; a mask would cost more than queries that nobody asks.
        q = jnp.pad(q, ((0, 0), (start, 0), (0, 0), (0, 0)))
        return self._causal(q, k, v)[:, start:]

    def _conversations(self, q, k, v, prefix):
        if prefix is not None:
            k, v = self._joined(k, v, prefix)
        return masked(q, k, v, self.mask, self.ordered)

    def _joined(self, k, v, prefix):
        """Keys and values of each row behind those of its prefix."""
        first = (self._of_rows(x, len(k)).astype(k.dtype) for x in prefix)
        joined_k, joined_v = (jnp.concatenate(pair, axis=1) for pair in zip(first, (k, v), strict=True))
        return joined_k, joined_v

    def _cached(self, q, layer, prefix):
        assert self.starts is not None
        time, paged = q.shape[1], self.table is not None and self.table.shape[1] > 1
        if self.kernel == "loop" and not prefix:
            return blockwise.attend(q, layer, self.table, self.starts, self.lengths, self.window)
        if self.kernel in OWN and paged and not prefix and read_kernel.supported(*q.shape[1::2]):
            return read_kernel.read_attention(q, *layer, self.table, self.starts, self.lengths, window=self.window)
        k, v = (x.astype(q.dtype) for x in kv.pick(layer, len(q), self.table))
        slots = k.shape[1]
        if paged:  # pages behind a row's own may be anybody's: 0 · nan would spread
            filled = jnp.arange(slots) < (self.starts + self.lengths)[:, None]
            v = jnp.where(filled[..., None, None], v, 0)
        if time == 1 and not prefix and self.kernel == "cudnn" and q.dtype != jnp.float32 and self.window is None:
            ones = jnp.ones_like(self.starts)
            seen = jnp.minimum(self.starts + 1, slots)  # an idle row may be full
            return jax.nn.dot_product_attention(
                q, k, v, query_seq_lengths=ones, key_value_seq_lengths=seen, implementation="cudnn"
            )
        query = self.starts[:, None, None] + jnp.arange(time)[None, :, None]
        mask = band(query, jnp.arange(slots)[None, None, :], self.window)
        # Appending to conversations: scores in float32 outside of a kernel would be the largest array of the step.
        in_kernel = time > 1 and fused(self.kernel, q.dtype) and (bool(prefix) or self.table is not None)
        if not prefix:
            return masked(q, k, v, as_bias(mask, q.dtype) if in_kernel else mask)
        n, start = prefix[0].shape[:2]
        first = band(start + query, jnp.arange(start)[None, None, :], self.window)
        if in_kernel:
            bias = as_bias(jnp.concatenate([first, mask], axis=-1), q.dtype)
            return masked(q, *self._joined(k, v, prefix), bias)
        readers = jnp.zeros(len(q), jnp.int32) if self.readers is None else self.readers
        own = (readers[:, None] == jnp.arange(n))[:, None, :, None]
        first = (first[:, :, None] & own).reshape(*mask.shape[:2], n * start)
        first_k, first_v = prefix
        return _shared(q, k, v, first_k, first_v, jnp.concatenate([first, mask], axis=-1))


def fused(kernel: str, dtype) -> bool:
    """Whether fresh tokens go through a fused kernel; there is none for float32."""
    return kernel in ("cudnn", *OWN) and dtype != jnp.float32


def conversation_mask(layout: Conversations, lengths, start: int, window: int | None, kernel: str, dtype):
    """What `masked` takes, over `start` tokens of a prefix and the row's own; None where causal attention is the same.

    It is made outside of the layers, so that the backward pass keeps one and not one per layer.
    """
    if layout.causal:
        return None
    first = band(layout.positions[..., None], jnp.arange(start), window)
    mask = jnp.concatenate([first, layout.mask(lengths, window)], axis=-1)
    return as_bias(mask, dtype) if fused(kernel, dtype) else mask


def as_bias(mask: jax.Array, dtype) -> jax.Array:
    """A mask bool [B, T, S] as a bias for cuDNN, whose backward pass wants T and S to be even."""
    bias = jnp.where(mask, 0, HIDDEN).astype(dtype)
    odd = tuple((0, n % 2) for n in mask.shape[1:])
    return jnp.pad(bias, ((0, 0), *odd), constant_values=HIDDEN)


def masked(q, k, v, mask, ordered: bool = False):
    """Attention of q [B, T, N, H] to k and v [B, S, K, H] by one mask for all heads.

    mask     bool [B, T, S]: XLA; or a bias from `as_bias`: cuDNN, which holds no scores and reads the bias from memory
    ordered  query t sees nothing behind key S − T + t, so that a kernel need not look there
    """
    if mask.dtype == bool:
        return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None], implementation="xla")
    # cuDNN counts queries from the first key on: some that nobody asks stand in front.
    time, start = q.shape[1], k.shape[1] - q.shape[1] if ordered else 0
    mask = jnp.pad(mask, ((0, 0), (start, start % 2), (0, 0)))
    pad = lambda x, front, size: jnp.pad(x, ((0, 0), (front, size - front - x.shape[1]), (0, 0), (0, 0)))  # noqa: E731
    q, k, v = pad(q, start, mask.shape[1]), pad(k, 0, mask.shape[2]), pad(v, 0, mask.shape[2])
    out = jax.nn.dot_product_attention(q, k, v, bias=mask[:, None], is_causal=ordered, implementation="cudnn")
    return out[:, start : start + time]


def _shared(q, k, v, first_k, first_v, mask):
    """Attention to keys that all rows share, [n, P, K, H], and to each row's own, [B, S, K, H].

    The shared ones are read where they lie: every row scores all n of them, and the mask keeps its own.
    mask  bool [B, T, n·P + S]
    """
    batch, time, heads, size = q.shape
    groups = q.reshape(batch, time, k.shape[2], -1, size)
    first_k, first_v = (x.reshape(-1, *x.shape[2:]).astype(q.dtype) for x in (first_k, first_v))
    exact = dict(preferred_element_type=jnp.float32)
    scores = jnp.concatenate(
        [jnp.einsum("btkgh,pkh->bkgtp", groups, first_k, **exact), jnp.einsum("btkgh,bskh->bkgts", groups, k, **exact)],
        axis=-1,
    )
    scores = jnp.where(mask[:, None, None], scores * size**-0.5, jnp.finfo(jnp.float32).min)
    shares = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    to_first, to_own = jnp.split(shares, [len(first_k)], axis=-1)
    out = jnp.einsum("bkgtp,pkh->btkgh", to_first, first_v, **exact)
    out = out + jnp.einsum("bkgts,bskh->btkgh", to_own, v, **exact)
    return out.reshape(batch, time, heads, size).astype(q.dtype)


def default_kernel(head_dim: int, cache: kv.Cache | None = None) -> str:
    """The kernel for these heads and this cache, on the platform of the mesh in scope (without one: the default).

    Our own on one NVIDIA GPU, cuDNN where XLA has to split it or where ours does not fit, a loop over what is filled
    on CPUs, JAX's own on TPUs for pages that are laid out for it, XLA elsewhere.
    """
    if cache is not None and cache.combined:
        return "tpu"
    mesh, where = jax.sharding.get_abstract_mesh(), platform()
    size = 0 if cache is None else cache.layers[0][0].shape[1]
    pages = 1 if cache is None or cache.table is None else cache.table.shape[1]
    if where == "cpu" and cache is not None and cache.slots > blockwise.BLOCK and blockwise.supported(size, pages):
        return "loop"
    if where != "gpu":
        return "xla"
    if not (mesh.empty or mesh.size == 1) or not decode_kernel.supported(head_dim, size, pages):
        return "cudnn"
    from models import mosaic_decode  # late: Mosaic takes a third of the time that JAX does to import

    return "mosaic" if mosaic_decode.available() else "pallas"
