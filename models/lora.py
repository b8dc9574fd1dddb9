"""LoRA with several adapters, one of which each row of a batch selects.

The n adapters are stacked in one array. All n low-rank products are computed and that of the row's adapter is kept.
With the few adapters of a multi-agent system this is one dense product of width n·r, which is cheaper than gathering a
pair of matrices for every row.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from models.config import ModelConfig
from models.families import FAMILIES

TARGETS = ("q", "k", "v", "o", "gate", "up", "down")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lora:
    """Stacked adapters and the adapter of each row.

    Attributes:
        adapters: {"q": {"a": [L, n, in, r], "b": [L, n, r, out]}, ...}. Unstacked: a tuple of L such dicts without L.
        scale: float32 [n], alpha / r. Zero for an adapter that represents "none".
        ids: int32 [B], the adapter of each row.
    """

    adapters: dict | tuple
    scale: jax.Array
    ids: jax.Array

    def row_weights(self) -> jax.Array:
        """Return float32 [B, n]: the scale of a row's adapter in its column, zero elsewhere."""
        return jax.nn.one_hot(self.ids, self.scale.shape[0]) * self.scale


def sizes(cfg: ModelConfig, target: str) -> tuple[int, int]:
    """Return (in, out) of a projection."""
    heads, kv = cfg.n_heads * cfg.head_dim, cfg.n_kv_heads * cfg.head_dim
    table = {
        "q": (cfg.d_model, heads),
        "k": (cfg.d_model, kv),
        "v": (cfg.d_model, kv),
        "o": (heads, cfg.d_model),
        "gate": (cfg.d_model, cfg.d_ff),
        "up": (cfg.d_model, cfg.d_ff),
        "down": (cfg.d_ff, cfg.d_model),
    }
    accepted = FAMILIES.get(cfg.family).lora_targets
    if target not in accepted:
        raise ValueError(
            f"LoRA target is {target!r}, but for the family {cfg.family} must be one of: {', '.join(accepted)}"
        )
    return table[target]


def init(cfg: ModelConfig, key: jax.Array, n: int, rank: int, targets=("q", "v"), dtype=jnp.float32) -> dict:
    """Return n adapters that change nothing yet.

    A is uniform with the usual fan-in bound, and B is zero.
    """
    if rank < 1:
        raise ValueError(f"LoRA rank is {rank}, but must be >= 1")
    adapters = {}
    for target, k in zip(targets, jax.random.split(key, max(len(targets), 1)), strict=False):
        d_in, d_out = sizes(cfg, target)
        bound = math.sqrt(1 / d_in)
        a = jax.random.uniform(k, (cfg.n_layers, n, d_in, rank), dtype, -bound, bound)
        adapters[target] = {"a": a, "b": jnp.zeros((cfg.n_layers, n, rank, d_out), dtype)}
    return adapters


def axes(adapters: dict) -> dict:
    """Return the axis letters of stacked adapters.

    Adapters are small, so only the model axis of A is ever sharded.
    """
    read = {t: "I" if t in ("o", "down") else "D" for t in adapters}
    return {t: {"a": ("L", "n", read[t], "r"), "b": ("L", "n", "r", "O")} for t in adapters}


def scales(n: int, rank: int, alpha: float, none_first: bool = False) -> jax.Array:
    """Return alpha / rank, float32 [n]; with `none_first`, adapter 0 is switched off."""
    scale = jnp.full((n,), alpha / rank, jnp.float32)
    return scale.at[0].set(0.0) if none_first else scale


def unstack(adapters: dict, n_layers: int, dtype=jnp.bfloat16) -> tuple:
    """Return stacked adapters as a tuple of per-layer dicts, for decoding.

    An adapter that is not finite affects only its own rows, see `isolate`.
    """
    adapters = isolate(adapters)
    return tuple(jax.tree.map(lambda x, i=i: x[i].astype(dtype), adapters) for i in range(n_layers))


def isolate(adapters: dict) -> dict:
    """Move all NaNs of an adapter to A, which `delta` keeps separate.

    B is summed over all adapters, so a NaN there, even times zero, would reach the rows of all others.
    """

    def one(ab: dict[str, jax.Array]) -> dict[str, jax.Array]:
        finite = [jnp.all(jnp.isfinite(ab[x]), axis=(-2, -1), keepdims=True) for x in "ab"]
        finite = finite[0] & finite[1]
        return {"a": jnp.where(finite, ab["a"], jnp.nan), "b": jnp.where(finite, ab["b"], 0)}

    return {target: one(ab) for target, ab in adapters.items()}


def delta(x: jax.Array, adapter: dict[str, jax.Array], weights: jax.Array) -> jax.Array:
    """Return the contribution of the adapters to a projection, [B, T, out].

    Args:
        x: [B, T, in], input of the projection.
        adapter: {"a": [n, in, r], "b": [n, r, out]}.
        weights: [B, n] from `row_weights`.
    """
    low = jnp.einsum("bti,nir->btnr", x, adapter["a"].astype(x.dtype))
    own = weights[:, None, :, None].astype(x.dtype)
    low = jnp.where(own == 0, jnp.zeros_like(low), low * own)  # drops the NaNs of other adapters, see `isolate`
    return jnp.einsum("btnr,nro->bto", low, adapter["b"].astype(x.dtype))


def merge(params: dict, adapters: dict, scale: jax.Array, index: int) -> dict:
    """Return stacked parameters with adapter `index` merged into the weights.

    Use it for export, or to serve one role without LoRA.
    """
    layers = {part: dict(leaves) for part, leaves in params["layers"].items()}
    for target, ab in adapters.items():
        part = layers["attn" if target in ("q", "k", "v", "o") else "mlp"]
        a, b = (ab[x][:, index].astype(jnp.float32) for x in "ab")
        change = scale[index] * jnp.einsum("lir,lro->lio", a, b)
        weight = part[target]
        part[target] = (weight.astype(jnp.float32) + change.reshape(weight.shape)).astype(weight.dtype)
    return {**params, "layers": layers}
