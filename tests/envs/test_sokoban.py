"""Sokoban against a plain-Python game on a dictionary of cells; the solver's answers are played out in it."""

import functools
import itertools
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games import pools
from envs.games.registry import make
from envs.games.sokoban import bots, draw, levels, solver
from envs.games.sokoban.rules import Sokoban
from tests.conftest import shared_data

STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))


class Reference:
    """The rules on sets of (row, column)."""

    def __init__(self, cells, max_turns):
        at = {code: {tuple(map(int, cell)) for cell in np.argwhere(cells == code)} for code in range(7)}
        self.walls, self.goals, self.boxes = at[0], at[2] | at[4] | at[6], at[3] | at[4]
        (self.player,) = at[5] | at[6]
        self.floor = {tuple(cell) for cell in np.ndindex(cells.shape)} - self.walls
        self.max_turns, self.turn = max_turns, 0
        self.live = self.live_cells()
        self.deadlocked = bool(self.boxes - self.live)

    def live_cells(self):
        """Cells from which a lone box can be pushed to some goal, found by pushing it forward."""
        found = set()
        for start in self.floor:
            seen, queue = {start}, [start]
            for row, column in queue:
                for down, right in STEPS:
                    behind, ahead = (row - down, column - right), (row + down, column + right)
                    if behind in self.floor and ahead in self.floor and ahead not in seen:
                        seen.add(ahead)
                        queue.append(ahead)
            if seen & self.goals:
                found.add(start)
        return found

    def solved(self):
        return self.boxes <= self.goals

    def frozen(self):
        """Some 2x2 square of walls and boxes only, with a box off its goal."""
        solid = self.walls | self.boxes
        for row, column in self.walls | self.boxes:
            square = {(row, column), (row + 1, column), (row, column + 1), (row + 1, column + 1)}
            if square <= solid and square & self.boxes - self.goals:
                return True
        return False

    def step(self, action):
        """The rewards (team, agent, process) of one move."""
        if self.solved() or self.turn >= self.max_turns:
            return 0.0, 0.0, 0.0
        self.turn += 1
        down, right = STEPS[action]
        there = self.player[0] + down, self.player[1] + right
        beyond = there[0] + down, there[1] + right
        if there in self.walls or (there in self.boxes and beyond in self.walls | self.boxes):
            return 0.0, -0.01, 0.0
        before = len(self.boxes & self.goals)
        if there in self.boxes:
            self.boxes = self.boxes - {there} | {beyond}
        self.player = there
        stuck = bool(self.boxes - self.live) or self.frozen()
        process = -1.0 if stuck and not self.deadlocked else 0.0
        self.deadlocked = self.deadlocked or stuck
        return 10.0 * self.solved(), -0.01 + len(self.boxes & self.goals) - before, process


@functools.partial(jax.jit, static_argnums=0)
def play(game, indices, actions):
    """Play level indices[i] with actions[i]; every state after a step, and its reward."""

    def one(index, row):
        def step(state, action):
            after, reward = game.step(state, action)
            return after, ((after.position, after.boxes, after.deadlocked, game.done(after), game.cells(after)), reward)

        return jax.lax.scan(step, game.reset_level(index), row)[1]

    return jax.vmap(one)(indices, actions)


def compare(game, indices, actions):
    """Assert that the jitted game and the reference agree after every action; True where a level was solved."""
    seen, reward = jax.device_get(play(game, jnp.asarray(indices), jnp.asarray(actions)))
    position, boxes, deadlocked, done, cells = seen
    width, solved = game.shape[1], []
    for i, index in enumerate(indices):
        other = Reference(game.levels["cells"][index], game.max_turns)
        for t, action in enumerate(actions[i]):
            expected = other.step(action)
            found = reward.team[i, t], reward.agent[i, t, 0], reward.process[i, t, 0]
            np.testing.assert_allclose(found, expected, atol=1e-5)
            assert divmod(int(position[i, t]), width) == other.player
            assert {divmod(int(b), width) for b in boxes[i, t]} == other.boxes
            assert bool(deadlocked[i, t]) == other.deadlocked
            assert bool(done[i, t]) == (other.solved() or other.turn >= game.max_turns)
        after = cells[i, -1].reshape(game.shape)
        again = Reference(after.astype(np.uint8), game.max_turns)
        assert (again.walls, again.goals) == (other.walls, other.goals)
        assert (again.boxes, again.player) == (other.boxes, other.player)
        solved.append(other.solved())
    return np.array(solved)


@pytest.fixture(scope="module")
def game():
    return Sokoban(n_train=40, n_test=10)


@pytest.fixture(scope="module")
def two_boxes():
    return Sokoban(size=7, boxes=2, n_train=24, n_test=6)


def padded(plans, length):
    return np.array([[*plan, *[0] * (length - len(plan))] for plan in plans])


def test_random_play_equals_the_reference(game, two_boxes):
    for each in (game, two_boxes):
        actions = np.random.default_rng(0).integers(0, 4, (each.n_levels, each.max_turns + 2))
        compare(each, np.arange(each.n_levels), actions)


