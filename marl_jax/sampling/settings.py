"""How a request is answered, as the caller writes it; `batch_settings` has the same as arrays. Needs no JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np


class Constraint(Protocol):
    """What one answer may consist of, kept on the host: asked before every token, and told of it."""

    def mask(self) -> np.ndarray:
        """bool [V]: tokens that may come next; never none."""
        ...

    def advance(self, token: int) -> None:
        """This token has come."""
        ...


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How to answer one request. Everything but the first four fields is off by default, as RL needs it.

    constraint  makes the constraint of an answer, one for each sample; such answers are decoded one step at a time, by
                a `Batcher` only, and their log-probs are those of the constrained distribution
    """

    temperature: float = 1.0
    max_new_tokens: int = 256
    stop_ids: tuple[int, ...] = ()
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    stop_strings: tuple[str, ...] = ()
    constraint: Callable[[], Constraint] | None = None

    def __post_init__(self):
        checks = {
            "temperature": (self.temperature >= 0, "0 or more"),
            "seed": (0 <= self.seed < 2**32, "0 to 2**32 - 1"),
            "max_new_tokens": (self.max_new_tokens >= 1, "1 or more"),
            "top_k": (self.top_k >= 0, "0 (off) or more"),
            "top_p": (0 < self.top_p <= 1, "more than 0, at most 1 (off)"),
            "repetition_penalty": (self.repetition_penalty > 0, "more than 0; 1 is off"),
            "stop_strings": (all(self.stop_strings), "no empty string: it would stop every answer at once"),
        }
        for field, (fine, accepted) in checks.items():
            if not fine:
                raise ValueError(f"{field} is {getattr(self, field)!r}, but must be {accepted}")

    @property
    def filters(self) -> bool:
        """Whether the distribution is changed by more than the temperature."""
        return bool(self.top_k) or self.top_p < 1 or self.repetition_penalty != 1


def sample_seed(seed: int, k: int) -> int:
    """The seed of sample k of a request: its own for k = 0, unrelated to those of neighbouring seeds for the others."""
    return seed if k == 0 else int(np.random.SeedSequence([seed, k]).generate_state(1)[0])


def with_seeds(sampling: Sampling, rows: int) -> list[Sampling]:
    """The same for every row but the seed, which counts up from row to row."""
    return [dataclasses.replace(sampling, seed=(sampling.seed + i) % 2**32) for i in range(rows)]


def stop_width(sampling: Sampling) -> int:
    """Columns that its stop ids need in an array: steps of four, so that few programs do for all."""
    return max(4, -(-len(sampling.stop_ids) // 4) * 4)
