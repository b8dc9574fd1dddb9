"""`train`, `grpo`, `sft` and `evaluate`: overrides, notebooks, Ctrl-C, and runs that the command line resumes."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import marl_jax
from envs.tasks import make_task
from marl_jax import cli
from marl_jax.api import registering
from marl_jax.errors import ConfigError
from marl_jax.running import console
from marl_jax.running.signals import GracefulStop
from marl_jax.schema import flags, overrides, validate
from registries import import_module
from tests.marl_jax import tiny_run, tiny_task

ROOT = Path(__file__).resolve().parents[3]
ROWS = [{"prompt": f"Say {i % 10}.", "answer": str(i % 10)} for i in range(40)]
SMALL = dict(
    mesh={"data": 1}, task={"n_episodes": 4, "max_new_tokens": 4, "max_num_seqs": 8, "max_length": 128},
    algo={"minibatches": 1}, optim={"warmup": 0}, eval={"every": 0}, checkpoint={"best_metric": "", "every": 100},
    log={"games": 0, "tensorboard": False, "progress": False},
)  # fmt: skip
TINY = {"name": "tiny", "shape": dict(d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16)}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "keep_compiled", lambda folder: None)


@pytest.mark.quick
def test_the_import_is_quick_and_lazy():
    code = (
        "import sys, time\nstart = time.process_time()\nimport marl_jax\nspent = time.process_time() - start\n"
        "assert 'jax' not in sys.modules and 'ml_collections' not in sys.modules\nprint(spent, *dir(marl_jax))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert float(done.stdout.split()[0]) < 0.2, done.stderr
    assert set(marl_jax.__all__) <= set(done.stdout.split())
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        marl_jax.trian  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.quick
@pytest.mark.parametrize("name", marl_jax.__all__)
def test_every_name_can_be_used_and_is_documented(name):
    assert getattr(marl_jax, name).__doc__
    assert f"marl_jax.{name}" in (ROOT / "docs" / "python.md").read_text()


@pytest.mark.quick
def test_the_examples_of_the_page_are_python_and_those_about_environments_run(capsys):
    """`test_new_users.py` runs all of them."""
    page = (ROOT / "docs" / "python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 9 and all(compile(block, "docs/python.md", "exec") for block in blocks)
    exec(next(block for block in blocks if "make_env" in block), {"marl_jax": marl_jax})
    assert capsys.readouterr().out.startswith("[ True  True  True  True False  True")


# --------------------------------------------------------------------------------------------------------- overrides


@pytest.mark.quick
def test_fields_are_changed_by_groups_or_dotted_names():
    config = tiny_task.get_config()
    before = config.to_dict()
    overrides.apply(config, {"steps": 5, "optim": {"lr": 0.5}, "task.params.n_examples": 8, "log.games": 2})
    assert (config.steps, config.optim.lr, config.task.params.n_examples, config.log.games) == (5, 0.5, 8, 2)
    assert config.optim.warmup == before["optim"]["warmup"] and config.task.name == "plain"
    overrides.apply(config, {"algo": {"name": "ppo", "lam": 0.5}, "agents": {"a": "x"}, "policies": ["x", "y"]})
    assert (config.algo.name, config.algo.lam, config.agents.to_dict()) == ("ppo", 0.5, {"a": "x"})
    assert set(config.policies) == {"x", "y"} and config.policies.x.to_dict() == {"model": {}, "frozen": False}
    overrides.apply(config, {"task": {"params": {"workflow": [{"role": "a", "rewards": ["b"]}]}}})
    assert config.task.params.workflow == ({"role": "a", "rewards": ("b",)},) and config.task.params.n_examples == 8
    json.dumps(config.to_dict())


@pytest.mark.quick
@pytest.mark.parametrize(
    "changes, message",
    [
        ({"optim": {"lrr": 1}}, r"^config.optim.lrr is not a field; did you mean optim.lr\?$"),
        ({"stepps": 1}, r"^config.stepps is not a field; did you mean steps\?$"),
        ({"steps": "many"}, r"config.steps is 'many', but must be an integer >= 1"),
        ({"algo": "grpo"}, "config.algo is a group of fields"),
        ({"algo.name": "gpro"}, "config.algo.name is 'gpro', but must be one of: .* did you mean grpo"),
        ({"plugins": "no_such_module"}, "config.plugins: plugin 'no_such_module' cannot be imported"),
    ],
)
def test_wrong_fields_are_refused_before_anything_runs(changes, message):
    with pytest.raises(ConfigError, match=message):
        marl_jax.train(tiny_run.get_config(), "run", **changes)


@pytest.mark.quick
@pytest.mark.parametrize("source", ["tictactoe", "nowhere/run", "experiments/nope.py"])
def test_unknown_experiments_are_refused(source):
    with pytest.raises(ConfigError, match="no such Python file; experiments: "):
        marl_jax.train(source)
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        marl_jax.Run(source)


@pytest.mark.quick
def test_sources_of_configs():
    config, name, folder = overrides.resolve("plan_path:grpo")
    assert config.algo.name == "grpo" and name == "plan_path-grpo" and folder is None
    own = tiny_run.get_config()
    assert overrides.resolve(own)[0] is not own
    Path("run").mkdir()
    Path("run/config.json").write_text(json.dumps(own.to_dict()))
    config, name, folder = overrides.resolve("run")
    assert config.to_dict() == own.to_dict() and folder == Path("run").absolute()


# ------------------------------------------------------------------------------------------------- data and rewards


def right(completion, answer):
    return float(answer in completion)


@pytest.mark.quick
def test_data_and_rewards_become_plain_settings(monkeypatch):
    given = {}
    monkeypatch.setattr("marl_jax.api.training.train", lambda config, folder, **changes: given.update(config=config))
    steps = [{"role": "solver", "prompt": "{prompt}"}, {"role": "critic", "prompt": "{solver}?"}]
    rewards = {"right": right, "again": right, "own": lambda completion: 1.0}
    marl_jax.grpo("tiny", iter(ROWS), rewards, per_role=True, params={"workflow": steps, "pays": "agent"})
    config = given["config"]
    assert set(config.policies) == {"solver", "critic"} and config.model.lora.rank == 16
    params = json.loads(json.dumps(config.task.params.to_dict()))
    # In their order, which a mapping in a config would lose: the first one defines success.
    assert params["rewards"] == [f"{__name__}:right", f"again={__name__}:right", "own"] and params["pays"] == "agent"
    assert list(make_task("dataset", **config.task.params.to_dict()).functions) == ["right", "again", "own"]
    assert [json.loads(line) for line in Path(params["data"]["train"]).read_text().splitlines()] == ROWS
    Path("rows.jsonl").write_text("")
    marl_jax.sft("tiny", "rows.jsonl", completion="{answer}")
    params = given["config"].task.params
    assert (params.data, params.completion) == (str(Path("rows.jsonl").absolute()), "{answer}")
    validate.check(given["config"])
    for data, rewards, message in (
        ([{"prompt": object()}], right, "row 0 of the dataset is .* but must be JSON"),
        (ROWS, [], "rewards is empty, but must have at least one function"),
        (ROWS, "json:no_such_function", "rewards has 'json:no_such_function', which cannot be imported"),
    ):
        with pytest.raises(ConfigError, match=message):
            marl_jax.grpo("tiny", data, rewards)


@pytest.mark.quick
def test_pairs_are_one_file_for_the_algorithm_and_the_task(monkeypatch):
    given = {}
    monkeypatch.setattr("marl_jax.api.training.train", lambda config, folder, **changes: given.update(config=config))
    pairs = [{"prompt": f"Say {i}.", "chosen": str(i), "rejected": "no"} for i in range(40)]
    for name, algorithm in (("dpo", marl_jax.dpo), ("reward_model", marl_jax.reward_model)):
        algorithm("tiny", pairs)
        config = given["config"]
        assert config.algo.name == name and config.checkpoint.best_metric == "pairs/accuracy"
        assert config.algo.data == config.task.params.data
        validate.check(config)
        assert [json.loads(line) for line in Path(config.algo.data).read_text().splitlines()] == pairs
        assert make_task("dataset", **config.task.params.to_dict()).gold_reply(pairs[3]) == "3"
        with pytest.raises(ConfigError, match="pairs has the splits train, test, but must be rows or a file"):
            algorithm("tiny", {"train": pairs, "test": pairs})


@pytest.mark.quick
def test_the_command_line_names_the_file_of_pairs_once():
    for field in ("algo.data", "task.params.data"):
        config = flags.load_experiment("dataset", "ipo")
        overrides.apply(config, {field: "pairs.jsonl"})
        assert json.loads(json.dumps(config.to_dict()))["task"]["params"]["data"] == config.algo.data == "pairs.jsonl"


@pytest.mark.quick
@pytest.mark.parametrize("form", [None, "ppo", "at_grpo+smollm2", "sft+qwen3-0.6b", "/models/mine", "sft+mine.gguf"])
def test_forms_of_the_experiment(form):
    config = flags.load_experiment("dataset", form)
    assert config.algo.name == ((form or "").partition("+")[0] if "+" in (form or "") or form == "ppo" else "grpo")
    assert config.task.max_new_tokens == (16 if form in (None, "ppo") else 256)
    assert config.model.weights == {"/models/mine": "/models/mine", "sft+mine.gguf": "mine.gguf"}.get(
        form, "" if "+" in (form or "") else "random"
    )


# ------------------------------------------------------------------------------------------------- notebooks, Ctrl-C


@pytest.mark.quick
def test_a_second_ctrl_c_raises_as_without_a_run():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), GracefulStop() as stop:
            signal.raise_signal(signal.SIGINT)
            assert stop.asked
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.quick
def test_threads_that_get_no_signals_can_train_too():
    async def enter():
        return await asyncio.to_thread(lambda: GracefulStop().__enter__().asked)

    assert asyncio.run(enter()) is False


def test_train_in_a_notebook_stop_and_resume():
    """An event loop is running. Ctrl-C ends the first call with a checkpoint, and the second call continues."""
    calls = []

    def interrupting(completion):
        calls.append(completion)
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return float(len(completion) % 2)

    async def notebook():
        first = marl_jax.grpo(TINY, ROWS, interrupting, steps=50, **SMALL | {"algo": {"group_size": 2}})
        stopped = (first.step, first.checkpoints)
        return first, stopped, marl_jax.train(first.workdir, steps=first.step + 1)

    handler = signal.getsignal(signal.SIGINT)
    run, (step, checkpoints), again = asyncio.run(notebook())
    assert 1 <= step < 50 and checkpoints == [step]
    assert again.workdir == run.workdir and again.step == step + 1 == again.config.steps
    assert [row["step"] for row in again.metrics] == [*range(1, step + 2)]
    assert signal.getsignal(signal.SIGINT) == handler
    assert "stopped at step" in (run.workdir / "run.log").read_text()


@pytest.mark.quick
def test_logging_of_the_program_is_left_alone(tmp_path, capsys):
    import logging

    ours, root = logging.getLogger("marl_jax"), logging.getLogger()
    before = (ours.level, ours.propagate, ours.handlers[:], root.handlers[:], sys.excepthook)
    with console.attached(tmp_path):
        ours.info("hello")
    assert (ours.level, ours.propagate, ours.handlers[:], root.handlers[:], sys.excepthook) == before
    assert "hello" in (tmp_path / "run.log").read_text()


# ------------------------------------------------------------------------------------------- scripts as plugins

SCRIPT = """
import marl_jax
from tests.marl_jax import tiny_task
from tests.marl_jax.tiny_tasks import Plain

