"""Plan-Path against plain Python: distances by breadth-first search, rules by a walker on a list of strings."""

import collections
import functools
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games.game import check_action
from envs.games.plan_path import bots, draw, levels
from envs.games.plan_path.rules import PlanPath
from envs.games.registry import make

STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))


@pytest.fixture(scope="module")
def game():
    return PlanPath(size=6, n_train=48, n_test=16)


def search(distance, goal):
    """Steps to the goal by breadth-first search over cells that are no wall."""
    height, width = distance.shape
    found, queue = {goal: 0}, collections.deque([goal])
    while queue:
        row, column = cell = queue.popleft()
        for down, right in STEPS:
            there = row + down, column + right
            inside = 0 <= there[0] < height and 0 <= there[1] < width
            if inside and distance[there] != levels.WALL and there not in found:
                found[there] = found[cell] + 1
                queue.append(there)
    return found


@pytest.mark.parametrize("size", [5, 8, 16])
def test_distance_map_is_breadth_first_search(size):
    pool = levels.generate(size, n_train=24, n_test=6)
    for part in (pool.train, pool.test):
        for distance, start in zip(part["distance"], part["start"], strict=True):
            goal = tuple(map(int, np.argwhere(distance == 0)[0]))
            found = search(distance, goal)
            for cell in np.ndindex(distance.shape):
                expected = found.get(cell, levels.WALL if distance[cell] == levels.WALL else levels.UNREACHED)
                assert distance[cell] == expected
            assert (distance == levels.WALL).sum() == round(0.22 * size * size)
            assert 2 <= found[divmod(int(start), size)] <= 2 * size


def reference(game, distance, start, actions):
    """Cells and rewards (team, agent, process) of a walk, step by step; nothing after the end."""
    height, width = distance.shape
    goal = tuple(map(int, np.argwhere(distance == 0)[0]))
    at, shortest = divmod(int(start), width), search(distance, goal)[divmod(int(start), width)]
    steps_left = search(distance, goal)
    for turn, action in enumerate(actions):
        if at == goal or turn >= game.max_turns:
            yield at, (0.0, 0.0, 0.0)
            continue
        there = at[0] + STEPS[action][0], at[1] + STEPS[action][1]
        if not (0 <= there[0] < height and 0 <= there[1] < width) or distance[there] == levels.WALL:
            yield at, (0.0, -0.1, 0.0)
            continue
        process = 0.5 * (steps_left[at] - steps_left[there]) / shortest
        at = there
        team = (1.0 + 0.5 * (turn + 1 == shortest)) if at == goal else 0.0
        yield at, (team, -0.01, process)


@functools.partial(jax.jit, static_argnums=0)
def play(game, indices, actions):
    """Positions, rewards and ends of some walks."""

    def one(state, action):
        after, reward = game.step(state, action)
        return after, (after.position, reward, game.done(after), game.legal(after))

    return jax.vmap(lambda index, row: jax.lax.scan(one, game.reset_level(index), row))(indices, actions)


@functools.partial(jax.jit, static_argnums=0)
def try_all(game, indices):
    """Legal moves of some levels, and whether each move changes the position."""

    def one(index):
        state = game.reset_level(index)
        after, _ = jax.vmap(game.step, in_axes=(None, 0))(state, jnp.arange(4))
        return game.legal(state), after.position != state.position

    return jax.vmap(one)(indices)


def rollouts(game, actions):
    """Play level i with row i of actions, in one batch."""
    indices = jnp.arange(len(actions))
    return jax.device_get(play(game, indices, jnp.asarray(actions)))


def test_random_walks_equal_the_reference(game):
    actions = np.random.default_rng(0).integers(0, 4, (game.n_levels, game.max_turns + 3))
    final, (position, reward, done, legal) = rollouts(game, actions)
    for i in range(game.n_levels):
        steps = reference(game, game.levels["distance"][i], game.levels["start"][i], actions[i])
        for t, (at, (team, agent, process)) in enumerate(steps):
            assert divmod(int(position[i, t]), game.size) == at
            found = reward.team[i, t], reward.agent[i, t, 0], reward.process[i, t, 0]
            np.testing.assert_allclose(found, (team, agent, process), atol=1e-6)
            assert legal[i, t].tolist() == ([True, False, False, False] if done[i, t] else [True] * 4)
    assert done[:, game.max_turns - 1 :].all()
    assert (final.turn <= game.max_turns).all()


def test_bot_walks_a_shortest_way_and_collects_everything(game):
    bot = bots.PlanPathSolver()

    @jax.jit
    @jax.vmap
    def walk(index):
        def one(carry, key):
            state, total = carry
            state, reward = game.step(state, bot.act(state, key))
            return (state, total + jnp.stack([reward.team, reward.agent[0], reward.process[0]])), None

        keys = jax.random.split(jax.random.key(index), game.max_turns)
        return jax.lax.scan(one, (game.reset_level(index), jnp.zeros(3)), keys)[0]

    state, total = jax.device_get(walk(jnp.arange(game.n_levels)))
    assert (state.position == state.goal).all()
    assert (state.turn == state.shortest).all()
    np.testing.assert_allclose(total[:, 0], 1.5, atol=1e-5)
    np.testing.assert_allclose(total[:, 1], -0.01 * state.shortest, atol=1e-5)
    np.testing.assert_allclose(total[:, 2], 0.5, atol=1e-5)


def test_masked_moves_are_those_that_bump(game):
    masked = PlanPath(pool=game.pool, mask_invalid=True)
    legal, moves = map(np.asarray, try_all(masked, jnp.arange(game.n_levels)))
    np.testing.assert_array_equal(legal, moves)
    level, bad = np.argwhere(~legal)[0]
    state = masked.reset_level(int(level))
    with pytest.raises(ValueError, match="but must be one of: "):
        check_action(masked, state, int(bad))


def test_time_out_is_no_success(game):
    _, moves = map(np.asarray, try_all(game, jnp.arange(game.n_levels)))
    level, bump = np.argwhere(~moves)[0]
    actions = np.full((level + 1, game.max_turns), bump)
    final, (_, reward, done, _) = rollouts(game, actions)
    assert done[level, -1] and not done[level, -2] and reward.team[level].sum() == 0
    assert final.position[level] != final.goal[level] and final.turn[level] == game.max_turns


def test_board_and_drawing(game):
    state = game.reset_level(0)
    text = draw.board(state)
    assert text.count("A") == 1 and text.count("G") == 1 and text.count("#") == round(0.22 * 36)
    hidden = draw.board(state, visible=np.zeros(36, bool))
    assert set(hidden.split()) == {"?"}
    assert ET.fromstring(draw.svg(state)).tag.endswith("svg")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"size": 4}, "size is 4, but must be an integer from 5 to 16"),
        ({"walls": 0.9}, "walls is 0.9, but must be a share"),
        ({"part": "valid"}, "part is 'valid', but must be one of: 'train', 'test'"),
        ({"budget": 0}, "budget is 0, but must be an integer from 1"),
        ({"budget": 3}, "budget is 3, but a level needs"),
        ({"n_test": 0, "part": "test"}, "the test split of the pool .* has no levels"),
        ({"n_train": -1}, "n_train is -1, but must be an integer from 0 to 1,000,000"),
    ],
)
def test_bad_parameters_are_refused(params, words):
    with pytest.raises(ValueError, match=words):
        make("plan_path", **params)


def test_a_pool_of_another_size_is_refused(game):
    with pytest.raises(ValueError, match="size is 8, but the pool has 6x6 grids"):
        PlanPath(size=8, pool=game.pool)
