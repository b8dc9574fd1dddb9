"""Language models as pure functions over parameter trees.

The NNX modules of a family are split once, when a `Model` is built. From then on parameters are nested dicts of arrays
that can cross any jit boundary. `layers` is either one tree stacked over L and scanned (training, scoring) or a tuple
of L fused trees (decoding); see `Model.unstack`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx

from models import decoder, lora, messages
from models.attention import Attend, conversation_mask, default_kernel
from models.audio import AudioEncoder
from models.cache import Cache
from models.config import ModelConfig
from models.families import FAMILIES
from models.layouts import Branches, Conversations, Packed
from models.media import Media, check_shapes
from models.resampler import Resampler
from models.stack import Stack, rematerialized
from models.structured import TableEncoder
from models.vision import Encoder

REMAT = ("none", "full", "dots")
ENCODERS: dict[str, Callable[..., Stack]] = dict(
    vision=Encoder, audio=AudioEncoder, table=TableEncoder, resampler=Resampler
)
"""Encoders of media by field of `ModelConfig`; the order is part of the random initialization."""


class Model:
    """The functions of one architecture.

    A model holds no arrays, so any jitted function can close over it.
    """

    def __init__(self, cfg: ModelConfig):
        self.cfg = cfg
        self._family = family = FAMILIES.get(cfg.family)
        self._stack = Stack(
            lambda rngs, dtype: family.ends(cfg, rngs, dtype),
            lambda rngs, dtype: family.block(cfg, rngs, dtype),
            cfg.n_layers,
        )
        self._block_def = self._stack.block_def
        fused = nnx.eval_shape(lambda: family.block(cfg, nnx.Rngs(0), jnp.float32, fused=True))
        self._fused_def = nnx.split(fused)[0]
        self.encoders: dict[str, Stack] = {
            name: kind(getattr(cfg, name), cfg.d_model) for name, kind in ENCODERS.items() if getattr(cfg, name)
        }

    @property
    def vision(self) -> Encoder | None:
        """The encoder of images."""
        return cast("Encoder | None", self.encoders.get("vision"))

    def __hash__(self):
        return hash(self.cfg)

    def __eq__(self, other):
        return isinstance(other, Model) and self.cfg == other.cfg

    def init(self, key: jax.Array, dtype=jnp.float32) -> dict:
        """Return random parameters with stacked layers."""
        keys = {name: jax.random.fold_in(key, 1 + list(ENCODERS).index(name)) for name in self.encoders}
        own = {name: encoder.init(keys[name], dtype) for name, encoder in self.encoders.items()}
        params = {**self._stack.init(key, dtype), **own}
        if self.cfg.message_tokens:
            params["message"] = messages.init(self.cfg, jax.random.fold_in(key, 2), params["embed"])
        return params

    def abstract(self, dtype=jnp.float32) -> dict:
        """Return the shapes of the stacked parameters without allocating them."""
        return jax.eval_shape(functools.partial(self.init, dtype=dtype), jax.random.key(0))

    def axes(self) -> dict:
        """Return the axis letters of every stacked parameter."""
        letters = {**self._stack.axes(), **{name: encoder.axes() for name, encoder in self.encoders.items()}}
        return letters | {"message": messages.AXES} if self.cfg.message_tokens else letters

    @property
    def n_params(self) -> int:
        """Number of parameters of the decoder and all encoders."""
        return sum(x.size for x in jax.tree.leaves(self.abstract()))

    def unstack(self, params: dict, dtype=jnp.bfloat16, fuse: bool = True) -> dict:
        """Return parameters for decoding: cast, one tree per layer, q/k/v and gate/up fused.

        Slicing stacked weights inside a decode loop would copy them at every step. Fusing saves kernel launches.

        Args:
            params: Stacked parameters.
            dtype: Dtype of the result.
            fuse: Whether to fuse projections. Set it to False if heads are sharded over a mesh: a device would hold a
                piece of q or k instead of its heads of both, and would exchange them at every step. Results are the
                same.
        """
        cast = jax.tree.map(lambda x: x.astype(dtype), params)
        layers = [jax.tree.map(lambda x, i=i: x[i], cast["layers"]) for i in range(self.cfg.n_layers)]
        return {**cast, "layers": tuple(self._family.fuse(x, self.cfg) if fuse else x for x in layers)}

    def forward(
        self,
        params: dict,
        tokens: jax.Array,
        *,
        positions: jax.Array | None = None,
        media: Media | None = None,
        lengths: jax.Array | None = None,
        layout: Packed | Branches | Conversations | None = None,
        prefix: tuple | None = None,
        cache: Cache | None = None,
        rows: jax.Array | None = None,
        new_cache: int | None = None,
        adapters: lora.Lora | None = None,
        dtype=jnp.bfloat16,
        remat: str = "none",
        unroll: int = 1,
        kernel: str | None = None,
    ) -> tuple[jax.Array, Cache | None]:
        """Run the model and return the hidden states after the last norm, and the cache.

        Args:
            params: Stacked or unstacked parameters. A cache needs unstacked ones.
            tokens: int32 [B, T], right-padded.
            positions: int32 [B, T], or [3, B, T] for a model with mRoPE: time, row and column. By default those of the
                layout, or consecutive positions after the prefix and the cache.
            media: Embeddings that replace those of placeholder tokens, see `models/media.py`.
            lengths: int32 [B], number of real tokens in each row. By default T.
            layout: Layout of several samples per row, see `models/layouts.py`. Not supported with a cache.
            prefix: Keys and values that all rows continue, from `read_prefix` or, per layer, from `unstack_prefix`. A
                cache holds the tokens after the prefix: its slot 0 is the first position after it.
            cache: KV cache of the earlier tokens. It is returned with the new tokens appended.
            rows: int32 [B], rows of a larger cache that the tokens continue, distinct where lengths > 0. Other rows are
                left unchanged. On a mesh see `models.cache.pick`.
            new_cache: Number of slots of a new cache to return. Mutually exclusive with `cache`.
            adapters: LoRA adapters in the same layout as `params["layers"]`.
            dtype: Dtype of the activations.
            remat: "none", "full" (keep only the input of each layer) or "dots" (keep matrix products).
            unroll: Number of layers per iteration of the loop over stacked parameters. Larger values compile longer and
                copy less. 0 chooses: on a GPU, where the copies take a fifth of the time, all layers, or 4 with
                `remat="full"`, which keeps little to copy; elsewhere 1.
            kernel: Attention kernel, see `Attend`. By default the fastest one.

        Returns:
            Hidden states [B, T, D], and the cache or None.
        """
        batch, time = tokens.shape
        _check(tokens.shape, layout, cache, rows, new_cache, remat)
        if media is not None:
            check_shapes(media, tokens.shape, self.cfg.d_model)
        if positions is None and isinstance(layout, Conversations):
            positions = layout.positions
        readable, skip = (0, 0) if prefix is None else jax.tree.leaves(prefix)[0].shape[-4:-2]
        known = self.cfg.learned_positions
        if known and positions is None and skip + time > known:
            raise ValueError(f"tokens need {skip + time} positions, but the model has learned {known}")
        lengths = jnp.full((batch,), time, jnp.int32) if lengths is None else lengths
        starts = None if cache is None else cache.lengths if rows is None else cache.lengths[rows]
        offset = None if cache is None or cache.offset is None else cache.offset if rows is None else cache.offset[rows]
        if positions is None:
            before = jnp.full((batch,), skip, jnp.int32) if starts is None else skip + starts
            before = before if offset is None else before + offset
            positions = before[:, None] + jnp.arange(time)
        elif positions.ndim == 3:
            _check_mrope(self.cfg, positions, tokens.shape)
            offset = _offset_after(positions, lengths, skip if starts is None else skip + starts, offset)
        window, keep = self.cfg.sliding_window, new_cache is not None
        kernel = kernel or default_kernel(self.cfg.head_dim, cache)
        table = None if cache is None else cache.table if rows is None else rows[:, None]
        readers = None
        if readable > 1:
            assert adapters is not None  # several prefixes mean one per adapter
            readers = adapters.ids
        mask, ordered = None, False
        if isinstance(layout, Conversations):
            ordered = layout.branch is None
            mask, layout = conversation_mask(layout, lengths, skip, window, kernel, dtype), None
        attend = Attend(starts, lengths, window, keep, kernel, layout, readers, table, mask, ordered)
        ends = self._stack.ends(params)
        x, angles = ends.start(tokens, positions, dtype, media)
        weights = None if adapters is None else adapters.row_weights()

        def layer(block_def, x, block_params, layer_cache, layer_adapters):
            block = nnx.merge(block_def, block_params)
            return block(x, angles, attend, layer_cache, decoder.Adapters(layer_adapters, weights))

        layers, own = params["layers"], None if adapters is None else adapters.adapters
        if isinstance(layers, tuple):
            x, kvs = self._unrolled(layer, x, layers, _kept(cache, prefix, len(layers)), own)
        elif cache is not None:
            raise ValueError("a cache needs unstacked parameters; pass them through Model.unstack first")
        elif prefix is not None and isinstance(prefix[0], tuple):
            raise ValueError("stacked parameters need a stacked prefix; pass the result of read_prefix unchanged")
        else:
            turn = self._turn(unroll, remat)
            body = rematerialized(lambda x, xs: layer(self._block_def, x, *xs), remat, turn)
            x, stacked = jax.lax.scan(body, x, (layers, prefix, own), unroll=turn)
            kvs = None if stacked is None else tuple(zip(*(tuple(s) for s in stacked), strict=True))
        if new_cache is not None:
            assert kvs is not None
            room = ((0, 0), (0, new_cache - time), (0, 0), (0, 0))
            kvs = tuple((jnp.pad(k, room), jnp.pad(v, room)) for k, v in kvs)
            cache = Cache(kvs, lengths, offset=offset)
        elif cache is not None:
            assert kvs is not None and starts is not None
            after = starts + lengths if rows is None else cache.lengths.at[rows].add(lengths)
            if rows is not None and offset is not None:
                offset = _zeros_if_none(cache.offset, cache.lengths).at[rows].set(offset)
            cache = Cache(kvs, after, cache.table, offset)
        return ends.finish(x), cache

    def read_prefix(self, params: dict, tokens: jax.Array, **settings) -> tuple[jax.Array, jax.Array]:
        """Return keys and values [L, n, P, K, H] of a prefix for `forward(prefix=...)`.

        Gradients flow through them.

        Args:
            params: See `forward`.
            tokens: int32 [n, P]. n is 1, or one row per adapter, since adapters encode the same tokens differently.
            **settings: Further arguments of `forward`.
        """
        _, cache = self.forward(params, tokens, new_cache=tokens.shape[1], **settings)
        assert cache is not None
        k, v = (jnp.stack(x) for x in zip(*cache.layers, strict=True))
        return k, v

    def unstack_prefix(self, prefix: tuple[jax.Array, jax.Array]) -> tuple:
        """Return one (k, v) [n, P, K, H] per layer.

        Slices taken inside a decode loop would be copied at every step.
        """
        return tuple(zip(*(tuple(x) for x in prefix), strict=True))

    def _turn(self, unroll: int, remat: str) -> int:
        """Return the number of layers per iteration of the loop over stacked parameters."""
        if not unroll:
            unroll = 1 if jax.default_backend() != "gpu" else 4 if remat == "full" else self.cfg.n_layers
        return min(unroll, self.cfg.n_layers)

    def _unrolled(self, layer, x, layers, kept, own):
        """Run unstacked layers one after the other."""
        block_def = self._fused_def if "qkv" in layers[0]["attn"] else self._block_def
        kvs = []
        for i, block_params in enumerate(layers):
            own_i = (
                own[i] if isinstance(own, tuple) else None if own is None else jax.tree.map(lambda a, i=i: a[i], own)
            )
            x, kv = layer(block_def, x, block_params, kept[i], own_i)
            kvs.append(kv)
        return x, tuple(kvs)

    def logits(self, params: dict, hidden: jax.Array, ids: jax.Array | None = None) -> jax.Array:
        """Return logits, float32 [..., V], or [..., A] for the tokens `ids` [A] only."""
        return self._stack.ends(params).logits(hidden, ids)


def _check(shape, layout, cache, rows, new_cache, remat):
    """Raise ValueError if the arguments of `Model.forward` do not go together."""
    if remat not in REMAT:
        raise ValueError(f"remat is {remat!r}, but must be one of: {', '.join(REMAT)}")
    if cache is not None and new_cache is not None:
        raise ValueError("cache and new_cache are both set, but they are mutually exclusive")
    if cache is not None and layout is not None:
        raise ValueError("layout and cache are both set, but a layout needs tokens without a cache")
    if rows is not None and (cache is None or cache.table is not None):
        raise ValueError("rows is set, but needs a cache with one page per row")
    if rows is not None and rows.shape != shape[:1]:
        raise ValueError(f"rows has shape {rows.shape}, but must have {shape[:1]}: one entry per row of tokens")
    if new_cache is not None and new_cache < shape[1]:
        raise ValueError(f"new_cache is {new_cache}, but must be >= {shape[1]}, the number of tokens")


def _check_mrope(cfg, positions, shape):
    """Raise ValueError unless a model has three positions per token."""
    if cfg.mrope_sections is None:
        raise ValueError(f"positions has shape {positions.shape}, but the model has no mRoPE. Pass one [B, T]")
    if positions.shape != (3, *shape):
        raise ValueError(f"positions has shape {positions.shape}, but must have {(3, *shape)}")


def _zeros_if_none(offset, like):
    return jnp.zeros_like(like) if offset is None else offset


def _offset_after(positions, lengths, before, offset):
    """Return the offset of the cache after tokens with positions [3, B, T].

    The next token has the largest position plus one. Rows without new tokens keep their offset.
    """
    real = jnp.arange(positions.shape[2]) < lengths[:, None]
    largest = jnp.max(jnp.where(real, jnp.max(positions, axis=0), -1), axis=1)
    return jnp.where(lengths > 0, largest + 1 - (before + lengths), _zeros_if_none(offset, lengths)).astype(jnp.int32)


def _kept(cache, prefix, n_layers):
    """Return the cache of each layer, followed by its prefix; None without either."""
    if prefix is not None and not isinstance(prefix[0], tuple):
        prefix = tuple((prefix[0][i], prefix[1][i]) for i in range(n_layers))
    if cache is None or prefix is None:
        return (cache.layers if cache is not None else prefix) or (None,) * n_layers
    return tuple((*own, *first) for own, first in zip(cache.layers, prefix, strict=True))


@functools.cache
def build(cfg: ModelConfig) -> Model:
    """Return the model of a configuration."""
    return Model(cfg)
