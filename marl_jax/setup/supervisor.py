"""Reports, alarms, rollbacks and the end of a run, decided after every update."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from marl_jax.errors import RunError
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.events import Events
from marl_jax.running.monitor import Alarm, Monitor
from marl_jax.running.recovery import report_alarms, report_update
from marl_jax.setup.parts import Setup
from marl_jax.setup.trainer import Trainer

log = logging.getLogger(__name__)

MAX_DROPPED = 0.05  # share of completions without room in their rows, above which a run warns


class Supervisor:
    """Looks at the metrics of every update and reacts.

    Attributes:
        monitor: Success, alarms and rollbacks so far; saved with checkpoints.
        failure: The error with which the run ends after it has been saved and reported.
        reacted: Whether the last update caused a rollback or a stop.
    """

    def __init__(self, setup: Setup, trainer: Trainer, checkpoints: Checkpoints, monitor: Monitor, events: Events):
        self.monitor = monitor
        self.failure: RunError | None = None
        self.reacted = False
        self._config, self._guard_drop = setup.config, setup.algo.guard_drop
        self._trainer, self._checkpoints, self._events = trainer, checkpoints, events
        self._first = True

    def observe(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Report the update that led to a step, and react to alarms.

        Raises:
            RunError: Too many updates in a row were not finite.
        """
        config, events = self._config, self._events
        if self._first:
            warn_of_dropped(metrics.get("dropped_completions", 0.0))
        self._first = False
        alarms = self.monitor.observe(step, metrics)
        report_update(events, step, metrics, self._guard_drop)
        if metrics["skipped_in_a_row"] >= config.checkpoint.nan_limit:
            raise not_finite(step, metrics["skipped_in_a_row"], config.optim.lr)
        report_alarms(events, step, alarms if config.alarm != "off" else ())
        self.reacted = bool(alarms) and config.alarm in ("rollback", "stop")
        if self.reacted:
            self.failure = self._react(alarms, step)
        if self.monitor.solved:
            log.info("step %d: the run meets stop_when (%s)", step, config.stop_when)
            events.write(step, "solved", f"The run meets stop_when ({config.stop_when}).")

    def finish(self, step: int) -> None:
        """Raise the error with which the run ends, if any."""
        if self.monitor.nothing_learned and self.failure is None:
            self.failure = RunError(
                f"every update up to step {step} was skipped: gradients were not finite, or the guard rejected them. "
                "Lower optim.lr, or raise algo.guard_drop."
            )
        if self.failure is not None:
            raise self.failure

    def _react(self, alarms: list[Alarm], step: int) -> RunError | None:
        if self._config.alarm == "stop":
            return RunError(f"step {step}: {alarms[0].message} The run was stopped because alarm is 'stop'.")
        try:
            self._trainer.roll_back(self._checkpoints, self.monitor, self._events, step)
        except RunError as error:
            return error
        return None


def warn_of_dropped(share: float) -> None:
    """Warn if more than a few completions do not fit into their rows."""
    if share > MAX_DROPPED:
        hint = "raise env.turn_tokens or env.history_tokens, or set them to 0"
        log.warning(
            "%.0f %% of the completions do not fit into their rows and are not trained on; %s", 100 * share, hint
        )


def not_finite(step: int, skipped: int, lr: float) -> RunError:
    """Return the error for a run with `skipped` skipped updates in a row."""
    return RunError(
        f"step {step}: the last {skipped:d} updates were not finite and were skipped; lower optim.lr (now {lr:g}) or "
        "optim.max_grad_norm"
    )
