"""Command line: overrides, errors in one line, and the start of modes."""

import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from marl_jax import cli
from marl_jax.algorithms import ALGORITHMS
from marl_jax.errors import RunError
from marl_jax.running.signals import GracefulStop
from marl_jax.schema import flags
from marl_jax.schema.validate import fields
from models.user_cache import user_cache

pytestmark = pytest.mark.quick

ROOT = flags.REPOSITORY
ARITHMETIC = f"--config={ROOT}/experiments/arithmetic.py"
TIC_TAC_TOE = f"--config={ROOT}/experiments/tic_tac_toe_selfplay.py"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Keep runs in a temporary folder and leave the root logger alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("marl_jax.running.console.set_up", lambda *_, **__: None)
    monkeypatch.setattr(cli, "keep_compiled", lambda folder: None)


@pytest.fixture
def started(monkeypatch):
    """Record the modes and their arguments instead of starting them."""
    calls = []
    monkeypatch.setattr(cli, "start", lambda mode, given: calls.append((mode, given)))
    return calls


def refused(capsys, *arguments):
    assert cli.main(["launch.py", *arguments]) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return message


def test_overrides_land_with_their_types(started):
    changes = ["steps=7", "optim.warmup=0", "optim.lr=1e-5", "log.wandb=false", "eval.opponents=('random',)"]
    changes += ["agents.seat_1=main"]
    switches = ["--noconfig.opponents.prioritized", "--config.env.symmetry"]
    overrides = [f"--config.{change}" for change in changes] + switches
    assert cli.main(["launch.py", TIC_TAC_TOE, *overrides]) == 0
    (mode, given), config = started[0], started[0][1]["config"]
    assert mode == "train" and given["workdir"] == Path.cwd() / "runs" / "tic_tac_toe_selfplay"
    assert (config.steps, config.optim.lr, config.opponents.prioritized, config.env.symmetry) == (7, 1e-5, False, True)
    assert config.eval.opponents == ("random",) and config.agents.seat_1 == "main"


def test_variants_and_the_two_word_form(started):
    assert cli.main(["launch.py", "--config", f"{ROOT}/experiments/hanabi_selfplay.py:smollm2-lora"]) == 0
    given = started[0][1]
    assert given["workdir"].name == "hanabi_selfplay-smollm2-lora"
    assert given["config"].model.lora.rank > 0 and given["config"].env.params.preset == "full"


def test_an_experiment_is_found_by_its_name(started):
    assert cli.main(["marl-jax", "--config=hanabi_selfplay:smollm2-lora"]) == 0
    given = started[0][1]
    assert given["workdir"] == Path.cwd() / "runs" / "hanabi_selfplay-smollm2-lora"
    assert given["config"].env.name == "hanabi" and given["config"].model.lora.rank > 0


def test_errors_begin_with_the_name_of_the_command(capsys):
    assert cli.main(["/usr/bin/marl-jax", "--config=tictactoe"]) == 2
    assert capsys.readouterr().err.startswith("marl-jax: --config=tictactoe: no such Python file; experiments: agent_")


