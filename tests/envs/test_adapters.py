"""The adapters under the checkers of Gymnasium and PettingZoo, next to their own vector environment, and the docs."""

import asyncio
import contextlib
import inspect
import io
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from envs import adapters
from envs.adapters import table
from envs.adapters.gym import GymEnv, make_env
from envs.adapters.tasks import TaskEnv
from envs.adapters.vector import GymVectorEnv, make_vector_env
from envs.adapters.zoo import PettingZooEnv
from envs.games.entry import GAMES
from envs.games.registry import make, make_text
from envs.games.roles import TwoRole
from envs.games.text import STYLES
from envs.tasks import TASKS, make_task, scripted
from envs.tasks.replies import CallTimeout
from envs.tasks.task import Outcome, Task
from envs.tasks.verilog import bench
from tests.conftest import nightly_cases

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed (pip install -e .[test])")
pettingzoo_test = pytest.importorskip("pettingzoo.test", reason="pettingzoo is not installed (pip install -e .[test])")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adapters.md"
SMALL = {name: dict(n_train=4, n_test=2) for name in ("plan_path", "sokoban", "sudoku")}
SMALL["plan_path"]["size"] = 5


@pytest.fixture(scope="module")
def plan_path():
    return make("plan_path", **SMALL["plan_path"])


# ------------------------------------------------------------------------------------------------------------- docs


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
    rows = re.findall(r"^\| (`.*?`) \|", PAGE.read_text().partition("| argument |")[2].partition("\n\n")[0], re.M)
    arguments = {name for cls in (GymEnv, PettingZooEnv, GymVectorEnv) for name in inspect.signature(cls).parameters}
    assert {name for row in rows for name in re.findall(r"\w+", row)} == arguments - {"game"}
    assert not arguments & {name for game in GAMES for name in inspect.signature(GAMES.get(game).rules).parameters}


def test_every_game_has_an_id_and_the_page_names_it():
    assert {params["game"] for params in adapters.IDS.values()} == set(GAMES)
    assert all(f"`{name}`" in PAGE.read_text() for name in adapters.IDS)


# -------------------------------------------------------------------------------------------------------- Gymnasium


@pytest.mark.parametrize("observation", table.OBSERVATIONS)
@pytest.mark.parametrize(
    "name", nightly_cases([*adapters.IDS], *[name for name in adapters.IDS if name != "TicTacToe"])
)
def test_gymnasium_accepts_every_id(name, observation):
    from gymnasium.utils.env_checker import check_env

    params = SMALL.get(adapters.IDS[name]["game"], {})
    env = gymnasium.make(f"envs.adapters:marl_jax/{name}-v0", observation=observation, illegal="end", **params)
    check_env(env.unwrapped)


@pytest.mark.parametrize("style", STYLES)
def test_the_text_has_rules_position_and_legal_actions(style):
    """`text` has the values of `env.text`."""
    game = make("tic_tac_toe")
    env, text = GymEnv(game, observation="text", text=style), make_text(game, style)
    seen, _ = env.reset(seed=0)
    position = text.observe(game.reset(jax.random.key(0)), 0).removesuffix("\n")
    for part in (text.rules, text.roles[0], position, text.questions[0], "\nLegal actions: 1, 2, 3, "):
        assert part in seen["observation"]
    assert "Legal actions: 2, 3, 4" in env.step("1")[0]["observation"]


def test_letters_are_explained_among_the_legal_actions():
    env = GymEnv(make("hanabi", preset="small"), observation="text")
    assert re.search(r"\nLegal actions: C \(play card 1\), D \(play card 2\), E ", env.reset(seed=0)[0]["observation"])


