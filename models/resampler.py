"""Fusion of media by cross-attention: learned queries read the embeddings of all media.

Only the queries enter the token sequence, so a prompt needs one placeholder for each of them, however many embeddings
the media have. Queries and embeddings have the decoder's width. A layer is cross-attention, followed by a gated
feed-forward network; later queries thus depend on what earlier layers read.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from models.decoder import param, rms_norm
from models.media_config import ResamplerConfig
from models.stack import Stack, rematerialized


class ResamplerBlock(nnx.Module):
    """One layer: cross-attention from queries to media, then a SiLU-gated feed-forward network."""

    def __init__(self, cfg: ResamplerConfig, width: int, rngs: nnx.Rngs, dtype):
        d, n, f = width, cfg.n_heads, cfg.d_ff
        small = 0.02 / (2 * cfg.n_layers) ** 0.5
        self.cfg = cfg
        self.norm = param(rngs, (d,), ("D",), None, dtype)
        self.media_norm = param(rngs, (d,), ("D",), None, dtype)
        self.q = param(rngs, (d, n, d // n), ("D", "N", "H"), d**-0.5, dtype)
        self.k = param(rngs, (d, n, d // n), ("D", "N", "H"), d**-0.5, dtype)
        self.v = param(rngs, (d, n, d // n), ("D", "N", "H"), 0.02, dtype)
        self.o = param(rngs, (n, d // n, d), ("N", "H", "D"), small, dtype)
        self.mlp_norm = param(rngs, (d,), ("D",), None, dtype)
        self.gate = param(rngs, (d, f), ("D", "F"), 0.02, dtype)
        self.up = param(rngs, (d, f), ("D", "F"), 0.02, dtype)
        self.down = param(rngs, (f, d), ("F", "D"), small, dtype)

    def __call__(self, x, media):
        """Run the layer on queries x [B, Q, D] that read media [B, M, D]."""
        w, eps = lambda p: p[...].astype(x.dtype), self.cfg.norm_eps
        y, read = rms_norm(x, self.norm[...], eps), rms_norm(media, self.media_norm[...], eps)
        q, k, v = (jnp.einsum("btd,dnh->btnh", z, w(p)) for z, p in ((y, self.q), (read, self.k), (read, self.v)))
        x = x + jnp.einsum("btnh,nhd->btd", jax.nn.dot_product_attention(q, k, v), w(self.o))
        y = rms_norm(x, self.mlp_norm[...], eps)
        return x + (jax.nn.silu(y @ w(self.gate)) * (y @ w(self.up))) @ w(self.down)


class ResamplerEnds(nnx.Module):
    """The learned queries."""

    def __init__(self, cfg: ResamplerConfig, width: int, rngs: nnx.Rngs, dtype):
        self.queries = param(rngs, (cfg.n_queries, width), ("Q", "D"), 0.02, dtype)


class Resampler(Stack):
    """The functions of one resampler; it holds no arrays.

    Args:
        cfg: Config of the resampler.
        width: Width of the decoder, a multiple of the number of heads.
    """

    def __init__(self, cfg: ResamplerConfig, width: int):
        if width % cfg.n_heads:
            raise ValueError(f"resampler.n_heads is {cfg.n_heads}, but must divide the width of the decoder, {width}")
        self.cfg, self.width = cfg, width
        super().__init__(
            lambda rngs, dtype: ResamplerEnds(cfg, width, rngs, dtype),
            lambda rngs, dtype: ResamplerBlock(cfg, width, rngs, dtype),
            cfg.n_layers,
        )

    def __call__(self, params: dict, media: jax.Array, *, remat: str = "none") -> jax.Array:
        """Return the queries after reading all embeddings of each row, [B, Q, D].

        Args:
            params: Stacked parameters.
            media: [B, M, D]. Embeddings of the media.
            remat: See `Model.forward`.
        """
        queries = self.ends(params).queries[...].astype(media.dtype)
        x = jnp.broadcast_to(queries, (media.shape[0], *queries.shape))

        def layer(x, weights):
            return nnx.merge(self.block_def, weights)(x, media), None

        return jax.lax.scan(rematerialized(layer, remat, 1), x, params["layers"])[0]
