"""An audio encoder of Whisper's shape: log-mel frames to embeddings of a decoder.

The encoder has two convolutions, sinusoidal positions and layers with layer norms, like that of Whisper (Radford et
al., 2022). A projection merges neighboring frames into one embedding for `models.media.Media`.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.decoder import param
from models.exact_sums import add_bias
from models.media_config import AudioConfig
from models.stack import Stack, rematerialized

SAMPLE_RATE, WINDOW, HOP = 16_000, 400, 160
"""Samples per second, per window and between two frames, as in Whisper."""


# ------------------------------------------------------------------------------------------------------ log-mel frames


@functools.cache
def mel_filters(n_mels: int) -> np.ndarray:
    """Return triangular filters on Slaney's mel scale, float32 [WINDOW / 2 + 1, n_mels]."""
    step = np.log(6.4) / 27.0  # above 1 kHz, 27 mels per factor of 6.4; below, 15 mels per kHz

    def to_hertz(mel):
        return np.where(mel < 15.0, 200.0 * mel / 3.0, 1000.0 * np.exp(step * (mel - 15.0)))

    highest = 15.0 + np.log(SAMPLE_RATE / 2 / 1000.0) / step
    edges = to_hertz(np.linspace(0.0, highest, n_mels + 2))
    bins = np.linspace(0.0, SAMPLE_RATE / 2, WINDOW // 2 + 1)[:, None]
    rising, falling = (bins - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - bins) / np.diff(edges)[1:]
    return (np.maximum(0.0, np.minimum(rising, falling)) * 2.0 / (edges[2:] - edges[:-2])).astype(np.float32)


def log_mel(samples: Any, n_mels: int = 80) -> Any:
    """Return log-mel frames, float32 [..., samples / HOP, n_mels], scaled as in Whisper.

    Given NumPy arrays, they are computed on the host.

    Args:
        samples: float32 [..., S]. Sound from -1 to 1 at 16 kHz; S is a multiple of HOP.
        n_mels: Number of mel channels.
    """
    xp: Any = np if isinstance(samples, np.ndarray) else jnp
    length = samples.shape[-1]
    if length % HOP or length <= WINDOW // 2:
        raise ValueError(f"samples has length {length}, but must have a multiple of {HOP} above {WINDOW // 2}")
    ends = [(0, 0)] * (samples.ndim - 1) + [(WINDOW // 2, WINDOW // 2)]
    padded = xp.pad(samples, ends, mode="reflect")
    at = np.arange(length // HOP)[:, None] * HOP + np.arange(WINDOW)
    hann = np.hanning(WINDOW + 1)[:-1].astype(np.float32)
    power = xp.abs(xp.fft.rfft(padded[..., at] * hann)) ** 2
    frames = xp.log10(xp.maximum(power @ mel_filters(n_mels), 1e-10))
    loudest = xp.max(frames, axis=(-2, -1), keepdims=True)
    return ((xp.maximum(frames, loudest - 8.0) + 4.0) / 4.0).astype(np.float32)


# ------------------------------------------------------------------------------------------------------------- encoder


def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array, eps: float) -> jax.Array:
    """Apply a layer norm over the last axis, computed in float32."""
    y = x.astype(jnp.float32)
    y = y - jnp.mean(y, axis=-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps)
    return (y * weight.astype(jnp.float32) + bias.astype(jnp.float32)).astype(x.dtype)


class AudioBlock(nnx.Module):
    """One layer: attention over all frames, then a GELU feed-forward network."""

    def __init__(self, cfg: AudioConfig, rngs: nnx.Rngs, dtype):
        d, n, f = cfg.d_model, cfg.n_heads, cfg.d_ff
        h = d // n
        self.cfg = cfg
        self.norm = param(rngs, (d,), ("D",), None, dtype)
        self.norm_bias = param(rngs, (d,), ("D",), 0, dtype)
        self.q = param(rngs, (d, n, h), ("D", "N", "H"), 0.02, dtype)
        self.k = param(rngs, (d, n, h), ("D", "N", "H"), 0.02, dtype)
        self.v = param(rngs, (d, n, h), ("D", "N", "H"), 0.02, dtype)
        self.q_bias = param(rngs, (n, h), ("N", "H"), 0, dtype)
        self.v_bias = param(rngs, (n, h), ("N", "H"), 0, dtype)
        self.o = param(rngs, (n, h, d), ("N", "H", "D"), 0.02 / (2 * cfg.n_layers) ** 0.5, dtype)
        self.o_bias = param(rngs, (d,), ("D",), 0, dtype)
        self.mlp_norm = param(rngs, (d,), ("D",), None, dtype)
        self.mlp_norm_bias = param(rngs, (d,), ("D",), 0, dtype)
        self.up = param(rngs, (d, f), ("D", "F"), 0.02, dtype)
        self.up_bias = param(rngs, (f,), ("F",), 0, dtype)
        self.down = param(rngs, (f, d), ("F", "D"), 0.02 / (2 * cfg.n_layers) ** 0.5, dtype)
        self.down_bias = param(rngs, (d,), ("D",), 0, dtype)

    def __call__(self, x):
        """Run the layer on x [I, N, D]."""
        w, eps = lambda p: p[...].astype(x.dtype), self.cfg.norm_eps
        y = layer_norm(x, self.norm[...], self.norm_bias[...], eps)
        q, k, v = (jnp.einsum("btd,dnh->btnh", y, w(p)) for p in (self.q, self.k, self.v))
        y = jax.nn.dot_product_attention(add_bias(q, self.q_bias[...]), k, add_bias(v, self.v_bias[...]))
        x = x + add_bias(jnp.einsum("btnh,nhd->btd", y, w(self.o)), self.o_bias[...])
        y = layer_norm(x, self.mlp_norm[...], self.mlp_norm_bias[...], eps)
        y = jax.nn.gelu(add_bias(y @ w(self.up), self.up_bias[...]), approximate=False)
        return x + add_bias(y @ w(self.down), self.down_bias[...])


class AudioEnds(nnx.Module):
    """The modules around the layers: convolutions, positions, last norm and projection."""

    def __init__(self, cfg: AudioConfig, width: int, rngs: nnx.Rngs, dtype):
        d = cfg.d_model
        self.cfg = cfg
        self.conv1 = param(rngs, (3, cfg.n_mels, d), ("w", "c", "D"), (3 * cfg.n_mels) ** -0.5, dtype)
        self.conv1_bias = param(rngs, (d,), ("D",), 0, dtype)
        self.conv2 = param(rngs, (3, d, d), ("w", "c", "D"), (3 * d) ** -0.5, dtype)
        self.conv2_bias = param(rngs, (d,), ("D",), 0, dtype)
        self.norm = param(rngs, (d,), ("D",), None, dtype)
        self.norm_bias = param(rngs, (d,), ("D",), 0, dtype)
        self.project = param(rngs, (cfg.merge * d, width), ("F", "D"), 0.02 * (cfg.merge * d) ** -0.5, dtype)
        self.project_bias = param(rngs, (width,), ("D",), 0, dtype)

    def start(self, frames, dtype):
        """Encode log-mel frames [I, T, n_mels] locally, with positions; return [I, T / 2, D]."""
        x = frames.astype(dtype)
        for weight, bias, stride in ((self.conv1, self.conv1_bias, 1), (self.conv2, self.conv2_bias, 2)):
            x = jax.lax.conv_general_dilated(
                x, weight[...].astype(dtype), (stride,), [(1, 1)], dimension_numbers=("NWC", "WIO", "NWC")
            )
            x = jax.nn.gelu(add_bias(x, bias[...]), approximate=False)
        return x + jnp.asarray(sinusoids(x.shape[1], self.cfg.d_model), dtype)

    def encoded(self, x):
        """Apply the last norm to x [I, T / 2, D]."""
        return layer_norm(x, self.norm[...], self.norm_bias[...], self.cfg.norm_eps)

    def finish(self, x):
        """Merge frames [I, T / 2, D] to embeddings [I, M, width]."""
        y = self.encoded(x).reshape(x.shape[0], -1, self.project[...].shape[0])
        return add_bias(y @ self.project[...].astype(x.dtype), self.project_bias[...])


def sinusoids(length: int, channels: int) -> np.ndarray:
    """Return Whisper's positions, float32 [length, channels]: sines, then cosines."""
    rates = np.exp(-np.log(10_000.0) / (channels // 2 - 1) * np.arange(channels // 2))
    angles = np.arange(length)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


class AudioEncoder(Stack):
    """The functions of one audio encoder; it holds no arrays.

        encoder = AudioEncoder(AudioConfig(n_layers=2, d_model=64, n_heads=4, d_ff=128), width=model.cfg.d_model)
        params = encoder.init(key)
        embeddings = encoder(params, log_mel(samples))

    Args:
        cfg: Config of the encoder.
        width: Width of the decoder.
    """

    def __init__(self, cfg: AudioConfig, width: int):
        self.cfg, self.width = cfg, width
        super().__init__(
            lambda rngs, dtype: AudioEnds(cfg, width, rngs, dtype),
            lambda rngs, dtype: AudioBlock(cfg, rngs, dtype),
            cfg.n_layers,
        )

    def __call__(self, params: dict, frames: jax.Array, *, dtype=jnp.bfloat16, remat: str = "none") -> jax.Array:
        """Return the embeddings of sounds, [I, T / (2 · merge), width].

        Args:
            params: Stacked parameters.
            frames: float32 [I, T, n_mels] from `log_mel`.
            dtype: Dtype of the activations.
            remat: See `Model.forward`.
        """
        ends, x = self._layers(params, frames, dtype, remat)
        return ends.finish(x)

    def hidden(self, params: dict, frames: jax.Array, *, dtype=jnp.bfloat16) -> jax.Array:
        """Return the encoded frames before the projection, [I, T / 2, D]."""
        ends, x = self._layers(params, frames, dtype, "none")
        return ends.encoded(x)

    def _layers(self, params, frames, dtype, remat):
        cfg = self.cfg
        if frames.ndim != 3 or frames.shape[2] != cfg.n_mels:
            raise ValueError(f"frames has shape {frames.shape}, but must have (I, T, {cfg.n_mels})")
        if frames.shape[1] % (2 * cfg.merge) or not 0 < frames.shape[1] <= cfg.max_frames:
            raise ValueError(
                f"frames has {frames.shape[1]} frames, but must have a multiple of {2 * cfg.merge} and at most "
                f"{cfg.max_frames}"
            )
        ends = self.ends(params)

        def layer(x, weights):
            return nnx.merge(self.block_def, weights)(x), None

        x, _ = jax.lax.scan(rematerialized(layer, remat, 1), ends.start(frames, dtype), params["layers"])
        return ends, x