@pytest.mark.parametrize("action", [4, "I take 5.", np.int64(4)])
def test_actions_are_numbers_or_texts(action):
    env = GymEnv(make("tic_tac_toe"))
    env.reset(seed=0)
    assert env.step(action)[0]["action_mask"].tolist() == [1, 1, 1, 1, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("action", [4, 9, -1, "5", "nothing"])
def test_illegal_actions_raise_or_end(action):
    game = make("tic_tac_toe")
    env, ending = GymEnv(game), GymEnv(game, illegal="end")
    for one in (env, ending):
        one.reset(seed=0)
        one.step(4)
    with pytest.raises(ValueError, match=r"tic_tac_toe: action is .*, but must be one of: 0 \(1\), 1 \(2\), "):
        env.step(action)
    seen, reward, terminated, truncated, info = ending.step(action)
    assert (reward, terminated, truncated, info["rewards"].tolist()) == (-1.0, True, False, [0.0, -1.0])
    assert not seen["action_mask"].any()
    assert ending.reset()[0]["action_mask"].all(), "the next game starts"


def test_gym_puzzle(plan_path):
    env = GymEnv(plan_path)
    seen, _ = env.reset(seed=3)
    again, _ = env.reset(seed=3)
    assert np.array_equal(seen["observation"], again["observation"])
    for turn in range(plan_path.max_turns):  # walking against one wall until the turns run out
        seen, reward, terminated, truncated, _ = env.step(0)
        assert np.isfinite(reward) and not terminated, "walking up alone reached the goal; choose another seed"
        assert truncated == (turn == plan_path.max_turns - 1)
    with pytest.raises(ValueError, match="must be one of: none, it is over"):
        env.step(0)


def test_gym_against_a_bot():
    """Minimax in the other seat never loses, and the caller gets the reward of its loss."""
    env = GymEnv(make("tic_tac_toe"), seat=1, others="minimax")
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
    env = GymEnv(TwoRole(plan_path, view="local"), observation="text")
    seen, info = env.reset(seed=0)
    assert info["player"] == 0 and "? ?" not in seen["observation"]
    seen, _, _, _, info = env.step(1)
    assert info["player"] == 1 and "The planner proposes down." in seen["observation"]
    assert "?" in env.render()
    assert env.observation_space.contains(seen)


def test_bad_choices(monkeypatch):
    game = make("tic_tac_toe")
    with pytest.raises(ValueError, match="seat is 2, but must be an integer from 0 to 1"):
        GymEnv(game, seat=2)
    with pytest.raises(ValueError, match="observation is 'pixels', but must be one of: 'numbers', 'text'"):
        PettingZooEnv(game, observation="pixels")
    with pytest.raises(ValueError, match="illegal is 'lose', but must be one of: 'raise', 'end'"):
        GymEnv(game, illegal="lose")
    with pytest.raises(ValueError, match="text style is 'chat', but must be one of: full, compact, brief"):
        GymEnv(game, text="chat")
    with pytest.raises(ValueError, match="three numbers"):
        GymEnv(game, weights=(1.0, 2.0))
    with pytest.raises(ValueError, match="tic_tac_toe has no parameter 'size'; its parameters are: none"):
        make_env("tic_tac_toe", size=4)
    with pytest.raises(ValueError, match="autoreset_mode is 'Disabled', but must be one of: NextStep, SameStep"):
        GymVectorEnv(game, 2, autoreset_mode="Disabled")
    monkeypatch.setattr(table, "gymnasium", None)
    with pytest.raises(ImportError, match="pip install gymnasium"):
        GymEnv(game)


# ----------------------------------------------------------------------------------------------------------- vectors


def same(ours, theirs):
    """Check that two results are equal, down to the keys of infos."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            same(ours[key], theirs[key])
    elif isinstance(theirs, tuple | list) or isinstance(theirs, np.ndarray) and theirs.dtype == object:
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    else:
        np.testing.assert_array_equal(ours, theirs)


CASES = {
    "tic_tac_toe": {},
    "tic_tac_toe, bot": dict(others="random", seat=1),
    "tic_tac_toe, text": dict(observation="text"),
    "hanabi": dict(preset="small", illegal="end"),
    "plan_path": SMALL["plan_path"],
    "connect_four": dict(others="random"),
}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("case", nightly_cases([*CASES], *[case for case in CASES if case != "tic_tac_toe, bot"]))
def test_the_vector_is_gymnasiums_own_over_single_environments(case, mode):
    name, arguments = case.partition(",")[0], CASES[case]
    ours = make_vector_env(name, num_envs=3, autoreset_mode=mode, **arguments)
    autoreset = gymnasium.vector.AutoresetMode(mode)
    theirs = gymnasium.vector.SyncVectorEnv([lambda: make_env(name, **arguments)] * 3, autoreset_mode=autoreset)
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
    result, rng, ends = ours.reset(seed=3), np.random.default_rng(0), 0
    same(result, theirs.reset(seed=3))
    for turn in range(40):
        masks = result[0]["action_mask"]
        if arguments.get("illegal") == "end" and turn % 7 == 6:
            masks = np.ones_like(masks)
        actions = (rng.random(masks.shape) * masks).argmax(axis=1)
        result = ours.step(actions)
        same(result, theirs.step(actions))
        assert ours.observation_space.contains(result[0])
        ends += int(result[2].sum() + result[3].sum())
    assert ends >= 3


def test_gymnasium_makes_the_vector_by_its_id():
    envs = gymnasium.make_vec("envs.adapters:marl_jax/TicTacToe-v0", num_envs=2)
    assert isinstance(envs.unwrapped, GymVectorEnv)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="there are 3 actions, but must be 2"):
        envs.step(np.zeros(3, int))
    envs.step(["take 5", "1"])
    with pytest.raises(ValueError, match=r"action is 4, but must be one of: 0 \(1\)"):
        envs.step(np.array([4, 4]))
    assert [board.count("X") for board in envs.unwrapped.render()] == [1, 1]


# -------------------------------------------------------------------------------------------------------- PettingZoo


@pytest.mark.parametrize("name", nightly_cases([*GAMES], *[name for name in GAMES if name != "tic_tac_toe"]))
def test_pettingzoo_accepts_every_game(name):
    params = SMALL.get(name, dict(preset="small", players=3) if name == "hanabi" else {})
    pettingzoo_test.api_test(PettingZooEnv(make(name, **params)), num_cycles=30)
    pettingzoo_test.seed_test(lambda: PettingZooEnv(make(name, **params)), num_cycles=10)


def test_pettingzoo_game_to_the_end():
    env = PettingZooEnv(make("tic_tac_toe"), observation="text")
    env.reset(seed=0)
    for cell in (0, 3, 1, 4, 2):  # X fills the top row
        seen, _, over, _, _ = env.last()
        assert not over
        assert "\nBoard:\n" in seen["observation"]
        assert seen["action_mask"][cell] == 1
        env.step(cell)
    assert env.terminations == {"player_0": True, "player_1": True}
    assert env.rewards == {"player_0": 1.0, "player_1": -1.0}
    assert not env.observe("player_0")["action_mask"].any()
    assert "X" in env.render()
    while env.agents:
        env.step(None)


def test_hanabi_observation_hides_the_own_hand():
    """The numbers of a seat do not change with its own cards; those of its partner do."""
    env = PettingZooEnv(make("hanabi", preset="small"))
    env.reset(seed=1)
    before = {agent: env.observe(agent)["observation"] for agent in env.agents}
    state = env._episode.state
    state = state._replace(hands=state.hands.at[0, 0].set((state.hands[0, 0] + 1) % 10))
    env._episode = env._episode._replace(state=state)
    assert np.array_equal(before["player_0"], env.observe("player_0")["observation"])
    assert not np.array_equal(before["player_1"], env.observe("player_1")["observation"])


# ------------------------------------------------------------------------------------------------------------- tasks


@pytest.mark.nightly_for(
    "half_blind", "debate", "propose", "dataset", "discovery", "workflow", "math", "hidden_profile"
)
@pytest.mark.parametrize(
    "name",
    [name for name in TASKS if name not in ("code", "program", "planning")]
    + [pytest.param(name, marks=pytest.mark.nightly) for name in ("code", "planning")],
)
def test_a_task_has_the_outcome_and_rewards_of_an_episode(name):
    """The same replies through `step` and through a scripted episode."""
    if name == "verilog" and bench.find_tools() is None:
        pytest.skip(bench.MISSING)

    def reply(messages):
        return f"\\boxed{{{len(messages[-1]['content']) % 5}}}\nanswer: {len(messages)}"

    data = (
        dict(data=[dict(prompt=f"What is {i} + {i}?") for i in range(40)], rewards=[longer])
        if name == "dataset"
        else {}
    )
    task, paid = make_task(name, **data), {}
    with TaskEnv(task) as env:
        messages, info = env.reset(seed=0, options={"example": 1})
        over = False
        while not over:
            assert messages[-1]["role"] == "user" and info["role"] in task.roles
            messages, reward, terminated, truncated, info = env.step(reply(messages))
            over = terminated or truncated
            for role, amount in info["rewards"].items():
                paid[role] = paid.get(role, 0.0) + amount
    outcome, ask = scripted.play(task, env.examples[1], lambda seat, messages, k: reply(messages))
    assert terminated and info["outcome"] == outcome
    team = sum(given.rewards.team for _, _, given in ask.replies)
    own = dict.fromkeys(task.roles, team)
    for seat, _, given in ask.replies:
        own[task.roles[seat]] += given.rewards.agent + given.rewards.process
    assert paid == pytest.approx(own)


def longer(completion):
    return len(completion) / 10


class Hanging(Task):
    roles = ("one",)

    def examples(self, part):
        return [1]

    async def play(self, ask, example):
        await ask.chat(0).say("?")
        raise CallTimeout("the judge took more than 1 s")


class Plain(Hanging):
    async def play(self, ask, example):
        reply = await ask.chat(0).say("?")
        reply.reward(team=1.0, agent=2.0, process=4.0)
        return Outcome(success=float(reply.text == "a"))


def test_a_task_that_fails_is_truncated_and_starts_again():
    with TaskEnv(Hanging()) as env:
        for _ in range(2):
            assert env.reset()[0] == [{"role": "user", "content": "?"}]
            _, reward, terminated, truncated, info = env.step("x")
            assert (reward, terminated, truncated) == (0.0, False, True)
            assert info["error"] == "call_timeout: the judge took more than 1 s"
        with pytest.raises(RuntimeError, match="call reset"):
            env.step("x")


def test_a_task_works_inside_a_running_event_loop():
    async def notebook():
        with TaskEnv(Plain(), weights=(1.0, 0.5, 0.0)) as env:
            env.reset()
            env.reset()  # cancels the first episode
            return env.step("a")

    _, reward, terminated, _, info = asyncio.run(notebook())
    assert (reward, terminated, info["outcome"].success) == (2.0, True, 1.0)


def test_a_task_that_serves_programs_has_no_step():
    with pytest.raises(ValueError, match="AgentProgram runs programs that call the models over HTTP"):
        TaskEnv("program", program="examples/openai_sdk.py")
