"""The warehouse game: equal to RWARE step by step, its sensors in the text, and deliveries of the bot."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games import view
from envs.games.bots import make_bot
from envs.games.registry import make, make_text
from envs.games.warehouse.moves import movers
from envs.games.warehouse.rules import NOTHING, TOGGLE

PLAYOUTS, FEW = 200, 12
RWARE = importlib.util.find_spec("rware") is not None
WITHOUT = "the package rware is not installed: pip install -e '.[test]'"
DIRECTIONS = (0, 3, 1, 2)
"""RWARE's number of each direction: up, right, down, left."""
ONE_HOT = np.eye(4).tolist()

jit = jax.jit


def playouts(game, n: int, sure: float):
    """Play games of the planner, each with a share of random actions from 0 to `1 - sure`.

    Returns:
        States before every choice, actions, rewards and the choosing seats' texts as indices, all [n, turns].
    """
    bot, text = make_bot(game, "planner"), make_text(game, "full")

    def play(key, luck):
        def turn(state, key):
            first, second, third = jax.random.split(key, 3)
            free = jax.random.uniform(first) < luck
            action = jnp.where(free, jax.random.randint(second, (), 0, game.n_actions), bot.act(state, third))
            after, reward = game.step(state, action)
            return after, (state, action, reward, text.indices(state, game.player(state)))

        first, rest = jax.random.split(key)
        return jax.lax.scan(turn, game.reset(first), jax.random.split(rest, game.max_turns))[1]

    keys, luck = jax.random.split(jax.random.key(0), n), jnp.linspace(0, 1 - sure, n)
    return jax.device_get(jit(jax.vmap(play))(keys, luck))


def one(tree, *at):
    return jax.tree.map(lambda x: x[at], tree)


# --- RWARE ----------------------------------------------------------------------------------------------------------


def oracle(game):
    """RWARE with the game's parameters."""
    from rware.warehouse import RewardType, Warehouse

    return Warehouse(
        game.shelf_columns, game.column_height, game.shelf_rows, game.players, 0, game.radius, game.requests, None,
        game.rounds, getattr(RewardType, game.reward_type.upper()),
    )  # fmt: skip


class Requests:
    """The random numbers of RWARE: of the candidates for each new request, the one that the game prefers."""

    def __init__(self, seed, shelves):
        self.seed, self.shelves, self.number = seed, shelves, 0

    def choice(self, candidates, **_):
        preference = np.asarray(preferences(self.seed, self.number, self.shelves))
        self.number += 1
        return max(candidates, key=lambda shelf: float(preference[shelf.id - 1]))


@functools.partial(jax.jit, static_argnums=2)
def preferences(seed, number, shelves):
    return jax.random.uniform(jax.random.fold_in(jax.random.key(seed), number), (shelves,))


def set_state(env, state):
    """Put everything where it is in the first state."""
    from rware.warehouse import Direction

    width = env.grid_size[1]
    for robot, cell, facing in zip(env.agents, state.robots, state.facing, strict=True):
        robot.y, robot.x = divmod(int(cell), width)
        robot.dir = Direction(DIRECTIONS[facing])
    env.request_queue = [env.shelfs[number] for number in state.requests]
    env._recalc_grid()


def check_state(env, state):
    """Compare everything that RWARE keeps."""
    width = env.grid_size[1]
    assert [robot.y * width + robot.x for robot in env.agents] == state.robots.tolist()
    assert [robot.dir.value for robot in env.agents] == [DIRECTIONS[facing] for facing in state.facing]
    loads = [NOTHING if robot.carrying_shelf is None else robot.carrying_shelf.id - 1 for robot in env.agents]
    assert loads == state.loads.tolist()
    assert [shelf.y * width + shelf.x for shelf in env.shelfs] == state.shelves.tolist()
    assert [shelf.id - 1 for shelf in env.request_queue] == state.requests.tolist()


