"""Planner and executor: turns, rewards and views."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games.bots import make_bot
from envs.games.plan_path.levels import make_level
from envs.games.plan_path.rules import PlanPath
from envs.games.registry import make_text
from envs.games.roles import EXECUTOR, NO_PROPOSAL, PLANNER, RoleBot, TwoRole
from envs.games.sokoban.rules import Sokoban
from envs.games.sudoku.rules import Sudoku
from envs.games.tic_tac_toe.rules import TicTacToe

SMALL = {"n_train": 12, "n_test": 4}
PUZZLES = {
    "plan_path": PlanPath(size=5, **SMALL),
    "sokoban": Sokoban(**SMALL),
    "sudoku": Sudoku(**SMALL),
}


@pytest.fixture(scope="module", params=sorted(PUZZLES))
def puzzle(request):
    return PUZZLES[request.param]


def run(game, bot, index):
    """Play one level to the budget: the last state and the rewards of each seat, [team, agent 2, process 2]."""

    def step(carry, key):
        state, total = carry
        state, reward = game.step(state, bot.act(state, key))
        return (state, total + jnp.concatenate([reward.team[None], reward.agent, reward.process])), None

    keys = jax.random.split(jax.random.key(index), game.max_turns)
    return jax.lax.scan(step, (game.reset_level(index), jnp.zeros(5)), keys)[0]


@pytest.mark.nightly_for("plan_path", "sudoku")
def test_inner_game_is_untouched_by_proposals_and_paid_as_alone(puzzle):
    """Random proposals and random moves: the puzzle goes as if the executor played alone."""
    inner = puzzle
    game = TwoRole(inner)
    step, alone, legal, done = map(jax.jit, (game.step, inner.step, game.legal, game.done))
    rng = np.random.default_rng(0)
    for index in range(4):
        state, single = game.reset_level(index), inner.reset_level(index)
        while not bool(done(state)):
            assert int(game.player(state)) == PLANNER and int(state.proposal) == NO_PROPOSAL
            proposal, move = rng.choice(np.flatnonzero(np.asarray(legal(state))), 2)
            would, earned = alone(single, proposal)
            told, reward = step(state, proposal)
            assert int(game.player(told)) == EXECUTOR and int(told.proposal) == proposal
            jax.tree.map(np.testing.assert_array_equal, told.inner, single)
            total = earned.team + earned.agent[0] + earned.process[0]
            np.testing.assert_allclose(reward.process[PLANNER], total, atol=1e-6)
            assert float(reward.team) == 0 == float(reward.process[EXECUTOR]) and not np.any(reward.agent)
            state, reward = step(told, move)
            single, earned = alone(single, move)
            jax.tree.map(np.testing.assert_array_equal, state.inner, single)
            assert float(reward.team) == float(earned.team) and float(reward.process[PLANNER]) == 0
            assert float(reward.agent[EXECUTOR]) == float(earned.agent[0]) and float(reward.agent[PLANNER]) == 0
            assert float(reward.process[EXECUTOR]) == float(earned.process[0])
        assert bool(game.success(state)) == bool(inner.success(single))
        after, reward = step(state, 0)
        jax.tree.map(np.testing.assert_array_equal, after, state)
        assert not any(np.any(level) for level in reward)


def test_planner_reward_depends_on_the_proposal():
    game = TwoRole(PUZZLES["plan_path"], planner_weight=2.0)
    state = game.reset_level(0)
    each = lambda step: jax.jit(jax.vmap(step, in_axes=(None, 0)))  # noqa: E731
    paid = np.asarray(each(game.step)(state, np.arange(4))[1].process)[:, PLANNER]
    alone = jax.device_get(each(game.game.step)(state.inner, np.arange(4))[1])
    np.testing.assert_allclose(paid, 2 * (alone.team + alone.agent[:, 0] + alone.process[:, 0]), atol=1e-6)
    assert len(set(paid.round(4).tolist())) > 1


def test_bots_in_both_seats_solve_every_level(puzzle):
    game = TwoRole(puzzle, view="local")
    bot = make_bot(game, "solver")
    assert isinstance(bot, RoleBot) and bot.bot == make_bot(puzzle, "solver")

    @jax.jit
    @jax.vmap
    def everything(index):
        state, total = run(game, bot, index)
        return game.success(state), total

    solved, total = map(np.asarray, everything(jnp.arange(game.n_levels)))
    assert solved.all()
    # Every proposal was carried out, so planner and executor earned the same.
    np.testing.assert_allclose(total[:, 3], total[:, 0] + total[:, 2] + total[:, 4], atol=1e-4)


def test_executor_sees_its_surroundings_only():
    for inner in (PUZZLES["plan_path"], PUZZLES["sokoban"]):
        game = TwoRole(inner, view="local", radius=1)
        for index in range(6):
            state = game.reset_level(index)
            row, column = divmod(int(state.inner.position), game.shape[1])
            seen = np.asarray(game.visible(state, EXECUTOR)).reshape(game.shape)
            expected = [max(abs(r - row), abs(c - column)) <= 1 for r, c in np.ndindex(game.shape)]
            assert seen.reshape(-1).tolist() == expected
            assert np.asarray(game.visible(state, PLANNER)).all()
            assert np.asarray(TwoRole(inner).visible(state, EXECUTOR)).all()


def test_sudoku_executor_sees_what_touches_the_proposed_cell():
    game = TwoRole(PUZZLES["sudoku"], view="local")
    state = game.reset_level(0)
    visible = jax.jit(game.visible, static_argnums=1)
    assert not np.any(visible(state, EXECUTOR))
    proposal = int(np.argmax(jax.jit(game.legal)(state)))
    state, _ = jax.jit(game.step)(state, proposal)
    row, column = divmod(proposal // 4, 4)
    seen = np.asarray(visible(state, EXECUTOR)).reshape(4, 4)
    for r, c in np.ndindex(4, 4):
        assert seen[r, c] == (r == row or c == column or (r // 2, c // 2) == (row // 2, column // 2))


def test_half_view_hides_the_upper_half_from_the_executor():
    game = TwoRole(PUZZLES["plan_path"], view="half", proposes=False)
    walls = np.zeros((5, 5), bool)
    walls[3, 1] = True
    walls_above = walls.copy()
    walls_above[1, 2:4] = True
    levels = [make_level(walls, 22, 4), make_level(walls_above, 22, 4), make_level(walls_above, 22, 0)]
    states = [game.reset_from_level(level) for level in levels]
    for style in ("full", "compact", "brief"):
        text = make_text(game, style)
        assert len({text.observe(state, EXECUTOR) for state in states}) == 1
        assert len({text.observe(state, PLANNER) for state in states}) == 3
    board = make_text(game, "brief").observe(states[1], EXECUTOR)
    assert board.startswith("?" * 15 + ".#..." + "..A..")
    assert make_text(game, "brief").observe(states[1], PLANNER).startswith("....G" + "..##." + "....." + "?" * 7 + "A")
    # In the upper half, the executor still sees where it is.
    step = jax.jit(game.step)
    for _ in range(2):
        states[1] = step(states[1], 0)[0]
    assert make_text(game, "brief").observe(states[1], EXECUTOR).startswith("?" * 12 + "A??" + ".#...")


def test_without_proposals_the_executor_plays_alone():
    inner = PUZZLES["plan_path"]
    game = TwoRole(inner, view="half", proposes=False)
    assert game.max_turns == inner.max_turns and game.speakers == (-1, PLANNER)
    bot = make_bot(game, "solver")

    @jax.jit
    @jax.vmap
    def everything(index):
        state, total = run(game, bot, index)
        return state, game.success(state), total

    states, solved, total = everything(jnp.arange(game.n_levels))
    assert solved.all() and (states.proposal == NO_PROPOSAL).all() and (states.phase == EXECUTOR).all()
    steps = np.asarray(states.inner.shortest)
    expected = np.stack([np.full(12, 1.5), np.zeros(12), -0.01 * steps, np.zeros(12), np.full(12, 0.5)], axis=1)
    np.testing.assert_allclose(total, expected, atol=1e-5)


def test_divided_levels_lead_from_the_lower_into_the_upper_half():
    game = PlanPath(size=5, divided=True, n_train=200, n_test=50)
    for part in (game, game.held_out()):
        distance = part.levels["distance"].reshape(part.n_levels, -1)
        start = part.levels["start"]
        assert ((distance[:, :15] == 0).sum(axis=1) == 1).all() and (start >= 15).all()
        steps = distance[np.arange(part.n_levels), start]
        assert ((steps >= 2) & (steps <= 10)).all()


def test_names_turns_and_levels(puzzle):
    inner = puzzle
    game = TwoRole(inner, view="local")
    assert game.name == inner.name and game.roles == ("planner", "executor")
    assert (game.n_players, game.n_actions, game.max_turns) == (2, inner.n_actions, 2 * inner.max_turns)
    assert game.action_names == inner.action_names and game.n_levels == inner.n_levels == 12
    assert hash(game) == hash(TwoRole(inner, view="local")) and game != TwoRole(inner)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda inner: TwoRole(inner, view="far"), "view is 'far', but must be one of: 'full', 'local', 'half'"),
        (lambda inner: TwoRole(inner, radius=0), "radius is 0, but must be an integer from 1 to 16"),
        (lambda inner: TwoRole(TicTacToe()), "two roles require a one-player puzzle"),
    ],
)
def test_bad_parameters_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make(PUZZLES["plan_path"])
