r"""What the left side of an equation says about the right one: x = 5 names it, 2x = 5 is still to be solved."""

from __future__ import annotations

import re

_NAME = re.compile(
    r"(?:[a-zA-Z]|\\[a-zA-Z]+)(?:_\{?\w+\}?)?'?(?:\([a-zA-Z](?:,\s?[a-zA-Z])*\))?|\([a-zA-Z](?:\s?,\s?[a-zA-Z])+\)"
    r"|\\text\{[^{}]*\}|\\angle\s?[A-Z]+"
)
_COMMANDS = re.compile(r"\\(?:frac|sqrt|cdot|times)(?![a-zA-Z])")
_EXPRESSION = re.compile(r"(?![a-zA-Z]\()[^_\\]*\d[^_\\]*")


def is_name(left: str) -> bool:
    """Whether it only names the right side: x, f(x), (x, y)."""
    return _NAME.fullmatch(left) is not None


def is_unsolved(left: str) -> bool:
    """Whether it is an expression in one variable, for which the equation would have to be solved: 2x, x^2 + 1."""
    bare = _COMMANDS.sub("", left)
    return len(set(re.findall(r"[a-zA-Z]", bare))) == 1 and _EXPRESSION.fullmatch(bare) is not None
