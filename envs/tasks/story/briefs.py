"""Briefs of stories: characters, words that must occur, and the last word."""

from __future__ import annotations

import functools
import random
from typing import Any

from envs.tasks.data import Dataset, from_list, make_splits
from envs.tasks.task import SPLITS

Brief = dict[str, Any]
"""A row: `key`, `characters`, `words`, `ending` (the last word) and `opening` (the first sentence)."""

NAMES = "Mira Tom Lena Otis Ruth Felix Nora Jonas Edda Hugo Ines Paul Vera Karl Olga Simon"
WORDS = (
    "lantern bridge river letter garden clock ladder basket mirror violin harbour blanket compass candle orchard "
    "kettle window whistle feather ticket piano tunnel saddle bucket pepper thunder meadow copper button island needle"
)
ENDINGS = "home dawn silence laughter rain tomorrow together snow"
PLACES = "an old mill, a small station, a quiet village, a wide valley, an empty theatre, a stone tower"
N_WORDS, N_CHARACTERS = 3, 2


def draw(rng: random.Random) -> Brief:
    """Draw a brief."""
    characters, words = rng.sample(NAMES.split(), N_CHARACTERS), rng.sample(WORDS.split(), N_WORDS)
    ending, place = rng.choice(ENDINGS.split()), rng.choice(PLACES.split(", "))
    opening = f"Late one evening {characters[0]} came to {place}."
    key = " ".join([*sorted(characters), *sorted(words), ending, place])
    return {"key": key, "characters": characters, "words": words, "ending": ending, "opening": opening}


@functools.lru_cache(maxsize=8)
def splits(seed: int, sizes: tuple[int, int, int]) -> dict[str, Dataset]:
    """Return different briefs for train, validation and test."""
    rng, seen, parts = random.Random(f"stories {seed}"), set(), {}
    for part, n in zip(SPLITS, sizes, strict=True):
        rows = []
        while len(rows) < n:
            brief = draw(rng)
            if brief["key"] not in seen:
                seen.add(brief["key"])
                rows.append(brief)
        parts[part] = from_list(rows, f"story briefs, seed {seed} ({part})")
    return make_splits(**parts, key="key")
