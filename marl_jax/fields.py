"""Config fields and the rules for their values.

A `Field` has a default, a rule and a help text:

    GAMMA = Field(1.0, number(0, 1), "Discount factor per turn of the agent")

A group of fields is a dictionary from names to fields. This module does not import JAX, so configs load quickly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule for values: `accepted` completes the sentence "must be …", `holds` checks a value."""

    accepted: str
    holds: Callable[[Any], bool]


@dataclasses.dataclass(frozen=True)
class Field:
    """A config field: default value, rule and help text."""

    default: Any
    rule: Rule
    help: str


Fields = Mapping[str, Field]


def defaults(fields: Fields) -> dict[str, Any]:
    """Return the default of every field of a group."""
    return {name: field.default for name, field in fields.items()}


def with_defaults(fields: Fields, /, **changes: Any) -> dict[str, Field]:
    """Return the fields with some of their defaults replaced."""
    unknown = changes.keys() - fields.keys()
    if unknown:
        raise ValueError(f"unknown fields: {', '.join(sorted(unknown))}; fields: {', '.join(fields)}")
    changed = {name: dataclasses.replace(fields[name], default=value) for name, value in changes.items()}
    return {**fields, **changed}


# ---------------------------------------------------------------------------------------------------------- rules


def integer(low: int, high: int | None = None) -> Rule:
    """Accept integers from `low` to `high`, both included, that fit into an int32."""
    words = f"an integer >= {low}" if high is None else f"an integer from {low} to {high}"
    top = 2**31 - 1 if high is None else high
    return Rule(words, lambda x: isinstance(x, int) and not isinstance(x, bool) and low <= x <= top)


def distinct_integers(low: int) -> Rule:
    """Accept tuples of different integers >= `low`."""
    one = integer(low)

    def holds(x: Any) -> bool:
        return isinstance(x, tuple | list) and all(map(one.holds, x)) and len(set(x)) == len(x)

    return Rule(f"a tuple of different integers >= {low}", holds)


def number(low: float = -math.inf, high: float = math.inf, above: bool = False) -> Rule:
    """Accept finite numbers from `low` to `high`; with `above`, `low` itself is excluded."""
    bounds = [] if low == -math.inf else [f"> {low:g}" if above else f">= {low:g}"]
    bounds += [] if high == math.inf else [f"<= {high:g}"]
    words = " ".join(["a number", " and ".join(bounds)]).strip()

    def holds(x: Any) -> bool:
        if isinstance(x, bool) or not isinstance(x, int | float) or not math.isfinite(x):
            return False
        return (low < x if above else low <= x) and x <= high

    return Rule(words, holds)


def off_or(rule: Rule) -> Rule:
    """Accept 0, which turns a feature off, or values of another rule."""
    return Rule(f"0 (off) or {rule.accepted}", lambda x: (x == 0 and not isinstance(x, bool)) or rule.holds(x))


def choice(*values: str) -> Rule:
    """Accept one of the given strings."""
    return Rule("one of: " + ", ".join(values), lambda x: isinstance(x, str) and x in values)


def some_of(*values: str) -> Rule:
    """Accept tuples of different strings out of the given ones."""

    def holds(x: Any) -> bool:
        return TEXTS.holds(x) and set(x) <= set(values) and len(set(x)) == len(x)

    return Rule("a tuple of different strings out of: " + ", ".join(values), holds)


TEXT = Rule("a string", lambda x: isinstance(x, str))
TEXTS = Rule("a tuple of strings", lambda x: isinstance(x, tuple | list) and all(isinstance(y, str) for y in x))
SHARES = Rule(
    "a tuple of numbers >= 0, not all of them 0",
    lambda x: isinstance(x, tuple | list) and all(map(number(0).holds, x)) and (not x or sum(x) > 0),
)
SWITCH = Rule("True or False", lambda x: isinstance(x, bool))
SEED = integer(0, 2**32 - 1)
OPEN = Rule("a group of fields", lambda x: isinstance(x, ConfigDict | dict))
"""A group with fields that this module does not know: game parameters, seats, model shapes."""
STEP = Rule(
    "'newest', 'best' or a step number such as '200'",
    lambda x: isinstance(x, str) and (x in ("newest", "best") or x.isdecimal() and len(x) < 19),
)
"""A checkpoint of a run."""
