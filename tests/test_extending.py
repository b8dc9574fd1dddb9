"""docs/extending.md: its files are written to a folder, added in each of the three ways, played and trained."""

import contextlib
import dataclasses
import io
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import defaults
from envs.games import text as texts
from envs.games import view
from envs.games.bots import BOTS, bot_names, make_bot
from envs.games.entry import GAMES
from envs.games.registry import make, make_text
from envs.tasks import TASKS, scripted
from marl_jax import cli
from marl_jax.algorithms import ALGORITHMS
from marl_jax.api import registering
from marl_jax.errors import ConfigError
from marl_jax.running.metrics import read_json_lines
from marl_jax.samples import from_prompts
from marl_jax.schema import validate
from models import hf_config, lora
from models.families import FAMILIES
from models.model import build
from models.weights import export, load
from registries import load_plugins
from tests.envs import test_events, test_game_api
from tests.marl_jax.tiny_host import make_rollout
from tests.models import test_families, tiny_models

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE, re.DOTALL))
ROWS = re.findall(
    r"^\| ([\w ]+) \| `(\w+)` \| `(\S+)`, (\d) files?, goes to `(\S+)` \| `(.+)` in `(\S+)` \|$", PAGE, re.MULTILINE
)
ADDED = {"GAMES": "nim", "TASKS": "taboo", "ALGORITHMS": "reinforce", "BOTS": "tic_tac_toe/greedy", "FAMILIES": "relu2"}
REGISTRIES = (GAMES, TASKS, ALGORITHMS, BOTS, FAMILIES)
ASK_ALL = """
from envs.games.bots import BOTS
from envs.games.entry import GAMES
from envs.tasks import TASKS
from marl_jax.algorithms import ALGORITHMS
from models.families import FAMILIES
print(GAMES.get("nim").rules.__module__, TASKS.get("taboo").__module__, ALGORITHMS.get("reinforce").name,
      BOTS.get("tic_tac_toe/greedy").__module__, FAMILIES.get("relu2").block.__module__)
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, source in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)
    return folder


@contextlib.contextmanager
def reachable(folder: Path):
    """The package can be imported; what it adds, and its modules, are forgotten afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        for registry in REGISTRIES:
            registry.names()
            patch.setattr(registry, "_entries", dict(registry._entries))
            patch.setattr(registry, "_origins", dict(registry._origins))
        patch.setattr(registering, "MODULES", dict(registering.MODULES))
        try:
            yield
        finally:
            for name in [name for name in sys.modules if name.split(".")[0] == "my_package"]:
                del sys.modules[name]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The folder in which the package of the page is."""
    return write(tmp_path_factory.mktemp("extending"), FILES)


@pytest.fixture
def added(package):
    """All of it is added by the plugin."""
    with reachable(package):
        load_plugins(["my_package.plugin"])
        yield


# ------------------------------------------------------------------------------------------------ the three ways


def asked(folder: Path) -> list[str]:
    """Where five entries are found by a process that starts in a folder."""
    done = subprocess.run([sys.executable, "-c", ASK_ALL], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.nightly
def test_files_and_a_line_in_the_repository(tmp_path):
    """A copy of the repository with the files of the table and its lines, and nothing else changed."""
    for room in ("envs", "models", "marl_jax"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "registries.py", tmp_path)
    assert {registry for _, registry, *_ in ROWS} == set(ADDED)
    for _, _, source, count, target, line, place in ROWS:
        files = {target + name.removeprefix(source): code for name, code in FILES.items() if name.startswith(source)}
        assert len(files) == int(count)
        assert not any((tmp_path / name).exists() for name in files)
        write(tmp_path, files)
        with (tmp_path / place).open("a") as file:
            file.write(f"{line}\n")
    places = ["envs.games.nim.rules", "envs.tasks.taboo", "reinforce", "envs.games.tic_tac_toe.greedy"]
    assert asked(tmp_path) == [*places, "models.families.relu2.modules"]


@pytest.mark.nightly
def test_entry_points(package, tmp_path):
    """The package as an installer would leave it."""
    points = tomllib.loads(re.search(r"```toml\n# pyproject.toml\n(.*?)```", PAGE, re.DOTALL)[1])
    groups = points["project"]["entry-points"]
    assert {f"marl_jax.{registry.kind}" for registry in REGISTRIES} == set(groups)
    lines = [line for group, members in groups.items() for line in (f"[{group}]", *map(" = ".join, members.items()))]
    info = {"METADATA": "Metadata-Version: 2.1\nName: my-package\nVersion: 1\n", "entry_points.txt": "\n".join(lines)}
    write(tmp_path / "my_package-1.dist-info", info)
    shutil.copytree(package / "my_package", tmp_path / "my_package")
    for name in ("envs", "models", "marl_jax", "registries.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    places = ["my_package.nim.rules", "my_package.taboo", "reinforce", "my_package.greedy"]
    assert asked(tmp_path) == [*places, "my_package.relu2.modules"]


TINY = {
    "model.shape": dict(d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16),
    "rollout": dict(num_envs=16),
    "optim": dict(warmup=1, schedule="constant"),
    "eval": dict(every=0, games=16),
    "log": dict(games=0, tensorboard="false", progress="false"),
}


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Runs that tests start leave the root logger and the compilation cache alone."""
    monkeypatch.setattr("marl_jax.running.console.set_up", lambda *_, **__: None)
    monkeypatch.setattr(cli, "keep_compiled", lambda folder: None)


