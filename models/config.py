"""The architecture of a language model as one frozen, hashable dataclass.

Axis letters, here and in every file of the project:

    B batch      T time         S cache slots   D model        F feed-forward   V vocabulary
    N query heads               K key/value heads              H head size      L layers
    P players    A actions      G group         n adapters     r LoRA rank
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any

from models.families import FAMILIES
from models.media_config import AudioConfig, ResamplerConfig, TableConfig

LARGEST = {
    "vocab_size": 1 << 24, "d_model": 1 << 20, "n_layers": 1 << 12, "n_heads": 1 << 14, "n_kv_heads": 1 << 14,
    "head_dim": 1 << 14, "d_ff": 1 << 22, "max_positions": 1 << 31,
}  # fmt: skip
"""Upper limits far beyond any model, so that a typo is rejected at once instead of being built for hours."""


def is_whole(x: Any) -> bool:
    """Return whether x is an integer >= 1."""
    # typeshed declares no comparison operators for numbers.Integral and numbers.Real.
    return isinstance(x, numbers.Integral) and not isinstance(x, bool) and x >= 1  # pyright: ignore[reportOperatorIssue]


def is_number(x: Any) -> bool:
    """Return whether x is a finite number > 0."""
    real = isinstance(x, numbers.Real) and not isinstance(x, bool)
    return real and 0 < x < math.inf  # pyright: ignore[reportOperatorIssue]


def _check(name: str, value: Any, right: bool, accepted: str) -> None:
    """Raise ValueError about a field unless its value is right."""
    if not right:
        raise ValueError(f"{name} is {value!r}, but must be {accepted}")


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Scaling of rotary frequencies beyond the trained context.

    `llama3` scales long wavelengths by `factor`, keeps short ones and interpolates in between. `linear` divides every
    position by `factor`.
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192

    def __post_init__(self):
        if self.kind not in ("llama3", "linear"):
            raise ValueError(f"rope_scaling.kind is {self.kind!r}, but must be one of: 'llama3', 'linear'")
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            _check(f"rope_scaling.{name}", getattr(self, name), is_number(getattr(self, name)), "a number > 0")
        _check(
            "rope_scaling.high_freq_factor", self.high_freq_factor, self.high_freq_factor > self.low_freq_factor,
            f"> low_freq_factor, which is {self.low_freq_factor}",
        )  # fmt: skip
        positions = self.original_max_positions
        _check("rope_scaling.original_max_positions", positions, is_whole(positions), "an integer >= 1")


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """The encoder of images in front of a decoder, see `models/vision.py`.

    Attributes:
        n_layers: Number of layers.
        d_model: Width.
        n_heads: Number of attention heads.
        d_ff: Width of the feed-forward network.
        image_id: Token id of an image placeholder.
        start_id: Token id before the placeholders of an image. None: no such token.
        end_id: Token id after them. None: no such token.
        channels: Color channels of an image.
        patch: Side of a patch in pixels.
        frames: Frames per patch. A still image is repeated.
        merge: Side in patches of the square that becomes one embedding.
        window: Side of an attention window in pixels.
        full_layers: Layers with attention within the whole image instead of a window. None: all layers.
        norm_eps: Epsilon of the norms.
        rope_theta: Base of the rotary frequencies.
    """

    n_layers: int
    d_model: int
    n_heads: int
    d_ff: int
    image_id: int
    start_id: int | None = None
    end_id: int | None = None
    channels: int = 3
    patch: int = 14
    frames: int = 2
    merge: int = 2
    window: int = 112
    full_layers: tuple[int, ...] | None = None
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0

    def __post_init__(self):
        for name in ("n_layers", "d_model", "n_heads", "d_ff", "channels", "patch", "frames", "merge", "window"):
            value, most = getattr(self, name), LARGEST.get(name, 1 << 14)
            _check(f"vision.{name}", value, is_whole(value) and value <= most, f"an integer from 1 to {most:,}")
        for name in ("image_id", "start_id", "end_id"):
            value = getattr(self, name)
            right = is_whole(value) or value == 0 or (value is None and name != "image_id")
            _check(f"vision.{name}", value, right, "a token id >= 0")
        width, cell = self.d_model, self.patch * self.merge
        _check(
            "vision.d_model", width, width % (4 * self.n_heads) == 0, f"a multiple of {4 * self.n_heads}, 4 · n_heads"
        )
        _check("vision.window", self.window, self.window % cell == 0, f"a multiple of {cell}, patch · merge")
        full = self.full_layers
        right = full is None or (
            isinstance(full, tuple) and all(isinstance(i, int) and 0 <= i < self.n_layers for i in full)
        )
        _check("vision.full_layers", full, right, f"None or a tuple of layers from 0 to {self.n_layers - 1}")
        for name in ("norm_eps", "rope_theta"):
            _check(f"vision.{name}", getattr(self, name), is_number(getattr(self, name)), "a number > 0")

    @property
    def head_dim(self) -> int:
        """Size of a head."""
        return self.d_model // self.n_heads

    @property
    def patch_size(self) -> int:
        """Number of values of a patch."""
        return self.channels * self.frames * self.patch**2

    @property
    def all_full(self) -> bool:
        """Whether no layer has windows."""
        return self.full_layers is None or len(set(self.full_layers)) == self.n_layers


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """All settings that determine the computation of a model.

    `family` is the Hugging Face `model_type` whose file layout the weights follow. The rotary families differ only in
    the fields below it.
    """

    family: str
    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    max_positions: int
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    tie_embeddings: bool = False
    qkv_bias: bool = False  # Qwen2
    qk_norm: bool = False  # Qwen3: RMS norm on each head of q and k before the rotation
    sliding_window: int | None = None  # a token attends to itself and the window - 1 tokens before it
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    mrope_sections: tuple[int, ...] | None = None  # Qwen2.5-VL: pairs of channels that rotate by time, row and column
    vision: VisionConfig | None = None
    audio: AudioConfig | None = None
    table: TableConfig | None = None
    resampler: ResamplerConfig | None = None  # fuses the embeddings of all media before they enter the sequence
    media_id: int | None = None  # placeholder of sounds and tables, if the model has no encoder of images
    message_tokens: int = 0  # soft tokens of a message, see `models/messages.py`

    def __post_init__(self):
        known = isinstance(self.family, str) and self.family in FAMILIES
        _check("family", self.family, known, f"one of: {', '.join(FAMILIES.names())}")
        for name, most in LARGEST.items():
            value = getattr(self, name)
            _check(name, value, is_whole(value) and value <= most, f"an integer from 1 to {most:,}")
        for name in ("tie_embeddings", "qkv_bias", "qk_norm"):
            _check(name, getattr(self, name), isinstance(getattr(self, name), bool), "True or False")
        _check("norm_eps", self.norm_eps, is_number(self.norm_eps) and self.norm_eps < 1, "a number > 0 and < 1")
        _check("rope_theta", self.rope_theta, is_number(self.rope_theta), "a number > 0")
        scaling = self.rope_scaling
        _check("rope_scaling", scaling, scaling is None or isinstance(scaling, RopeScaling), "None or a RopeScaling")
        window = self.sliding_window
        _check("sliding_window", window, window is None or is_whole(window), "None or an integer >= 1")
        for name, ids in (("bos_id", (self.bos_id or 0,)), ("eos_ids", self.eos_ids)):
            right = isinstance(ids, tuple) and all(is_whole(i) or i == 0 for i in ids)
            _check(name, getattr(self, name), right, "token ids >= 0")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads is {self.n_heads}, but must be a multiple of n_kv_heads, which is {self.n_kv_heads}"
            )
        if self.learned_positions is None:
            _check(
                "head_dim",
                self.head_dim,
                self.head_dim % 2 == 0,
                "even, because rotary positions rotate pairs of channels",
            )
        else:  # heads of GPT-2 do not share keys and values
            _check(
                "n_kv_heads", self.n_kv_heads, self.n_kv_heads == self.n_heads, f"{self.n_heads}, the value of n_heads"
            )

        sections, vision = self.mrope_sections, self.vision
        right = sections is None or (isinstance(sections, tuple) and all(is_whole(n) for n in sections))
        right = right and (sections is None or (len(sections), sum(sections)) == (3, self.head_dim // 2))
        _check(
            "mrope_sections",
            sections,
            right,
            f"None or three integers >= 1 with sum {self.head_dim // 2}, head_dim / 2",
        )
        _check("mrope_sections", sections, sections is None or not self.learned_positions, "None for learned positions")
        tokens = self.message_tokens
        _check("message_tokens", tokens, is_whole(tokens) or tokens == 0, "an integer >= 0")
        _check("vision", vision, vision is None or isinstance(vision, VisionConfig), "None or a VisionConfig")
        if vision is not None:
            for name in ("image_id", "start_id", "end_id"):
                value = getattr(vision, name)
                _check(f"vision.{name}", value, (value or 0) < self.vocab_size, f"< vocab_size, {self.vocab_size}")
        for name, kind in (("audio", AudioConfig), ("table", TableConfig), ("resampler", ResamplerConfig)):
            value = getattr(self, name)
            _check(name, value, value is None or isinstance(value, kind), f"None or a {kind.__name__}")
        known, others = self.media_id, self.audio or self.table
        right = known is None or ((is_whole(known) or known == 0) and known < self.vocab_size)
        _check("media_id", known, right, f"None or a token id < vocab_size, {self.vocab_size}")
        _check("media_id", known, vision is None or known is None, "None if vision is set, which has an image_id")
        _check("media_id", known, not others or self.placeholder is not None, "set for an encoder of sounds or tables")

    @property
    def placeholder(self) -> int | None:
        """Token id of a placeholder of any medium; None for a model of text."""
        return self.media_id if self.vision is None else self.vision.image_id

    @property
    def learned_positions(self) -> int | None:
        """Number of learned positions; None if positions are computed.

        A sequence may be longer than the trained context only if positions are computed.
        """
        return self.max_positions if FAMILIES.get(self.family).learned_positions else None

    @property
    def n_params(self) -> int:
        """Number of parameters of the decoder and the encoder of images."""
        sizes = {path: math.prod(shape) for path, (shape, _) in FAMILIES.get(self.family).leaves(self).items()}
        return sum(size * (self.depth_of(path) or 1) for path, size in sizes.items())

    def depth_of(self, path: str) -> int | None:
        """Return the number of layers over which a parameter is stacked, or None."""
        if path.startswith("layers/"):
            return self.n_layers
        encoder = getattr(self, path.split("/")[0]) if "/layers/" in path else None
        return None if encoder is None else encoder.n_layers
