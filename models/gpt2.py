"""The GPT-2 decoder, also used by DialoGPT.

It has learned positions, layer norms with bias, an ungated feed-forward network and a tied head.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from models.attention import Attend
from models.config import ModelConfig
from models.decoder import Adapters, embed, param, to_logits
from models.exact_sums import add_bias
from models.media import Media
from models.sharding import constrain


def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array, eps: float) -> jax.Array:
    """Apply a layer norm over the last axis, computed in float32."""
    y = x.astype(jnp.float32)
    y = y - jnp.mean(y, axis=-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps)
    return (y * weight.astype(jnp.float32) + bias.astype(jnp.float32)).astype(x.dtype)


class Gpt2Attention(nnx.Module):
    """The attention block: norm, projections with bias, attention and output projection."""

    def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs, dtype, fused: bool):
        d, n, h = cfg.d_model, cfg.n_heads, cfg.head_dim
        self.cfg, self.fused = cfg, fused
        self.norm = param(rngs, (d,), ("D",), None, dtype)
        self.norm_bias = param(rngs, (d,), ("D",), 0, dtype)
        if fused:
            self.qkv = param(rngs, (d, 3 * n * h), ("D", "N"), 0.02, dtype)
            self.qkv_bias = param(rngs, (3 * n * h,), ("N",), 0, dtype)
        else:
            self.q = param(rngs, (d, n, h), ("D", "N", "H"), 0.02, dtype)
            self.k = param(rngs, (d, n, h), ("D", "N", "H"), 0.02, dtype)
            self.v = param(rngs, (d, n, h), ("D", "N", "H"), 0.02, dtype)
            self.q_bias = param(rngs, (n, h), ("N", "H"), 0, dtype)
            self.k_bias = param(rngs, (n, h), ("N", "H"), 0, dtype)
            self.v_bias = param(rngs, (n, h), ("N", "H"), 0, dtype)
        self.o = param(rngs, (n, h, d), ("N", "H", "D"), 0.02 / (2 * cfg.n_layers) ** 0.5, dtype)
        self.o_bias = param(rngs, (d,), ("D",), 0, dtype)

    def __call__(self, x, attend: Attend, layer, adapters: Adapters):
        """Run the block on x [B, T, D] and the layer's cache, and return both."""
        cfg, w = self.cfg, lambda p: p[...].astype(x.dtype)
        y = layer_norm(x, self.norm[...], self.norm_bias[...], cfg.norm_eps)
        if self.fused:
            parts = jnp.split(add_bias(y @ w(self.qkv), self.qkv_bias[...]), 3, axis=-1)
            qkv = [p.reshape(*x.shape[:2], cfg.n_heads, cfg.head_dim) for p in parts]
        else:
            pairs = ((self.q, self.q_bias), (self.k, self.k_bias), (self.v, self.v_bias))
            qkv = [add_bias(jnp.einsum("btd,dnh->btnh", y, w(p)), b[...]) for p, b in pairs]
        q, k, v = (
            z + adapters(name, y).reshape(z.shape) if name in adapters else z
            for name, z in zip("qkv", qkv, strict=True)
        )
        if attend.in_one_kernel(x.shape[1]):
            z, layer = attend.step(q, k, v, None, layer)
        else:
            z, layer = attend(constrain(q, "BTNH"), constrain(k, "BTNH"), v, layer)
        out = add_bias(jnp.einsum("btnh,nhd->btd", z, w(self.o)), self.o_bias[...])
        if "o" in adapters:
            out = out + adapters("o", z.reshape(*z.shape[:2], -1))
        return x + out, layer


class Gpt2FeedForward(nnx.Module):
    """The feed-forward block: norm and GELU feed-forward network with bias."""

    def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs, dtype):
        d, f = cfg.d_model, cfg.d_ff
        self.cfg = cfg
        self.norm = param(rngs, (d,), ("D",), None, dtype)
        self.norm_bias = param(rngs, (d,), ("D",), 0, dtype)
        self.up = param(rngs, (d, f), ("D", "F"), 0.02, dtype)
        self.up_bias = param(rngs, (f,), ("F",), 0, dtype)
        self.down = param(rngs, (f, d), ("F", "D"), 0.02 / (2 * cfg.n_layers) ** 0.5, dtype)
        self.down_bias = param(rngs, (d,), ("D",), 0, dtype)

    def __call__(self, x, adapters: Adapters):
        """Run the block on x [B, T, D]."""
        w = lambda p: p[...].astype(x.dtype)  # noqa: E731
        y = layer_norm(x, self.norm[...], self.norm_bias[...], self.cfg.norm_eps)
        z = add_bias(y @ w(self.up), self.up_bias[...])
        z = z + adapters("up", y) if "up" in adapters else z
        z = constrain(jax.nn.gelu(z, approximate=True), "BTF")
        out = add_bias(z @ w(self.down), self.down_bias[...])
        return x + (out + adapters("down", z) if "down" in adapters else out)


class Gpt2Block(nnx.Module):
    """One layer."""

    def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs, dtype, fused: bool = False):
        self.attn = Gpt2Attention(cfg, rngs, dtype, fused)
        self.mlp = Gpt2FeedForward(cfg, rngs, dtype)

    def __call__(self, x, _, attend: Attend, layer, adapters: Adapters):
        """Run the layer on x [B, T, D] and its cache; return both."""
        x, layer = self.attn(x, attend, layer, adapters)
        return constrain(self.mlp(x, adapters), "BTD"), layer


class Gpt2Ends(nnx.Module):
    """The modules around the layers: embedding, positions, last norm and tied head."""

    def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs, dtype):
        self.cfg = cfg
        self.embed = param(rngs, (cfg.vocab_size, cfg.d_model), ("V", "D"), 0.02, dtype)
        self.positions = param(rngs, (cfg.max_positions, cfg.d_model), ("S", "D"), 0.01, dtype)
        self.norm = param(rngs, (cfg.d_model,), ("D",), None, dtype)
        self.norm_bias = param(rngs, (cfg.d_model,), ("D",), 0, dtype)

    def start(self, tokens, positions, dtype, media: Media | None = None):
        """Embed tokens, media and positions [B, T] and return (x [B, T, D], None)."""
        x = embed(self.embed[...], tokens, dtype)
        x = x if media is None else media.insert(x)
        return x + embed(self.positions[...], positions, dtype), None

    def finish(self, x):
        """Apply the last norm."""
        return layer_norm(x, self.norm[...], self.norm_bias[...], self.cfg.norm_eps)

    def logits(self, hidden, ids=None):
        """Return logits, float32 [..., V], or [..., A] for the tokens `ids` [A] only."""
        return to_logits(hidden, self.embed[...] if ids is None else self.embed[...][ids])


def fuse(layer: dict, cfg: ModelConfig) -> dict:
    """Return the parameters of a layer with q, k and v concatenated."""
    attn = dict(layer["attn"])
    attn["qkv"] = jnp.concatenate([attn.pop(x).reshape(cfg.d_model, -1) for x in "qkv"], axis=-1)
    attn["qkv_bias"] = jnp.concatenate([attn.pop(f"{x}_bias").reshape(-1) for x in "qkv"])
    return {"attn": attn, "mlp": layer["mlp"]}
