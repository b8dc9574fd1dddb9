"""The games under Gymnasium's and PettingZoo's own checks, and the examples of docs/adapters.md."""

import contextlib
import inspect
import io
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from envs.games import adapters
from envs.games.registry import make, make_text
from envs.games.roles import TwoRole
from envs.games.text import STYLES
from envs.games.tic_tac_toe.bots import MinimaxBot

gymnasium = pytest.importorskip("gymnasium")
pettingzoo_test = pytest.importorskip("pettingzoo.test")


PAGE = Path(__file__).resolve().parents[2] / "docs" / "adapters.md"


def test_the_page_prints_what_it_shows():
    """The Python of the page runs as one program; the text blocks are what it prints, in their order."""
    blocks = re.findall(r"```(python|text)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = "".join(code for kind, code in blocks if kind == "python")
    shown = "".join(output for kind, output in blocks if kind == "text")
    assert program and shown
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(program, str(PAGE), "exec"), {})
    assert printed.getvalue() == shown


def test_the_table_of_the_page_has_every_argument():
    rows = re.findall(r"^\| (`.*?`) \|", PAGE.read_text(), re.MULTILINE)
    classes = (adapters.GymEnv, adapters.PettingZooEnv)
    arguments = {name for cls in classes for name in inspect.signature(cls).parameters} - {"game"}
    assert {name for row in rows for name in re.findall(r"\w+", row)} == arguments


def test_the_text_is_that_of_the_config_field():
    """`text` has the values of `env.text` and decides both the text and the numbers."""
    game = make("tic_tac_toe")
    for style in STYLES:
        env = adapters.GymEnv(game, observation="text", text=style)
        state = game.reset(jax.random.key(0))
        assert env.reset(seed=0)[0]["observation"] == make_text(game, style).observe(state, 0)
    with pytest.raises(ValueError, match="text style is 'chat', but must be one of: full, compact, brief"):
        adapters.GymEnv(game, text="chat")


@pytest.fixture(scope="module")
def plan_path():
    return make("plan_path", size=5, n_train=4, n_test=2)


@pytest.mark.parametrize(
    ("name", "params"), [("tic_tac_toe", {}), ("connect_four", {}), ("hanabi", {"preset": "small", "players": 3})]
)
def test_pettingzoo_api(name, params):
    pettingzoo_test.api_test(adapters.PettingZooEnv(make(name, **params)), num_cycles=30)


def test_pettingzoo_game_to_the_end():
    env = adapters.PettingZooEnv(make("tic_tac_toe"), observation="text")
    env.reset(seed=0)
    for cell in (0, 3, 1, 4, 2):  # X fills the top row
        seen, _, over, _, _ = env.last()
        assert not over
        assert seen["observation"].startswith("Board:\n")
        assert seen["action_mask"][cell] == 1
        env.step(cell)
    assert env.terminations == {"player_0": True, "player_1": True}
    assert env.rewards == {"player_0": 1.0, "player_1": -1.0}
    assert not env.observe("player_0")["action_mask"].any()
    assert "X" in env.render()
    while env.agents:
        env.step(None)


def test_pettingzoo_refuses_illegal_actions():
    env = adapters.PettingZooEnv(make("tic_tac_toe"))
    env.reset(seed=0)
    env.step(4)
    with pytest.raises(ValueError, match=r"action is 4 \(5\), but must be one of: "):
        env.step(4)
    with pytest.raises(ValueError, match="action is 9, but must be an integer from 0 to 8"):
        env.step(9)


def test_hanabi_observation_hides_the_own_hand():
    """The numbers of a seat do not change with its own cards; those of its partner do."""
    env = adapters.PettingZooEnv(make("hanabi", preset="small"))
    env.reset(seed=1)
    before = {agent: env.observe(agent)["observation"] for agent in env.agents}
    env._state = env._state._replace(hands=env._state.hands.at[0, 0].set((env._state.hands[0, 0] + 1) % 10))
    assert np.array_equal(before["player_0"], env.observe("player_0")["observation"])
    assert not np.array_equal(before["player_1"], env.observe("player_1")["observation"])


def test_gym_puzzle(plan_path):
    env = adapters.GymEnv(plan_path)
    seen, _ = env.reset(seed=3)
    assert env.observation_space.contains(seen)
    again, _ = env.reset(seed=3)
    assert np.array_equal(seen["observation"], again["observation"])
    for turn in range(plan_path.max_turns):  # walking against one wall until the turns run out
        seen, reward, terminated, truncated, _ = env.step(0)
        assert env.observation_space.contains(seen)
        assert np.isfinite(reward)
        if terminated:
            pytest.fail("walking up alone reached the goal; choose another seed")
        assert truncated == (turn == plan_path.max_turns - 1)
    with pytest.raises(ValueError, match="the game is over"):
        env.step(0)


def test_gym_checker(plan_path):
    from gymnasium.utils.env_checker import check_env

    check_env(adapters.GymEnv(plan_path), skip_render_check=True)


def test_gym_against_a_bot():
    """Minimax in the other seat never loses, and the caller gets the reward of its loss."""
    env = adapters.GymEnv(make("tic_tac_toe"), seat=1, others=MinimaxBot())
    seen, info = env.reset(seed=0)
    assert info["player"] == 1
    assert seen["action_mask"].sum() == 8, "the bot has opened"
    over, total = False, 0.0
    while not over:
        seen, reward, over, truncated, _ = env.step(int(np.flatnonzero(seen["action_mask"])[0]))
        total += reward
        assert not truncated
    assert total in (-1.0, 0.0)


def test_gym_moves_for_every_seat(plan_path):
    env = adapters.GymEnv(TwoRole(plan_path, view="local"), observation="text")
    seen, info = env.reset(seed=0)
    assert info["player"] == 0 and "?" not in seen["observation"]
    seen, _, _, _, info = env.step(1)
    assert info["player"] == 1 and "The planner proposes down." in seen["observation"]
    assert "?" in env.render()
    assert env.observation_space.contains(seen)


def test_bad_choices(monkeypatch):
    game = make("tic_tac_toe")
    with pytest.raises(ValueError, match="seat is 2, but must be an integer from 0 to 1"):
        adapters.GymEnv(game, seat=2)
    with pytest.raises(ValueError, match="observation is 'pixels', but must be one of: 'numbers', 'text'"):
        adapters.PettingZooEnv(game, observation="pixels")
    with pytest.raises(ValueError, match="three numbers"):
        adapters.GymEnv(game, weights=(1.0, 2.0))
    monkeypatch.setattr(adapters, "gymnasium", None)
    with pytest.raises(ImportError, match="pip install gymnasium"):
        adapters.GymEnv(game)
    with pytest.raises(ImportError, match="pip install pettingzoo"):
        adapters.PettingZooEnv(game)
