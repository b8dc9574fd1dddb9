"""Drawings of Sudoku positions."""

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import svg as shapes
from envs.games.game import State
from envs.games.picture import HIDDEN_TILE, SHADE, Picture, Tile
from envs.games.roles import TwoRole, hide, puzzle_state
from envs.games.sudoku.rules import Sudoku, SudokuState, cells
from envs.games.sudoku.solver import box_side

_CELL = 40


def board(state: SudokuState, player: int | None = None, visible: np.ndarray | None = None) -> str:
    """Draw the grid with numbered rows and columns and lines between boxes.

    A dot is an empty cell, ? a hidden one.
    """
    del player
    state = puzzle_state(state)
    size = state.grid.shape[0]
    side = box_side(size)
    marks = hide([Sudoku.symbols[digit] for digit in np.asarray(cells(state))], visible)

    def spread(row: list[str]) -> str:
        return " | ".join(" ".join(row[start : start + side]) for start in range(0, size, side))

    lines = ["     " + "   ".join(" ".join(f"{c + 1}" for c in range(s, s + side)) for s in range(0, size, side))]
    for row in range(size):
        if row and row % side == 0:
            lines.append("     " + "+".join("-" * (2 * side + (0 < s < size - side)) for s in range(0, size, side)))
        lines.append(f" r{row + 1}  " + spread(marks[row * size : (row + 1) * size]))
    lines[0] = "  c" + lines[0][3:]
    return "\n".join(lines)


def svg(state: SudokuState, player: int | None = None, visible: np.ndarray | None = None) -> str:
    """Draw the grid as SVG: givens black on grey, entries blue, hidden cells dark."""
    del player
    state = puzzle_state(state)
    size = state.grid.shape[0]
    side, full = box_side(size), size * _CELL
    given = np.asarray(state.puzzle).reshape(-1) > 0
    parts = [shapes.rect(0, 0, full, full, "#ffffff")]
    for cell, mark in enumerate(hide(np.asarray(cells(state)).tolist(), visible)):
        left, top = cell % size * _CELL, cell // size * _CELL
        fill = "#b5b5b5" if mark == "?" else "#eeeeea" if given[cell] else "#ffffff"
        parts.append(shapes.rect(left, top, _CELL, _CELL, fill, "#c4c4c4"))
        if mark not in (0, "?"):
            colour = "#222222" if given[cell] else "#2471a3"
            parts.append(shapes.text(left + _CELL / 2, top + _CELL * 0.68, str(mark), _CELL * 0.55, colour))
    for k in range(0, size + 1, side):
        at = min(max(k * _CELL, 1), full - 1)
        parts += [shapes.line(at, 1, at, full - 1, "#333333", 2), shapes.line(1, at, full - 1, at, "#333333", 2)]
    return shapes.document(full, full, parts)


def picture(game: Sudoku | TwoRole, style: str) -> Picture:
    """Return the drawing for models, with labels of columns and rows."""
    del style
    n = game.shape[0]
    digits = tuple(map(str, range(1, n + 1)))
    inside = (
        Tile("0", SHADE),
        *(Tile(d, paper="#eeeeea") for d in digits),
        *(Tile(f"+{d}", "#2471a3") for d in digits),
    )
    border = (Tile(), *(Tile(sign, "#ffffff", "#333333") for sign in (*digits, *"ABCDEFGHI"[:n])))
    first = len(inside) + 1

    def drawn(state: State, seat: jax.Array) -> jax.Array:
        inner, visible = puzzle_state(state), game.visible(state, seat)
        codes = cells(inner).astype(jnp.int32).reshape(-1)
        codes += n * ((codes > 0) & (inner.puzzle.reshape(-1) == 0))
        codes = codes if visible is None else jnp.where(visible, codes, len(inside))
        top, left = first + 1 + jnp.arange(n), first + 1 + n + jnp.arange(n)
        rows = jnp.concatenate([left[:, None], codes.reshape(n, n)], axis=1)
        return jnp.concatenate([jnp.full((1,), first), top, rows.reshape(-1)])

    return Picture((n + 1, n + 1), (*inside, HIDDEN_TILE, *border), drawn)
