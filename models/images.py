"""Images as the patches and placeholder tokens of a vision tower.

The processor is that of Qwen2.5-VL. Sizes are rounded to multiples of patch · merge pixels, and patches are in the
order (H/2, W/2, 2, 2). Functions on pixels work on NumPy arrays and, with fixed shapes, inside jit. Only reading files
needs Pillow (`pip install pillow`).
"""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from models.config import ModelConfig, VisionConfig

if TYPE_CHECKING:
    from models.tokenizers import Tokenizer

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
LONGEST_RATIO = 200
MOST_PIXELS = 1 << 27  # of a file
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
BITS = 22  # precision of resampling weights in Pillow


@dataclasses.dataclass(frozen=True)
class Processor:
    """Conversion of images to patches.

    Attributes:
        cfg: The tower.
        min_pixels: Smaller images are enlarged to this area.
        max_pixels: Larger images are reduced to this area. It limits the number of tokens of an image.
        mean: Mean of the channels.
        std: Standard deviation of the channels.
    """

    cfg: VisionConfig
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    def __post_init__(self):
        if not self.cell**2 <= self.min_pixels <= self.max_pixels:
            raise ValueError(
                f"min_pixels is {self.min_pixels}, but must be from {self.cell**2}, the pixels of one token, to "
                f"max_pixels, which is {self.max_pixels}"
            )
        if not len(self.mean) == len(self.std) == self.cfg.channels:
            raise ValueError(f"mean and std must have {self.cfg.channels} values, one per channel")

    @property
    def cell(self) -> int:
        """Side of the pixels of one token."""
        return self.cfg.patch * self.cfg.merge

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width to which an image is resized."""
        if min(height, width) < 1:
            raise ValueError(f"the image is {height} × {width} pixels, but must have at least one")
        if max(height, width) > LONGEST_RATIO * min(height, width):
            raise ValueError(f"the image is {height} × {width} pixels, but its aspect ratio must be <= {LONGEST_RATIO}")
        cell = self.cell
        high, wide = (round(side / cell) * cell for side in (height, width))  # half to even
        if high * wide > self.max_pixels:
            scale = math.sqrt(height * width / self.max_pixels)
            high, wide = (max(cell, math.floor(side / scale / cell) * cell) for side in (height, width))
        elif high * wide < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (height * width))
            high, wide = (math.ceil(side * scale / cell) * cell for side in (height, width))
        return high, wide

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of patches of a resized image."""
        if height % self.cell or width % self.cell:
            raise ValueError(f"the image is {height} × {width} pixels, but must have multiples of {self.cell}")
        return height // self.cfg.patch, width // self.cfg.patch

    def patches(self, images):
        """Return the patches float32 [..., N, P] of images of the right size.

        Boards that are drawn at `cell` pixels per square need no resizing.

        Args:
            images: [..., H, W, C] with values from 0 to 255.
        """
        *batch, height, width, channels = images.shape
        if channels != self.cfg.channels:
            raise ValueError(f"the image has {channels} channels, but must have {self.cfg.channels}")
        xp, (rows, columns), side, merge = _numpy_of(images), self.grid(height, width), self.cfg.patch, self.cfg.merge
        x = images.astype(np.float32) * np.float32(1 / 255)
        x = (x - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        x = x.reshape(*batch, rows // merge, merge, side, columns // merge, merge, side, channels)
        n = len(batch)
        x = x.transpose(*range(n), *(n + i for i in (0, 3, 1, 4, 6, 2, 5)))  # cells, patches, channel, pixels
        x = xp.repeat(xp.expand_dims(x, -3), self.cfg.frames, axis=-3)
        return x.reshape(*batch, rows * columns, self.cfg.patch_size)

    def __call__(self, images: Iterable[np.ndarray]) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """Resize images and return patches [I, N, P], padded, and their grids.

        Args:
            images: uint8 [H, W, C] of any size, or [H, W]; see `to_rgb`.
        """
        every, grids = [], []
        for image in images:
            image = to_rgb(np.asarray(image)) if self.cfg.channels == 3 else np.asarray(image)
            image = resize(image, *self.size(*image.shape[:2]))
            every.append(self.patches(image))
            grids.append(self.grid(*image.shape[:2]))
        if not every:
            raise ValueError("images is empty, but must have at least one image")
        most = max(map(len, every))
        return np.stack([np.pad(x, ((0, most - len(x)), (0, 0))) for x in every]), grids


def processor(cfg: ModelConfig, **settings) -> Processor:
    """Return the processor of a model; text models have none."""
    return Processor(_tower(cfg), **settings)


def to_rgb(image: np.ndarray) -> np.ndarray:
    """Return uint8 [H, W, 3]: grey values are repeated, and transparency is dropped."""
    if image.dtype != np.uint8:
        raise ValueError(f"the image has dtype {image.dtype}, but must have uint8")
    image = image[..., None] if image.ndim == 2 else image
    if image.ndim != 3 or image.shape[2] not in (1, 2, 3, 4) or not image.size:
        raise ValueError(f"the image has shape {image.shape}, but must have (H, W) or (H, W, C) with C from 1 to 4")
    return np.repeat(image[..., :1], 3, axis=2) if image.shape[2] < 3 else image[..., :3]


def read_image(source: str | Path | bytes, most_pixels: int = MOST_PIXELS) -> np.ndarray:
    """Read a PNG, JPEG, WebP or BMP file and return uint8 [H, W, 3].

    Args:
        source: Path or contents of the file.
        most_pixels: Maximum number of pixels, which is checked before they are decoded.
    """
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("reading image files needs Pillow; install it with: pip install pillow") from None
    name = "the image" if isinstance(source, bytes) else str(source)
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as file:
            if file.width * file.height > most_pixels:
                raise ValueError(f"{file.width} × {file.height} pixels, but must have at most {most_pixels:,}")
            return np.asarray(file.convert("RGB"))
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{name} is damaged, too large or not one of {', '.join(FORMATS)}: {error}") from error


# ---------------------------------------------------------------------------------------------------- resizing


def resize(image, height: int, width: int):
    """Resize an image uint8 [H, W, C] by bicubic interpolation, as Pillow 13 does."""
    less_high, less_wide = image.shape[0] - height, image.shape[1] - width
    # The result of the first pass is rounded, so the order matters.
    vertical_first = less_high > 0 and less_high > 2 * less_wide
    for axis, size in ((0, height), (1, width)) if vertical_first else ((1, width), (0, height)):
        image = _along(image, axis, size) if image.shape[axis] != size else image
    return image


def _along(image, axis: int, size: int):
    """Resize one axis to a size, in the fixed-point arithmetic of Pillow."""
    xp, (places, weights) = _numpy_of(image), _taps(image.shape[axis], size)
    shape = [1] * image.ndim
    shape[axis] = size
    total = xp.full((*image.shape[:axis], size, *image.shape[axis + 1 :]), 1 << (BITS - 1), np.int32)
    for place, weight in zip(places.T, weights.T, strict=True):
        total = total + xp.take(image, place, axis=axis).astype(np.int32) * weight.reshape(shape)
    return xp.clip(total >> BITS, 0, 255).astype(np.uint8)


def _taps(before: int, after: int) -> tuple[np.ndarray, np.ndarray]:
    """Return source pixels and weights of a resized axis, both int32 [after, K]."""
    scale = before / after
    stretch = max(scale, 1.0)
    center = (np.arange(after) + 0.5) * scale
    first = np.maximum((center - 2 * stretch + 0.5).astype(np.int64), 0)
    last = np.minimum((center + 2 * stretch + 0.5).astype(np.int64), before)
    places = first[:, None] + np.arange((last - first).max())
    x = np.abs((places - center[:, None] + 0.5) / stretch)
    near, far = ((1.5 * x - 2.5) * x) * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5  # the cubic kernel with a = -1/2
    weights = np.where(x < 1, near, np.where(x < 2, far, 0.0)) * (places < last[:, None])
    weights = weights / weights.sum(axis=1, keepdims=True)
    fixed = np.trunc(weights * (1 << BITS) + np.copysign(0.5, weights))
    return np.minimum(places, before - 1).astype(np.int32), fixed.astype(np.int32)


def _numpy_of(x) -> Any:
    """Return the module whose functions apply to an array."""
    return jnp if isinstance(x, jax.Array) else np


# ---------------------------------------------------------------------------------------------------- tokens


def marker(tokenizer: Tokenizer, cfg: ModelConfig) -> str:
    """Return the text of an image in a message, with one placeholder.

    It consists of special tokens, which texts from elsewhere must not contain, see `content`.
    """
    vision = _tower(cfg)
    return "".join(tokenizer.token(i) for i in (vision.start_id, vision.image_id, vision.end_id))


def content(parts: Sequence[Mapping[str, str]], tokenizer: Tokenizer, cfg: ModelConfig) -> str:
    """Return the content of a message with images as text.

    Args:
        parts: {"type": "text", "text": ...} without special tokens, which are removed, or {"type": "image"}.
        tokenizer: Tokenizer of the model.
        cfg: Config of the model.
    """
    texts = []
    for i, part in enumerate(parts):
        kind = part.get("type")
        if kind not in ("text", "image"):
            raise ValueError(f"content[{i}].type is {kind!r}, but must be one of: 'text', 'image'")
        texts.append(marker(tokenizer, cfg) if kind == "image" else tokenizer.strip_special(part["text"]))
    return "".join(texts)


def expand(tokens: Sequence[int], cfg: ModelConfig, grids: Sequence[tuple[int, int]]) -> list[int]:
    """Repeat the placeholder of each image once per embedding.

    Args:
        tokens: Token ids with one placeholder per image.
        cfg: Config of the model.
        grids: Rows and columns of patches of each image, in order.
    """
    vision, result = _tower(cfg), []
    held = sum(token == vision.image_id for token in tokens)
    if held != len(grids):
        raise ValueError(f"the prompt has {held} image placeholders, but must have {len(grids)}, the number of images")
    sizes = iter(rows * columns // vision.merge**2 for rows, columns in grids)
    for token in tokens:
        result += [token] * (next(sizes) if token == vision.image_id else 1)
    return result


def _tower(cfg: ModelConfig) -> VisionConfig:
    """Return the config of the tower, or raise ValueError for a text model."""
    if cfg.vision is None:
        raise ValueError(f"vision is None, but images need a model with a vision tower; {cfg.family} reads text only")
    return cfg.vision
