"""The vision tower of Qwen2.5-VL: patches of images to embeddings of a decoder.

Patches are in the order (H/2, W/2, 2, 2) of `models.images`, so that four consecutive ones make one embedding. Most
layers attend within windows of 112 × 112 pixels, which are ragged at the edges. Patches stay in their order, and only
queries, keys and values are moved to windows. A small tower is the same code with a small `VisionConfig`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.attention import default_kernel, fused
from models.config import VisionConfig
from models.decoder import param, rms_norm, rotate
from models.exact_sums import add_bias
from models.layouts import fold, move, unfold
from models.sharding import constrain
from models.stack import Stack, rematerialized


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Windows:
    """The attention windows of I images.

    Attributes:
        slots: int32 [I, W · S], the patch in each of the S slots of W windows, or -1.
        home: int32 [I, N], the slot of each patch, or -1 for padding.
        held: int32 [I, W], number of patches in each window.
    """

    slots: jax.Array | np.ndarray
    home: jax.Array | np.ndarray
    held: jax.Array | np.ndarray


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PatchLayout:
    """The places of the patches of I images, from `Encoder.layout`.

    I may be 1 if all images have the same grid.

    Attributes:
        places: int32 [I, N, 2], row and column of each patch.
        lengths: int32 [I], number of patches of each image. None: all N.
        windows: Places in windows. None: no layer has windows.
    """

    places: jax.Array | np.ndarray
    lengths: jax.Array | np.ndarray | None
    windows: Windows | None


class VisionAttention(nnx.Module):
    """The attention block: norm, projections with bias, rotation and attention."""

    def __init__(self, cfg: VisionConfig, rngs: nnx.Rngs, dtype):
        d, n, h = cfg.d_model, cfg.n_heads, cfg.head_dim
        self.cfg = cfg
        self.norm = param(rngs, (d,), ("D",), None, dtype)
        self.q = param(rngs, (d, n, h), ("D", "N", "H"), 0.02, dtype)
        self.k = param(rngs, (d, n, h), ("D", "N", "H"), 0.02, dtype)
        self.v = param(rngs, (d, n, h), ("D", "N", "H"), 0.02, dtype)
        self.q_bias = param(rngs, (n, h), ("N", "H"), 0, dtype)
        self.k_bias = param(rngs, (n, h), ("N", "H"), 0, dtype)
        self.v_bias = param(rngs, (n, h), ("N", "H"), 0, dtype)
        self.o = param(rngs, (n, h, d), ("N", "H", "D"), 0.02 / (2 * cfg.n_layers) ** 0.5, dtype)
        self.o_bias = param(rngs, (d,), ("D",), 0, dtype)

    def __call__(self, x, rope, attend):
        """Run the block on x [I, N, D] with `attend(q, k, v)`."""
        y = rms_norm(x, self.norm[...], self.cfg.norm_eps)
        pairs = ((self.q, self.q_bias), (self.k, self.k_bias), (self.v, self.v_bias))
        q, k, v = (add_bias(jnp.einsum("btd,dnh->btnh", y, w[...].astype(x.dtype)), b[...]) for w, b in pairs)
        q, k, v = (constrain(z, "BTNH") for z in (rotate(q, *rope), rotate(k, *rope), v))
        y = constrain(attend(q, k, v), "BTNH")
        return x + add_bias(jnp.einsum("btnh,nhd->btd", y, self.o[...].astype(x.dtype)), self.o_bias[...])


class VisionFeedForward(nnx.Module):
    """The feed-forward block: norm and SiLU-gated feed-forward network with bias."""

    def __init__(self, cfg: VisionConfig, rngs: nnx.Rngs, dtype):
        d, f = cfg.d_model, cfg.d_ff
        self.cfg = cfg
        self.norm = param(rngs, (d,), ("D",), None, dtype)
        self.gate = param(rngs, (d, f), ("D", "F"), 0.02, dtype)
        self.up = param(rngs, (d, f), ("D", "F"), 0.02, dtype)
        self.down = param(rngs, (f, d), ("F", "D"), 0.02 / (2 * cfg.n_layers) ** 0.5, dtype)
        self.gate_bias = param(rngs, (f,), ("F",), 0, dtype)
        self.up_bias = param(rngs, (f,), ("F",), 0, dtype)
        self.down_bias = param(rngs, (d,), ("D",), 0, dtype)

    def __call__(self, x):
        """Run the block on x [I, N, D]."""
        y = rms_norm(x, self.norm[...], self.cfg.norm_eps)
        gate = add_bias(y @ self.gate[...].astype(x.dtype), self.gate_bias[...])
        up = add_bias(y @ self.up[...].astype(x.dtype), self.up_bias[...])
        z = constrain(jax.nn.silu(gate) * up, "BTF")
        return x + add_bias(z @ self.down[...].astype(x.dtype), self.down_bias[...])


class VisionBlock(nnx.Module):
    """One layer."""

    def __init__(self, cfg: VisionConfig, rngs: nnx.Rngs, dtype):
        self.attn = VisionAttention(cfg, rngs, dtype)
        self.mlp = VisionFeedForward(cfg, rngs, dtype)

    def __call__(self, x, rope, attend):
        """Run the layer on x [I, N, D]."""
        return constrain(self.mlp(self.attn(x, rope, attend)), "BTD")


class VisionEnds(nnx.Module):
    """The modules around the layers: the projection of patches and the merger."""

    def __init__(self, cfg: VisionConfig, width: int, rngs: nnx.Rngs, dtype):
        d, merged = cfg.d_model, cfg.d_model * cfg.merge**2
        self.cfg = cfg
        kernel = (cfg.channels, cfg.frames, cfg.patch, cfg.patch)
        self.embed = param(rngs, (*kernel, d), ("c", "f", "h", "w", "D"), 0.02, dtype)
        self.norm = param(rngs, (d,), ("D",), None, dtype)
        self.up = param(rngs, (merged, merged), ("D", "F"), 0.02, dtype)
        self.up_bias = param(rngs, (merged,), ("F",), 0, dtype)
        self.down = param(rngs, (merged, width), ("F", "D"), 0.02, dtype)
        self.down_bias = param(rngs, (width,), ("D",), 0, dtype)

    def start(self, patches, dtype):
        """Project patches [I, N, P] and return [I, N, D]."""
        weight = self.embed[...].astype(dtype).reshape(self.cfg.patch_size, -1)
        return constrain(patches.astype(dtype) @ weight, "BTD")

    def finish(self, x):
        """Merge squares of patches [I, N, D] to embeddings [I, M, width]."""
        y = rms_norm(x, self.norm[...], self.cfg.norm_eps)
        y = y.reshape(x.shape[0], -1, self.up[...].shape[0])
        y = add_bias(y @ self.up[...].astype(x.dtype), self.up_bias[...])
        y = constrain(jax.nn.gelu(y, approximate=False), "BTF")
        return constrain(add_bias(y @ self.down[...].astype(x.dtype), self.down_bias[...]), "BTD")


class Encoder(Stack):
    """The functions of one vision tower.

    It holds no arrays. Its parameters are `params["vision"]` of a model with `ModelConfig.vision`.

    Args:
        cfg: Config of the tower.
        width: Width of the decoder.
    """

    def __init__(self, cfg: VisionConfig, width: int):
        self.cfg, self.width = cfg, width
        super().__init__(
            lambda rngs, dtype: VisionEnds(cfg, width, rngs, dtype),
            lambda rngs, dtype: VisionBlock(cfg, rngs, dtype),
            cfg.n_layers,
        )

    def layout(self, grids: Sequence[tuple[int, int]], patches: int | None = None) -> PatchLayout:
        """Return the places of patches, computed with NumPy on the host.

        Args:
            grids: Rows and columns of patches of each image, multiples of `merge`. One grid serves a batch of any size.
            patches: N, at least the number of patches of the largest image. By default that number.
        """
        return _layout(self.cfg, grids, patches)

    def __call__(
        self,
        params: dict,
        patches: jax.Array,
        layout: PatchLayout,
        *,
        dtype=jnp.bfloat16,
        remat: str = "none",
        kernel: str | None = None,
    ) -> jax.Array:
        """Return the embeddings of images, [I, N / merge², D].

        Args:
            params: Stacked parameters of the tower.
            patches: [I, N, P], padded at the end.
            layout: From `layout`: arguments of a jitted function, or constants in it.
            dtype: Dtype of the activations.
            remat: See `Model.forward`.
            kernel: See `models.attention.Attend`. By default the fastest one.
        """
        if patches.ndim != 3:
            raise ValueError(f"patches has shape {patches.shape}, but must have (I, N, {self.cfg.patch_size})")
        return self.encode(params, self.project(params, patches, dtype), layout, remat=remat, kernel=kernel)

    def project(self, params: dict, patches: jax.Array, dtype=jnp.bfloat16) -> jax.Array:
        """Return the projections [..., N, d_model] of patches [..., N, P], which equal patches share."""
        if patches.shape[-1] != self.cfg.patch_size:
            raise ValueError(f"patches has shape {patches.shape}, but must have (I, N, {self.cfg.patch_size})")
        return self.ends(params).start(patches, dtype)

    def encode(
        self, params: dict, x: jax.Array, layout: PatchLayout, *, remat: str = "none", kernel: str | None = None
    ) -> jax.Array:
        """Return the embeddings of images from their projected patches [I, N, d_model], see `project`."""
        cfg, images, patches = self.cfg, x.shape[0], x
        if layout.places.shape[1] != patches.shape[1] or layout.places.shape[0] not in (1, images):
            held = layout.places.shape[:2]
            raise ValueError(f"the layout is for {held} images and patches, but patches has {patches.shape[:2]}")
        if (layout.windows is None) != cfg.all_full:
            raise ValueError("the layout is of another encoder; make it with the layout method of this one")
        layout = jax.tree.map(lambda x: jnp.broadcast_to(x, (images, *x.shape[1:])), layout)
        kernel = kernel or default_kernel(cfg.head_dim)
        full = functools.partial(_attend, lengths=layout.lengths, kernel=kernel)
        windows = layout.windows
        windowed = full if windows is None else functools.partial(_attend_in_windows, windows=windows, kernel=kernel)
        ends, rope = self.ends(params), _angles(cfg, layout.places)
        whole = np.asarray([cfg.full_layers is None or i in cfg.full_layers for i in range(cfg.n_layers)])

        def layer(x, given):
            weights, is_full = given
            attend = full if windows is None else lambda q, k, v: jax.lax.cond(is_full, full, windowed, q, k, v)
            return nnx.merge(self.block_def, weights)(x, rope, attend), None

        x, _ = jax.lax.scan(rematerialized(layer, remat, 1), x, (params["layers"], jnp.asarray(whole)))
        return ends.finish(x)


def _angles(cfg: VisionConfig, places) -> tuple[jax.Array, jax.Array]:
    """Return cos and sin, float32 [I, N, 1, H/2].

    The first half of the pairs rotates by the row of a patch, the second by its column.
    """
    half = cfg.head_dim // 2
    frequencies = 1.0 / cfg.rope_theta ** (jnp.arange(0, half, 2, dtype=jnp.float32) / half)
    angles = (places[..., None].astype(jnp.float32) * frequencies).reshape(*places.shape[:2], 1, half)
    return jnp.cos(angles), jnp.sin(angles)


def _attend(q, k, v, lengths, kernel: str):
    """Attend among the first `lengths` [I] patches of each image; None for all."""
    in_kernel = fused(kernel, q.dtype) and q.shape[-1] % 8 == 0  # sizes of heads that cuDNN supports
    implementation = "cudnn" if in_kernel else "xla"
    sizes = {} if lengths is None else {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths}
    return jax.nn.dot_product_attention(q, k, v, implementation=implementation, **sizes)


def _attend_in_windows(q, k, v, windows: Windows, kernel: str):
    """Attend within the windows of each image."""
    there, back, n = windows.slots, windows.home, windows.held.shape[1]
    q, k, v = (fold(move(x, there, back), n) for x in (q, k, v))
    held = jnp.maximum(windows.held.reshape(-1), 1)  # a softmax needs one key
    return move(unfold(_attend(q, k, v, held, kernel), n), back, there)


def _layout(cfg: VisionConfig, grids: Sequence[tuple[int, int]], patches: int | None) -> PatchLayout:
    """Return the places of the patches of images, see `Encoder.layout`."""
    for rows, columns in grids:
        if rows < 1 or columns < 1 or rows % cfg.merge or columns % cfg.merge:
            raise ValueError(f"grid is {rows} × {columns} patches, but must have multiples of {cfg.merge}")
    if not grids:
        raise ValueError("grids is empty, but an encoder needs at least one image")
    most = max(rows * columns for rows, columns in grids)
    total = most if patches is None else patches
    if total < most or total % cfg.merge**2:
        raise ValueError(f"patches is {patches}, but must be a multiple of {cfg.merge**2} and >= {most}")
    made = [_one_image(cfg, rows, columns) for rows, columns in grids]
    lengths = np.asarray([len(places) for places, *_ in made], np.int32)
    places = np.stack([_padded(places, total, 0) for places, *_ in made])
    same = None if (lengths == total).all() else lengths
    if cfg.all_full:
        return PatchLayout(places, same, None)
    most = max(len(held) for *_, held in made)
    slots = np.stack([_padded(slots, most * _slots(cfg), -1) for _, slots, _, _ in made])
    home = np.stack([_padded(home, total, -1) for _, _, home, _ in made])
    held = np.stack([_padded(held, most, 0) for *_, held in made])
    return PatchLayout(places, same, Windows(slots, home, held))


def _slots(cfg: VisionConfig) -> int:
    """Return the maximum number of patches of a window."""
    return (cfg.window // cfg.patch) ** 2


def _one_image(cfg: VisionConfig, rows: int, columns: int):
    """Return the places, slots, homes and window sizes of an image, without padding."""
    merge, side = cfg.merge, cfg.window // cfg.patch
    place = np.arange(rows * columns).reshape(rows // merge, columns // merge, merge, merge)
    cell_row, cell_column, row, column = (x.reshape(-1) for x in np.indices(place.shape))
    places = np.stack([cell_row * merge + row, cell_column * merge + column], axis=1).astype(np.int32)
    across = -(-columns // side)
    window = places[:, 0] // side * across + places[:, 1] // side
    held = np.bincount(window, minlength=-(-rows // side) * across)
    order = np.argsort(window, kind="stable")  # patches window by window, in their order
    first = np.cumsum(held) - held
    home = np.empty(len(order), np.int32)
    home[order] = window[order] * _slots(cfg) + np.arange(len(order)) - first[window[order]]
    slots = np.full(len(held) * _slots(cfg), -1, np.int32)
    slots[home] = np.arange(len(home))
    return places, slots, home, held.astype(np.int32)


def _padded(x: np.ndarray, size: int, value: int) -> np.ndarray:
    """Pad the first axis of x to a size."""
    return np.pad(x, ((0, size - len(x)), *((0, 0),) * (x.ndim - 1)), constant_values=value)
