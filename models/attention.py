"""Attention over fresh tokens or a KV cache, using the fastest kernel of the platform."""

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
HIDDEN = -(2.0**41)  # far below any score, but finite, so that cuDNN can subtract it from itself


@dataclasses.dataclass(frozen=True)
class Attend:
    """The attention pattern of one forward pass, shared by all layers.

    Attributes:
        starts: int32 [B], number of tokens that each row already has in its cache. None without a cache.
        lengths: int32 [B], number of real new tokens per row.
        window: Size of the sliding window: a token attends to itself and the `window` - 1 tokens before it.
        keep: Whether to return the keys and values of fresh tokens for a new cache.
        kernel: One of:
            "xla": XLA everywhere.
            "loop": `blockwise` over a cache.
            "cudnn": cuDNN.
            "pallas": cuDNN for fresh tokens, our own kernels for single-token steps and for prefilling pages.
            "mosaic": The same, with the Hopper kernel for steps without a prefix.
            "tpu": `tpu_attention` over a cache with combined layers, without a prefix.
        layout: Layout of samples in the rows of fresh tokens. None: one sample per row.
        readers: int32 [B], the row of the prefix that each row continues. None: the only one.
        table: int32 [B, M], pages of the cache that each row continues, see `models.cache.Cache`.
        mask: Mask over fresh tokens from `conversation_mask`. None: the mask follows from the layout.
        ordered: Whether no token of a row attends to a later one, whatever the mask allows otherwise.
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
        """Attend and return the output [B, T, N, H] and the layer's cache.

        Args:
            q: [B, T, N, H].
            k: [B, T, K, H].
            v: [B, T, K, H].
            layer: Keys and values: the layer's cache, followed by those of a prefix [n, P, K, H], if any, that all rows
                continue. Without a cache the prefix alone, or None.
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
        """Return whether a step of `time` tokens uses `step`."""
        return time == 1 and self.kernel in OWN and self.starts is not None

    def step(self, q, k, v, rope, layer):
        """Attend from one token per row with a kernel that also rotates q and k.

        Arguments are as in `__call__` with T = 1, before rotation. `rope` is cos and sin [B, 1, 1, H/2], or None.
        """
        # XLA removes this concatenation: the parts come from one fused projection.
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
        """Attend among fresh tokens and to the prefix."""
        if self.mask is not None:
            return self._conversations(q, k, v, prefix)

        def causal(q, k, v, repeat=1):
            if prefix is None:
                return self._causal(q, k, v)
            before = (self._of_rows(x, len(q), repeat).astype(q.dtype) for x in prefix)
            return self._behind(q, k, v, *before)

        return causal(q, k, v) if self.layout is None else self.layout.attend(q, k, v, causal)

    def _of_rows(self, prefix: jax.Array, rows: int, repeat: int = 1) -> jax.Array:
        """Return the prefix [n, P, K, H] of every row."""
        if self.readers is None:
            return for_rows(prefix, rows)
        # A matrix product, because the gradient of a gather would be a scatter.
        own = jnp.einsum("bn,npkh->bpkh", jax.nn.one_hot(self.readers, len(prefix), dtype=prefix.dtype), prefix)
        return own if repeat == 1 else jnp.repeat(own, repeat, axis=0)

    def _causal(self, q, k, v):
        """Attend causally within each row."""
        window = None if self.window is None or self.window >= q.shape[1] else (self.window - 1, 0)
        if not fused(self.kernel, q.dtype):
            return jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=window, implementation="xla")
        # cuDNN's backward pass needs an even number of tokens. No token attends to the padding at the end.
        time = q.shape[1]
        q, k, v = (jnp.pad(x, ((0, 0), (0, time % 2), (0, 0), (0, 0))) for x in (q, k, v))
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=window, implementation="cudnn")
        return out[:, :time]

    def _behind(self, q, k, v, first_k, first_v):
        """Attend causally from tokens that follow a prefix [B, P, K, H]."""
        start, time = first_k.shape[1], q.shape[1]
        k, v = jnp.concatenate([first_k, k], axis=1), jnp.concatenate([first_v, v], axis=1)
        if not fused(self.kernel, q.dtype):
            mask = band(start + jnp.arange(time)[:, None], jnp.arange(start + time), self.window)
            return jax.nn.dot_product_attention(q, k, v, mask=mask[None, None], implementation="xla")
        # cuDNN aligns queries with the first key. Padding the queries is cheaper than a mask.
        q = jnp.pad(q, ((0, 0), (start, 0), (0, 0), (0, 0)))
        return self._causal(q, k, v)[:, start:]

    def _conversations(self, q, k, v, prefix):
        """Attend among fresh tokens by the mask of a `Conversations` layout."""
        if prefix is not None:
            k, v = self._joined(k, v, prefix)
        return masked(q, k, v, self.mask, self.ordered)

    def _joined(self, k, v, prefix):
        """Return the keys and values of each row, preceded by those of its prefix."""
        first = (self._of_rows(x, len(k)).astype(k.dtype) for x in prefix)
        joined_k, joined_v = (jnp.concatenate(pair, axis=1) for pair in zip(first, (k, v), strict=True))
        return joined_k, joined_v

    def _cached(self, q, layer, prefix):
        """Attend to the cache, which already holds the new tokens, and to the prefix."""
        assert self.starts is not None
        time, paged = q.shape[1], self.table is not None and self.table.shape[1] > 1
        if self.kernel == "loop" and not prefix:
            return blockwise.attend(q, layer, self.table, self.starts, self.lengths, self.window)
        if self.kernel in OWN and paged and not prefix and read_kernel.supported(*q.shape[1::2]):
            return read_kernel.read_attention(q, *layer, self.table, self.starts, self.lengths, window=self.window)
        k, v = (x.astype(q.dtype) for x in kv.pick(layer, len(q), self.table))
        slots = k.shape[1]
        if paged:  # pages after those of a row may hold NaN, and 0 · NaN would spread
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
        # Without a kernel, the float32 scores of appended tokens would be the largest array of the step.
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
    """Return whether fresh tokens use a fused kernel. There is none for float32."""
    return kernel in ("cudnn", *OWN) and dtype != jnp.float32


