"""An encoder of structured data: rows of tables and nodes of graphs.

Its output are embeddings of a decoder. Every row has numbers, which are encoded by sines and cosines of several
frequencies, so that small differences and large ones are both visible. Rows attend to all others, and nodes to their
neighbors and themselves. Nothing depends on the order of the rows: the same permutation of the input permutes the
embeddings.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.decoder import param, rms_norm
from models.exact_sums import add_bias
from models.media_config import TableConfig
from models.stack import Stack, rematerialized


class TableBlock(nnx.Module):
    """One layer: attention along the edges, then a SiLU feed-forward network."""

    def __init__(self, cfg: TableConfig, rngs: nnx.Rngs, dtype):
        d, n, f = cfg.d_model, cfg.n_heads, cfg.d_ff
        self.cfg = cfg
        self.norm = param(rngs, (d,), ("D",), None, dtype)
        self.q = param(rngs, (d, n, d // n), ("D", "N", "H"), 0.02, dtype)
        self.k = param(rngs, (d, n, d // n), ("D", "N", "H"), 0.02, dtype)
        self.v = param(rngs, (d, n, d // n), ("D", "N", "H"), 0.02, dtype)
        self.o = param(rngs, (n, d // n, d), ("N", "H", "D"), 0.02 / (2 * cfg.n_layers) ** 0.5, dtype)
        self.mlp_norm = param(rngs, (d,), ("D",), None, dtype)
        self.up = param(rngs, (d, f), ("D", "F"), 0.02, dtype)
        self.down = param(rngs, (f, d), ("F", "D"), 0.02 / (2 * cfg.n_layers) ** 0.5, dtype)

    def __call__(self, x, reads):
        """Run the layer on x [I, N, D], reading along `reads` [I, N, N]."""
        w, eps = lambda p: p[...].astype(x.dtype), self.cfg.norm_eps
        y = rms_norm(x, self.norm[...], eps)
        q, k, v = (jnp.einsum("btd,dnh->btnh", y, w(p)) for p in (self.q, self.k, self.v))
        y = jax.nn.dot_product_attention(q, k, v, mask=reads[:, None])
        x = x + jnp.einsum("btnh,nhd->btd", y, w(self.o))
        return x + jax.nn.silu(rms_norm(x, self.mlp_norm[...], eps) @ w(self.up)) @ w(self.down)


class TableEnds(nnx.Module):
    """The modules around the layers: the projections of numbers and of embeddings."""

    def __init__(self, cfg: TableConfig, width: int, rngs: nnx.Rngs, dtype):
        features = cfg.n_columns * (2 * cfg.n_frequencies + 1)
        self.cfg = cfg
        self.embed = param(rngs, (features, cfg.d_model), ("F", "D"), features**-0.5, dtype)
        self.embed_bias = param(rngs, (cfg.d_model,), ("D",), 0, dtype)
        self.norm = param(rngs, (cfg.d_model,), ("D",), None, dtype)
        self.project = param(rngs, (cfg.d_model, width), ("F", "D"), 0.02 * cfg.d_model**-0.5, dtype)
        self.project_bias = param(rngs, (width,), ("D",), 0, dtype)

    def start(self, rows, dtype):
        """Embed numbers, float32 [I, N, n_columns], as [I, N, D]."""
        angles = rows[..., None] * (2 * np.pi / (self.cfg.shortest * 2.0 ** np.arange(self.cfg.n_frequencies)))
        features = jnp.concatenate([rows[..., None], jnp.sin(angles), jnp.cos(angles)], axis=-1)
        features = features.reshape(*rows.shape[:2], -1).astype(dtype)
        return add_bias(features @ self.embed[...].astype(dtype), self.embed_bias[...])

    def finish(self, x):
        """Project rows [I, N, D] to embeddings [I, N, width]."""
        y = rms_norm(x, self.norm[...], self.cfg.norm_eps)
        return add_bias(y @ self.project[...].astype(x.dtype), self.project_bias[...])


class TableEncoder(Stack):
    """The functions of one encoder of tables and graphs; it holds no arrays.

    Args:
        cfg: Config of the encoder.
        width: Width of the decoder.
    """

    def __init__(self, cfg: TableConfig, width: int):
        self.cfg, self.width = cfg, width
        super().__init__(
            lambda rngs, dtype: TableEnds(cfg, width, rngs, dtype),
            lambda rngs, dtype: TableBlock(cfg, rngs, dtype),
            cfg.n_layers,
        )

    def __call__(
        self,
        params: dict,
        rows: jax.Array,
        edges: jax.Array | None = None,
        lengths: jax.Array | None = None,
        *,
        dtype=jnp.bfloat16,
        remat: str = "none",
    ) -> jax.Array:
        """Return the embeddings of tables or graphs, [I, N, width].

        Args:
            params: Stacked parameters.
            rows: float32 [I, N, n_columns]. Numbers of each row or node, finite and of moderate size.
            edges: bool [I, N, N]. Whether node i reads node j. None: a table, whose rows read all others.
            lengths: int32 [I]. Number of rows that are not padding. None: all.
            dtype: Dtype of the activations.
            remat: See `Model.forward`.
        """
        cfg = self.cfg
        if rows.ndim != 3 or rows.shape[2] != cfg.n_columns or not rows.shape[1]:
            raise ValueError(f"rows has shape {rows.shape}, but must have (I, N, {cfg.n_columns}) with N >= 1")
        square = (rows.shape[0], rows.shape[1], rows.shape[1])
        if edges is not None and edges.shape != square:
            raise ValueError(f"edges has shape {edges.shape}, but must have {square}")
        reads = jnp.ones(square, bool) if edges is None else edges
        if lengths is not None:
            reads = reads & (jnp.arange(rows.shape[1]) < lengths[:, None])[:, None]
        reads = reads | jnp.eye(rows.shape[1], dtype=bool)
        ends = self.ends(params)

        def layer(x, weights):
            return nnx.merge(self.block_def, weights)(x, reads), None

        x, _ = jax.lax.scan(rematerialized(layer, remat, 1), ends.start(rows, dtype), params["layers"])
        return ends.finish(x)
