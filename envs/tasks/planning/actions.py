"""Lists of actions in completions and in the outputs of programs.

A list follows the last marker of a text: `**Actions List**: […]` in an output, `#### […]` in a completion. At most
GAP characters may be between them. The list is a Python or JSON literal; letters may be without quotes. In Plan-Path
and Sokoban it has the moves U, D, L and R. In Sudoku it is the complete grid, row by row.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

PRINTED, FINAL = "**Actions List**", "####"
MOVES = ("U", "D", "L", "R")
LONGEST = 4_000
"""Maximum number of characters of a list."""
GAP = 60
_PLAIN = re.compile(r"""[\w\s'",\[\]]*""")
_WORD = re.compile(r"""(?<!['"\w])([^\W\d]\w*)(?!['"\w])""")


@dataclasses.dataclass(frozen=True)
class ActionList:
    """A list of actions, or the reason why there is none.

    Attributes:
        actions: The actions, or None.
        kind: "" if there is a list, otherwise "no_list" or "unknown_action".
        reason: Description of the problem, or "".
    """

    actions: list[Any] | None
    kind: str = ""
    reason: str = ""


def read_actions(text: str, marker: str, level: Mapping[str, Any]) -> ActionList:
    """Return the list of actions after the last marker of a text.

    Args:
        text: A completion or an output.
        marker: PRINTED or FINAL.
        level: The level, which has the game and the size.
    """
    _, separator, after = text.rpartition(marker)
    if not separator:
        return ActionList(None, "no_list", f"there is no {marker}")
    source = _brackets(after)
    value = None if source is None else _value(source)
    if not isinstance(value, list):
        return ActionList(None, "no_list", f"no list follows {marker}")
    problem = (_grid_problem if level["game"] == "sudoku" else _moves_problem)(value, len(level["grid"]))
    return ActionList(None, "unknown_action", problem) if problem else ActionList(value)


def show(actions: list[Any]) -> str:
    """Return a list of actions as JSON-like text in one line."""
    return str(actions).replace("'", '"')


def _brackets(text: str) -> str | None:
    """Return the first list in brackets, or None.

    There is none if it begins too late or is not closed.
    """
    start = text.find("[", 0, GAP + 1)
    if start < 0:
        return None
    depth = 0
    for i, letter in enumerate(text[start : start + LONGEST]):
        depth += (letter == "[") - (letter == "]")
        if depth > 2:
            return None
        if depth == 0:
            return text[start : start + i + 1]
    return None


def _value(source: str) -> Any:
    if not _PLAIN.fullmatch(source):
        return None
    for text in (source, _WORD.sub(r"'\1'", source)):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            continue
    return None


def _moves_problem(value: list[Any], size: int) -> str:
    for i, action in enumerate(value, 1):
        if action not in MOVES:
            return f"action {i} is {action!r:.40}, but must be one of: {', '.join(MOVES)}"
    return ""


def _grid_problem(value: list[Any], size: int) -> str:
    if len(value) != size:
        return f"the grid has {len(value)} rows, but must have {size}"
    for i, row in enumerate(value, 1):
        if not isinstance(row, list) or len(row) != size:
            return f"row {i} is {row!r:.40}, but must be a list of {size} digits"
        for digit in row:
            if isinstance(digit, bool) or not isinstance(digit, int) or not 1 <= digit <= size:
                return f"row {i} has {digit!r:.40}, but must have digits from 1 to {size}"
    return ""
