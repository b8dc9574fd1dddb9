"""Everything that a training run writes into its folder, except checkpoints and the report."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from marl_jax.evaluation import records
from marl_jax.running.conversation_logs import GameLogs
from marl_jax.running.metrics import MetricsWriter
from marl_jax.running.profiling import Clock
from marl_jax.setup.games import GameSetup
from marl_jax.setup.tasks import TaskSetup
from marl_jax.setup.trainer import Trainer


class RunOutputs:
    """Evaluates, logs games and writes metrics.

    Args:
        setup: Parts of the run.
        trainer: Provides the weights.
        evaluation: The run's evaluation, see `marl_jax.modes.evaluate.evaluation_of`.
        workdir: Folder of the run.
        start: Step from which the run continues; later rows in the files are removed.
        main: Whether this process writes files.
    """

    def __init__(
        self, setup: GameSetup | TaskSetup, trainer: Trainer, evaluation: Any, workdir: Path, start: int, main: bool
    ):
        self._config, self._trainer, self._workdir = setup.config, trainer, workdir
        self._evaluation, self._played = evaluation, records.log_of(setup)
        self._metrics = MetricsWriter(setup.config, workdir, start=start, main=main)
        self._games = GameLogs(setup.config, workdir, start=start, main=main)

    def evaluate_untrained(self) -> None:
        """Evaluate the policy before training, together with baselines."""
        self._metrics.write_eval(0, self._trainer.with_params(self._evaluation, baselines=True))
        self._evaluation.write(self._workdir, 0)

    def evaluate(self, step: int, last: bool, clock: Clock) -> float | None:
        """Evaluate if the step is due, and return the metric that selects the best checkpoint."""
        every = self._config.eval.every
        if not every or step % every and not last:
            return None
        with clock.phase("evaluation"):
            rows = self._trainer.with_params(self._evaluation)
        self._metrics.write_eval(step, rows)
        self._evaluation.write(self._workdir, step)
        return best_metric(self._config, rows)

    def write(self, step: int, metrics: Mapping[str, Any], clock: Clock, last: bool = False) -> None:
        """Write the metrics of a step, and sampled games if they are due."""
        if self._games.due(step) and not last:
            with clock.phase("logs"):
                self._games.write(step, self._trainer.with_params(self._played, self._trainer.step_key(step - 1), step))
        self._metrics.write(step, {**metrics, **clock.metrics(metrics)}, last=last)

    def close(self) -> None:
        """Close all files."""
        with contextlib.ExitStack() as closing:
            for part in (self._evaluation, self._played, self._metrics, self._games):
                closing.callback(part.close)


def best_metric(config: ConfigDict, rows: list[dict]) -> float | None:
    """Return the metric that selects the best checkpoint."""
    opponent, _, metric = config.checkpoint.best_metric.partition("/")
    return next((row.get(metric) for row in rows if row["opponent"] == opponent), None)