def conversation_mask(layout: Conversations, lengths, start: int, window: int | None, kernel: str, dtype):
    """Return the mask for `masked`, or None if causal attention is equivalent.

    The mask covers `start` tokens of a prefix and the tokens of the row. It is built outside the layers, so the
    backward pass keeps one mask instead of one per layer.
    """
    if layout.causal:
        return None
    first = band(layout.positions[..., None], jnp.arange(start), window)
    mask = jnp.concatenate([first, layout.mask(lengths, window)], axis=-1)
    return as_bias(mask, dtype) if fused(kernel, dtype) else mask


def as_bias(mask: jax.Array, dtype) -> jax.Array:
    """Return a mask as a bias for cuDNN, padded to even T and S.

    Args:
        mask: bool [B, T, S].
        dtype: Dtype of the bias.
    """
    bias = jnp.where(mask, 0, HIDDEN).astype(dtype)
    odd = tuple((0, n % 2) for n in mask.shape[1:])
    return jnp.pad(bias, ((0, 0), *odd), constant_values=HIDDEN)


def masked(q, k, v, mask, ordered: bool = False):
    """Attend with one mask for all heads.

    Args:
        q: [B, T, N, H].
        k: [B, S, K, H].
        v: [B, S, K, H].
        mask: bool [B, T, S] for XLA, or a bias from `as_bias` for cuDNN, which materializes no scores but reads the
            bias from memory.
        ordered: Whether query t never attends beyond key S - T + t, so that a kernel can skip those keys.
    """
    if mask.dtype == bool:
        return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None], implementation="xla")
    # cuDNN aligns queries with the first key, so the queries are padded at the front.
    time, start = q.shape[1], k.shape[1] - q.shape[1] if ordered else 0
    mask = jnp.pad(mask, ((0, 0), (start, start % 2), (0, 0)))
    pad = lambda x, front, size: jnp.pad(x, ((0, 0), (front, size - front - x.shape[1]), (0, 0), (0, 0)))  # noqa: E731
    q, k, v = pad(q, start, mask.shape[1]), pad(k, 0, mask.shape[2]), pad(v, 0, mask.shape[2])
    out = jax.nn.dot_product_attention(q, k, v, bias=mask[:, None], is_causal=ordered, implementation="cudnn")
    return out[:, start : start + time]


def _shared(q, k, v, first_k, first_v, mask):
    """Attend to keys that all rows share and to the keys of each row.

    The shared keys are not copied: every row scores all n prefixes, and the mask selects its own.

    Args:
        q: [B, T, N, H].
        k: [B, S, K, H].
        v: [B, S, K, H].
        first_k: [n, P, K, H].
        first_v: [n, P, K, H].
        mask: bool [B, T, n·P + S].
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
    """Return the kernel for these heads and this cache on the platform in scope.

    The platform is that of the mesh in scope, or the default one without a mesh. The kernel is our own on one NVIDIA
    GPU, cuDNN where XLA has to shard it or our own does not fit, a loop over the filled slots on CPUs, JAX's own on
    TPUs for pages in its layout, and XLA elsewhere.
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
    from models import mosaic_decode  # imported here because Mosaic takes a third as long to import as JAX

    return "mosaic" if mosaic_decode.available() else "pallas"
