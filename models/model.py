"""A model as pure functions over plain parameter trees.

The NNX modules of a family are split once, here; from then on parameters are nested dicts of arrays that cross
every jit boundary as they are. `layers` is one tree stacked over L and scanned (training, scoring), or a tuple of
L fused trees (decoding), see `Model.unstack`.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from models import decoder, lora
from models.attention import Attend, conversation_mask, default_kernel
from models.cache import Cache
from models.config import ModelConfig
from models.families import FAMILIES
from models.layouts import Branches, Conversations, Packed

REMAT = ("none", "full", "dots")


class Model:
    """The functions of one architecture. It holds no arrays, so it can be closed over by any jitted function."""

    def __init__(self, cfg: ModelConfig):
        self.cfg = cfg
        self._family = FAMILIES.get(cfg.family)
        self._ends_def, self._ends = nnx.split(nnx.eval_shape(lambda: self._make_ends(jax.random.key(0), jnp.float32)))
        block = nnx.eval_shape(lambda: self._make_block(jax.random.key(0), jnp.float32))
        self._block_def, self._block = nnx.split(block)
        fused = nnx.eval_shape(lambda: self._family.block(cfg, nnx.Rngs(0), jnp.float32, fused=True))
        self._fused_def = nnx.split(fused)[0]

    def __hash__(self):
        return hash(self.cfg)

    def __eq__(self, other):
        return isinstance(other, Model) and self.cfg == other.cfg

    def _make_ends(self, key, dtype):
        return self._family.ends(self.cfg, nnx.Rngs(params=key), dtype)

    def _make_block(self, key, dtype):
        return self._family.block(self.cfg, nnx.Rngs(params=key), dtype)

    def init(self, key: jax.Array, dtype=jnp.float32) -> dict:
        """Random parameters, layers stacked."""
        ends_key, layers_key = jax.random.split(key)
        ends = nnx.to_pure_dict(nnx.state(self._make_ends(ends_key, dtype)))
        layers = jax.vmap(lambda k: nnx.to_pure_dict(nnx.state(self._make_block(k, dtype))))(
            jax.random.split(layers_key, self.cfg.n_layers)
        )
        return {**ends, "layers": layers}

    def abstract(self, dtype=jnp.float32) -> dict:
        """Shapes of the stacked parameters, without making them."""
        return jax.eval_shape(functools.partial(self.init, dtype=dtype), jax.random.key(0))

    def axes(self) -> dict:
        """The axis letters of every stacked parameter."""

        def letters(state, front=()):
            tree = jax.tree.map(
                lambda v: (*front, *v.get_metadata("axes")), state, is_leaf=lambda v: isinstance(v, nnx.Variable)
            )
            return nnx.to_pure_dict(tree)

        return {**letters(self._ends), "layers": letters(self._block, ("L",))}

    def unstack(self, params: dict, dtype=jnp.bfloat16, fuse: bool = True) -> dict:
        """Parameters for decoding: cast once, one tree per layer, q/k/v and gate/up fused.

        Slicing stacked weights inside a decode loop would copy them at every step; fusing saves kernel launches.
        Keep `fuse` off when heads are split over a mesh: a device would hold a piece of q or of k, not its heads of
        both, and the parts would travel at every step (the numbers stay right).
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
        """tokens int32 [B, T], right-padded -> hidden [B, T, D] after the last norm, and the cache.

        positions  int32 [B, T], default: those of the layout if it has them, else counted on from the prefix and cache
        lengths    int32 [B], real tokens per row, default: all T
        layout     several samples in a row, see `models/layouts.py`; without a cache
        prefix     what all rows continue, from `read_prefix`, or layer by layer from `unstack_prefix`. Caches hold what
                   comes behind it: their slot 0 is the position after the prefix
        cache      what the rows have read; returned with the new tokens behind it
        rows       int32 [B], the rows of a larger cache that the tokens continue, all different where lengths > 0; the
                   other rows stay as they are. On a mesh see `models.cache.pick`
        new_cache  instead of `cache`: start one with this many slots
        adapters   LoRA, laid out as `params["layers"]` is
        remat      "none", "full" (keep only the input of each layer) or "dots" (keep matrix products)
        unroll     layers of stacked parameters to one turn of the loop: more compile longer and copy less; 0: all of
                   them on a GPU, where the copies cost a fifth of the time, one elsewhere
        """
        batch, time = tokens.shape
        _check(tokens.shape, layout, cache, rows, new_cache, remat)
        if positions is None and isinstance(layout, Conversations):
            positions = layout.positions
        readable, skip = (0, 0) if prefix is None else jax.tree.leaves(prefix)[0].shape[-4:-2]
        known = self.cfg.learned_positions
        if known and positions is None and skip + time > known:
            raise ValueError(f"tokens are {skip + time} wide; this model has learned {known} positions")
        lengths = jnp.full((batch,), time, jnp.int32) if lengths is None else lengths
        starts = None if cache is None else cache.lengths if rows is None else cache.lengths[rows]
        if positions is None:
            before = jnp.full((batch,), skip, jnp.int32) if starts is None else skip + starts
            positions = before[:, None] + jnp.arange(time)
        window, keep = self.cfg.sliding_window, new_cache is not None
        kernel = kernel or default_kernel(self.cfg.head_dim, cache)
        table = None if cache is None else cache.table if rows is None else rows[:, None]
        readers = None
        if readable > 1:
            assert adapters is not None  # a prefix has several rows only if each adapter has its own
            readers = adapters.ids
        mask, ordered = None, False
        if isinstance(layout, Conversations):
            ordered = layout.branch is None
            mask, layout = conversation_mask(layout, lengths, skip, window, kernel, dtype), None
        attend = Attend(starts, lengths, window, keep, kernel, layout, readers, table, mask, ordered)
        ends = self._merge_ends(params)
        x, angles = ends.start(tokens, positions, dtype)
        weights = None if adapters is None else adapters.row_weights()

        def layer(block_def, x, block_params, layer_cache, layer_adapters):
            block = nnx.merge(block_def, block_params)
            return block(x, angles, attend, layer_cache, decoder.Adapters(layer_adapters, weights))

        layers, own = params["layers"], None if adapters is None else adapters.adapters
        if isinstance(layers, tuple):
            x, kvs = self._unrolled(layer, x, layers, _kept(cache, prefix, len(layers)), own)
        elif cache is not None:
            raise ValueError("a cache needs unstacked parameters: pass params through Model.unstack first")
        elif prefix is not None and isinstance(prefix[0], tuple):
            raise ValueError("stacked parameters need a stacked prefix: pass the one from read_prefix as it is")
        else:
            turn = self._turn(unroll)
            body = _rematerialized(lambda x, xs: layer(self._block_def, x, *xs), remat, turn)
            x, stacked = jax.lax.scan(body, x, (layers, prefix, own), unroll=turn)
            kvs = None if stacked is None else tuple(zip(*(tuple(s) for s in stacked), strict=True))
        if new_cache is not None:
            assert kvs is not None
            room = ((0, 0), (0, new_cache - time), (0, 0), (0, 0))
            kvs = tuple((jnp.pad(k, room), jnp.pad(v, room)) for k, v in kvs)
            cache = Cache(kvs, lengths)
        elif cache is not None:
            assert kvs is not None and starts is not None
            after = starts + lengths if rows is None else cache.lengths.at[rows].add(lengths)
            cache = Cache(kvs, after, cache.table)
        return ends.finish(x), cache

    def read_prefix(self, params: dict, tokens: jax.Array, **settings) -> tuple[jax.Array, jax.Array]:
        """Keys and values [L, n, P, K, H] of tokens int32 [n, P] for `forward(prefix=…)`; gradients flow through them.

        n is 1, or with adapters one row for each, since they read the same words differently.
        """
        _, cache = self.forward(params, tokens, new_cache=tokens.shape[1], **settings)
        assert cache is not None
        k, v = (jnp.stack(x) for x in zip(*cache.layers, strict=True))
        return k, v

    def unstack_prefix(self, prefix: tuple[jax.Array, jax.Array]) -> tuple:
        """One (k, v) [n, P, K, H] per layer: slices taken inside a decode loop would be copied at every step."""
        return tuple(zip(*(tuple(x) for x in prefix), strict=True))

    def _turn(self, unroll: int) -> int:
        return min(unroll or (self.cfg.n_layers if jax.default_backend() == "gpu" else 1), self.cfg.n_layers)

    def _unrolled(self, layer, x, layers, kept, own):
        block_def = self._fused_def if "qkv" in layers[0]["attn"] else self._block_def
        kvs = []
        for i, block_params in enumerate(layers):
            mine = own[i] if isinstance(own, tuple) else None if own is None else jax.tree.map(lambda a, i=i: a[i], own)
            x, kv = layer(block_def, x, block_params, kept[i], mine)
            kvs.append(kv)
        return x, tuple(kvs)

    def logits(self, params: dict, hidden: jax.Array, ids: jax.Array | None = None) -> jax.Array:
        """hidden [..., D] -> float32 [..., V], or [..., A] of the tokens `ids` [A] only."""
        return self._merge_ends(params).logits(hidden, ids)

    def _merge_ends(self, params):
        return nnx.merge(self._ends_def, {k: v for k, v in params.items() if k != "layers"})


