"""A built-in table with questions that need tools, for runs without data files.

The towns do not exist, so that no model knows the answers, and the numbers are too large for mental arithmetic. A
seeded program writes them. No town and no calculation is in two splits.
"""

from __future__ import annotations

import functools
import random
from typing import Any

PARTS = {"train": 72, "validation": 12, "test": 24}
"""Number of towns by split; each town has three questions."""
COLUMNS = {"population": (2_000, 90_000), "area": (310, 9_800), "budget": (1_000_000, 90_000_000)}
"""Columns of the table with their ranges: inhabitants, hectares and crowns."""
_BEGIN = ("Bar", "Cor", "Del", "Fen", "Gal", "Hol", "Kel", "Lor", "Mar", "Nor", "Pel", "Ros", "Sel", "Tor", "Var")
_END = ("aby", "brook", "dale", "field", "gate", "ham", "lund", "mere", "stead", "wick")
_UNITS = {"population": "inhabitants", "area": "hectares", "budget": "crowns"}


@functools.cache
def collection() -> tuple[dict[str, dict[str, int]], dict[str, list[dict[str, Any]]]]:
    """Return the table, {town: {column: number}}, and the questions {id, question, answer} by split."""
    rng = random.Random("tools sample")
    towns = rng.sample([begin + end for begin in _BEGIN for end in _END], sum(PARTS.values()))
    table = {town: {column: rng.randint(*limits) for column, limits in COLUMNS.items()} for town in towns}
    parts, start, seen = {}, 0, set()
    for part, number in PARTS.items():
        own = towns[start : start + number]
        start += number
        parts[part] = [row for i, town in enumerate(own) for row in _questions(rng, table, town, own[i - 1], seen)]
    return table, parts


def _questions(rng: random.Random, table: dict, town: str, other: str, seen: set) -> list[dict[str, Any]]:
    """Return a calculation, a question about a town, and a calculation with two towns."""
    while (numbers := (rng.randint(10_000, 999_999), rng.randint(1_000, 99_999))) in seen:
        pass
    seen.add(numbers)
    a, b = numbers
    column, both = rng.choice(list(COLUMNS)), rng.choice(list(COLUMNS))
    factor = rng.randint(12, 99)
    one, two = table[town][both], table[other][both]
    texts = [
        ("sum", f"What is {a} * {b} - {b * factor}?", a * b - b * factor),
        ("fact", f"How many {_UNITS[column]} does the table give for the {column} of {town}?", table[town][column]),
        ("both", f"What is {factor} times the {both} of {town} plus the {both} of {other}?", factor * one + two),
    ]
    return [{"id": f"{town}/{kind}", "question": text, "answer": answer} for kind, text, answer in texts]
