"""Kernels of other platforms as plain functions, for tests on the CPU."""

import jax
import jax.numpy as jnp


def ragged_paged_attention(q, pages, lengths, table, ends, rows, *, sm_scale, sliding_window=None, **_):
    """JAX's TPU kernel as XLA would compute it: q [T, N, H], pages [P, S, 2K, H], rows of any number of queries each.

    lengths  int32 [B], tokens of a row, its queries included, which are its last
    ends     int32 [B + 1], where the queries of each row begin and end
    """
    row = jnp.minimum(jnp.searchsorted(ends, jnp.arange(len(q)), side="right") - 1, rows[0] - 1)
    position = lengths[row] - ends[row + 1] + jnp.arange(len(q))
    k, v = (pages[table[row], :, i::2].reshape(len(q), -1, pages.shape[2] // 2, pages.shape[3]) for i in (0, 1))
    slot = jnp.arange(k.shape[1])
    seen = slot <= position[:, None]
    if sliding_window is not None:
        seen &= slot > position[:, None] - sliding_window
    out = jax.nn.dot_product_attention(q[:, None], k, v, mask=seen[:, None, None], scale=sm_scale, implementation="xla")
    return out[:, 0]
