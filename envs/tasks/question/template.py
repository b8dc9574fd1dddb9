r"""Prompts made of a row's fields: `{name}` stands for a field; other braces, as in \boxed{}, stay as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_FIELD = re.compile(r"\{([A-Za-z_]\w*)\}")


def fields_of(template: str) -> list[str]:
    """The names in braces."""
    return list(dict.fromkeys(_FIELD.findall(template)))


def fill(template: str, values: Mapping[str, Any]) -> str:
    """The template with every name replaced; what a value contains is not looked at again.

    A list is written as options: a line and a letter for each.
    """
    return _FIELD.sub(lambda match: written(values[match[1]]), template)


def written(value: Any) -> str:
    """A value as a prompt shows it."""
    if isinstance(value, list | tuple):
        return "\n".join(f"{chr(ord('A') + i)}. {option}" for i, option in enumerate(value))
    return str(value)