def train(folder: Path, config: str, *overrides: str) -> list[dict]:
    """A run of two steps with a tiny model; the rows of its metrics."""
    flags = [f"--config.{group}.{name}={value}" for group, fields in TINY.items() for name, value in fields.items()]
    flags += [
        "--config.plugins=my_package.plugin",
        "--config.steps=2",
        "--config.mesh.data=1",
        *(f"--config.{o}" for o in overrides),
    ]
    assert cli.main(["launch.py", f"--config={config}", f"--workdir={folder}", *flags]) == 0
    rows = read_json_lines(folder / "metrics.jsonl")
    assert len(rows) == 2 and all(np.isfinite(row["loss"]) and not row["skipped"] for row in rows)
    return rows


@pytest.mark.nightly_for("history")
@pytest.mark.parametrize("context", ["turn", "history"])
def test_training_on_the_game(package, tmp_path, context):
    """PPO through launch.py with the plugin, on positions and on conversations."""
    with reachable(package):
        assert "nim" not in GAMES
        overrides = (f"env.context={context}", "algo.minibatches=2", "algo.epochs=1", "rollout.unroll_length=4")
        rows = train(tmp_path / "run", str(package / "my_package/nim_selfplay.py"), *overrides)
        assert "nim" in GAMES
    assert rows[0]["completions_trained"] > 0
    if context == "turn":  # the run remembers its plugin
        with reachable(package):
            assert cli.main(["launch.py", f"--workdir={tmp_path / 'run'}", "--mode=eval"]) == 0
        found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
        assert {"random", "modulo"} <= {row["opponent"] for row in found["rows"]}


COMMANDS = [
    shlex.split(command.replace("\\\n", " "))
    for command in re.findall(r"```bash\npython (launch.py.*?)\n```", PAGE, re.DOTALL)
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[1].rpartition("/")[2])
def test_the_commands_are_accepted(package, tmp_path, monkeypatch, command):
    """As they stand on the page, in a folder with the experiments and the package; the runs are not started."""
    for name, place in (("experiments", ROOT), ("my_package", package)):
        (tmp_path / name).symlink_to(place / name)
    monkeypatch.chdir(tmp_path)
    started = []
    monkeypatch.setattr(cli, "start", lambda mode, given: started.append(given["config"].plugins))
    with reachable(package):
        assert cli.main(command) == 0
    assert started == [("my_package.plugin",)]


# ------------------------------------------------------------------------------------------------------ the game


