"""Prompts with one random picture each, for benchmarks of models that see."""

from __future__ import annotations

import numpy as np

from models.config import ModelConfig
from models.images import processor

SIDE = 224
"""Height and width of a picture in pixels: 64 tokens, as a board of 8 by 8 cells."""


def beginning(cfg: ModelConfig) -> list[int]:
    """Return the tokens of a picture: start, placeholders and end."""
    assert cfg.vision is not None
    cell = cfg.vision.patch * cfg.vision.merge
    ids = [cfg.vision.start_id, *[cfg.vision.image_id] * (SIDE // cell) ** 2, cfg.vision.end_id]
    return [token for token in ids if token is not None]


def shortest_prompt(cfg: ModelConfig) -> int:
    """Return the tokens of a picture alone, or 1 for a model of text."""
    return 1 if cfg.vision is None else len(beginning(cfg))


def prompts(cfg: ModelConfig, rows: int, length: int, rng: np.random.Generator) -> list[list[int]]:
    """Return random prompts of `length` tokens, with a picture for a model that sees."""
    first, most = ([], cfg.vocab_size) if cfg.vision is None else (beginning(cfg), cfg.vision.image_id)
    if length < len(first):
        raise ValueError(f"prompts have {length} tokens, but a picture alone takes {len(first)}")
    text = rng.integers(0, min(1000, most), (rows, length - len(first)))  # no special tokens
    return [[*first, *row] for row in text.tolist()]


def pictures(rows: int, rng: np.random.Generator) -> np.ndarray:
    """Return random pictures, uint8 [rows, SIDE, SIDE, 3]."""
    return rng.integers(0, 256, (rows, SIDE, SIDE, 3), np.uint8)


def patches(cfg: ModelConfig, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, tuple[int, int]]:
    """Return patches of random pictures, [rows, N, 1176], and the shape of their grid."""
    cut, grids = processor(cfg)(list(pictures(rows, rng)))
    return np.asarray(cut), grids[0]
