"""What an engine hands back and forth: conversations between turns, answers, and the shapes that hold them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # a worker of a server has answers, and no JAX
    import jax

    from models.cache import Cache


@dataclasses.dataclass(frozen=True)
class Conversation:
    """A batch of rows between turns.

    cache, hidden  on the device: what was read, and the last hidden state [B, D]
    adapter_ids    int32 [B] on the device
    history        every token of each row so far, on the host; rows beyond it fill the bucket
    unread         bool per row: its last token was written by the model and has not been read yet
    limit          tokens a row may hold: slots of the cache, or positions of the model where those are fewer
    """

    cache: Cache
    hidden: jax.Array
    adapter_ids: jax.Array | np.ndarray
    history: list[list[int]]
    unread: np.ndarray
    limit: int

    @property
    def rows(self) -> int:
        return len(self.history)

    def room(self, row: int) -> int:
        return self.limit - len(self.history[row])

    def check_unused(self) -> None:
        """Refuses a conversation whose buffers went into the next one."""
        if self.cache.lengths.is_deleted():
            raise ValueError(
                "this conversation was continued already, and its buffers were given to the one that followed: "
                "go on with that one, or make copies beforehand with repeat"
            )


@dataclasses.dataclass(frozen=True)
class Completion:
    """What one row wrote.

    tokens    int32 [n]
    logps     float32 [n], the log-probability of each token when it was drawn
    finish    why it ended: "stop" or "length"; from a `Batcher` also "cancelled", "deadline" or "invalid" (the logits
              were not finite), with the tokens written until then
    versions  int32 [n], the version of the weights that wrote each token
    """

    tokens: np.ndarray
    logps: np.ndarray
    finish: str
    versions: np.ndarray


def round_up(n: int, multiple: int) -> int:
    """The next multiple."""
    return -(-n // multiple) * multiple


def batch_bucket(n: int, multiple: int = 1) -> int:
    """The next power of two, and a multiple of what the mesh needs."""
    return round_up(1 << max(n - 1, 0).bit_length(), multiple)


def pad_rows(rows: Sequence[Sequence[int]], batch: int, time: int) -> tuple[np.ndarray, np.ndarray]:
    """Right-padded tokens int32 [batch, time] and lengths int32 [batch]."""
    tokens, lengths = np.zeros((batch, time), np.int32), np.zeros((batch,), np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)], lengths[i] = row, len(row)
    return tokens, lengths
