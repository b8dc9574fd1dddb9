"""Embeddings of images and other media in a token sequence.

A row of tokens has a placeholder token at every position of a medium. An encoder, such as `models.vision.Encoder`,
computes one embedding per placeholder, and `Model.forward(media=...)` puts it in the place of the token embedding.
Everything after the embedding is the same for text and media: cache, adapters, layouts, kernels and sharding.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.sharding import constrain


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Media:
    """Embeddings that replace those of placeholder tokens.

    Several media of a row, also of different encoders, are concatenated along M.

    Attributes:
        embeddings: [B, M, D], all embeddings of each row.
        index: int32 [B, T], the embedding of each token, or -1 for text.
    """

    embeddings: jax.Array
    index: jax.Array

    def insert(self, x: jax.Array) -> jax.Array:
        """Return x [B, T, D] with the embeddings of the media in their places."""
        places = jnp.maximum(self.index, 0)[..., None]
        rows = jnp.take_along_axis(self.embeddings.astype(x.dtype), places, axis=1)
        return constrain(jnp.where((self.index >= 0)[..., None], rows, x), "BTD")


def index_of(tokens: jax.Array, placeholder: int, start: jax.Array | int = 0) -> jax.Array:
    """Return the index of `Media` for embeddings in the order of the placeholders.

    Args:
        tokens: int32 [B, T].
        placeholder: Id of the placeholder token.
        start: int32 [B], number of placeholders before the tokens, for example in the cache.
    """
    here = tokens == placeholder
    before = jnp.cumsum(here, axis=1) - 1 + jnp.broadcast_to(jnp.asarray(start), tokens.shape[:1])[:, None]
    return jnp.where(here, before, -1).astype(jnp.int32)


def mrope_positions(tokens, placeholder: int, grids, start=0):
    """Return the time, row and column of each token, int32 [3, B, T], for mRoPE.

    An image at position p has time p and rows and columns that count from p. The text after it continues at the largest
    position plus one. Given NumPy arrays, the result is computed on the host.

    Args:
        tokens: int32 [B, T].
        placeholder: Id of the placeholder token.
        grids: int32 [B, I, 2], rows and columns of the embeddings of each image in order; zeros for no image.
        start: int32 [B], position of the first token.
    """
    xp: Any = np if isinstance(tokens, np.ndarray) and isinstance(grids, np.ndarray) else jnp
    here = tokens == placeholder
    seen = xp.cumsum(here, axis=1)  # placeholders through this token
    sizes = xp.broadcast_to(grids[..., 0] * grids[..., 1], (tokens.shape[0], grids.shape[1]))
    ends = xp.cumsum(sizes, axis=1)
    image = xp.sum(ends[:, None] <= (seen - here)[..., None], axis=-1)  # images before this token

    def of_image(x, fill):
        """Return the value x [B, I] of the image of each token."""
        x = xp.concatenate([x, xp.full_like(x[:, :1], fill)], axis=1)
        return xp.take_along_axis(x, image, axis=1)

    longest = xp.broadcast_to(xp.max(grids, axis=-1), sizes.shape)
    shift = xp.concatenate([xp.zeros_like(longest[:, :1]), xp.cumsum(longest, axis=1)], axis=1)
    text = xp.cumsum(~here, axis=1) - ~here  # text tokens before this one
    time = text + xp.take_along_axis(shift, image, axis=1) + xp.broadcast_to(start, tokens.shape[:1])[:, None]
    within = seen - 1 - of_image(ends - sizes, 0)
    columns = xp.maximum(of_image(xp.broadcast_to(grids[..., 1], sizes.shape), 1), 1)
    row, column = (xp.where(here, x, 0) for x in (within // columns, within % columns))
    return xp.stack([time, time + row, time + column]).astype(xp.int32)


def check_counts(tokens: np.ndarray, placeholder: int, embeddings: int) -> None:
    """Raise ValueError unless a row has one placeholder per embedding.

    Args:
        tokens: int32 [T], on the host.
        placeholder: Id of the placeholder token.
        embeddings: Number of embeddings of the row.
    """
    held = int(np.sum(np.asarray(tokens) == placeholder))
    if held != embeddings:
        raise ValueError(
            f"the tokens have {held} placeholders, but must have {embeddings}, the number of embeddings of the media"
        )


def check_shapes(media: Media, shape: tuple[int, ...], width: int) -> None:
    """Raise ValueError unless media fit tokens [B, T] and a width D."""
    if media.index.shape != shape:
        raise ValueError(f"media.index has shape {media.index.shape}, but must have {shape}, that of the tokens")
    held = media.embeddings.shape
    if len(held) != 3 or held[0] != shape[0] or held[2] != width:
        raise ValueError(f"media.embeddings has shape {held}, but must have ({shape[0]}, M, {width})")
    if not held[1]:
        raise ValueError("media.embeddings has no embeddings; pass media=None for text")
