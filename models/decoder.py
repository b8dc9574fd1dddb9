"""The LLaMA decoder, also used by Mistral, Phi-3, Qwen2, Qwen3, SmolLM2 and TinyLlama.

It has rotary positions, RMS norms before attention, and a gated feed-forward network. The models differ only in fields
of `ModelConfig`, which also explains the axis letters. Parameters have two layouts: separate projections for training,
or q/k/v and gate/up fused into one matrix each for the fastest decoding.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models import lora
from models.attention import Attend
from models.config import ModelConfig, RopeScaling
from models.exact_sums import add_bias
from models.media import Media
from models.sharding import constrain


def param(rngs: nnx.Rngs, shape, axes, scale: float | None, dtype) -> nnx.Param:
    """Return a parameter with its axis letters.

    It is drawn from a normal distribution with standard deviation `scale`. None gives ones and 0 gives zeros.
    """
    if scale is None:
        return nnx.Param(jnp.ones(shape, dtype), axes=axes)
    if scale == 0:
        return nnx.Param(jnp.zeros(shape, dtype), axes=axes)
    return nnx.Param(jax.random.normal(rngs.params(), shape, dtype) * jnp.asarray(scale, dtype), axes=axes)


def embed(table: jax.Array, tokens: jax.Array, dtype) -> jax.Array:
    """Look up tokens [B, T] in a table [V, D] and return [B, T, D]."""
    # Each device looks up complete vectors for its rows. Without this the partitioner replicates the result.
    table = constrain(table.astype(dtype), "VD")
    return constrain(table[constrain(tokens, "BT")], "BTD")


@jax.custom_vjp
def to_logits(hidden: jax.Array, weight: jax.Array) -> jax.Array:
    """Return logits, float32 [..., V], of hidden states [..., D] and a head [V, D]."""
    return jnp.einsum("...d,vd->...v", hidden, weight.astype(hidden.dtype), preferred_element_type=jnp.float32)


def _to_logits_forward(hidden, weight):
    return to_logits(hidden, weight), (hidden, weight)


def _to_logits_backward(kept, grads):
    # By default both products of the backward pass would inherit float32 from the logits and run at half the speed.
    hidden, weight = kept
    grads, leading = grads.astype(hidden.dtype), list(range(hidden.ndim - 1))
    to_weight = jnp.tensordot(grads, hidden, (leading, leading), preferred_element_type=jnp.float32)
    return grads @ weight.astype(hidden.dtype), to_weight.astype(weight.dtype)


to_logits.defvjp(_to_logits_forward, _to_logits_backward)


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Apply an RMS norm over the last axis, computed in float32."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps)
    return (y * weight.astype(jnp.float32)).astype(x.dtype)


def rope_frequencies(cfg: ModelConfig) -> jax.Array:
    """Return the radians per position of each pair of channels, float32 [H/2]."""
    freq = 1.0 / cfg.rope_theta ** (jnp.arange(0, cfg.head_dim, 2, dtype=jnp.float32) / cfg.head_dim)
    return freq if cfg.rope_scaling is None else _scaled(freq, cfg.rope_scaling)


def _scaled(freq, s: RopeScaling):
    """Scale rotary frequencies for a longer context."""
    if s.kind == "linear":
        return freq / s.factor
    # llama3, by rotations over the original context: slow channels are scaled, fast ones kept, others interpolated.
    turns = s.original_max_positions * freq / (2 * jnp.pi)
    blend = jnp.clip((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0)
    return (1 - blend) * freq / s.factor + blend * freq


def rope_angles(cfg: ModelConfig, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return cos and sin, float32 [B, T, 1, H/2].

    Args:
        cfg: Config of the model.
        positions: int32 [B, T], or [3, B, T] with mRoPE.
    """
    frequencies = rope_frequencies(cfg)
    if positions.ndim == 3:
        assert cfg.mrope_sections is not None
        of_axes = jnp.split(frequencies, np.cumsum(cfg.mrope_sections)[:-1])
        turns = [p[..., None].astype(jnp.float32) * f for p, f in zip(positions, of_axes, strict=True)]
        angles = jnp.concatenate(turns, axis=-1)
    else:
        angles = positions[..., None].astype(jnp.float32) * frequencies
    return jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate x [B, T, heads, H] in float32, pairing channel i with i + H/2."""
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


class Attention(nnx.Module):
    """The attention block: norm, projections, rotation, attention and output projection."""

    def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs, dtype, fused: bool):
        d, n, k, h = cfg.d_model, cfg.n_heads, cfg.n_kv_heads, cfg.head_dim
        self.cfg, self.fused = cfg, fused
        self.norm = param(rngs, (d,), ("D",), None, dtype)
        if fused:
            self.qkv = param(rngs, (d, (n + 2 * k) * h), ("D", "N"), 0.02, dtype)
            if cfg.qkv_bias:
                self.qkv_bias = param(rngs, ((n + 2 * k) * h,), ("N",), 0, dtype)
        else:
            self.q = param(rngs, (d, n, h), ("D", "N", "H"), 0.02, dtype)
            self.k = param(rngs, (d, k, h), ("D", "K", "H"), 0.02, dtype)
            self.v = param(rngs, (d, k, h), ("D", "K", "H"), 0.02, dtype)
            if cfg.qkv_bias:
                self.q_bias = param(rngs, (n, h), ("N", "H"), 0, dtype)
                self.k_bias = param(rngs, (k, h), ("K", "H"), 0, dtype)
                self.v_bias = param(rngs, (k, h), ("K", "H"), 0, dtype)
        if cfg.qk_norm:
            self.q_norm = param(rngs, (h,), ("H",), None, dtype)
            self.k_norm = param(rngs, (h,), ("H",), None, dtype)
        # Residual branches start small, so that their sum does not grow with depth.
        self.o = param(rngs, (n, h, d), ("N", "H", "D"), 0.02 / (2 * cfg.n_layers) ** 0.5, dtype)

    def projections(self, x, adapters):
        """Project x [B, T, D] to queries, keys and values, including LoRA.

        Returns:
            q [B, T, N, H], k and v [B, T, K, H].
        """
        cfg, w = self.cfg, lambda p: p[...].astype(x.dtype)
        if self.fused:
            y = x @ w(self.qkv)
            y = (add_bias(y, self.qkv_bias[...]) if cfg.qkv_bias else y).reshape(*x.shape[:2], -1, cfg.head_dim)
            outs = jnp.split(y, (cfg.n_heads, cfg.n_heads + cfg.n_kv_heads), axis=2)
        else:
            outs = [jnp.einsum("btd,dnh->btnh", x, w(p)) for p in (self.q, self.k, self.v)]
            if cfg.qkv_bias:
                biases = (self.q_bias, self.k_bias, self.v_bias)
                outs = [add_bias(y, b[...]) for y, b in zip(outs, biases, strict=True)]
        q, k, v = (
            y + adapters(name, x).reshape(y.shape) if name in adapters else y
            for name, y in zip("qkv", outs, strict=True)
        )
        if cfg.qk_norm:
            q, k = rms_norm(q, self.q_norm[...], cfg.norm_eps), rms_norm(k, self.k_norm[...], cfg.norm_eps)
        return q, k, v

    def __call__(self, x, rope, attend: Attend, layer, adapters):
        """Run the block on x [B, T, D] and the layer's cache, and return both."""
        q, k, v = self.projections(rms_norm(x, self.norm[...], self.cfg.norm_eps), adapters)
        if attend.in_one_kernel(x.shape[1]):
            y, layer = attend.step(q, k, v, rope, layer)
        else:
            q, k = constrain(rotate(q, *rope), "BTNH"), constrain(rotate(k, *rope), "BTKH")
            y, layer = attend(q, k, v, layer)
        out = jnp.einsum("btnh,nhd->btd", constrain(y, "BTNH"), self.o[...].astype(x.dtype))
        if "o" in adapters:
            out = out + adapters("o", y.reshape(*y.shape[:2], -1))
        return x + out, layer


