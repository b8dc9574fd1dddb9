"""The shape of a language model, as one frozen, hashable record.

Axis letters, here and in every file of the project:

    B batch      T time         S cache slots   D model        F feed-forward   V vocabulary
    N query heads               K key/value heads              H head size      L layers
    P players    A actions      G group         n adapters     r LoRA rank
"""

from __future__ import annotations

import dataclasses
import math
import numbers

from models.families import FAMILIES


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context.

    `llama3` stretches long wavelengths by `factor`, keeps short ones and blends between;
    `linear` divides every position by `factor`.
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192

    def __post_init__(self):
        if self.kind not in ("llama3", "linear"):
            raise ValueError(f"rope_scaling.kind is {self.kind!r}; accepted: 'llama3', 'linear'")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Everything that fixes the arithmetic of a model and nothing else.

    `family` names the Hugging Face `model_type` whose file layout the weights follow; the arithmetic of the
    rotary families differs only in the fields below it.
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
    sliding_window: int | None = None  # a token sees itself and the window - 1 tokens before it
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self):
        for name in ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ff", "max_positions"):
            value = getattr(self, name)
            if not isinstance(value, numbers.Integral) or value < 1:
                raise ValueError(f"{name} is {value!r}; accepted: a whole number from 1 up")
        if self.family not in FAMILIES:
            raise ValueError(f"family is {self.family!r}; accepted: {', '.join(FAMILIES.names())}")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads is {self.n_heads}, not a multiple of n_kv_heads, {self.n_kv_heads}")

    @property
    def n_params(self) -> int:
        """The number of parameters, counted from the shapes."""
        sizes = {path: math.prod(shape) for path, (shape, _) in FAMILIES.get(self.family).leaves(self).items()}
        return sum(size * (self.n_layers if path.startswith("layers/") else 1) for path, size in sizes.items())
