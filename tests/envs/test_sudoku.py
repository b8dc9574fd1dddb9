"""Sudoku against plain Python: uniqueness by enumeration, rules by a game on a dictionary, solutions by files."""

import functools
import itertools
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games.registry import make
from envs.games.sudoku import bots, draw, levels, solver
from envs.games.sudoku.rules import Sudoku
from tests.conftest import shared_data


@pytest.fixture(scope="module")
def game():
    return Sudoku(n_train=40, n_test=12)


@pytest.fixture(scope="module")
def big():
    return Sudoku(size=9, n_train=3, n_test=1)


def consistent(grid):
    """No row, column or box with a digit twice."""
    size = len(grid)
    side = {4: 2, 9: 3}[size]
    groups = [[(r, c) for c in range(size)] for r in range(size)]
    groups += [[(r, c) for r in range(size)] for c in range(size)]
    corners = itertools.product(range(0, size, side), repeat=2)
    groups += [[(r + i, c + j) for i in range(side) for j in range(side)] for r, c in corners]
    for group in groups:
        digits = [grid[cell] for cell in group if grid[cell]]
        if len(set(digits)) != len(digits):
            return False
    return True


def reference(game, puzzle, solution, actions):
    """Grid and rewards (team, agent, process) after each action, on plain arrays."""
    size, grid = game.size, puzzle.copy()
    side = {4: 2, 9: 3}[size]
    empty = int((puzzle == 0).sum())
    for turn, action in enumerate(actions):
        if (grid == solution).all() or turn >= game.max_turns:
            yield grid, (0.0, 0.0, 0.0)
            continue
        cell, digit = divmod(int(action), size)
        cell, digit = divmod(cell, size), digit + 1
        only_givens = puzzle.copy()
        only_givens[cell] = digit
        if puzzle[cell] or not consistent(only_givens):
            yield grid, (0.0, -0.1, 0.0)
            continue
        before = int((grid == solution).sum())
        after = grid.copy()
        after[cell] = digit
        for other in np.ndindex(puzzle.shape):  # own entries that a repeated digit pushes out
            same_box = (cell[0] // side, cell[1] // side) == (other[0] // side, other[1] // side)
            if other != cell and after[other] == digit and (cell[0] == other[0] or cell[1] == other[1] or same_box):
                after[other] = 0
        grid = after
        yield grid, (1.0 * bool((grid == solution).all()), 0.0, (int((grid == solution).sum()) - before) / empty)


@functools.partial(jax.jit, static_argnums=(0, 3))
def play(game, indices, keys, random):
    """Play levels to the end and a bit further; `random` entries, or the solver's with a random one now and then."""
    bot = bots.SudokuSolver()

    def one(index, key):
        def step(state, key):
            first, second, third = jax.random.split(key, 3)
            any_legal = jax.random.categorical(first, jnp.where(game.legal(state), 0.0, -jnp.inf))
            wander = random | (jax.random.uniform(second) < 0.3)
            action = jnp.where(wander, any_legal, bot.act(state, third))
            after, reward = game.step(state, action)
            return after, (action, after.grid, game.done(after), game.legal(after), reward)

        return jax.lax.scan(step, game.reset_level(index), jax.random.split(key, game.max_turns + 2))[1]

    return jax.vmap(one)(indices, keys)


@pytest.mark.nightly_for("False")
@pytest.mark.parametrize("random", [True, False])
def test_play_equals_the_reference(game, random):
    keys = jax.random.split(jax.random.key(3), game.n_levels)
    actions, grid, done, legal, reward = jax.device_get(play(game, jnp.arange(game.n_levels), keys, random))
    for i in range(game.n_levels):
        puzzle, solution = game.levels["puzzle"][i], game.levels["solution"][i]
        for t, (expected, paid) in enumerate(reference(game, puzzle, solution, actions[i])):
            np.testing.assert_array_equal(grid[i, t], expected)
            found = reward.team[i, t], reward.agent[i, t, 0], reward.process[i, t, 0]
            np.testing.assert_allclose(found, paid, atol=1e-6)
            assert consistent(grid[i, t])
            assert (grid[i, t][puzzle > 0] == puzzle[puzzle > 0]).all()
            over = (expected == solution).all() or t + 1 >= game.max_turns
            assert bool(done[i, t]) == over
            free = (puzzle == 0)[..., None] & (expected[..., None] != np.arange(1, 5))
            assert legal[i, t].tolist() == ([True] + [False] * 63 if over else free.reshape(-1).tolist())
    solved = [(grid[i, -1] == game.levels["solution"][i]).all() for i in range(game.n_levels)]
    assert sum(solved) > game.n_levels // 2 or random


@pytest.mark.nightly_for("big")
@pytest.mark.parametrize("which", ["game", "big"])
def test_bot_solves_everything_in_as_many_turns_as_empty_cells(which, request):
    game, bot = request.getfixturevalue(which), bots.SudokuSolver()

    @jax.jit
    @jax.vmap
    def run(index):
        def step(carry, key):
            state, total = carry
            state, reward = game.step(state, bot.act(state, key))
            return (state, total + reward.team + reward.agent[0] + reward.process[0]), None

        keys = jax.random.split(jax.random.key(index), game.max_turns)
        return jax.lax.scan(step, (game.reset_level(index), 0.0), keys)[0]

    state, total = jax.device_get(run(jnp.arange(game.n_levels)))
    assert (state.missing == 0).all()
    np.testing.assert_array_equal(state.turn, (game.levels["puzzle"] == 0).sum((1, 2)))
    np.testing.assert_allclose(total, 2.0, atol=1e-5)


def test_every_generated_puzzle_has_one_solution(game, big):
    for each in (game, big):
        for part in (each.pool.train, each.pool.test):
            levels.check_levels(part.arrays, "generated")
            for puzzle, solution in zip(part["puzzle"], part["solution"], strict=True):
                (found,) = solver.solutions(puzzle, limit=3)
                np.testing.assert_array_equal(found, solution)


def test_solver_counts_solutions():
    grids = {grid.tobytes() for grid in solver.all_grids()}
    found = solver.solutions(np.zeros((4, 4), np.uint8), limit=1000)
    assert {grid.tobytes() for grid in found} == grids and len(grids) == len(found) == 288
    assert all(consistent(grid) for grid in found)
    contradiction = np.zeros((4, 4), np.uint8)
    contradiction[0, :2] = 1
    assert solver.solutions(contradiction) == [] and solver.solve(contradiction) is None


def test_shared_puzzles_agree_with_the_solver():
    data = np.load(shared_data("open/sudoku_4x4.npz"), allow_pickle=False)
    assert {grid.tobytes() for grid in data["all_grids"]} == {grid.tobytes() for grid in solver.all_grids()}
    for puzzle, solution in zip(data["puzzle"][::40], data["solution"][::40], strict=True):
        np.testing.assert_array_equal(solver.solve(puzzle), solution)
    data = np.load(shared_data("open/sudoku_9x9.npz"), allow_pickle=False)
    for name in ("jumanji_mixed", "norvig_10k_first3000", "clue17_3000"):
        for puzzle, solution in zip(data[f"{name}_puzzle"][:25], data[f"{name}_solution"][:25], strict=True):
            np.testing.assert_array_equal(solver.solve(puzzle), solution)


def test_file_becomes_a_pool(tmp_path):
    data = np.load(shared_data("open/sudoku_4x4.npz"), allow_pickle=False)
    path = tmp_path / "some.npz"
    open_grid = np.zeros((1, 4, 4), np.uint8)  # many solutions: left out
    np.savez(
        path,
        puzzle=np.concatenate([data["puzzle"][:50], open_grid]),
        solution=np.concatenate([data["solution"][:50], data["solution"][:1]]),
    )
    pool = Sudoku(pool=path).pool
    assert len(pool.train) + len(pool.test) == 50 and pool.source == "some.npz"


def test_masked_entries_are_those_that_would_be_refused(game, big):
    for each in (game, big):
        masked = Sudoku(pool=each.pool, mask_invalid=True)

        @jax.jit
        def probe(index, each=each, masked=masked):
            state = each.reset_level(index)
            reward = jax.vmap(each.step, in_axes=(None, 0))(state, jnp.arange(each.n_actions))[1]
            return each.legal(state), masked.legal(state), reward.agent[:, 0] < 0

        free, allowed, refused = map(np.asarray, probe(1))
        np.testing.assert_array_equal(allowed, free & ~refused)
        assert (free & refused).any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p, s: (p, s[:, ::-1].copy()), "puzzle 0: the solution changes a given cell"),
        (lambda p, s: (p, np.ones_like(s)), "puzzle 0: the solution repeats a digit"),
        (lambda p, s: (p.astype(np.int64), s), "puzzle has dtype int64, but must have uint8"),
        (lambda p, s: (p, s[:-1]), "solution has size .* on axis N"),
        (lambda p, s: (p[:, :3, :3], s[:, :3, :3]), "grids are 3x3, but must be 4x4 or 9x9"),
    ],
)
def test_bad_puzzles_are_refused(game, change, words):
    puzzle, solution = change(game.levels["puzzle"], game.levels["solution"])
    with pytest.raises(ValueError, match=words):
        levels.check_levels({"puzzle": puzzle, "solution": solution}, "file")


@pytest.mark.nightly_for("params3-*")
@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"size": 6}, "size is 6, but must be one of: 4, 9"),
        ({"empties": (0, 3)}, r"empties is \(0, 3\), but must be a range within 1 to 12"),
        ({"empties": (12, 13)}, "empties is"),
        ({"empties": (1, 1), "n_train": 100_000}, "found only"),
        ({"budget": 5}, "budget is 5, but a level has"),
    ],
)
def test_bad_parameters_are_refused(params, words):
    with pytest.raises(ValueError, match=words):
        make("sudoku", **params)


def test_names_and_drawings(game, big):
    assert game.action_names[0] == "r1c1=1" and game.action_names[6] == "r1c2=3" and len(set(big.action_names)) == 729
    state = game.reset_level(0)
    digits = [mark for line in draw.board(state).splitlines()[1:] for mark in line[4:] if mark in "1234"]
    assert len(digits) == int((game.levels["puzzle"][0] > 0).sum())
    for each in (game, big):
        assert ET.fromstring(draw.svg(each.reset_level(0))).tag.endswith("svg")
