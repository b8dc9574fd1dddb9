"""Train and evaluate from Python, with the code that the command line uses."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from envs.tasks.dataset_task import DatasetTask
from envs.tasks.rewards import name_rewards
from marl_jax import cli
from marl_jax.api import registering
from marl_jax.api.runs import Run
from marl_jax.errors import ConfigError
from marl_jax.running import console
from marl_jax.running.metrics import replace_text
from marl_jax.running.signals import GracefulStop
from marl_jax.schema import flags, overrides
from marl_jax.schema.overrides import Source
from models.user_cache import user_cache
from registries import end_import

log = logging.getLogger(__name__)

Dataset = str | Path | Iterable[Mapping[str, Any]] | Mapping[str, Any]
"""Rows, a file, a source such as "hub:OWNER/NAME", or {"train": …, "test": …} of these."""
Model = str | Mapping[str, Any]
"""Name or path of a model, or fields of `config.model` with its name."""
Rewards = Callable | str | Sequence[Callable | str] | Mapping[str, Callable | str]
"""One reward function, several, or {name: function}; a function may be given as "module:function"."""
LEARN_PAIRS = ("dpo", "reward_model")
"""Algorithms that read a file of pairs and hold a part of it out themselves."""


def train(config: Source, workdir: str | Path | None = None, **changes: Any) -> Run:
    """Train a run, or resume it from its newest checkpoint.

    Ctrl-C saves a checkpoint after the current step and returns the unfinished run; calling `train` again resumes it.

        run = marl_jax.train("tic_tac_toe_selfplay", steps=50, optim={"lr": 5e-4})
        run = marl_jax.train("runs/tic_tac_toe_selfplay", steps=100)     # resume it and train longer

    Args:
        config: A `ConfigDict`, an experiment (a name or a file, with ":FORM" for a variant), or the folder of a run.
        workdir: Folder of the run; `runs/NAME` by default.
        **changes: Config fields to change. Groups are mappings, such as `optim={"lr": 1e-3}`.

    Returns:
        The run, with its metrics, games and checkpoints.

    Raises:
        marl_jax.errors.ConfigError: If the config is invalid, with one line per problem.
        marl_jax.errors.RunError: If the run fails for a reason that a user can fix.
    """
    end_import()
    settings, folder, warnings = _settings(config, workdir, changes)
    with GracefulStop() as stop:
        _start("train", settings, folder, warnings, stop=stop)
    return Run(folder)


def evaluate(run: Source, workdir: str | Path | None = None, **changes: Any) -> list[dict[str, Any]]:
    """Evaluate a run against opponents or on the test split of its task.

        rows = marl_jax.evaluate(run, eval={"opponents": ("minimax", "random")})

    Args:
        run: A run, or anything that `train` takes.
        workdir: Folder for the results; that of the run by default.
        **changes: Config fields to change, such as `eval={"games": 1000}`.

    Returns:
        One row per opponent, or one for a task. Each metric has an interval: `win_rate`, `win_rate_low`, …
    """
    end_import()
    settings, folder, warnings = _settings(run, workdir, changes)
    return _start("eval", settings, folder, warnings)


def grpo(
    model: Model,
    dataset: Dataset,
    rewards: Rewards,
    *,
    prompt: str = "{prompt}",
    workdir: str | Path | None = None,
    per_role: bool = False,
    params: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Run:
    """Train a model by GRPO on a dataset with reward functions.

        def right(completion, answer):
            return float(answer in completion)

        rows = [{"prompt": "The capital of France?", "answer": "Paris"}, …]
        run = marl_jax.grpo("smollm2-135m", rows, right, steps=100)

    The rows of a dataset in memory are written to the folder of the run. A reward function of a script or module is
    recorded by its place, so that the command line can resume and evaluate the run. A function of a notebook is not.

    Args:
        model: Name of a registered model, a Hugging Face folder, a GGUF file, or "tiny" for a small untrained model.
            To change its config, a mapping: {"name": "smollm2-135m", "lora": {"rank": 16}}.
        dataset: Rows (a list or another iterable of mappings, such as a Hugging Face dataset), a JSONL file,
            "hub:OWNER/NAME", or {"train": …, "test": …} of these. Missing splits are cut from train.
        rewards: Reward functions. Their parameters name their inputs: `completion`, `prompt`, or columns of the
            dataset. A function with a parameter `completions` takes and returns lists, as in TRL.
        prompt: Template of the prompt with columns in braces. The column "prompt" may hold messages.
        workdir: Folder of the run; `runs/grpo` by default.
        per_role: Whether each role of a workflow is a LoRA adapter on the model, instead of one policy for all.
        params: Further parameters of the task `dataset`: `weights` of the rewards, `system`, `workflow`, `pays`, …
        **changes: Config fields to change, such as `steps=100` or `algo={"group_size": 16}`.
    """
    task = {"prompt": prompt, "rewards": rewards, **(params or {})}
    return _train_on_data("grpo", model, dataset, task, workdir, changes, per_role)


def sft(
    model: Model,
    dataset: Dataset,
    *,
    prompt: str = "{prompt}",
    completion: str = "{completion}",
    workdir: str | Path | None = None,
    params: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Run:
    """Train a model to write the completions of a dataset.

        rows = [{"prompt": "The capital of France?", "completion": "Paris."}, …]
        run = marl_jax.sft("smollm2-135m", rows, steps=50)

    Args:
        model: See `grpo`.
        dataset: See `grpo`.
        prompt: Template of the prompt with columns in braces.
        completion: Template of the completion.
        workdir: Folder of the run; `runs/sft` by default.
        params: Further parameters of the task `dataset`, such as `rewards` for the evaluation. By default, success is
            the share of greedy completions that equal the reference.
        **changes: Config fields to change.
    """
    task = {"prompt": prompt, "completion": completion, **(params or {})}
    return _train_on_data("sft", model, dataset, task, workdir, changes)


def dpo(
    model: Model,
    pairs: Dataset,
    *,
    workdir: str | Path | None = None,
    params: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Run:
    """Train a model by DPO on pairs of completions.

        pairs = [{"prompt": "The capital of France?", "chosen": "Paris.", "rejected": "Lyon."}, …]
        run = marl_jax.dpo("smollm2-135m", pairs, steps=50, algo={"beta": 0.1})

    A tenth of the prompts is held out; the evaluations in `run.evaluations` have the accuracy on them (row "pairs").

    Args:
        model: See `grpo`.
        pairs: Rows with the columns prompt, chosen and rejected, or a JSONL file of them. Texts or messages.
        workdir: Folder of the run; `runs/dpo` by default.
        params: Further parameters of the task `dataset`, such as `rewards` for the evaluation.
        **changes: Config fields to change. `algo={"name": "ipo"}` trains by IPO.
    """
    return _train_on_data("dpo", model, pairs, dict(params or {}), workdir, changes)


def reward_model(model: Model, pairs: Dataset, *, workdir: str | Path | None = None, **changes: Any) -> Run:
    """Train a reward model, a head whose scores prefer the chosen completions of pairs.

        run = marl_jax.reward_model("smollm2-135m", pairs, steps=50)

    `marl-jax --workdir=runs/reward_model --mode=serve_reward` serves its scores.

    Args:
        model: See `grpo`.
        pairs: See `dpo`.
        workdir: Folder of the run; `runs/reward_model` by default.
        **changes: Config fields to change.
    """
    return _train_on_data("reward_model", model, pairs, {}, workdir, changes)


# ------------------------------------------------------------------------------------------------------------ details


def _train_on_data(
    algorithm: str,
    model: Model,
    dataset: Dataset,
    params: dict[str, Any],
    workdir: str | Path | None,
    changes: dict[str, Any],
    per_role: bool = False,
) -> Run:
    """Train with `experiments/dataset.py`."""
    end_import()
    folder = Path(workdir or Path("runs") / algorithm).expanduser().absolute()
    own = {"name": model} if isinstance(model, str) else dict(model)
    name = own.pop("name") if "name" in own else own.pop("weights", "tiny")
    config = flags.load_experiment("dataset", f"{algorithm}+{name}").unlock()
    config.name, params["data"] = algorithm, _data(dataset, folder)
    if algorithm in LEARN_PAIRS:
        config.algo.data = _one_file(params["data"])
        params = {**config.task.params.to_dict(), **params, "data": config.algo.data}
    try:
        if "rewards" in params:
            params["rewards"] = name_rewards(params["rewards"])
        roles = DatasetTask(**params).roles
    except ValueError as error:
        raise ConfigError([str(error)]) from error
    overrides.apply(config, {"task.params": params, "model": own})
    if per_role:
        config.model.lora.rank = config.model.lora.rank or 16
        overrides.apply(config, {"agents": {role: role for role in roles}, "policies": roles})
    return train(config, folder, **changes)


def _settings(
    source: Source, workdir: str | Path | None, changes: Mapping[str, Any]
) -> tuple[ConfigDict, Path, tuple[str, ...]]:
    """Return the changed config, the folder of the run, and warnings to log."""
    config, name, folder = overrides.resolve(source)
    warnings = overrides.apply(config, changes)
    if workdir is None and folder is None and not (name or config.name):
        raise ConfigError(["workdir is missing, but must be given for a config without a name"])
    folder = Path(workdir or folder or Path("runs") / (name or config.name)).expanduser().absolute()
    config.name = config.name or name or folder.name
    config.plugins = tuple(dict.fromkeys([*config.plugins, *registering.modules_for(config)]))
    return config.lock(), folder, warnings


def _start(mode: str, config: ConfigDict, workdir: Path, warnings: Sequence[str], **more: Any) -> Any:
    """Start a mode with the log lines of the command line, and return its result."""
    with console.attached(workdir if mode == "train" else None):
        for warning in warnings:
            log.warning("%s", warning)
        config = cli.prepare(config, mode, workdir, str(user_cache("jax")))
        cli.start_processes(config, mode)
        return _outside_event_loop(lambda: cli.start(mode, dict(config=config, workdir=workdir), **more))


def _outside_event_loop(call: Callable[[], Any]) -> Any:
    """Call a function, in another thread if this one runs an event loop.

    Notebooks run one. Tasks need an event loop too, and a thread can only run one.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, name="marl_jax", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)  # returns to Python regularly, because only this thread can handle signals
    return future.result()


