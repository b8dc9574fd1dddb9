"""Built-in tables with known laws, for runs without data files.

A seeded program draws a law from six families, columns that it depends on, and columns that have no influence. No law
is in two splits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

PARTS = {"train": 96, "validation": 24, "test": 48}
"""Number of tables by split."""
ROWS = 160
_NUMBERS = (
    "age",
    "depth",
    "height",
    "humidity",
    "income",
    "length",
    "load",
    "rain",
    "speed",
    "weight",
    "width",
    "wind",
)
_KINDS = {
    "colour": ("red", "green", "blue"), "region": ("north", "south", "west"), "material": ("wood", "steel", "clay"),
}  # fmt: skip
_TARGETS = ("score", "yield", "price", "output", "risk")
FAMILIES = ("linear", "product", "square", "threshold", "category", "ratio")


def tables() -> dict[str, list[dict[str, Any]]]:
    """Return tables {name, target, columns, rows, solution} by split."""
    rng, laws, parts = random.Random("discovery sample"), set(), {}
    for part, number in PARTS.items():
        parts[part] = []
        while len(parts[part]) < number:
            family = FAMILIES[len(parts[part]) % len(FAMILIES)]
            law, value, columns, target = _law(family, rng)
            if law in laws:
                continue
            laws.add(law)
            rows = []
            for _ in range(ROWS):
                row: dict[str, Any] = {
                    name: rng.choice(_KINDS[name]) if name in _KINDS else rng.randint(1, 40) for name in columns
                }
                row[target] = round(float(value(row)), 4)
                rows.append(row)
            solution = f"def predict(row):\n    return {law}"
            described = dict.fromkeys((*columns, target), "")
            name = f"{part}/{len(parts[part])}"
            parts[part].append(
                {"name": name, "target": target, "columns": described, "rows": rows, "solution": solution}
            )
    return parts


def _law(family: str, rng: random.Random) -> tuple[str, Callable[[dict], float], list[str], str]:
    """Return the law as an expression and as a function, the columns and the target."""
    one, two, *others = rng.sample(_NUMBERS, 5)
    kind = rng.choice(tuple(_KINDS))
    a, b, c, limit = rng.randint(2, 9), rng.randint(2, 9), rng.randint(5, 60), rng.randint(12, 28)
    which = rng.choice(_KINDS[kind])
    x, y = f"row['{one}']", f"row['{two}']"
    laws: dict[str, tuple[str, Callable[[dict], float]]] = {
        "linear": (f"{a} * {x} + {b} * {y} + {c}", lambda row: a * row[one] + b * row[two] + c),
        "product": (f"{a} * {x} * {y} + {c}", lambda row: a * row[one] * row[two] + c),
        "square": (f"{a} * {x} ** 2 - {b} * {y}", lambda row: a * row[one] ** 2 - b * row[two]),
        "threshold": (
            f"{a} * {x} + {c} if {x} > {limit} else {b} * {y}",
            lambda row: a * row[one] + c if row[one] > limit else b * row[two],
        ),
        "category": (
            f"{a} * {x} + {c} * (row['{kind}'] == '{which}')", lambda row: a * row[one] + c * (row[kind] == which),
        ),
        "ratio": (f"{10 * a} * {x} / ({y} + {b})", lambda row: 10 * a * row[one] / (row[two] + b)),
    }  # fmt: skip
    columns = [one, two, kind, *others]
    rng.shuffle(columns)
    return *laws[family], columns, rng.choice(_TARGETS)