def test_the_game_keeps_the_contract(added):
    """Run the checks of every game of the repository."""
    contract = [name for name in dir(test_game_api.TestContract) if name.startswith("test_")]
    assert len(contract) > 5
    for name in contract:
        getattr(test_game_api.TestContract(), name)("nim")
    test_game_api.test_a_game_pays_only_at_its_levels("nim")


@pytest.mark.nightly_for("compact", "full")
@pytest.mark.parametrize("style", texts.STYLES)
def test_the_texts_of_the_game(added, style):
    """Tokens are the tokenizer's, alone and in a conversation; events say what is left, as the position does."""
    test_events.test_tokens_of_events_equal_the_tokenizers("nim", "byte", style)
    test_events.test_a_whole_conversation("nim", "byte", style, style == "full")
    text = make_text(make("nim", heap=15), style)
    state = text.game.reset(jax.random.key(0))
    after, _ = text.game.step(state, jnp.int32(2))
    seen = text.observe(after, 1)
    event = text.events.text(text.event_indices(state, jnp.int32(2), after, 1))
    assert re.findall(r"\d+", seen) == ["12"] and re.findall(r"\d+", event) == ["3", "12"]
    assert text.parse("I take 2") == 1


def test_the_perfect_bot_wins_from_every_winning_heap(added):
    """First to move on any heap that is no multiple of four, against random play."""
    assert bot_names("nim") == ("random", "modulo")
    for heap in range(1, 13):
        game = make("nim", heap=heap)
        step = jax.jit(game.step)
        acts = [jax.jit(make_bot(game, name).act) for name in ("modulo", "random")]
        for seed in range(3):
            state, total = game.reset(jax.random.key(seed)), np.zeros(2)
            while not game.done(state):
                key = jax.random.fold_in(jax.random.key(seed), int(state.left))
                state, reward = step(state, acts[int(state.player)](state, key))
                total += reward.agent
            assert total.sum() == 0 and abs(total[0]) == 1
            assert heap % 4 == 0 or total[0] == 1


def test_the_drawing(added):
    game = make("nim", heap=5)
    state = game.reset(jax.random.key(0))
    assert view.board(game, state) == "|||||" and view.svg(game, state).count("<line") == 5
    assert view.board(game, state._replace(left=jnp.int32(0))) == "(empty)"
    with pytest.raises(ValueError, match="nim: heap is 0, but must be an integer from 1 to 99"):
        make("nim", heap=0)


# ------------------------------------------------------------------------------------------------------ the task


def test_the_task_without_a_model(package, added):
    shown = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)[1]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(package / "my_package/try_taboo.py"))
    assert printed.getvalue() == shown


def test_the_rewards_of_the_task(added):
    task = TASKS.get("taboo")(guesses=2)
    assert not set(task.examples("train")) & set(task.examples("test"))
    outcome, ask = scripted.play(task, "clock", lambda seat, messages, k: ["It ticks.", "No idea"][seat])
    assert (outcome.success, outcome.reason, len(ask.replies)) == (0, "guesses", 3)
    outcome, ask = scripted.play(task, "clock", lambda seat, messages, k: "A Clock.")
    assert (outcome.reason, len(ask.replies), ask.replies[0][2].rewards.process) == ("written", 1, -1)
    with pytest.raises(ValueError, match="guesses is 0, but must be >= 1"):
        TASKS.get("taboo")(guesses=0)
    with pytest.raises(ValueError, match="part is 'dev'"):
        task.examples("dev")


def test_an_experiment_on_the_task_is_accepted(added):
    config = defaults.get_config()
    defaults.use_task(config, "taboo", guesses=3)
    validate.check(config)
    config.task.params.guesses = 0
    with pytest.raises(ConfigError, match="config.task.params: guesses is 0"):
        validate.check(config)


def test_a_rollout_of_the_task(added):
    """Episodes with sampled answers: a description and two guesses of each, none of them right."""
    rollout = make_rollout(TASKS.get("taboo")(), n_examples=3, samples=2)
    samples, _, metrics = rollout({}, rollout.init(None, None))
    rollout.close()
    answers = samples.completion_lengths > 0
    assert np.sum(answers) == 6 * 3 and np.sum(samples.seat[answers] == 0) == 6
    assert not np.any(samples.rewards) and not any("failed" in name and value for name, value in metrics.items())