def ordered_ties(monkeypatch):
    """Let the first seat win ties between queues of one length, which RWARE decides by the hash of a set.

    Everything else is left to RWARE. Returns a list with an entry for each tie.
    """
    import networkx as nx
    from rware import warehouse

    ties = []

    class Graph(nx.DiGraph):
        def add_edge(self, u, v):
            self.__dict__.setdefault("in_order", []).append((u, v))
            super().add_edge(u, v)

        def subgraph(self, nodes):
            ordered = nx.DiGraph([edge for edge in self.in_order if edge[0] in nodes])
            if not nx.is_directed_acyclic_graph(ordered):
                return super().subgraph(nodes)
            length = {}
            for node in nx.topological_sort(ordered):
                length[node] = 1 + max((length[u] for u in ordered.pred[node]), default=0)
            for node in ordered:
                queues = [length[u] for u in ordered.pred[node]]
                if queues and queues.count(max(queues)) > 1:
                    ties.append(node)
                    return ordered
            return super().subgraph(nodes)

    shim = type("networkx", (), {**{name: getattr(nx, name) for name in dir(nx) if name[0] != "_"}, "DiGraph": Graph})
    monkeypatch.setattr(warehouse, "nx", shim)
    return ties


def sensed(game, text, indices):
    """Rebuild RWARE's observation of the choosing seat from the indices of its text in the local view."""
    cells, (seat, cell, facing, load, _) = indices[:-5].reshape(game.shape), indices[-5:]
    del seat
    row, column = divmod(int(cell), game.shape[1])
    own = [column, row, load, *ONE_HOT[DIRECTIONS[facing]], float(game.layout.floor[row, column] != 1)]
    hidden = len(text.observation.tables[0].variants) - 1
    around = []
    for i in range(row - game.radius, row + game.radius + 1):
        for j in range(column - game.radius, column + game.radius + 1):
            inside = 0 <= i < game.shape[0] and 0 <= j < game.shape[1]
            robot, shelf = divmod(int(cells[i, j]), 3) if inside else (0, 0)
            assert not inside or cells[i, j] != hidden
            around += [robot > 0, *ONE_HOT[DIRECTIONS[robot - 1] if robot else 0], shelf > 0, shelf == 2]
    assert (cells != hidden).sum() == sum(
        0 <= row + i < game.shape[0] and 0 <= column + j < game.shape[1]
        for i in range(-game.radius, game.radius + 1) for j in range(-game.radius, game.radius + 1)
    )  # fmt: skip
    return np.array([*own, *around], np.float32)


SETTINGS = {
    "small": dict(view="local", reward_type="two_stage", rounds=30),
    "crowded": dict(players=6, requests=3, view="local", radius=2, reward_type="individual", rounds=30),
    "three columns": dict(shelf_rows=1, shelf_columns=3, players=4, requests=4, rounds=30, view="local"),
    "tiny-2ag": dict(preset="tiny-2ag", rounds=60, view="local"),
    "small-8ag": dict(preset="small-8ag", rounds=40, view="local", reward_type="two_stage"),
}


@pytest.mark.skipif(not RWARE, reason=WITHOUT)
@pytest.mark.nightly
@pytest.mark.parametrize("setting", SETTINGS)
def test_playouts_equal_those_of_rware(setting, monkeypatch):
    ties = compared(make("warehouse", **SETTINGS[setting]), PLAYOUTS, monkeypatch)
    assert ties or setting != "crowded"


@pytest.mark.skipif(not RWARE, reason=WITHOUT)
def test_few_playouts_equal_those_of_rware(monkeypatch):
    compared(make("warehouse", **SETTINGS["small"]), FEW, monkeypatch)


def compared(game, playouts_: int, monkeypatch):
    """Compare playouts from perfect to random play: states, rewards and sensors after every round."""
    text = make_text(game, "full")
    states, actions, rewards, indices = playouts(game, playouts_, 0.0)
    ties, seats, deliveries = ordered_ties(monkeypatch), game.players, 0
    env = oracle(game)
    for row in range(playouts_):
        env.reset(seed=0)
        env._np_random = requests = Requests(states.seed[row, 0], len(game.layout.places))
        set_state(env, one(states, row, 0))
        observed = None
        for turn in range(0, game.max_turns - seats, seats):
            after = one(states, row, turn + seats)
            if observed is not None:
                seen = [sensed(game, text, indices[row, turn + seat]) for seat in range(seats)]
                assert np.array_equal(seen, observed)
            observed, earned, *_ = env.step(actions[row, turn : turn + seats].tolist())
            check_state(env, after)
            assert requests.number == after.deliveries
            reward = one(rewards, row, turn + seats - 1)
            np.testing.assert_array_equal(earned, reward.agent + reward.team)
        deliveries += requests.number
    assert deliveries > playouts_ / 4
    return ties