def test_solver_solves_every_generated_level(game, two_boxes):
    for each in (game, two_boxes):
        for part in (each.pool.train, each.pool.test):
            for cells, moves in zip(part["cells"], part["moves"], strict=True):
                played = Reference(cells, each.max_turns)
                plan = solver.solve(cells)
                assert len(plan) == moves and not played.solved()
                rewards = [played.step(action) for action in plan]
                assert played.solved() and rewards[-1][0] == 10.0


def test_solutions_are_successes_of_the_game(game):
    plans = [solver.solve(cells) for cells in game.levels["cells"]]
    assert compare(game, np.arange(game.n_levels), padded(plans, game.max_turns + 2)).all()


def shortest_by_search(cells):
    """Moves of a shortest solution, by breadth-first search over whole positions."""
    start = Reference(cells, 1 << 30)
    frontier, seen = [(start.player, frozenset(start.boxes))], set()
    for moves in itertools.count():
        following = []
        for player, boxes in frontier:
            if boxes <= start.goals:
                return moves
            for action in range(4):
                start.player, start.boxes = player, set(boxes)
                start.step(action)
                after = (start.player, frozenset(start.boxes))
                if after not in seen:
                    seen.add(after)
                    following.append(after)
        frontier = following


def test_solver_is_optimal_in_moves(game):
    for cells, moves in zip(game.levels["cells"][:12], game.levels["moves"], strict=False):
        assert shortest_by_search(cells) == moves


def test_boxoban_levels_load_and_play():
    path = shared_data("open/boxoban_levels.npz")
    train, test = (levels.read(path, f"unfiltered_{part}")[:300] for part in ("train", "test"))
    pool = levels.from_files(train, test, "boxoban")
    game = Sokoban(pool=pool, part="test")
    assert game.shape == (10, 10) and game.max_boxes == 4 and game.max_turns == 128
    plans = padded([solver.solve(cells, "pushes") for cells in game.levels["cells"][:6]], game.max_turns)
    randomly = np.random.default_rng(1).integers(0, 4, plans.shape)
    solved = compare(game, [*range(6), *range(6)], np.concatenate([plans, randomly]))
    assert solved[:6].all() and not solved[6:].any()
    assert not set(levels.keys(pool.train.arrays)) & set(levels.keys(pool.test.arrays))


def test_solver_knows_when_there_is_no_solution():
    corner = levels.parse("#####\n#$  #\n# @.#\n#####")[0]
    assert solver.solve(corner) is None
    wall = levels.parse("######\n# $  #\n# @. #\n######")[0]
    assert solver.solve(wall) is None
    with pytest.raises(solver.SearchLimit):
        solver.solve(levels.parse("#######\n#     #\n# $ @ #\n#     #\n#   . #\n#######")[0], max_nodes=2)


def test_bot_solves_inside_jit_and_after_being_led_astray(two_boxes):
    game, bot = two_boxes, bots.SokobanSolver()

    @jax.jit
    @jax.vmap
    def run(index, key):
        def step(carry, key):
            state, turn = carry
            wander = jax.random.randint(key, (), 0, 4)
            after, _ = game.step(state, jnp.where(turn == 2, wander, bot.act(state, key)))
            return (after, turn + 1), None

        (state, _), _ = jax.lax.scan(step, (game.reset_level(index), 0), jax.random.split(key, game.max_turns))
        return game.success(state) | state.deadlocked

    keys = jax.random.split(jax.random.key(0), 6)
    assert np.asarray(run(jnp.arange(6), keys)).all()


def test_episode_can_end_at_a_deadlock(game):
    ending = Sokoban(pool=game.pool, end_on_deadlock=True)
    cells = levels.parse("######\n#    #\n# $  #\n# @. #\n#    #\n######")
    level = {name: rows[0] for name, rows in levels.make_levels(cells).items()}
    state, reward = jax.jit(lambda: ending.step(ending.reset_from_level(level), 0))()
    assert bool(ending.done(state)) and not bool(ending.success(state)) and float(reward.process[0]) == -1
    again, reward = jax.jit(ending.step)(state, 1)
    assert int(again.position) == int(state.position) and float(reward.agent[0]) == 0
    assert not bool(jax.jit(lambda: game.done(game.step(game.reset_from_level(level), 0)[0]))())


def test_masked_moves_change_something(two_boxes):
    game = Sokoban(pool=two_boxes.pool, mask_invalid=True)

    @jax.jit
    @jax.vmap
    def probe(index):
        state = game.reset_level(index)
        after, _ = jax.vmap(game.step, in_axes=(None, 0))(state, jnp.arange(4))
        return game.legal(state), after.position != state.position

    legal, moves = map(np.asarray, probe(jnp.arange(game.n_levels)))
    np.testing.assert_array_equal(legal, moves)
    assert not legal.all()


