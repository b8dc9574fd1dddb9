"""Sampling settings of a request. Importing this module does not import JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np

LEAST_TEMPERATURE = 1e-5  # logits divided by less overflow in float32; 0 is greedy decoding
LEAST_TOP_P = 1e-6  # the most likely token has more; less can be 0 in float32


class Constraint(Protocol):
    """A constraint on the tokens of one completion, evaluated on the host before every token."""

    def mask(self) -> np.ndarray:
        """Return the tokens that may come next, bool [V], at least one."""
        ...

    def advance(self, token: int) -> None:
        """Record the next token."""
        ...


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Sampling settings of one request. By default nothing changes the distribution, as RL requires.

    Attributes:
        temperature: Sampling temperature, 0 for greedy decoding.
        max_new_tokens: Maximum number of tokens to generate.
        stop_ids: Token ids that end the completion.
        seed: Random seed.
        top_k: Number of most likely tokens to sample from; 0 is off.
        top_p: Probability mass of the most likely tokens to sample from; 1 is off.
        repetition_penalty: Penalty for tokens in the context; 1 is off.
        stop_strings: Strings that end the completion. Only a `Batcher` supports them.
        constraint: Creates the constraint of each sample, or None. Constrained completions are decoded one step at a
            time, by a `Batcher` only, and their log-probs are those of the constrained distribution.
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
            "temperature": (
                self.temperature == 0 or self.temperature >= LEAST_TEMPERATURE,
                f"0 or >= {LEAST_TEMPERATURE:g}",
            ),
            "seed": (0 <= self.seed < 2**32, "0 to 2**32 - 1"),
            "max_new_tokens": (self.max_new_tokens >= 1, ">= 1"),
            "top_k": (self.top_k >= 0, ">= 0; 0 is off"),
            "top_p": (LEAST_TOP_P <= self.top_p <= 1, f">= {LEAST_TOP_P:g} and <= 1; 1 is off"),
            "repetition_penalty": (self.repetition_penalty > 0, "> 0; 1 is off"),
            "stop_strings": (all(self.stop_strings), "without empty strings, which would end every completion at once"),
        }
        for field, (valid, rule) in checks.items():
            if not valid:
                raise ValueError(f"{field} is {getattr(self, field)!r}, but must be {rule}")

    @property
    def filters(self) -> bool:
        """Whether anything but the temperature changes the distribution."""
        return bool(self.top_k) or self.top_p < 1 or self.repetition_penalty != 1


def sample_seed(seed: int, k: int) -> int:
    """Return the seed of sample k of a request.

    Sample 0 has the seed of the request. The seeds of the others are unrelated to those of neighbouring seeds.
    """
    return seed if k == 0 else int(np.random.SeedSequence([seed, k]).generate_state(1)[0])


def with_seeds(sampling: Sampling, rows: int) -> list[Sampling]:
    """Return the settings of each row, with consecutive seeds."""
    return [dataclasses.replace(sampling, seed=(sampling.seed + i) % 2**32) for i in range(rows)]


def stop_width(sampling: Sampling) -> int:
    """Return the number of columns for stop ids, a multiple of 4 to limit recompilation."""
    return max(4, -(-len(sampling.stop_ids) // 4) * 4)
