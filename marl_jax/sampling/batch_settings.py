"""Sampling settings of a batch as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
import numpy.typing as npt

from marl_jax.sampling import decode
from marl_jax.sampling.settings import Sampling, stop_width


@jax.jit
def row_keys(seeds: jax.Array) -> jax.Array:
    """Return one PRNG key per row, which depends on the row's seed only."""
    return jax.vmap(jax.random.key)(seeds)


def settings_for(
    requests: Sequence[Sampling], batch: int, prompts: Sequence[Sequence[int]] | None = None, vocab: int = 0
) -> decode.Settings:
    """Build the settings of a batch; rows beyond the requests have a budget of zero.

    Args:
        requests: Settings of each request.
        batch: Number of rows.
        prompts: Tokens of each row so far, for the repetition penalty.
        vocab: Size of the vocabulary, needed with `prompts`.
    """
    stop_ids = np.full((batch, max((stop_width(r) for r in requests), default=4)), -1, np.int32)
    for row, request in zip(stop_ids, requests, strict=False):
        row[: len(request.stop_ids)] = request.stop_ids

    def column(field: str, dtype: npt.DTypeLike, rest: float) -> np.ndarray:
        return np.asarray([getattr(r, field) for r in requests] + [rest] * (batch - len(requests)), dtype)

    filters = None
    if any(r.filters for r in requests):
        seen = None
        if prompts is not None:
            seen = np.zeros((batch, vocab), bool)
            for row, prompt in zip(seen, prompts, strict=False):
                row[np.asarray(prompt, np.int64)] = True
        filters = decode.Filters(
            column("top_k", np.int32, 0),
            column("top_p", np.float32, 1.0),
            column("repetition_penalty", np.float32, 1.0),
            seen,
        )
    return decode.Settings(
        row_keys(column("seed", np.uint32, 0)),
        *jax.device_put(
            (
                column("temperature", np.float32, 1.0),
                stop_ids,
                column("max_new_tokens", np.int32, 0),
                filters,
            )
        ),
    )