GOOD = "#####\n#@$.#\n#   #\n#####"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.replace("@", " "), r"level.txt, line 2 \(level 0\): there is no player"),
        (GOOD.replace("   ", " @ "), "there are 2 players, but a level needs exactly one"),
        (GOOD.replace("   ", " $ "), "2 boxes, but only 1 goals"),
        (GOOD.replace("$", " "), "no box"),
        (GOOD.replace("$.", " *"), "every box is already on a goal"),
        (GOOD.replace("$", "x"), "level.txt, line 3: character is 'x', but must be one of: "),
        (GOOD.replace("#   #", "#  #"), "level.txt, line 4: the row has 4 cells, but must have 5"),
        (GOOD.replace("#   #", "#    "), "the player can reach the edge"),
        (GOOD + "\n\n######\n#@$. #\n######", r"line 7: the level has size \(3, 6\), but the first one has \(4, 5\)"),
        ("", "level.txt: there are no levels"),
    ],
)
def test_bad_level_files_are_refused(tmp_path, text, words):
    path = tmp_path / "level.txt"
    path.write_text("; 0\n" + text if text else text)
    with pytest.raises(ValueError, match=words):
        levels.read(path)


def test_level_file_round_trip(tmp_path, game):
    path = tmp_path / "levels.txt"
    boards = [draw.board(game.reset_level(i)) for i in range(5)]
    path.write_text("".join(f"; {i}\n{board}\n\n" for i, board in enumerate(boards)))
    np.testing.assert_array_equal(levels.read(path), game.levels["cells"][:5])
    pool = levels.load(path)
    assert len(pool.train) == 5 and pool.source == "levels.txt"  # all of them belong to train wherever they are met
    np.savez(tmp_path / "levels.npz", some=game.levels["cells"])
    np.testing.assert_array_equal(levels.read(tmp_path / "levels.npz", "some"), game.levels["cells"])
    with pytest.raises(ValueError, match="array is 'other', but must be one of: some"):
        levels.read(tmp_path / "levels.npz", "other")
    with pytest.raises(ValueError, match="cannot read levels"):
        levels.read(tmp_path / "absent.txt")


def test_pool_with_wrong_dead_cells_is_refused(tmp_path, game):
    arrays = {**game.pool.train.arrays, "dead": np.zeros_like(game.pool.train["dead"])}
    pools.save(pools.Pool("sokoban", pools.Levels(arrays), game.pool.test), tmp_path / "pool.npz")
    with pytest.raises(ValueError, match=r"pool.npz \(train\): the array dead does not match cells"):
        Sokoban(pool=tmp_path / "pool.npz")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"size": 4}, "size is 4, but must be an integer from 5 to 12"),
        ({"boxes": 0}, "boxes is 0, but must be an integer from 1 to 5"),
        ({"walls": -0.1}, "walls is -0.1, but must be a share"),
        ({"size": 5, "walls": 0.5, "boxes": 5, "n_train": 3, "n_test": 0}, "found only 0 of 3 train"),
    ],
)
def test_bad_parameters_are_refused(params, words):
    with pytest.raises(ValueError, match=words):
        make("sokoban", **params)


def test_drawing(game):
    assert ET.fromstring(draw.svg(game.reset_level(0))).tag.endswith("svg")
    assert ET.fromstring(draw.svg(game.reset_level(0), visible=np.zeros(36, bool))).tag.endswith("svg")


@pytest.mark.nightly
def test_moves_left_are_those_of_the_solver():
    """The table of all positions against one search for each: at the start and after twelve random moves."""
    game = Sokoban(size=6, n_train=24, n_test=8, shaping_reward=1.0)
    np.testing.assert_array_equal(game._shortest, game.levels["moves"])
    step = jax.jit(jax.vmap(game.step))
    states = jax.vmap(game.reset_level)(jnp.arange(24))
    rng = np.random.default_rng(0)
    for _ in range(12):
        states, _ = step(states, jnp.asarray(rng.integers(0, 4, 24)))
    boards = np.asarray(jax.vmap(game.cells)(states)).reshape(24, *game.shape).astype(np.uint8)
    found = game._moves_left[np.arange(24), states.boxes[:, 0], states.position]
    solved = [solver.solve(board) for board in boards]
    assert [None if moves == game.max_turns else moves for moves in found.tolist()] == [
        None if way is None else len(way) for way in solved
    ]
    assert None in solved and sum(way is not None for way in solved) > 5


def test_shaping_pays_for_the_way_of_the_solution_and_takes_back():
    game = Sokoban(size=5, n_train=16, n_test=4, shaping_reward=2.0, deadlock_reward=0.0)
    step = jax.jit(game.step)
    for index in range(4):
        state = first = game.reset_level(index)
        level = {name: rows[index] for name, rows in game.levels.arrays.items()}
        way, paid = solver.solve(level["cells"]), []
        for action in way:
            state, reward = step(state, action)
            paid.append(float(reward.process[0]))
        np.testing.assert_allclose(paid, 2.0 / len(way), rtol=1e-6)
        assert min(float(step(first, a)[1].process[0]) for a in range(4)) <= -2.0 / len(way) + 1e-6
        assert float(step(game.reset_from_level(level), way[0])[1].process[0]) == 0  # a level from elsewhere
    with pytest.raises(ValueError, match="shaping_reward requires levels with one box, but a level has 2 boxes"):
        Sokoban(size=6, boxes=2, n_train=8, n_test=2, shaping_reward=1.0)
