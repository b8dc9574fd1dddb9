"""Checks of the parameters of games and tasks. This module does not import JAX."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any

from registries import did_you_mean

_PLAIN = (bool, dict, float, int, list, str, tuple)


def check_names(name: str, params: Collection[str], accepted: Collection[str]) -> None:
    """Raise a ValueError if the environment `name` has no parameter of one of these names."""
    for param in params:
        if param not in accepted:
            known = ", ".join(sorted(accepted)) or "none"
            hint = did_you_mean(param, accepted)
            raise ValueError(f"{name} has no parameter {param!r}; its parameters are: {known}{hint}")


def check_types(name: str, params: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Raise a ValueError if a parameter has another type than its hint, if any."""
    for param, value in params.items():
        if param in hints and not _is(value, hints[param]):
            raise ValueError(f"{name}: {param} is {value!r}, but must be of type {_words(hints[param])}")


def _is(value: Any, hint: Any) -> bool:
    """Return whether a value has a type.

    An int is a valid float, but a bool is not a valid number. Only plain types are checked.
    """
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_is(value, one) for one in typing.get_args(hint))
    kind = typing.get_origin(hint) or hint
    if kind in (None, type(None)):
        return value is None
    if kind in (int, float):
        right = isinstance(value, int | kind) and not isinstance(value, bool)
        return right and (kind is int or math.isfinite(value))
    if kind is tuple and isinstance(value, tuple | list) and len(typing.get_args(hint)) == 2:
        item, rest = typing.get_args(hint)
        return rest is not ... or all(_is(one, item) for one in value)
    return kind not in _PLAIN or isinstance(value, kind)


def _words(hint: Any) -> str:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(map(_words, typing.get_args(hint)))
    if typing.get_args(hint):
        return str(hint)
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))