class FeedForward(nnx.Module):
    """The feed-forward block: norm and SiLU-gated feed-forward network."""

    def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs, dtype, fused: bool):
        d, f = cfg.d_model, cfg.d_ff
        self.cfg, self.fused = cfg, fused
        self.norm = param(rngs, (d,), ("D",), None, dtype)
        if fused:
            self.gate_up = param(rngs, (d, 2 * f), ("D", "F"), 0.02, dtype)
        else:
            self.gate = param(rngs, (d, f), ("D", "F"), 0.02, dtype)
            self.up = param(rngs, (d, f), ("D", "F"), 0.02, dtype)
        self.down = param(rngs, (f, d), ("F", "D"), 0.02 / (2 * cfg.n_layers) ** 0.5, dtype)

    def __call__(self, x, adapters):
        """Run the block on x [B, T, D]."""
        y = rms_norm(x, self.norm[...], self.cfg.norm_eps)
        if self.fused:
            gate, up = jnp.split(y @ self.gate_up[...].astype(x.dtype), 2, axis=-1)
        else:
            gate, up = y @ self.gate[...].astype(x.dtype), y @ self.up[...].astype(x.dtype)
        gate = gate + adapters("gate", y) if "gate" in adapters else gate
        up = up + adapters("up", y) if "up" in adapters else up
        z = constrain(jax.nn.silu(gate) * up, "BTF")
        out = z @ self.down[...].astype(x.dtype)
        return x + (out + adapters("down", z) if "down" in adapters else out)