def test_parameters_of_the_game_may_be_new(started):
    hanabi = f"--config={ROOT}/experiments/hanabi_selfplay.py"
    overrides = ["--config.env.params.players=3", "--config.model.shape.tie_embeddings=false"]
    assert cli.main(["launch.py", hanabi, *overrides]) == 0
    config = started[0][1]["config"]
    assert config.env.params.players == 3 and config.model.shape.tie_embeddings is False


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "--config=experiments/NAME.py or the --workdir of an existing run is required"),
        (["--config=experiments/nope.py"], "no such Python file; experiments: "),
        (["--config=~nobody7/mine.py"], "--config is '~nobody7/mine.py', but there is no such user"),
        (["--workdir=~nobody7/mine"], "--workdir is '~nobody7/mine', but there is no such user"),
        (["--config=README.md"], "no such Python file; experiments: "),
        ([TIC_TAC_TOE, "--config.agents.all=3"], "--config.agents.all=3: there is no such field, or it has another"),
        ([TIC_TAC_TOE, "--config.agents.seat_0=" + "a" * 5000], ", but must be bot:NAME or one of the policies in "),
        ([TIC_TAC_TOE, "--config.agents.seat_0=3"], "config.agents.seat_0 is 3, but must be the name of a policy"),
        ([TIC_TAC_TOE, "--config.env.params.x.y=3"], "--config.env.params.x.y=3: there is no such field"),
        ([TIC_TAC_TOE, "--config.model.shape.n_heads=0"], "config.model.shape: n_heads is 0, but must be "),
        ([TIC_TAC_TOE, "--config.model.shape.family=foo"], "config.model.shape: family is 'foo', but must be "),
        ([TIC_TAC_TOE + ":gpt-5"], "form is 'gpt-5', but must be one of: sft, scratch, both, MODEL or FORM+MODEL"),
        ([ARITHMETIC + ":qwen"], "form is 'qwen', but must be one of: grpo, ppo, at_grpo, MODEL or FORM+MODEL, where "
            "MODEL is one of: tiny, smollm2, smollm2-lora, qwen2.5-0.5b, qwen2.5-coder-0.5b, qwen2.5-coder-1.5b, "
            "qwen2.5-7b, qwen3-1.7b, qwen3-8b; did you mean qwen2.5-0.5b or qwen2.5-coder-0.5b?\n"),
        ([ARITHMETIC + ":grpo+smolm2"], "form is 'grpo+smolm2', but must be one of: grpo, ppo, at_grpo, MODEL or "),
        ([ARITHMETIC + ":AT-GRPO"], "; did you mean at_grpo?\n"),
        ([ARITHMETIC, "--config.task.params.level=3"], "config.task.params: arithmetic has no parameter 'level'; "
            "its parameters are: continuation, levels, n_examples, seed; did you mean levels?\n"),
        ([ARITHMETIC, "--config.task.params.levels=many"], "config.task.params: arithmetic: levels is 'many', but "
            "must be of type tuple[int, ...]\n"),
        ([ARITHMETIC, "--config.task.name=program"], "config.task.params: program needs the parameter 'program'\n"),
        ([TIC_TAC_TOE, "--config.optm.lr=1"], "--config.optm.lr is not a field; did you mean optim.lr?"),
        ([TIC_TAC_TOE, "--config.steps=many"], "--config.steps=many: the value must be an integer, such as "),
        ([TIC_TAC_TOE, "--config.optim.lr=fast"], "--config.optim.lr=fast: the value must be a number, such as "),
        ([TIC_TAC_TOE, "--config.log.wandb=maybe"], "--config.log.wandb=maybe: the value must be true or false"),
        ([TIC_TAC_TOE, "--config.algo=ppo"], "--config.algo is a group of fields: algo."),
        ([TIC_TAC_TOE, "--mode=trian"], "--mode is trian, but must be one of: train, "),
        ([TIC_TAC_TOE, "--mode=trian"], "; did you mean train?\n"),
        ([TIC_TAC_TOE, "--mode=test"], "; did you mean eval?\n"),
        ([TIC_TAC_TOE, "--wrokdir=x"], "--wrokdir is not a flag; flags: --"),
        ([TIC_TAC_TOE, "--wrokdir=x"], "; did you mean --workdir?\n"),
        ([TIC_TAC_TOE, "--lr=1"], "--lr is not a flag; flags: --config, --workdir, "),
        ([TIC_TAC_TOE, "--lr=1"], "and --config.FIELD for every field; did you mean --config.optim.lr?\n"),
        ([TIC_TAC_TOE, "--model.name=tiny"], "; did you mean --config.model.name?\n"),
        ([TIC_TAC_TOE, "--output_dir=x"], "; did you mean --workdir?\n"),
        ([TIC_TAC_TOE, "x"], "'x' is not a flag"),
        ([TIC_TAC_TOE, "steps=3"], "'steps=3' is not a flag; flags start with --; did you mean --config.steps=3?\n"),
        (["train", TIC_TAC_TOE], "'train' is not a flag; flags start with --; did you mean --mode=train?\n"),
        (["experiments/kuhn.py"], "did you mean --config=experiments/kuhn.py?\n"),
        (["--config=experiments/tictactoe.py"], "; did you mean tic_tac_toe_selfplay?\n"),
        (["--config=Hanabi"], "; did you mean hanabi_playouts or hanabi_search?\n"),
        (["--config.steps=3"], "--config=experiments/NAME.py or the --workdir of an existing run is required"),
        (["--workdir=nowhere", "--mode=eval"], "nowhere/config.json does not exist; pass --config=experiments/NAME.py"),
        (["--workdir=.", "--mode=report"], ". is not the folder of a run: config.json does not exist\n"),
        ([TIC_TAC_TOE, "--config.algo.name=grpo"], "config.opponents has players other than the learner"),
        ([TIC_TAC_TOE, "--config.algo.name=gpro"], "config.algo.name is 'gpro', but must be one of: ppo, grpo"),
        ([TIC_TAC_TOE, "--config.algo.name=GRPO"], "; did you mean grpo?\n"),
        ([TIC_TAC_TOE, "--config.algo.name=rloo"], "; did you mean --config.algo.name=grpo --config.algo.group_bas"),
        ([TIC_TAC_TOE, "--config.algo.name=Dr. GRPO"], "; did you mean --config.algo.name=grpo --config.algo.group"),
        ([TIC_TAC_TOE, "--config.algo.name="], "config.algo.name is '', but must be one of: ppo, grpo, at_grpo, sft"),
        ([TIC_TAC_TOE, "--config.algo.group_size=4"], "--config.algo.group_size is not a field of ppo; its fields: "),
        ([TIC_TAC_TOE, "--config.algo.name=grpo", "--config.algo.lam=1"], "--config.algo.lam is not a field of grpo"),
        ([TIC_TAC_TOE, "--config.rollout.games=2"], "--config.rollout.games is now config.rollout.num_envs"),
        ([TIC_TAC_TOE, "--config.algo.critic=role"], "is 'role', which is now algo.baseline 'seat_ema'"),
        ([TIC_TAC_TOE, "--config.plugins=no_such_module"], "config.plugins: plugin 'no_such_module' cannot be"),
        ([TIC_TAC_TOE, "--mode=sft"], "--mode is sft, but must be one of: train, eval,"),
        ([TIC_TAC_TOE, "--config.env.params.size=4"], "config.env.params: tic_tac_toe has no parameter 'size'"),
    ],
)  # fmt: skip
def test_refused(capsys, started, arguments, message):
    assert message in refused(capsys, *arguments)
    assert not started


