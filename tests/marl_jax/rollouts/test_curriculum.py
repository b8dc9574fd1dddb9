"""Curricula: levels in order of difficulty, going up and down, and runs that remember where they stood."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games import registry as games
from envs.games.game import Reward
from envs.games.plan_path import levels as plan_path_levels
from envs.games.sokoban import levels as sokoban_levels
from envs.games.sudoku import levels as sudoku_levels
from marl_jax import setup as setups
from marl_jax.errors import ConfigError, RunError
from marl_jax.modes import train
from marl_jax.rollouts.conversations.turns import Finished
from marl_jax.rollouts.curriculum import Curriculum, Ladder, LadderRule
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.metrics import read_json_lines
from marl_jax.schema import validate
from tests.marl_jax import tiny_puzzle

pytestmark = pytest.mark.usefixtures("compiled_once")

POOLS = dict(n_train=40, n_test=12)
PUZZLES = {
    "plan_path": (dict(size=6), plan_path_levels),
    "sokoban": (dict(size=6, boxes=2), sokoban_levels),
    "sudoku": (dict(size=4), sudoku_levels),
}


def finished(solved, ended):
    """Return the results of a rollout of one turn in which some games were solved."""
    zeros = jnp.zeros((1, ended))
    team = (jnp.arange(ended) < solved)[None].astype(jnp.float32)
    total = Reward(team, zeros[..., None], zeros[..., None])
    return Finished(zeros == 0, total, zeros, zeros)


def climbed(rule, grade, *rollouts):
    """The grades after some rollouts, each (solved, ended)."""
    ladder, difficulty_levels = Ladder(*(jnp.full((3,), x) for x in (grade, 0, 0.0, 0.0))), []
    for rollout in rollouts:
        ladder = rule.climb(ladder, finished(*rollout))
        difficulty_levels.append(int(ladder.grade[0]))
    return difficulty_levels


def test_up_and_down_once_enough_games_have_ended():
    rule = LadderRule(difficulty_levels=4, start=1, up=0.75, down=0.25, window=10)
    assert climbed(rule, 2, (9, 9)) == [2]  # too few to decide
    assert climbed(rule, 2, (9, 9), (1, 1), (1, 1)) == [2, 3, 3]  # counting starts again
    assert climbed(rule, 2, (7, 10), (8, 10), (2, 10), (3, 10)) == [2, 3, 2, 2]
    assert climbed(rule, 4, (10, 10)) == [4] and climbed(rule, 1, (0, 10)) == [1]


def test_after_a_change_games_count_once_those_before_it_have_ended():
    rule = LadderRule(difficulty_levels=4, start=1, up=0.75, down=0.25, window=10, wait=2)
    assert climbed(rule, 2, (10, 10), (10, 10), (10, 10), (10, 10), (10, 10), (10, 10)) == [2, 2, 3, 3, 3, 4]
    assert climbed(rule, 2, (10, 10), (10, 10), (5, 10), (10, 10)) == [2, 2, 2, 3]  # to stay is no change


@pytest.mark.nightly_for("plan_path", "sokoban")
@pytest.mark.parametrize("name", PUZZLES)
def test_easiest_levels_first_and_easier_grades_beside_them(name):
    params, levels = PUZZLES[name]
    game, graded = games.make(name, **params, **POOLS), games.make(name, **params, **POOLS, difficulty_levels=4)
    assert graded.pool.test == game.pool.test  # evaluation is at full difficulty
    assert np.median(graded.difficulty()) < np.median(game.difficulty())
    assert not set(levels.keys(graded.pool.train.arrays)) & set(levels.keys(graded.pool.test.arrays))
    assert games.make(name, **params, **POOLS, difficulty_levels=4).pool == graded.pool

    order = np.sort(graded.difficulty())
    reset = jax.jit(jax.vmap(graded.reset_among, (0, None)))
    keys = jax.random.split(jax.random.key(0), 400)
    for count in (1, 5, graded.n_levels):
        drawn = np.unique(reset(keys, count).level)
        assert len(drawn) == count and graded.difficulty()[drawn].max() == order[count - 1]


def test_what_makes_a_level_hard():
    boxes = games.make("sokoban", size=6, boxes=2, difficulty_levels=2, **POOLS)
    found = sokoban_levels.boxes_of(boxes.levels["cells"]).sum((1, 2))
    assert set(found) == {1, 2} and boxes.difficulty()[found == 1].max() < boxes.difficulty()[found == 2].min()
    cells = games.make("sudoku", difficulty_levels=2, **POOLS)
    empty = (cells.levels["puzzle"] == 0).sum((1, 2))
    np.testing.assert_array_equal(cells.difficulty(), empty)
    assert empty.min() <= 4 and empty.max() > 5
    walk = games.make("plan_path", size=6, difficulty_levels=2, **POOLS)
    steps = walk.levels["distance"].reshape(walk.n_levels, -1)[np.arange(walk.n_levels), walk.levels["start"]]
    np.testing.assert_array_equal(np.floor(walk.difficulty()), steps)


# ------------------------------------------------------------------------------------------------------------- runs


def rising():
    config = tiny_puzzle.get_config()
    config.curriculum.update(dict(enabled=True, difficulty_levels=4, start=1, up=0.05, down=0.0, window=2))
    validate.check(config)
    return config


def state(workdir):
    checkpoints = Checkpoints(workdir, read_only=True)
    restored = checkpoints.restore()
    checkpoints.close()
    return restored


@pytest.mark.nightly
def test_a_run_rises_and_an_interrupted_one_stands_where_it_stood(tmp_path):
    config = rising()
    train.train(config, tmp_path / "whole")
    difficulty = [row["difficulty"] for row in read_json_lines(tmp_path / "whole" / "metrics.jsonl")]
    assert len(difficulty) == 4 and difficulty == sorted(difficulty) and difficulty[-1] > 0.25

    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    shutil.rmtree(tmp_path / "broken" / "checkpoints" / "4")
    train.train(config, tmp_path / "broken")
    whole, broken = (state(tmp_path / name) for name in ("whole", "broken"))
    assert whole.step == broken.step == 4
    jax.tree.map(np.testing.assert_array_equal, whole.state, broken.state)
    ladder = whole.state["rollout"]["ladder"]
    assert set(ladder) == {"grade", "age", "solved", "ended"}
    assert (ladder["grade"] == round(4 * difficulty[-1])).all()
    assert set(whole.state["rollout"]["inner"]) >= {"games"}

    config.curriculum.window = 3
    with pytest.raises(RunError, match="curriculum.window is 2 there and 3 here"):
        train.train(config, tmp_path / "broken")


def test_games_of_a_grade_are_of_its_levels():
    setup = setups.make(rising())
    rollout = setup.rollout
    assert isinstance(rollout, Curriculum)
    started = jax.jit(rollout.init)(jax.random.key(0), {})
    easiest = np.argsort(setup.game.game.difficulty(), kind="stable")[: setup.game.n_levels // 4]
    assert set(np.asarray(started.inner.games.state.inner.level).tolist()) <= set(easiest.tolist())
    assert not isinstance(
        setups.make(tiny_puzzle.get_config()).rollout, Curriculum
    )  # without one, the rollout as it is


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(start=5), "config.curriculum.start is 5, but must be from 1 to curriculum.difficulty_levels = 4"),
        (dict(up=0.2, down=0.4), "config.curriculum.down is 0.4 with up 0.2, but must be less than up"),
        (
            dict(difficulty_levels=1),
            "config.curriculum.difficulty_levels is 1, but must be an integer from 2 to 1000",
        ),
    ],
)
def test_refused(changes, message):
    config = rising()
    config.curriculum.update(changes)
    with pytest.raises(ConfigError) as refused:
        validate.check(config)
    assert message in str(refused.value)


def test_only_puzzles_that_pay_for_a_solution_have_one():
    config = rising()
    with config.unlocked():
        config.env.params.goal_reward = 0.0
    with pytest.raises(ConfigError, match="goal_reward is 0 with a curriculum, but must be > 0 to count solved games"):
        validate.check(config)
    config.env.name = "tic_tac_toe"
    with config.unlocked():
        config.env.params = {}
    with pytest.raises(
        ConfigError, match="enabled is True with env.name 'tic_tac_toe', but must be one of: plan_path, sokoban"
    ):
        validate.check(config)