class Adapters:
    """The LoRA adapters of one layer, if any.

    Use `name in adapters` to check for a projection and `adapters(name, x)` to apply its adapter.
    """

    def __init__(self, layer: dict | None, weights: jax.Array | None):
        self.layer, self.weights = layer or {}, weights

    def __contains__(self, name):
        return name in self.layer

    def __call__(self, name, x):
        """Return the contribution of the adapters to a projection of x."""
        assert self.weights is not None
        return lora.delta(x, self.layer[name], self.weights)


class Block(nnx.Module):
    """One layer."""

    def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs, dtype, fused: bool = False):
        self.attn = Attention(cfg, rngs, dtype, fused)
        self.mlp = FeedForward(cfg, rngs, dtype, fused)

    def __call__(self, x, rope, attend: Attend, layer, adapters: Adapters):
        """Run the layer on x [B, T, D] and its cache; return both."""
        x, layer = self.attn(x, rope, attend, layer, adapters)
        return constrain(self.mlp(x, adapters), "BTD"), layer


class Ends(nnx.Module):
    """The modules around the layers: embedding, positions, last norm and head."""

    def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs, dtype):
        self.cfg = cfg
        self.embed = param(rngs, (cfg.vocab_size, cfg.d_model), ("V", "D"), 0.02, dtype)
        self.norm = param(rngs, (cfg.d_model,), ("D",), None, dtype)
        if not cfg.tie_embeddings:
            self.head = param(rngs, (cfg.d_model, cfg.vocab_size), ("D", "V"), 0.02, dtype)

    def start(self, tokens, positions, dtype, media: Media | None = None):
        """Embed tokens [B, T] and media; return x [B, T, D] and the rotary angles."""
        x = embed(self.embed[...], tokens, dtype)
        return x if media is None else media.insert(x), rope_angles(self.cfg, positions)

    def finish(self, x):
        """Apply the last norm."""
        return rms_norm(x, self.norm[...], self.cfg.norm_eps)

    def logits(self, hidden, ids=None):
        """Return logits, float32 [..., V], or [..., A] for the tokens `ids` [A] only."""
        weight = self.embed[...] if self.cfg.tie_embeddings else self.head[...].T
        return to_logits(hidden, weight if ids is None else weight[ids])


def fuse(layer: dict, cfg: ModelConfig) -> dict:
    """Return the parameters of a layer with q/k/v and gate/up concatenated."""
    mlp = dict(layer["mlp"])
    mlp["gate_up"] = jnp.concatenate([mlp.pop("gate"), mlp.pop("up")], axis=-1)
    return {"attn": fuse_attention(layer["attn"], cfg), "mlp": mlp}


def fuse_attention(attn: dict, cfg: ModelConfig) -> dict:
    """Return the parameters of `Attention` with q, k and v concatenated."""
    attn = dict(attn)
    attn["qkv"] = jnp.concatenate([attn.pop(x).reshape(cfg.d_model, -1) for x in "qkv"], axis=-1)
    if cfg.qkv_bias:
        attn["qkv_bias"] = jnp.concatenate([attn.pop(f"{x}_bias").reshape(-1) for x in "qkv"])
    return attn
