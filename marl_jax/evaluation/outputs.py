"""Everything that a training run writes into its folder, except checkpoints and the report."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ml_collections import ConfigDict

from marl_jax.algorithms.preference_config import ContrastiveSettings
from marl_jax.evaluation import records
from marl_jax.evaluation.games import GameEvaluation
from marl_jax.evaluation.pairs import PolicyPairEvaluation, RewardModelEvaluation
from marl_jax.evaluation.tasks import TaskEvaluation
from marl_jax.evaluation.verifier import VerifierEvaluation
from marl_jax.running.conversation_logs import GameLogs
from marl_jax.running.metrics import MetricsWriter
from marl_jax.running.profiling import Clock
from marl_jax.setup.games import GameSetup
from marl_jax.setup.tasks import TaskSetup
from marl_jax.setup.trainer import Trainer


class Together:
    """Several evaluations of a task as one, with the rows of all."""

    def __init__(self, *parts: Any):
        self._parts = parts

    def __call__(self, weights: dict[str, dict], baselines: bool = False) -> list[dict[str, Any]]:
        """Evaluate and return the rows."""
        return [row for part in self._parts for row in part(weights, baselines=baselines)]

    def write(self, workdir: Path, step: int) -> None:
        """Write the records of the last call."""
        for part in self._parts:
            part.write(workdir, step)

    def everyone(self, workdir: Path, weights: dict) -> dict[str, Any]:
        """Return what all evaluations know of other players."""
        return {name: value for part in self._parts for name, value in part.everyone(workdir, weights).items()}

    def close(self) -> None:
        """Close all evaluations."""
        with contextlib.ExitStack() as closing:
            for part in self._parts:
                closing.callback(part.close)


Evaluation: TypeAlias = GameEvaluation | TaskEvaluation | VerifierEvaluation | RewardModelEvaluation | Together


def evaluation_of(setup: GameSetup | TaskSetup, part: str = "validation") -> Evaluation:
    """Build the evaluation of a run.

    Args:
        setup: Parts of the run.
        part: Split of the examples of a task. The default selects the best checkpoint during training.
    """
    if isinstance(setup, GameSetup):
        return setup.programs.get("evaluation", lambda: GameEvaluation(setup))
    if "pairs" in setup.algorithm.verifies:
        return RewardModelEvaluation(setup, part)
    if setup.algorithm.verifies:
        return VerifierEvaluation(setup, part)
    played = TaskEvaluation(setup, part)
    if isinstance(setup.algo, ContrastiveSettings) and setup.algo.data:
        return Together(PolicyPairEvaluation(setup, part), played)
    return played


class RunOutputs:
    """Evaluates, logs games and writes metrics.

    Args:
        setup: Parts of the run.
        trainer: Provides the weights.
        evaluation: The run's evaluation, see `evaluation_of`.
        workdir: Folder of the run.
        start: Step from which the run continues; later rows in the files are removed.
        main: Whether this process writes files.
    """

    def __init__(
        self, setup: GameSetup | TaskSetup, trainer: Trainer, evaluation: Any, workdir: Path, start: int, main: bool
    ):
        self._setup, self._config, self._trainer, self._workdir = setup, setup.config, trainer, workdir
        self._evaluation, self._played = evaluation, records.log_of(setup)
        self._test: Evaluation | None = None
        self._metrics = MetricsWriter(setup.config, workdir, start=start, main=main)
        self._games = GameLogs(setup.config, workdir, start=start, main=main)

    def evaluate_untrained(self) -> None:
        """Evaluate the policy before training, together with baselines."""
        self._metrics.write_eval(0, self._trainer.with_params(self._evaluation, baselines=True))
        self._evaluation.write(self._workdir, 0)
        self._evaluate_test(0, last=False)

    def evaluate(self, step: int, last: bool, clock: Clock) -> float | None:
        """Evaluate if the step is due, and return the metric that selects the best checkpoint."""
        every = self._config.eval.every
        if not every or step % every and not last:
            return None
        with clock.phase("evaluation"):
            rows = self._trainer.with_params(self._evaluation)
            self._evaluate_test(step, last)
        self._metrics.write_eval(step, rows)
        self._evaluation.write(self._workdir, step)
        return best_metric(self._config, rows)

    def _evaluate_test(self, step: int, last: bool) -> None:
        """Evaluate on the test split if `eval.test` asks for it; only the episodes are written."""
        if self._config.eval.test != "always" and not (self._config.eval.test == "last" and last):
            return
        if self._test is None:
            self._test = evaluation_of(self._setup, "test")
        self._trainer.with_params(self._test)
        self._test.write(self._workdir, step)

    def write(self, step: int, metrics: Mapping[str, Any], clock: Clock, last: bool = False) -> None:
        """Write the metrics of a step, and sampled games if they are due."""
        if self._games.due(step) and not last:
            with clock.phase("logs"):
                self._games.write(step, self._trainer.with_params(self._played, self._trainer.step_key(step - 1), step))
        self._metrics.write(step, {**metrics, **clock.metrics(metrics)}, last=last)

    def close(self) -> None:
        """Close all files."""
        with contextlib.ExitStack() as closing:
            for part in (self._evaluation, self._test, self._played, self._metrics, self._games):
                if part is not None:
                    closing.callback(part.close)


def best_metric(config: ConfigDict, rows: list[dict]) -> float | None:
    """Return the metric that selects the best checkpoint."""
    opponent, _, metric = config.checkpoint.best_metric.partition("/")
    return next((row.get(metric) for row in rows if row["opponent"] == opponent), None)