@marl_jax.register_task("scripted")
class Mine(Plain):
    pass

config = tiny_task.get_config()
config.task.name, config.plugins = "scripted", ()
run = marl_jax.train(config, "run", steps=1)
raise SystemExit(f"ended at step {run.step}")
"""


@pytest.fixture
def registered(monkeypatch):
    """Forget after the test what it registers."""
    from envs.tasks import TASKS
    from envs.tasks.rewards import REWARDS

    for registry in (TASKS, REWARDS):
        registry.names()
        for name in ("_entries", "_origins"):
            monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    monkeypatch.setattr(registering, "MODULES", {})
    return TASKS


@pytest.mark.quick
def test_a_script_is_imported_up_to_its_first_run(registered, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(SCRIPT)
    module = import_module("mine.py")  # ends at `train`, so there is no SystemExit
    assert "scripted" in registered and registered.get("scripted") is module.Mine and not hasattr(module, "run")
    assert import_module(str(tmp_path / "mine.py")) is module
    assert list(registering.MODULES) == [str(tmp_path / "mine.py")]
    with pytest.raises(ImportError, match="there is no file .*none.py"):
        import_module("none.py")
    (tmp_path / "wrong.py").write_text("import marl_jax\n1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        import_module("wrong.py")
    monkeypatch.delitem(sys.modules, str(tmp_path / "mine.py"))


@pytest.mark.quick
def test_a_cell_that_runs_again_replaces_what_it_registered(registered):
    for number in range(2):
        marl_jax.register_reward("twice", lambda completion, number=number: number)
    from envs.tasks.rewards import REWARDS

    assert REWARDS.get("twice")("") == 1
    with pytest.raises(ValueError, match="task 'arithmetic' already exists"):
        marl_jax.register_task("arithmetic", object)
    assert dict(registering.MODULES) == {__name__: {"twice"}}
    config = flags.load_experiment("dataset", None)
    assert registering.modules_for(config) == []
    config.task.params.rewards = ("twice",)
    assert registering.modules_for(config) == [__name__]


@pytest.mark.nightly
def test_the_command_line_resumes_and_evaluates_what_a_script_began(tmp_path):
    (tmp_path / "mine.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def command(*words):
        return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, cwd=tmp_path)

    began = command("mine.py")
    assert began.stderr.endswith("ended at step 1\n"), began.stderr
    assert json.loads((tmp_path / "run" / "config.json").read_text())["plugins"] == [str(tmp_path / "mine.py")]
    for words in (["--config.steps=2"], ["--mode=eval"]):
        done = command(str(ROOT / "launch.py"), "--workdir=run", *words)
        assert done.returncode == 0, done.stderr
    assert marl_jax.Run("run").step == 2 and (tmp_path / "run" / "evaluation.json").is_file()
