"""Images in prompts: token ids after the vocabulary that refer to embeddings.

An image takes consecutive ids, one per embedding, which are never used again for other images. A prompt with images is
thus a list of ids like any other: equal images of equal prompts share pages, and prefill looks up the embeddings by id.
They are in a ring of slots; `hold` and `release` protect those that a request needs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marl_jax.sampling.requests import ImagesInUse
from models.images import processor
from models.media import Media, mrope_positions
from models.model import Model

SLOTS = 8192
"""Embeddings that are kept, of all images together."""
LARGEST = 1024
"""Embeddings of an image; larger images are reduced."""


@dataclasses.dataclass(eq=False)
class HeldImage:
    """An image with embeddings in the ring.

    Attributes:
        start: First id, counted from the vocabulary.
        grid: Rows and columns of embeddings.
        version: Number of updates of the encoder before it was encoded.
        holders: Number of requests that need it.
    """

    start: int
    grid: tuple[int, int]
    version: int
    holders: int = 0

    @property
    def size(self) -> int:
        """Number of embeddings."""
        return self.grid[0] * self.grid[1]


class Images:
    """The images of one engine. Its methods may be called from any thread.

    Args:
        model: A model with an encoder of images.
        dtype: Dtype of the embeddings.
        slots: Number of embeddings in the ring.
    """

    def __init__(self, model: Model, dtype, slots: int = SLOTS):
        assert model.vision is not None
        self._model, self._dtype, self.slots, self.vocab = model, dtype, slots, model.cfg.vocab_size
        cell = model.vision.cfg.patch * model.vision.cfg.merge
        self._processor = processor(model.cfg, max_pixels=cell**2 * min(LARGEST, slots // 4))
        self.table = jnp.zeros((slots, model.cfg.d_model), dtype)
        self._next = self._version = 0
        self._of_content: dict[bytes, HeldImage] = {}
        self._lock = threading.Lock()
        self._encode = jax.jit(self._encoded)

    def hold(self, params: dict, image: np.ndarray) -> HeldImage:
        """Encode an image, unless an equal one is held, and keep it until `release`.

        Args:
            params: Parameters of the encoder.
            image: uint8 [H, W, 3].
        """
        key = hashlib.sha256(repr(image.shape).encode() + image.tobytes()).digest()
        with self._lock:
            held = self._of_content.get(key)
            if held is None or held.start + self.slots < self._next or held.version != self._version:
                held = self._of_content[key] = self._add(params, image)
            held.holders += 1
            return held

    def release(self, image: HeldImage) -> None:
        """Undo one `hold`."""
        with self._lock:
            image.holders -= 1

    def forget(self) -> None:
        """Encode images again from now on, because the encoder has changed."""
        with self._lock:
            self._version += 1

    def ids(self, image: HeldImage) -> list[int]:
        """Return the token ids of an image."""
        return list(range(self.vocab + image.start, self.vocab + image.start + image.size))

    def known(self, ids: Sequence[int]) -> bool:
        """Return whether all ids after the vocabulary belong to held images."""
        images = self._in(np.asarray(ids))
        return images is not None

    def positions(self, tokens: np.ndarray) -> np.ndarray:
        """Return the time, row and column of each token [n], int32 [3, n]."""
        images = self._in(tokens)
        assert images is not None
        grids = np.asarray([[image.grid for image in images]] if images else np.zeros((1, 1, 2)), np.int32)
        return mrope_positions(np.where(tokens >= self.vocab, -1, tokens)[None], -1, grids)[:, 0]

    def offset(self, tokens: np.ndarray) -> int:
        """Return the next position minus the number of tokens [n]."""
        if not (tokens >= self.vocab).any():
            return 0
        return int(self.positions(tokens).max()) + 1 - len(tokens)

    def _in(self, tokens: np.ndarray) -> list[HeldImage] | None:
        """Return the images of a prompt in order; None if one is not held."""
        own = tokens[tokens >= self.vocab] - self.vocab
        with self._lock:
            of_start = {image.start: image for image in self._of_content.values() if image.holders}
        images, at = [], 0
        while at < len(own):
            image = of_start.get(int(own[at]))
            if image is None or not np.array_equal(own[at : at + image.size], image.start + np.arange(image.size)):
                return None
            images.append(image)
            at += image.size
        return images

    def _add(self, params: dict, image: np.ndarray) -> HeldImage:
        patches, ((rows, columns),) = self._processor([image])
        vision = self._model.vision
        assert vision is not None
        grid = rows // vision.cfg.merge, columns // vision.cfg.merge
        added = HeldImage(self._next, grid, self._version)
        end = added.start + added.size
        oldest = min((held.start for held in self._of_content.values() if held.holders), default=end)
        if end - oldest > self.slots:
            raise ImagesInUse("the images of running requests leave no room for another one; try again later")
        self._of_content = {k: held for k, held in self._of_content.items() if held.start + self.slots >= end}
        room = 4 ** max(1, (patches.shape[1] - 1).bit_length() + 1 >> 1)  # few shapes, to compile seldom
        layout = vision.layout([(rows, columns)], room)
        patches = np.pad(patches, ((0, 0), (0, room - patches.shape[1]), (0, 0)))
        self.table = self._encode(params, self.table, patches, layout, added.start, added.size)
        self._next = end
        return added

    def _encoded(self, params, table, patches, layout, start, size):
        """Write the embeddings of one image into the ring."""
        assert self._model.vision is not None
        x = self._model.vision(params, patches, layout, dtype=self._dtype)[0]
        at = jnp.arange(len(x))
        return table.at[jnp.where(at < size, (start + at) % self.slots, self.slots)].set(x, mode="drop")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ImageInputs:
    """Arrays with which a program reads the images in its tokens.

    Attributes:
        table: [slots, D], the ring of `Images`.
        positions: int32 [3, B, T] for a model with mRoPE, otherwise None.
    """

    table: jax.Array
    positions: jax.Array | np.ndarray | None

    def arguments(self, tokens: jax.Array, vocab: int) -> dict[str, Any]:
        """Return the arguments of `Model.forward` for tokens [B, T], inside jit."""
        here = tokens >= vocab
        rows = self.table[jnp.where(here, (tokens - vocab) % len(self.table), 0)]
        given: dict[str, Any] = {"media": Media(rows, jnp.where(here, jnp.arange(tokens.shape[1]), -1))}
        return given if self.positions is None else given | {"positions": self.positions}