def test_help_lists_the_modes_and_the_fields(capsys):
    assert cli.main(["launch.py", "--help"]) == 0
    text = capsys.readouterr().out
    assert f"One of {', '.join(cli.MODES)}" in " ".join(text.split())
    assert "\n  optim.lr (0.001): Learning rate\n" in text
    own = text.partition("Config fields of the algorithm sft:\n")[2].partition("Config fields of the algorithm")[0]
    assert "algo.noise (0.1): Fraction of " in own and "algo.clip_low" not in own


@pytest.mark.parametrize(
    "code, problem",
    [
        ("1 / 0", "mine.py:1: ZeroDivisionError: division by zero"),
        ("def get_config():\n    return {}['steps']", "mine.py:2: KeyError: 'steps'"),
        ("import sys\nsys.exit(3)", "mine.py:2: SystemExit: 3"),
        ("open('/no/such/file')", "mine.py:1: FileNotFoundError: [Errno 2]"),
        ("import json\nvalue = json.loads(3)", "mine.py:2: TypeError: the JSON object must be"),
        ("def get_config(:", "mine.py:1: SyntaxError: "),
        ("def get_config():\n    return get_config()", "mine.py:2: RecursionError: "),
    ],
)
def test_an_experiment_that_raises_is_one_line_with_its_place(capsys, tmp_path, code, problem):
    file = tmp_path / "mine.py"
    file.write_text(code)
    (line,) = refused(capsys, f"--config={file}").splitlines()
    assert line.startswith(f"launch.py: --config={file}: {tmp_path}/{problem}")


