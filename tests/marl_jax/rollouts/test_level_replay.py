"""Level replay: which levels are replayed, what enters the buffer, and edits that stay solvable."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games.plan_path import edits, levels
from envs.games.registry import make
from envs.games.sokoban import edits as sokoban_edits
from envs.games.sokoban import levels as sokoban_levels
from envs.games.sokoban import solver
from marl_jax.rollouts.level_replay import EMPTY, LevelReplay

THIRD = 8
RATES = np.repeat([1.0, 0.0, 0.5], THIRD)  # solved, unsolvable and learnable levels
OPTIMAL = np.repeat([1.0, 0.0, 1.0], THIRD)


@dataclasses.dataclass(frozen=True)
class Bandit:
    """A game of one turn on levels that say how often they are solved."""

    n_levels: int = 3 * THIRD

    def reset_from_level(self, level, index=-1):
        return level["which"]

    def optimal_return(self, state):
        return jnp.asarray(OPTIMAL, jnp.float32)[state]


def replayed(rule, rollouts=120, games=32):
    """Share of the replayed games on each third of the levels, in the second half of some rollouts."""
    game, pool = Bandit(), {"which": jnp.arange(3 * THIRD)}

    @jax.jit
    def rollout(buffer, key):
        choose, play, swap = jax.random.split(key, 3)
        slots = jax.random.categorical(choose, jnp.log(rule.chances(buffer)), shape=(1, games))
        which = buffer.levels["which"][slots]
        solved = jax.random.uniform(play, which.shape) < jnp.asarray(RATES)[which]
        buffer = rule.record(buffer, buffer.number[slots], jnp.ones(which.shape, bool), solved, solved.astype(float))
        old = slots < rule.capacity
        counts = jnp.stack([jnp.sum(old & (which // THIRD == third)) for third in range(3)])
        return rule.exchange(buffer, game, pool, swap), counts

    buffer, shares = rule.begin(game, pool, jax.random.key(0)), np.zeros(3)
    for step in range(rollouts):
        buffer, counts = rollout(buffer, jax.random.key(step))
        shares += np.asarray(counts) * (step >= rollouts // 2)
    return shares / shares.sum(), buffer


@pytest.mark.parametrize("score", ["regret", "learnability"])
def test_replay_is_on_learnable_levels(score):
    shares, buffer = replayed(LevelReplay(capacity=3 * THIRD, candidates=6, score=score))
    assert shares[2] > 0.9
    which = np.asarray(buffer.levels["which"])[: 3 * THIRD][np.asarray(buffer.number)[: 3 * THIRD] != EMPTY]
    assert len(set(which.tolist())) == len(which), "no level is in the buffer twice"


def test_a_small_buffer_keeps_the_best_levels():
    _, buffer = replayed(LevelReplay(capacity=THIRD, candidates=6, score="regret"))
    assert (np.asarray(buffer.levels["which"])[:THIRD] >= 2 * THIRD).mean() > 0.8


def test_without_results_all_games_are_on_candidates():
    rule = LevelReplay(capacity=4, candidates=2)
    buffer = rule.begin(Bandit(), {"which": jnp.arange(3 * THIRD)}, jax.random.key(0))
    np.testing.assert_allclose(rule.chances(buffer), [0, 0, 0, 0, 0.5, 0.5])
    assert rule.is_candidate(buffer, buffer.number[4:]).all() and not rule.is_candidate(buffer, jnp.int32(99))


@pytest.fixture(scope="module")
def game():
    return make("plan_path", size=6, n_train=16, n_test=4)


def test_distances_in_jit_equal_those_of_the_host(game):
    walls = np.asarray(game.levels["distance"] == levels.WALL)
    goals = np.asarray([np.argmax(d == 0) for d in game.levels["distance"]])
    np.testing.assert_array_equal(jax.jit(jax.vmap(edits.distances))(walls, goals), levels.distances(walls, goals))


def test_edits_change_levels_and_the_check_of_solvability_is_right(game):
    many = {name: np.repeat(rows, 8, axis=0) for name, rows in game.levels.arrays.items()}
    keys = jax.random.split(jax.random.key(0), len(many["start"]))
    made, solvable = jax.device_get(jax.jit(jax.vmap(game.edit_level))(many, keys))
    assert made["distance"].dtype == many["distance"].dtype and 0 < (~solvable).sum() < len(solvable)
    walls, starts = made["distance"] == levels.WALL, made["start"]
    goals = np.array([np.argmax(d == 0) for d in made["distance"]])
    expected = levels.distances(walls, goals)
    np.testing.assert_array_equal(made["distance"], expected)
    needed = expected.reshape(len(starts), -1)[np.arange(len(starts)), starts]
    np.testing.assert_array_equal(solvable, (needed >= 1) & (needed <= game.max_turns // 2))
    changed = (walls != (many["distance"] == levels.WALL)).reshape(len(starts), -1).sum(1)
    assert set(changed.tolist()) == {0, 1}


@pytest.fixture(scope="module")
def sokoban():
    return make("sokoban", size=6, n_train=12, n_test=4)


def test_moves_and_dead_cells_in_jit_equal_those_of_the_host(sokoban):
    cells = sokoban.levels["cells"]
    np.testing.assert_array_equal(jax.jit(jax.vmap(sokoban_edits.moves_left))(cells), sokoban_levels.moves_left(cells))
    np.testing.assert_array_equal(jax.jit(jax.vmap(sokoban_edits.dead_cells))(cells), sokoban_levels.dead_cells(cells))


def test_edits_of_sokoban_are_valid_levels_and_solved_as_the_solver_says(sokoban):
    many = {name: np.repeat(rows, 8, axis=0) for name, rows in sokoban.levels.arrays.items()}
    keys = jax.random.split(jax.random.key(0), len(many["moves"]))
    made, solvable = jax.device_get(jax.jit(jax.vmap(sokoban.edit_level))(many, keys))
    assert {name: rows.dtype for name, rows in made.items()} == {name: rows.dtype for name, rows in many.items()}
    assert 0 < (~solvable).sum() < len(solvable)
    kept = made["cells"][solvable]
    sokoban_levels.check_cells(kept, lambda i: f"edit {i}")
    solutions = [solver.solve(cells) for cells in kept]
    assert [len(moves) for moves in solutions] == made["moves"][solvable].tolist()
    assert (made["cells"] != many["cells"]).reshape(len(solvable), -1).sum(1).max() == 2  # a figure leaves and arrives
    np.testing.assert_array_equal(made["dead"], sokoban_levels.dead_cells(made["cells"]))
    returns = jax.jit(jax.vmap(lambda level: sokoban.optimal_return(sokoban.reset_from_level(level))))
    best = sokoban.solved_reward + sokoban.box_reward + sokoban.step_reward * made["moves"]
    np.testing.assert_allclose(returns(made)[solvable], best[solvable], rtol=1e-6)


def test_accel_fills_the_buffer_with_solvable_edits(game):
    """The policy solves short paths; edited levels have a higher regret than most of the pool, and all are solvable."""
    rule = LevelReplay(capacity=8, candidates=8, score="regret", edits=2)
    pool = {name: jnp.asarray(rows) for name, rows in game.levels.arrays.items()}

    @jax.jit
    def rollout(buffer, key):
        shortest = jax.vmap(lambda level: game.reset_from_level(level).shortest)(buffer.levels)
        solved = (shortest <= 4)[None]
        ended = (buffer.number != EMPTY)[None]
        buffer = rule.record(buffer, buffer.number[None], ended, solved, solved * buffer.optimal)
        return rule.exchange(buffer, game, pool, key)

    buffer = jax.jit(lambda key: rule.begin(game, pool, key))(jax.random.key(0))
    for step in range(12):
        buffer = rollout(buffer, jax.random.key(step))
    buffer = jax.device_get(buffer)
    states = jax.device_get(
        jax.jit(jax.vmap(game.reset_from_level))(jax.tree.map(lambda rows: rows[:8], buffer.levels))
    )
    assert ((states.shortest >= 1) & (states.shortest <= game.max_turns // 2)).all()
    known = {row.tobytes() for row in np.asarray(pool["distance"])}
    assert sum(row.tobytes() not in known for row in np.asarray(buffer.levels["distance"][:8])) >= 4


def test_an_unsolvable_level_is_refused():
    walls = np.zeros((5, 5), bool)
    walls[:, 2] = True
    with pytest.raises(ValueError, match="plan_path: the level is unsolvable: no path leads from start 0 to goal 4"):
        levels.make_level(walls, 0, 4)
    with pytest.raises(ValueError, match="plan_path: goal is 2, but must be a free cell from 0 to 24"):
        levels.make_level(walls, 0, 2)
    walls[4, 2] = False
    assert levels.make_level(walls, 0, 4)["distance"].reshape(-1)[0] == 12
