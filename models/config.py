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

    @property
    def learned_positions(self) -> int | None:
        """Number of learned positions; None if positions are computed.

        A sequence may be longer than the trained context only if positions are computed.
        """
        return self.max_positions if FAMILIES.get(self.family).learned_positions else None

    @property
    def n_params(self) -> int:
        """Number of parameters, computed from the shapes."""
        sizes = {path: math.prod(shape) for path, (shape, _) in FAMILIES.get(self.family).leaves(self).items()}
        return sum(size * (self.n_layers if path.startswith("layers/") else 1) for path, size in sizes.items())