# ------------------------------------------------------------------------------------------- algorithm and bot


@pytest.mark.nightly
def test_training_with_the_algorithm(package, tmp_path):
    """Two steps on tic-tac-toe; its fields are those of `config.algo`, and its check is asked."""
    tiny_run = str(ROOT / "tests/marl_jax/tiny_run.py")
    with reachable(package):
        rows = train(tmp_path / "run", tiny_run, "algo.name=reinforce", "algo.baseline=none", "rollout.unroll_length=9")
        assert rows[0]["entropy"] > 0 and "value_loss" not in rows[0] and "baseline" in rows[0]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "rollout.unroll_length=4",
            "config.rollout.unroll_length is 4, but must be >= 9 with algo.name 'reinforce'",
        ),
        ("algo.epochs=2", "config.algo.epochs is 2, but must be an integer from 1 to 1"),
        ("algo.lam=1", "--config.algo.lam is not a field of reinforce; its fields: epochs, minibatches"),
    ],
)
def test_what_the_algorithm_rejects(added, capsys, override, message):
    flags = ["--config.plugins=my_package.plugin", "--config.algo.name=reinforce", f"--config.{override}"]
    assert cli.main(["launch.py", f"--config={ROOT}/tests/marl_jax/tiny_run.py", *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.nightly
def test_advantages_of_the_algorithm(added):
    """Two games of two seats, one row an answer: each seat's return minus the mean over its answers."""
    seat, group = jnp.array([0, 1, 0, 0, 1])[:, None], jnp.array([0, 0, 0, 1, 1])[:, None]
    rewards = jnp.zeros((5, 1, 2)).at[2, 0].set(jnp.array([1.0, -1.0])).at[4, 0].set(jnp.array([-1.0, 1.0]))
    ones = jnp.ones((5, 1), jnp.int32)
    samples = from_prompts(
        jnp.zeros((5, 3), jnp.int32), jnp.full((5,), 2), jnp.zeros((5, 1, 1), jnp.int32), ones, jnp.zeros((5, 1, 1)),
        seat=seat, group=group, member=0 * group, rewards=rewards, n_groups=2, group_size=1,
    )  # fmt: skip
    algorithm = ALGORITHMS.get("reinforce")
    algo = algorithm.settings()
    found = algorithm.compute_advantages(None, {}, samples, algo)[0].advantages[:, 0]
    returns, means = np.array([1, -1, 1, -1, 1]), np.array([1 / 3, 0, 1 / 3, 1 / 3, 0])
    np.testing.assert_allclose(found, returns - means, atol=1e-6)
    algo = algorithm.settings(baseline="none")
    np.testing.assert_allclose(algorithm.compute_advantages(None, {}, samples, algo)[0].advantages[:, 0], returns)


def test_the_bot_completes_a_line(added):
    game = make("tic_tac_toe")
    bot = make_bot(game, "greedy")
    assert bot_names("tic_tac_toe") == ("random", "greedy", "minimax")
    state = game.reset(jax.random.key(0))
    for cell in (0, 3, 1, 4):  # X has 0 and 1, O has 3 and 4; X moves
        state, _ = game.step(state, jnp.int32(cell))
    assert {int(bot.act(state, jax.random.key(seed))) for seed in range(5)} == {2}
    state, _ = game.step(state, jnp.int32(8))
    assert {int(bot.act(state, jax.random.key(seed))) for seed in range(5)} == {5}
    assert len({int(bot.act(game.reset(None), jax.random.key(seed))) for seed in range(8)}) > 2


# ---------------------------------------------------------------------------------------------------- the family


@pytest.fixture
def family(added):
    """A tiny model of the family and its parameters."""
    model = build(dataclasses.replace(tiny_models.CONFIGS["qwen2"], family="relu2"))
    return model, tiny_models.random_params(model)


def test_the_family_is_complete(added):
    test_families.test_every_family_is_complete("relu2")


def test_a_forward_pass_with_a_cache_equals_one_without(family):
    """Fused and unstacked parameters and a cache that grows, against stacked ones that read everything at once."""
    model, params = family
    tokens = tiny_models.random_tokens(2, 9)
    whole, _ = tiny_models.forward(model, params, tokens)
    unstacked = tiny_models.unstack(model, params)
    assert "qkv" in unstacked["layers"][0]["attn"] and "gate_up" not in unstacked["layers"][0]["mlp"]
    first, cache = tiny_models.forward(model, unstacked, tokens[:, :5], new_cache=12)
    then, _ = tiny_models.forward(model, unstacked, tokens[:, 5:], cache=cache)
    np.testing.assert_allclose(np.concatenate([first, then], axis=1), whole, atol=1e-5)


def test_the_feed_forward_is_a_squared_relu(family):
    """With attention switched off, a layer is x + down(relu(up(norm x))²), computed here with NumPy."""
    model, params = family
    layers = params["layers"]
    params = {**params, "layers": {**layers, "attn": {**layers["attn"], "o": 0 * layers["attn"]["o"]}}}
    tokens = tiny_models.random_tokens(1, 4)

    def norm(x, weight):
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + model.cfg.norm_eps) * weight

    mlp = jax.tree.map(np.asarray, layers["mlp"])
    x = np.asarray(params["embed"])[tokens]
    for i in range(model.cfg.n_layers):
        x = x + np.maximum(norm(x, mlp["norm"][i]) @ mlp["up"][i], 0) ** 2 @ mlp["down"][i]
    found, _ = tiny_models.forward(model, params, tokens)
    np.testing.assert_allclose(found, norm(x, np.asarray(params["norm"])), atol=1e-4)


@pytest.mark.nightly
def test_lora_on_the_family(family):
    """An adapter that is merged in gives the same as one that is applied; another than those there are is refused."""
    model, params = family
    adapters = lora.init(model.cfg, jax.random.key(1), 2, 2, ("q", "v", "up", "down"))
    adapters = jax.tree.map(lambda x: x + 0.1, adapters)
    scale, tokens = lora.scales(2, 2, 4.0), tiny_models.random_tokens(2, 6)
    applied, _ = tiny_models.forward(model, params, tokens, adapters=lora.Lora(adapters, scale, np.array([0, 1])))
    for row in range(2):
        merged, _ = tiny_models.forward(model, lora.merge(params, adapters, scale, row), tokens)
        np.testing.assert_allclose(applied[row], merged[row], atol=1e-4)
        assert np.max(np.abs(applied[row] - tiny_models.forward(model, params, tokens)[0][row])) > 0.1
    with pytest.raises(ValueError, match="LoRA target is 'gate', but for the family relu2 must be one of: q, k, v, o"):
        lora.sizes(model.cfg, "gate")


def test_the_family_on_disk(family, tmp_path):
    cfg = dataclasses.replace(family[0].cfg, qkv_bias=False)  # not a setting of its files
    params = build(cfg).init(jax.random.key(0))
    again, loaded = load(export(tmp_path / "model", cfg, params))
    assert again == cfg and hf_config.to_dict(cfg)["hidden_act"] == "relu2"
    jax.tree.map(np.testing.assert_array_equal, loaded, params)


@pytest.mark.nightly
def test_training_a_model_of_the_family(package, tmp_path, capsys):
    """From the command line, with adapters on what the family has; a projection that it lacks is refused."""
    tiny_run = str(ROOT / "tests/marl_jax/tiny_run.py")
    with reachable(package):
        overrides = ("model.shape.family=relu2", "model.lora.rank=2")
        train(tmp_path / "run", tiny_run, *overrides, "model.lora.targets=('q','up','down')")
        flags = ["--config.plugins=my_package.plugin", *(f"--config.{o}" for o in overrides)]
        assert cli.main(["launch.py", f"--config={tiny_run}", *flags]) == 2
        message = "config.model.lora.targets has 'gate', but tiny (family relu2) has no such projection"
        assert message in capsys.readouterr().err