def _data(dataset: Any, workdir: Path) -> str | dict[str, str]:
    """Return the sources of a dataset for a config.

    Rows in memory are written to the folder of the run.
    """
    if isinstance(dataset, str | Path):
        return str(Path(dataset).expanduser().absolute()) if Path(dataset).expanduser().exists() else str(dataset)
    splits = dataset if isinstance(dataset, Mapping) else {"train": dataset}
    return {split: _source(rows, workdir / "data", split) for split, rows in splits.items()}


def _one_file(data: str | Mapping[str, str]) -> str:
    """Return the file of pairs."""
    if not isinstance(data, str) and set(data) != {"train"}:
        names = ", ".join(data)
        raise ConfigError(
            [f"pairs has the splits {names}, but must be rows or a file; algo.held_out sets the test share"]
        )
    return data if isinstance(data, str) else data["train"]


def _source(rows: Any, folder: Path, split: str) -> str:
    if isinstance(rows, str | Path):
        return str(rows)
    lines = []
    for number, row in enumerate(rows):
        try:
            lines.append(json.dumps(dict(row), ensure_ascii=False) + "\n")
        except (TypeError, ValueError) as error:
            raise ConfigError([f"row {number} of the dataset is {row!r:.80}, but must be JSON: {error}"]) from error
    text = "".join(lines)
    # The hash keeps the data of an earlier run in this folder, which other rows cannot continue.
    path = folder / f"{split}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(path, text)
    return str(path)
