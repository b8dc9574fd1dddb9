"""An exact Sudoku solver for the host.

It backtracks on the cell with the fewest candidates, which are stored as bits.
"""

import functools
import itertools

import numpy as np


def box_side(size: int) -> int:
    """Return the side of a box: 2 for a 4x4 grid, 3 for 9x9."""
    return {4: 2, 9: 3}[size]


@functools.cache
def units(size: int) -> np.ndarray:
    """Return the row, column and box of every cell: int32 [C, 3]."""
    side = box_side(size)
    row, column = np.divmod(np.arange(size * size), size)
    return np.stack([row, column, row // side * side + column // side], axis=1).astype(np.int32)


def solutions(grid: np.ndarray, limit: int = 2, rng: np.random.Generator | None = None) -> list[np.ndarray]:
    """Return up to `limit` completions of a grid [n, n]; with `rng`, in random order."""
    size = grid.shape[0]
    cells = [int(digit) for digit in grid.reshape(-1)]
    # Units are the rows, then the columns, then the boxes. Bits 1 to n of used[u] are the digits in unit u.
    places = [(int(row), size + int(column), 2 * size + int(box)) for row, column, box in units(size)]
    used = [0] * (3 * size)
    everything = (1 << size + 1) - 2
    grids: list[np.ndarray] = []

    def toggle(cell: int, bit: int) -> None:
        for unit in places[cell]:
            used[unit] ^= bit

    for cell, digit in enumerate(cells):
        if digit:
            if any(used[unit] >> digit & 1 for unit in places[cell]):
                return []
            toggle(cell, 1 << digit)
    empty = {cell for cell, digit in enumerate(cells) if not digit}

    def branch() -> tuple[int, int]:
        """Return the cell to fill next and its candidates as bits.

        The cell has as few candidates as possible; none means a dead end.
        """
        chosen, options, fewest = -1, 0, size + 1
        once, twice = [0] * (3 * size), [0] * (3 * size)
        for cell in empty:
            row, column, box = places[cell]
            candidates = everything & ~(used[row] | used[column] | used[box])
            count = candidates.bit_count()
            if count < fewest:
                chosen, options, fewest = cell, candidates, count
                if count < 2:
                    return chosen, options
            for unit in places[cell]:
                twice[unit] |= once[unit] & candidates
                once[unit] |= candidates
        for unit in range(3 * size):  # no cell is forced, but a digit may have only one place left in a unit
            if everything & ~used[unit] & ~once[unit]:
                return chosen, 0
            single = once[unit] & ~twice[unit]
            if single:
                bit = single & -single
                for cell in empty:
                    if unit in places[cell] and not any(used[other] & bit for other in places[cell]):
                        return cell, bit
        return chosen, options

    def search() -> bool:
        """Fill the remaining cells; return True if there are enough solutions."""
        if not empty:
            grids.append(np.array(cells, np.uint8).reshape(size, size))
            return len(grids) == limit
        cell, options = branch()
        digits = [digit for digit in range(1, size + 1) if options >> digit & 1]
        if rng is not None:
            rng.shuffle(digits)
        empty.discard(cell)
        for digit in digits:
            cells[cell] = digit
            toggle(cell, 1 << digit)
            enough = search()
            toggle(cell, 1 << digit)
            if enough:
                return True
        empty.add(cell)
        return False

    search()
    return grids


def solve(grid: np.ndarray) -> np.ndarray | None:
    """Return the unique completion of a grid [n, n], or None."""
    grids = solutions(grid, limit=2)
    return grids[0] if len(grids) == 1 else None


@functools.cache
def all_grids() -> np.ndarray:
    """Return every complete 4x4 grid: uint8 [288, 16]."""
    lines = list(itertools.permutations(range(1, 5)))
    halves = [a + b for a in lines for b in lines if all(len({*a[i : i + 2], *b[i : i + 2]}) == 4 for i in (0, 2))]

    def columns_differ(top: tuple[int, ...], low: tuple[int, ...]) -> bool:
        return all(len({top[c], top[c + 4], low[c], low[c + 4]}) == 4 for c in range(4))

    return np.array([top + low for top in halves for low in halves if columns_differ(top, low)], np.uint8)
