r"""Prompt templates: `{name}` is replaced by a field of a row.

Other braces, as in \boxed{}, are left as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_FIELD = re.compile(r"\{([A-Za-z_]\w*)\}")


def fields_of(template: str) -> list[str]:
    """Return the names in braces."""
    return list(dict.fromkeys(_FIELD.findall(template)))


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Replace every name in a template by its value, without expanding values again.

    A list is written as options: one line with a letter for each.
    """
    return _FIELD.sub(lambda match: written(values[match[1]]), template)


def written(value: Any) -> str:
    """Format a value for a prompt."""
    if isinstance(value, list | tuple):
        return "\n".join(f"{chr(ord('A') + i)}. {option}" for i, option in enumerate(value))
    return str(value)
