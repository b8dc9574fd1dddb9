"""The contract of `envs.games.game`, checked for every game of the registry with the same code."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games.bots import UniformBot, pick
from envs.games.game import Game, check_action, reset_done
from envs.games.registry import GAMES, game_class, make, symmetry

ROWS = 32
PARAMS = {  # of games whose defaults are large
    "hanabi": {"preset": "small", "players": 3},
    "plan_path": {"n_train": 16, "n_test": 4},
    "sokoban": {"n_train": 8, "n_test": 2},
    "sudoku": {"n_train": 8, "n_test": 2},
    "warehouse": {"players": 4, "rounds": 30, "pickup_reward": 0.5},
}


@functools.cache
def build(name: str) -> Game:
    return make(name, **PARAMS.get(name, {}))


@functools.cache
def playout(name: str):
    """ROWS random games of max_turns + 1 steps; per step (leading axes [rows, turns]) what the contract speaks of."""
    game = build(name)
    bot = UniformBot(game)

    def play(key):
        def turn(state, key):
            action = bot.act(state, key)
            after, reward = game.step(state, action)
            same = jax.tree.map(lambda a, b: jnp.all(a == b), state, after)
            seen = {
                "state": state,
                "action": action,
                "reward": reward,
                "player": game.player(state),
                "legal": game.legal(state),
                "done": game.done(state),
                "unchanged": jnp.all(jnp.stack(jax.tree.leaves(same))),
            }
            return after, seen

        return jax.lax.scan(turn, game.reset(key), jax.random.split(key, game.max_turns + 1))

    run = jax.jit(jax.vmap(play))
    keys = jax.random.split(jax.random.key(0), ROWS)
    return jax.device_get(run(keys)[1]), jax.device_get(run(keys)[1])


@pytest.mark.parametrize("name", GAMES)
class TestContract:
    def test_attributes(self, name):
        game = build(name)
        assert game.name == name and isinstance(game, game_class(name))
        assert game.n_players >= 1 and game.n_actions >= 1 and game.max_turns >= 1
        assert len(game.action_names) == len(set(game.action_names)) == game.n_actions
        assert all(isinstance(n, str) and n for n in game.action_names)
        assert hash(game) == hash(game) and game == build(name)

    def test_types_and_shapes(self, name):
        game = build(name)
        state = jax.eval_shape(game.reset, jax.random.key(0))
        after, reward = jax.eval_shape(game.step, state, jax.ShapeDtypeStruct((), jnp.int32))
        assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
        assert [x.shape for x in reward] == [(), (game.n_players,), (game.n_players,)]
        assert all(x.dtype == jnp.float32 for x in reward)
        for function, shape, dtype in (
            (game.player, (), jnp.int32),
            (game.legal, (game.n_actions,), jnp.bool_),
            (game.done, (), jnp.bool_),
        ):
            out = jax.eval_shape(function, state)
            assert (out.shape, out.dtype) == (shape, dtype), function.__name__

    def test_random_games_end_in_time(self, name):
        seen = playout(name)[0]
        assert seen["done"][:, -1].all()
        assert not seen["done"][:, 0].any()

    def test_legal_is_never_empty_and_only_the_first_action_at_the_end(self, name):
        seen = playout(name)[0]
        done, legal = seen["done"], seen["legal"]
        assert legal.any(-1).all()
        assert (legal[done] == (np.arange(legal.shape[-1]) == 0)).all()
        taken = np.take_along_axis(legal, seen["action"][..., None], -1)
        assert taken.all()

    def test_terminal_states_absorb(self, name):
        seen = playout(name)[0]
        done, reward = seen["done"], seen["reward"]
        assert (done[:, 1:] >= done[:, :-1]).all()
        assert seen["unchanged"][done].all()
        assert not seen["unchanged"][~done].any()
        for level in reward:
            assert not np.any(level[done]) and np.isfinite(level).all()

    def test_players_are_seats(self, name):
        seen = playout(name)[0]
        assert ((seen["player"] >= 0) & (seen["player"] < build(name).n_players)).all()

    def test_same_keys_give_the_same_games(self, name):
        jax.tree.map(np.testing.assert_array_equal, *playout(name))

    def test_rows_do_not_depend_on_their_neighbours(self, name):
        game = build(name)
        seen = playout(name)[0]
        row, turn = 3, int(np.argmax(seen["done"][3])) - 1
        state, action = jax.tree.map(lambda x: x[row, turn], (seen["state"], seen["action"]))
        after, reward = jax.jit(game.step)(state, action)
        jax.tree.map(np.testing.assert_array_equal, after, jax.tree.map(lambda x: x[row, turn + 1], seen["state"]))
        jax.tree.map(np.testing.assert_array_equal, reward, jax.tree.map(lambda x: x[row, turn], seen["reward"]))

    def test_actions_out_of_range_are_refused(self, name):
        game = build(name)
        seen = playout(name)[0]
        state, legal = jax.tree.map(operator.itemgetter((0, 0)), (seen["state"], seen["legal"]))
        for action in (-1, game.n_actions, 0.5):
            with pytest.raises(ValueError, match=f"{name}: action is {action}, but must be an integer from 0 to"):
                check_action(game, state, action)
        assert check_action(game, state, np.argmax(legal)) == np.argmax(legal)


def test_uniform_choice():
    """Only True entries, all of them equally often (chi-square with 3 degrees of freedom)."""
    mask = jnp.array([False, True, True, False, False, True, False, True, False])
    choices = jax.jit(jax.vmap(pick, (None, 0)))(mask, jax.random.split(jax.random.key(0), 4000))
    counts = np.bincount(choices, minlength=9)
    assert not counts[~np.asarray(mask)].any()
    assert np.sum((counts[np.asarray(mask)] - 1000.0) ** 2) / 1000 < 20


@pytest.mark.parametrize("name", ["hanabi", "tic_tac_toe"])
def test_finished_rows_begin_anew(name):
    """`reset_done` equals resetting every row and selecting, also when more rows end than one chunk holds."""
    game = build(name)
    seen = playout(name)[0]
    keys = jax.random.split(jax.random.key(7), ROWS)
    fresh = jax.jit(jax.vmap(game.reset))(keys)
    run = jax.jit(functools.partial(reset_done, game, chunk=5))
    for turn in (0, 3, 8, game.max_turns):
        states, done = jax.tree.map(operator.itemgetter((slice(None), turn)), (seen["state"], seen["done"]))
        expected = jax.tree.map(functools.partial(_select_rows, done), fresh, states)
        jax.tree.map(np.testing.assert_array_equal, run(states, keys), expected)


def _select_rows(rows, new, old):
    return np.where(rows.reshape(-1, *[1] * (old.ndim - 1)), new, old)


def test_unknown_games_and_parameters_are_named():
    with pytest.raises(ValueError, match="unknown game 'chess'; must be one of: tic_tac_toe, connect_four, hanabi"):
        make("chess")
    with pytest.raises(ValueError, match="tic_tac_toe has no parameter 'size'; its parameters are: none"):
        make("tic_tac_toe", size=4)


def test_puzzles_for_one_or_two():
    small = PARAMS["plan_path"]
    game = make("plan_path", roles="two", view="local", radius=2, **small)
    assert (game.n_players, game.view, game.radius) == (2, "local", 2)
    assert game.game == make("plan_path", **small) == make("plan_path", roles="one", **small)
    with pytest.raises(ValueError, match="plan_path: roles is 'three', but must be one of: 'one', 'two'"):
        make("plan_path", roles="three", **small)
    with pytest.raises(ValueError, match="plan_path: view requires roles 'two', but roles is 'one'"):
        make("plan_path", view="local", **small)
    with pytest.raises(ValueError, match="hanabi has no parameter 'roles'"):
        make("hanabi", roles="two")


def test_symmetries_where_declared():
    assert {name for name in GAMES if symmetry(build(name))} >= {"tic_tac_toe", "connect_four", "hanabi"}
    for name in ("tic_tac_toe", "connect_four", "hanabi"):
        game = build(name)
        state = jax.jit(game.reset)(jax.random.key(1))
        jax.tree.map(np.testing.assert_array_equal, jax.jit(symmetry(game).apply)(state, 0), state)


@pytest.mark.parametrize("name", GAMES)
def test_a_game_pays_only_at_its_levels(name):
    seen, _ = playout(name)
    paid = {level for level in seen["reward"]._fields if np.any(getattr(seen["reward"], level) != 0)}
    assert paid and paid <= set(build(name).reward_levels)