def test_an_experiment_with_a_mistake_is_reported_with_its_name(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def get_config():\n    return {}\n")
    assert "get_config returned dict" in refused(capsys, f"--config={file}")


def test_an_experiment_without_the_default_groups_is_refused(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import ml_collections\ndef get_config():\n    return ml_collections.ConfigDict({'optim': 3})\n")
    (line,) = refused(capsys, f"--config={file}").splitlines()
    assert line.startswith(f"launch.py: --config={file}: the config lacks ") and ", optim, " in line


def test_a_flag_is_no_workdir(capsys, started):
    assert "--workdir is '--mode=config'" in refused(capsys, TIC_TAC_TOE, "--workdir", "--mode=config")
    assert "--workdir is ''" in refused(capsys, TIC_TAC_TOE, "--workdir=")
    assert not started


def test_a_run_is_found_by_its_folder(started, tmp_path):
    config = flags.load_experiment(f"{ROOT}/experiments/tic_tac_toe_selfplay.py", None)
    config.steps = 77
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    arguments = [f"--workdir={tmp_path}", "--mode=eval", "--config.eval.opponents=('minimax',)"]
    assert cli.main(["launch.py", *arguments]) == 0
    found = started[0][1]["config"]
    assert found.steps == 77 and found.eval.opponents == ("minimax",) and found.name == "tic_tac_toe_selfplay"


@pytest.mark.parametrize("form", ["at_grpo", "grpo", "sft"])
def test_every_field_can_be_written_on_the_command_line(started, form):
    """Set each field to the value it has; nothing may change."""
    path = f"{ROOT}/experiments/plan_path.py"
    config = flags.load_experiment(path, form)
    overrides = [f"--config.{name}={value}" for name, value in fields(config) if not isinstance(value, ConfigDict)]
    assert len(overrides) > 100
    assert cli.main(["launch.py", f"--config={path}:{form}", *overrides]) == 0
    assert started[0][1]["config"].to_dict() == config.to_dict()


@pytest.mark.parametrize("experiment", ["tic_tac_toe_selfplay.py", "plan_path.py:at_grpo_lora", "sudoku.py:sft"])
def test_a_saved_config_is_read_as_it_was(started, tmp_path, experiment):
    config = flags.load_experiment(f"{ROOT}/experiments/{experiment.partition(':')[0]}", experiment.partition(":")[2])
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    assert cli.main(["launch.py", f"--workdir={tmp_path}"]) == 0
    assert started[0][1]["config"].to_dict() == config.to_dict()


@pytest.mark.parametrize("field", ["seed", "agents", "env.name", "algo.name", "optim.lr", "serve.port"])
def test_a_saved_config_without_a_field_is_refused(capsys, started, tmp_path, field):
    config = flags.load_experiment(f"{ROOT}/experiments/tic_tac_toe_selfplay.py", None).to_dict()
    *groups, key = field.split(".")
    del functools.reduce(dict.get, groups, config)[key]
    config["optim"]["gone"] = 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    lines = refused(capsys, f"--workdir={tmp_path}", "--mode=eval")
    assert f"config.{field} is missing" in lines and "config.optim.gone is not a field" in lines


def test_the_config_of_something_else_is_refused(capsys, started, tmp_path):
    for text in ('{"model_type": "llama"}', "[1]"):
        (tmp_path / "config.json").write_text(text)
        assert "config.json is not the config of a run" in refused(capsys, f"--workdir={tmp_path}", "--mode=eval")


def test_a_folder_from_before_is_refused_with_the_new_names(capsys, started, tmp_path):
    config = flags.load_experiment(f"{ROOT}/experiments/tic_tac_toe_selfplay.py", None).to_dict()
    config["rollout"]["games"] = config["rollout"].pop("num_envs")
    config["algo"]["critic"] = "role"
    (tmp_path / "config.json").write_text(json.dumps(config))
    for mode in ("train", "eval", "report"):
        lines = refused(capsys, f"--workdir={tmp_path}", f"--mode={mode}").splitlines()
        assert "is a run of an earlier version" in lines[0]
        assert set(lines[1:]) == {
            "launch.py: config.rollout.games is now config.rollout.num_envs",
            "launch.py: config.algo.critic is 'role', which is now algo.baseline 'seat_ema'",
        }
    assert not started


def test_another_algorithm_brings_its_fields_and_keeps_what_was_changed(started):
    plan_path = f"--config={ROOT}/experiments/plan_path.py"
    assert cli.main(["launch.py", f"{plan_path}:grpo", "--config.algo.name=ppo", "--config.algo.lam=0.5"]) == 0
    algo = started[0][1]["config"].algo
    assert set(algo) == {"name", *ALGORITHMS.get("ppo").fields}
    assert (algo.name, algo.lam, algo.critic) == ("ppo", 0.5, "head")
    assert (algo.clip_high, algo.entropy_coef) == (0.28, 0.05)  # from the experiment
    assert (algo.loss_agg, algo.epochs) == ("token", 2)  # unchanged in the experiment, so these are PPO's defaults


def test_a_plugin_adds_an_algorithm_with_its_fields(capsys, started, tmp_path, monkeypatch):
    (tmp_path / "my_plugin.py").write_text(
        "from marl_jax.algorithms import ALGORITHMS\n"
        "from marl_jax.algorithms.algorithm import Algorithm\n"
        "from marl_jax.algorithms.ppo import PPO\n"
        "import dataclasses\n"
        "from marl_jax.fields import choice, integer, number\n"
        "from marl_jax.learning.settings import LearnerSettings, redefault, setting\n"
        "def check(config):\n"
        "    if config.algo.beta > config.optim.lr:\n"
        "        yield 'config.algo.beta is above optim.lr'\n"
        "@dataclasses.dataclass(frozen=True, kw_only=True)\n"
        "class Settings(LearnerSettings):\n"
        "    beta: float = setting(0.1, number(0, 1), 'a weight')\n"
        "    minibatches: int = redefault(LearnerSettings, 'minibatches', 2)\n"
        "    entropy_coef: str = setting('auto', choice('auto', 'off'), 'not a number here')\n"
        "ALGORITHMS.add(\n"
        "    'mine', Algorithm('mine', Settings, PPO.rollout, PPO.compute_advantages, PPO.objective, check=check)\n"
        ")\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    entries = dict(ALGORITHMS._entries)
    monkeypatch.setattr(ALGORITHMS, "_entries", entries)
    chosen = [TIC_TAC_TOE, "--config.plugins=my_plugin", "--config.algo.name=mine"]
    assert "config.algo.beta is above optim.lr" in refused(capsys, *chosen)
    assert "--config.algo.gamma is not a field of mine; its fields: epochs, minibatches" in refused(
        capsys, *chosen, "--config.algo.gamma=1"
    )
    assert "config.algo.beta is 2.0, but must be a number >= 0" in refused(capsys, *chosen, "--config.algo.beta=2")
    assert cli.main(["launch.py", *chosen, "--config.algo.beta=1e-5"]) == 0
    config = started[0][1]["config"]
    # 8 is from the experiment; its entropy_coef is not valid for this algorithm.
    own = {"beta": 1e-5, "epochs": 1, "minibatches": 8, "grad_accum_steps": 1, "entropy_coef": "auto"}
    assert config.algo.to_dict() == {"name": "mine", **own}
    assert config.plugins == ("my_plugin",)
    monkeypatch.delitem(sys.modules, "my_plugin")


@pytest.mark.parametrize("text, found", [("('json','csv')", ("json", "csv")), ("json,csv", ("json", "csv")), ("", ())])
def test_plugins_are_written_as_names_or_as_a_tuple(started, text, found):
    assert cli.main(["launch.py", TIC_TAC_TOE, f"--config.plugins={text}"]) == 0
    assert started[0][1]["config"].plugins == found


def test_the_best_metric_follows_the_opponents(started, caplog):
    assert cli.main(["launch.py", TIC_TAC_TOE, "--config.eval.opponents=('minimax',)"]) == 0
    assert started[0][1]["config"].checkpoint.best_metric == "minimax/win_rate"
    assert "checkpoint.best_metric was 'random/win_rate', but eval.opponents no longer has 'random'" in caplog.text
    assert cli.main(["launch.py", TIC_TAC_TOE, "--config.eval.opponents=()"]) == 0
    assert started[1][1]["config"].checkpoint.best_metric == ""
    caplog.clear()
    assert cli.main(["launch.py", TIC_TAC_TOE, "--config.eval.opponents=('minimax','random')"]) == 0
    assert started[2][1]["config"].checkpoint.best_metric == "random/win_rate" and not caplog.text


@pytest.mark.parametrize("experiment, metric", [(TIC_TAC_TOE, "random/win_rate"), (ARITHMETIC, "self/success")])
def test_without_evaluations_no_metric_selects_the_best_checkpoint(capsys, started, caplog, experiment, metric):
    assert cli.main(["launch.py", experiment, "--config.eval.every=0"]) == 0
    assert started[0][1]["config"].checkpoint.best_metric == ""
    assert f"checkpoint.best_metric was {metric!r}, but eval.every is 0; only the newest" in caplog.text
    capsys.readouterr()  # the terminal shows the warning, too, if an earlier test has set it up
    message = refused(capsys, experiment, "--config.eval.every=0", f"--config.checkpoint.best_metric={metric}")
    assert message == f"launch.py: config.checkpoint.best_metric is {metric!r}, but must be '' with eval.every 0\n"


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_warmup_of_a_short_run_is_shortened(capsys, started, caplog, steps):
    assert cli.main(["launch.py", ARITHMETIC, f"--config.steps={steps}"]) == 0
    assert started[0][1]["config"].optim.warmup == steps - 1
    assert f"optim.warmup was 5, but must be less than steps ({steps}); it is now {steps - 1}" in caplog.text
    caplog.clear()
    assert cli.main(["launch.py", ARITHMETIC, "--config.steps=6"]) == 0
    assert started[1][1]["config"].optim.warmup == 5 and not caplog.text
    message = refused(capsys, ARITHMETIC, f"--config.steps={steps}", "--config.optim.warmup=5")
    assert f"config.optim.warmup is 5 with steps {steps}, but must be less than steps" in message


def test_an_overridden_best_metric_is_not_replaced(capsys, started):
    overrides = ["--config.eval.opponents=('minimax',)", "--config.checkpoint.best_metric=random/win_rate"]
    assert "'random/win_rate', but must be OPPONENT/METRIC" in refused(capsys, TIC_TAC_TOE, *overrides)
    assert "'randm/win_rate', but must be OPPONENT/METRIC" in refused(
        capsys, TIC_TAC_TOE, "--config.checkpoint.best_metric=randm/win_rate"
    )


@pytest.mark.parametrize(
    "experiment, lr",
    [
        ("tic_tac_toe_selfplay.py:sft", 1e-3),
        ("plan_path.py:sft", 1e-3),
        ("plan_path.py:roles_sft+smollm2-lora", 3e-4),
        ("sokoban.py:sft+smollm2+small", 4e-5),
    ],
)
def test_experiments_imitate_a_bot(started, experiment, lr):
    assert cli.main(["launch.py", f"--config={ROOT}/experiments/{experiment}"]) == 0
    config = started[0][1]["config"]
    assert (config.algo.name, config.algo.noise, config.algo.minibatches, config.algo.bot) == ("sft", 0.1, 4, "")
    assert (config.steps, config.rollout.num_envs, config.rollout.unroll_length) == (100, 128, 8)
    assert (config.optim.lr, config.optim.schedule, config.optim.warmup) == (lr, "linear", 5)
    assert (config.model.lora.rank > 0) == ("lora" in experiment)
    assert config.algo.grad_accum_steps == (8 if "smollm2" in experiment or "plan" in experiment else 1)


def test_an_out_of_memory_error_says_which_fields_to_lower(monkeypatch, capsys, tmp_path):
    def fail(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes.\nmore")

    monkeypatch.setitem(sys.modules, "marl_jax.modes.train", types.SimpleNamespace(train=fail))
    assert cli.main(["launch.py", TIC_TAC_TOE, f"--workdir={tmp_path}"]) == 1
    message = capsys.readouterr().err
    assert "out of memory; lower rollout.num_envs" in message and "99 bytes" in message and "more" not in message


def test_a_mode_is_given_what_it_asks_for(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setitem(sys.modules, "marl_jax.modes.train", types.SimpleNamespace(train=lambda *a: calls.append(a)))
    assert cli.main(["launch.py", TIC_TAC_TOE, f"--workdir={tmp_path}", "--profile"]) == 0
    config, workdir = calls[0]
    assert workdir == tmp_path and config.log.profile and config.name == "tic_tac_toe_selfplay"


def test_an_error_that_a_user_can_fix_has_no_traceback(monkeypatch, capsys, tmp_path):
    def fail(*_):
        raise RunError("the disk is full")

    monkeypatch.setitem(sys.modules, "marl_jax.modes.train", types.SimpleNamespace(train=fail))
    assert cli.main(["launch.py", TIC_TAC_TOE, f"--workdir={tmp_path}"]) == 1
    assert capsys.readouterr().err == "launch.py: the disk is full\n"


def test_a_folder_that_cannot_be_written_has_no_traceback(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr("marl_jax.running.console.set_up", lambda workdir, **_: workdir and workdir.mkdir(parents=True))
    assert cli.main(["launch.py", TIC_TAC_TOE, "--workdir=file/x"]) == 1
    assert capsys.readouterr().err == f"launch.py: {tmp_path}/file/x: Not a directory\n"


@pytest.mark.parametrize("mode", cli.MODES)
def test_every_mode_has_its_function(mode):
    assert importlib.util.find_spec(cli.MODES[mode][0].split(":")[0]), cli.MODES[mode][0]


def test_the_cache_of_compiled_programs_is_on_and_can_be_off(started, monkeypatch):
    kept = []
    monkeypatch.setattr(cli, "keep_compiled", kept.append)
    cli.main(["launch.py", TIC_TAC_TOE, "--compilation_cache=off"])
    assert not kept
    cli.main(["launch.py", TIC_TAC_TOE])
    assert kept == [str(user_cache("jax"))]


@pytest.mark.nightly_for("-7-ours 7.0", "mine-None-mine 1.0")
@pytest.mark.parametrize(
    "own, seconds, expected",
    [("", None, "ours 0.05"), ("mine", None, "mine 1.0"), ("", "7", "ours 7.0")],
)
def test_the_cache_is_set_in_jax_unless_the_user_has_set_one(own, seconds, expected):
    """JAX is imported before flags are parsed, so setting its environment variables would be too late."""
    names = "jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs"
    code = f"from marl_jax import cli\nimport jax\ncli.keep_compiled('ours')\nprint({names})"
    least = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": own, least: seconds}
    environment = {name: value for name, value in environment.items() if value is not None}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.stdout.strip() == expected, done.stderr


def test_the_command_itself_refuses_with_status_2_and_one_line(tmp_path):
    command = [sys.executable, str(ROOT / "launch.py"), TIC_TAC_TOE, "--config.stepps=3"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr == "launch.py: --config.stepps is not a field; did you mean steps?\n"


def test_the_first_signal_asks_and_the_second_ends():
    code = (
        "import os, signal\nfrom marl_jax.running.signals import GracefulStop\n"
        "with GracefulStop() as stop:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n    print(stop.asked, stop.name, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n    print('still here')\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert done.stdout == "True SIGTERM\n" and done.returncode == -signal.SIGTERM


@pytest.mark.parametrize("ignored", [False, True])
def test_a_lost_terminal_stops_but_under_nohup(ignored):
    code = (
        "import os, signal\nfrom marl_jax.running.signals import GracefulStop\n"
        f"signal.signal(signal.SIGHUP, signal.{'SIG_IGN' if ignored else 'SIG_DFL'})\n"
        "with GracefulStop() as stop:\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n    print(stop.asked)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    assert done.stdout == f"{not ignored}\n"


def test_signals_are_as_before_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with GracefulStop() as stop:
        assert signal.getsignal(signal.SIGTERM) != before and not stop.asked
    assert signal.getsignal(signal.SIGTERM) == before