# --- Rules ----------------------------------------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(
    ("cells", "targets", "expected"),
    [
        ([0, 1], [1, 0], [False, False]),  # no swaps
        ([0, 1, 2, 3], [1, 2, 3, 0], [True] * 4),  # a circle
        ([0, 1, 2], [1, 2, 5], [True] * 3),  # a queue moves up
        ([0, 1, 2], [1, 2, 2], [False] * 3),  # or not
        ([0, 1, 2], [5, 5, 1], [False, True, True]),  # the longer queue moves
        ([0, 1], [5, 5], [True, False]),  # the first seat
        ([0, 1, 2, 3, 4], [1, 2, 0, 0, 4], [True, True, True, False, False]),  # nobody joins a circle
    ],
)
def test_who_moves(cells, targets, expected):
    moved = jit(movers)(jnp.array(cells, jnp.int32), jnp.array(targets, jnp.int32))
    assert moved.tolist() == expected


def test_choices_of_a_round_are_hidden():
    game = make("warehouse")
    start, step = jit(game.reset)(jax.random.key(0)), jit(game.step)
    for style in ("full", "compact", "brief"):
        text, seen = make_text(game, style), set()
        for action in range(game.n_actions):
            after, reward = step(start, jnp.int32(action))
            assert game.player(after) == 1 and not np.any(reward.team)
            event = text.events.text(jax.device_get(text.event_indices(start, jnp.int32(action), after, jnp.int32(1))))
            seen.add((text.observe(after, 1), event, view.board(game, after, 1), view.svg(game, after, 1)))
        assert len(seen) == 1


def test_the_bot_delivers_and_random_play_does_not():
    game = make("warehouse")
    _, _, reward, _ = playouts(game, 16, 1.0)
    assert reward.team.sum(1).mean() > 3
    assert reward.team.sum(1).min() >= 1


def test_lifting_is_rewarded_and_lowering_costs_the_same():
    game = make("warehouse", players=1, requests=1, pickup_reward=0.25)
    assert game.reward_levels_with({"pickup_reward": 0.25}) == ("team", "process")
    state = jit(game.reset)(jax.random.key(0))
    state = state._replace(robots=state.shelves[state.requests])
    got = []
    for action in (TOGGLE, TOGGLE, TOGGLE):
        state, reward = jit(game.step)(state, jnp.int32(action))
        got.append(float(reward.process[0]))
    assert got == [0.25, -0.25, 0.25] and int(state.loads[0]) == int(state.requests[0])


def test_robots_sense_only_the_cells_around_them():
    game = make("warehouse", view="local", radius=1)
    state = jit(game.reset)(jax.random.key(1))
    shown = view.board(game, state, 0).split()
    near = np.asarray(game.visible(state, 0))
    assert [mark == "?" for mark in shown] == (~near).tolist()
    assert view.svg(game, state, 0).count("#c9c9c9") == (~near).sum()
    assert "Requested" not in make_text(game).observe(state, 0)


@pytest.mark.quick
def test_presets_and_bad_parameters():
    game = make("warehouse", preset="tiny-2ag")
    assert (game.shape, game.players, game.requests, game.rounds) == ((11, 10), 2, 2, 500)
    assert len(game.layout.places) == 32
    for params, message in (
        (dict(shelf_columns=2), "warehouse: shelf_columns is 2, but must be one of: 1, 3, 5, 7"),
        (dict(shelf_rows=1), "warehouse: shelf_rows is 1, but a warehouse with shelf_columns=1 must have at least 2"),
        (dict(requests=4), "warehouse: requests is 4, but must be an integer from 1 to 3"),
        (dict(reward_type="sum"), "warehouse: reward_type is 'sum', but must be one of: 'global'"),
    ):
        with pytest.raises(ValueError, match=message):
            make("warehouse", **params)
