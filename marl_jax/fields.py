"""Config fields and the rules for their values.

A `Field` says in one place what a field starts with, what it accepts and what it means:

    GAMMA = Field(1.0, number(0, 1), "discount per turn of the agent")

Groups of fields are plain dictionaries from names to fields. Nothing here needs JAX, so that configs stay light.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a field accepts: in words, and as a test."""

    accepted: str
    holds: Callable[[Any], bool]


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of a config: its default, what it accepts, and a line of help."""

    default: Any
    rule: Rule
    help: str


Fields = Mapping[str, Field]


def defaults(fields: Fields) -> dict[str, Any]:
    """The default of every field of a group."""
    return {name: field.default for name, field in fields.items()}


def with_defaults(fields: Fields, /, **changes: Any) -> dict[str, Field]:
    """The same fields, some with another default."""
    unknown = changes.keys() - fields.keys()
    if unknown:
        raise ValueError(f"no such field: {', '.join(sorted(unknown))}; fields are {', '.join(fields)}")
    changed = {name: dataclasses.replace(fields[name], default=value) for name, value in changes.items()}
    return {**fields, **changed}


# ---------------------------------------------------------------------------------------------------------- rules


def integer(low: int, high: int | None = None) -> Rule:
    """A whole number in a range, both ends included; none is beyond what an int32 holds."""
    words = f"a whole number from {low} " + ("up" if high is None else f"to {high}")
    top = 2**31 - 1 if high is None else high
    return Rule(words, lambda x: isinstance(x, int) and not isinstance(x, bool) and low <= x <= top)


def distinct_integers(low: int) -> Rule:
    """A tuple of different whole numbers from `low` up."""
    one = integer(low)

    def holds(x: Any) -> bool:
        return isinstance(x, tuple | list) and all(map(one.holds, x)) and len(set(x)) == len(x)

    return Rule(f"a tuple of different whole numbers from {low} up", holds)


def number(low: float = -math.inf, high: float = math.inf, above: bool = False) -> Rule:
    """A finite number in a range; with `above`, the lower end itself is left out."""
    start = "" if low == -math.inf else (f" above {low:g}" if above else f" from {low:g}")
    words = "a number" + start + ("" if high == math.inf else f" up to {high:g}")

    def holds(x: Any) -> bool:
        if isinstance(x, bool) or not isinstance(x, int | float) or not math.isfinite(x):
            return False
        return (low < x if above else low <= x) and x <= high

    return Rule(words, holds)


def off_or(rule: Rule) -> Rule:
    """0, which switches something off, or what another rule accepts."""
    return Rule(f"0 (off) or {rule.accepted}", lambda x: (x == 0 and not isinstance(x, bool)) or rule.holds(x))


def choice(*values: str) -> Rule:
    """One of a few words."""
    return Rule("one of " + ", ".join(values), lambda x: isinstance(x, str) and x in values)


def some_of(*values: str) -> Rule:
    """A tuple of distinct words out of a few."""

    def holds(x: Any) -> bool:
        return TEXTS.holds(x) and set(x) <= set(values) and len(set(x)) == len(x)

    return Rule("a tuple of distinct words out of " + ", ".join(values), holds)


TEXT = Rule("a text", lambda x: isinstance(x, str))
TEXTS = Rule("a tuple of texts", lambda x: isinstance(x, tuple | list) and all(isinstance(y, str) for y in x))
SWITCH = Rule("True or False", lambda x: isinstance(x, bool))
SEED = integer(0, 2**32 - 1)
OPEN = Rule("a group of fields", lambda x: isinstance(x, ConfigDict | dict))
"""A group whose fields are not known here: parameters of a game, seats, the shape of a model."""
STEP = Rule(
    "'newest', 'best' or the number of a step, e.g. '200'",
    lambda x: isinstance(x, str) and (x in ("newest", "best") or x.isdecimal() and len(x) < 19),
)
"""Which checkpoint of a run is meant."""
