"""Prompts of the planning task.

Every turn is a new conversation: its prompt has the level and the results of the last turn, so its length does not grow
with the turns.
"""

from __future__ import annotations

from typing import Any

from envs.tasks.math.prompts import outcome, quote
from envs.tasks.planning.actions import FINAL, PRINTED, show
from envs.tasks.planning.levels import Level, variables

TOOL = "You solve planning problems by writing Python programs."
PLAN = "You solve planning problems and decide on the final plan."
SHOWN = 400
"""Maximum number of characters of a list that are quoted, which is more than a solution has."""
MOVES = "{'U': (-1, 0), 'D': (1, 0), 'L': (0, -1), 'R': (0, 1)}"
"""Moves of Plan-Path and Sokoban with their steps."""

_RULES = {
    "plan_path": (
        "A robot moves on a {n}x{n} grid, cell by cell: U (up), D (down), L (left), R (right). '#' is a wall, '.' is "
        "free, S is the start and G the goal. It must not leave the grid or run into a wall."
    ),
    "sokoban": (
        "A player moves in a {n}x{n} room, cell by cell: U (up), D (down), L (left), R (right). '#' is a wall, ' ' is "
        "floor, '@' the player, '$' a box, '.' a goal, '*' a box on a goal and '+' the player on a goal. Walking into "
        "a box pushes it one cell further, if that cell is neither a wall nor a box. Boxes cannot be pulled. Every "
        "box must end on a goal."
    ),
    "sudoku": (
        "A {n}x{n} Sudoku: fill each empty cell (0) with a digit from 1 to {n}, so that no row, column or {b}x{b} box "
        "repeats a digit. The given digits must not change."
    ),
}
_DATA = {
    "plan_path": "The variable `grid` is already defined: the list of its {n} rows, each a string.",
    "sudoku": "The variable `grid` is already defined: the list of its {n} rows, each a list of digits.",
}
_SOLVE = {
    "plan_path": (
        "finds S and G, searches breadth-first for a shortest path around walls, and returns the moves as a list of "
        "letters, for example ['R', 'R', 'D']"
    ),
    "sudoku": "fills the empty cells by backtracking and returns the complete grid as a list of lists",
}
_PUSHING = """Complete this Python program:
```python
from collections import deque
from level import {names}

moves = {moves}

def solve({names}):
    queue = deque([({state}, [])])
    ...
        {state}, path = queue.popleft()
        ...
        for move, (dr, dc) in moves.items():
            new_player = (player[0] + dr, player[1] + dc)
            {push}
            ...

print("{printed}:", solve({names}))
```
It imports `walls`, the set of all wall cells, {data}. A cell is a pair (row, column). The function searches \
breadth-first over the states ({state}), visits each of them once, and returns the path, a list of letters, when \
{done}. {legal}."""
_ONE_BOX = {
    "state": "player, box",
    "push": "new_box = (box[0] + dr, box[1] + dc) if new_player == box else box",
    "data": "and the cells `player`, `box` and `goal`",
    "done": "box == goal",
    "legal": "Neither the player nor the box may be in a wall",
}
_BOXES = {
    "state": "player, boxes",
    "push": "new_boxes = frozenset((box[0] + dr, box[1] + dc) if new_player == box else box for box in boxes)",
    "data": "the cell `player`, and the frozensets of cells `boxes` and `goals`",
    "done": "boxes <= goals",
    "legal": (
        "Neither the player nor a box may be in a wall, and no two boxes may be in the same cell: len(new_boxes) must "
        "stay equal to len(boxes)"
    ),
}


def rules(level: Level) -> str:
    """Return the rules of a level's game."""
    size = len(level["grid"])
    return _RULES[level["game"]].format(n=size, b=round(size**0.5))


def problem(level: Level) -> str:
    """Return the rules and the level."""
    rows = [row if isinstance(row, str) else " ".join(map(str, row)) for row in level["grid"]]
    return f"{rules(level)}\n\n" + "\n".join(rows)


def tool(level: Level, last: str) -> str:
    """Return the tool agent's prompt.

    Args:
        level: The level.
        last: Results of the last turn (`after_turn`), or "".
    """
    given = variables(level)
    names = ", ".join(given)
    if level["game"] == "sokoban":
        parts = _ONE_BOX if "box" in given else _BOXES
        return f"{problem(level)}\n\n{last}" + _PUSHING.format(names=names, moves=MOVES, printed=PRINTED, **parts)
    data, call = _DATA[level["game"]].format(n=len(level["grid"])), f"solve({names})"
    return (
        f"{problem(level)}\n\n{last}Write a Python program in one ```python block. {data} Define a function `{call}` "
        f'that {_SOLVE[level["game"]]}. End the program with the line\nprint("{PRINTED}:", {call})'
    )


def program_with_rows(size: int) -> str:
    """Return the request for a Plan-Path program that contains the grid.

    Args:
        size: Side of the grid.
    """
    return (
        f"Write a Python program in one ```python block. It begins with the list `grid` of the rows 1 to {size} in "
        f"this order, each a string of {size} characters, and with\nmoves = {MOVES}\nThen define a function "
        f"`solve(grid)` that {_SOLVE['plan_path']}. Its inner loop is\nfor move, (dr, dc) in moves.items():\nEnd the "
        f'program with the line\nprint("{PRINTED}:", solve(grid))'
    )


def plan(level: Level, last: str, tried: str) -> str:
    """Return the plan agent's prompt.

    Args:
        level: The level.
        last: Results of the last turn (`after_turn`), or "".
        tried: Program and output of this turn (`program`), or "" without a tool agent.
    """
    how = "Think step by step."
    if tried:
        how = "Check the tool agent's list. Adopt it if it is right, and correct it otherwise."
    return f"{problem(level)}\n\n{last}{tried}{how} End with the final list in one line, like this:\n{example(level)}"


def program(
    source: str | None, result: dict[str, Any] | None, actions: list[Any] | None, reason: str, own: bool
) -> str:
    """Describe the tool agent's program, its output and its list of actions.

    Args:
        source: The program, or None.
        result: Result of the program, or None.
        actions: The list, or None.
        reason: Why there is no list.
        own: Whether the tool agent itself reads this.
    """
    if source is None or result is None:
        return f"{'You' if own else 'The tool agent'} wrote no program.\n\n"
    listed = f"Its list: {_quoted(actions)}" if actions is not None else f"It has no list: {reason}."
    whose = "Your" if own else "The tool agent's"
    return f"{whose} program\n{quote(source, 'python')}\n{outcome(result)}\n{listed}\n\n"


def after_turn(tried: str, actions: list[Any] | None, reason: str) -> str:
    """Describe the last turn for the next one, which begins from the same level.

    Args:
        tried: Program and output of the last turn (`program`), or "" to leave them out.
        actions: The list that acted, or None.
        reason: Description of its result.
    """
    acted = "There was no list to play" if actions is None else f"The list {_quoted(actions)} was played"
    return f"The last turn failed. {tried}{acted}: {reason.rstrip('.')}. Try again from the same start.\n\n"


def _quoted(actions: list[Any]) -> str:
    text = show(actions)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def example(level: Level) -> str:
    """Return an example of a final list, which does not depend on the cells."""
    if level["game"] != "sudoku":
        return f"{FINAL} {show(['R', 'R', 'D'])}"
    size = len(level["grid"])
    side = round(size**0.5)
    return f"{FINAL} {show([[(side * row + row // side + k) % size + 1 for k in range(size)] for row in range(size)])}"
