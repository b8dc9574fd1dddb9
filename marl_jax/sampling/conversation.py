"""Conversations and completions of an engine, and the rounding of shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # server workers use completions without JAX
    import jax

    from models.cache import Cache


@dataclasses.dataclass(frozen=True)
class Conversation:
    """A batch of rows between turns.

    Attributes:
        cache: KV cache of the rows.
        hidden: [B, D], the last hidden states.
        adapter_ids: int32 [B].
        history: All tokens of each row, on the host. Rows of the cache beyond these are padding.
        unread: bool per row, whether its last token was generated and is not in the cache yet.
        limit: Maximum number of tokens of a row: slots of the cache or positions of the model.
    """

    cache: Cache
    hidden: jax.Array
    adapter_ids: jax.Array | np.ndarray
    history: list[list[int]]
    unread: np.ndarray
    limit: int

    @property
    def rows(self) -> int:
        """Number of rows without padding."""
        return len(self.history)

    def room(self, row: int) -> int:
        """Return the number of tokens that can be added to a row."""
        return self.limit - len(self.history[row])

    def check_unused(self) -> None:
        """Check that the buffers of the conversation were not donated."""
        if self.cache.lengths.is_deleted():
            raise ValueError(
                "this conversation has already been continued, and its buffers were donated; continue the returned "
                "conversation, or copy it before with repeat"
            )


@dataclasses.dataclass(frozen=True)
class Completion:
    """Tokens that one row has generated.

    Attributes:
        tokens: int32 [n].
        logps: float32 [n], the log-probability of each token when it was sampled.
        finish: Finish reason, "stop" or "length". A `Batcher` also returns partial completions that are "cancelled",
            past their "deadline", or "invalid" because logits were not finite.
        versions: int32 [n], version of the weights that generated each token.
    """

    tokens: np.ndarray
    logps: np.ndarray
    finish: str
    versions: np.ndarray


def round_up(n: int, multiple: int) -> int:
    """Round n up to a multiple."""
    return -(-n // multiple) * multiple


def batch_bucket(n: int, multiple: int = 1) -> int:
    """Round n up to a power of two and to a multiple of `multiple`."""
    return round_up(1 << max(n - 1, 0).bit_length(), multiple)


def pad_rows(rows: Sequence[Sequence[int]], batch: int, time: int) -> tuple[np.ndarray, np.ndarray]:
    """Right-pad rows to tokens int32 [batch, time], and return them with lengths int32 [batch]."""
    tokens, lengths = np.zeros((batch, time), np.int32), np.zeros((batch,), np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)], lengths[i] = row, len(row)
    return tokens, lengths