def _check(shape, layout, cache, rows, new_cache, remat):
    if remat not in REMAT:
        raise ValueError(f"remat is {remat!r}, but must be one of: {', '.join(REMAT)}")
    if cache is not None and new_cache is not None:
        raise ValueError("cache and new_cache are both given, but must be one of: them")
    if cache is not None and layout is not None:
        raise ValueError("a layout is given with a cache, but must be fresh tokens only")
    if rows is not None and (cache is None or cache.table is not None):
        raise ValueError("rows are given without a cache of one page per row; they are rows of one")
    if rows is not None and rows.shape != shape[:1]:
        raise ValueError(f"rows have the shape {rows.shape}; expected {shape[:1]}, one for each row of tokens")
    if new_cache is not None and new_cache < shape[1]:
        raise ValueError(f"new_cache is {new_cache} slots; expected at least the {shape[1]} tokens to be read")


def _kept(cache, prefix, n_layers):
    """What each layer has of earlier tokens: its cache, and behind it its prefix; None without both."""
    if prefix is not None and not isinstance(prefix[0], tuple):
        prefix = tuple((prefix[0][i], prefix[1][i]) for i in range(n_layers))
    if cache is None or prefix is None:
        return (cache.layers if cache is not None else prefix) or (None,) * n_layers
    return tuple((*own, *first) for own, first in zip(cache.layers, prefix, strict=True))


def _rematerialized(body, remat: str, turn: int):
    if remat == "none":
        return body
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if remat == "dots" else None
    # A loop keeps both passes apart. Unrolled, XLA would see that they compute the same, and keep the first one's.
    return jax.checkpoint(body, prevent_cse=turn > 1, policy=policy)


@functools.cache
def build(cfg: ModelConfig) -> Model:
    """The model of a configuration."""
    return Model(cfg)
