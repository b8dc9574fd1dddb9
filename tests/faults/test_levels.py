"""Levels of strangers: files that are accepted can be played and solved, and the others are refused by name."""

import numpy as np
import pytest

from envs.games import pools
from envs.games.sokoban import levels as sokoban
from envs.games.sokoban.solver import solve
from envs.games.sudoku import levels as sudoku

pytestmark = pytest.mark.nightly

OUTSIDE = """
.  #####
   #@$.#
$* #####
"""


@pytest.mark.parametrize("corner", range(4))
def test_a_goal_outside_the_walls_does_not_stop_the_solver(corner):
    cells = np.rot90(sokoban.parse(OUTSIDE.replace("$* ", " * ").strip("\n")), corner, axes=(1, 2))
    sokoban.check_cells(np.ascontiguousarray(cells), lambda i: f"level {i}")
    assert len(solve(np.ascontiguousarray(cells[0]))) == 1


def test_a_box_outside_the_walls_that_is_on_no_goal_has_no_solution():
    assert solve(sokoban.parse(OUTSIDE.strip("\n"))[0]) is None


def several(n=4):
    """A pool whose first puzzle can be completed in more than one way."""
    pool = sudoku.generate(4, n_train=n, n_test=n)
    puzzle = pool.train["puzzle"].copy()
    puzzle[0] = 0
    return {"puzzle": puzzle, "solution": pool.train["solution"]}, pool


def test_a_saved_pool_with_several_solutions_is_refused(tmp_path):
    levels, pool = several()
    pools.save(pools.Pool("sudoku", pools.Levels(levels), pool.test), tmp_path / "pool.npz")
    with pytest.raises(ValueError, match=r"pool.npz \(train\): puzzle 0 has several solutions, but must have one"):
        sudoku.load(tmp_path / "pool.npz")


def test_loose_puzzles_with_several_solutions_are_left_out(tmp_path):
    levels, _ = several()
    np.savez(tmp_path / "loose.npz", **levels)
    loaded = sudoku.load(tmp_path / "loose.npz")
    assert len(loaded.train) + len(loaded.test) == 3
