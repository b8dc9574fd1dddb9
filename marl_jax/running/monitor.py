"""A monitor of training metrics that detects collapse, lack of progress and solved tasks.

`Monitor` sees the training metrics of every update. Its state is a small JSON value that is saved with each checkpoint,
so that a resumed run raises the same alarms at the same steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from marl_jax.errors import RunError

UNINFORMATIVE = 3
"""Number of consecutive updates without an informative group that raises an alarm."""

SKIPPED = 5
"""Number of consecutive skipped or rejected updates that raises an alarm."""

WINDOW = 5
"""Number of updates over which training success is averaged."""

COLLAPSE = 0.5
"""Share of its best value below which the average success raises an alarm."""

WORTH_WATCHING = 0.1
"""Best average success below which a drop is considered noise."""

GOOD = 0.8
"""Share of the best average success from which a checkpoint counts as good."""

SOLVED_UPDATES = 3
"""Number of consecutive updates for which `stop_when` must hold."""

ROLLBACKS = 2
"""Maximum number of rollbacks of a run."""


class Alarm(NamedTuple):
    """A reason why training needs attention."""

    kind: str
    message: str


class AlarmCondition(Protocol):
    """A condition on metrics (see `marl_jax.schema.conditions`)."""

    @property
    def metric(self) -> str:
        """Name of the metric."""
        ...

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """Return whether the metrics meet it."""
        ...


@dataclasses.dataclass
class MonitorState:
    """State of the monitor.

    Attributes:
        updates: Number of updates so far.
        unchanged: Number of updates that were skipped or rejected completely.
        uninformative: Number of consecutive updates, up to now, without an informative group.
        skipped: Number of consecutive updates that were skipped or rejected.
        success: Training success of the last `WINDOW` updates.
        best: Highest average success over `WINDOW` updates.
        best_step: Step at which `best` was reached.
        raised: Kinds of alarms that have been raised and whose cause persists.
        met: Number of consecutive updates for which `stop_when` has held.
        rollbacks: Number of rollbacks so far.
    """

    updates: int = 0
    unchanged: int = 0
    uninformative: int = 0
    skipped: int = 0
    success: list[float] = dataclasses.field(default_factory=list)
    best: float = 0.0
    best_step: int = 0
    raised: list[str] = dataclasses.field(default_factory=list)
    met: int = 0
    rollbacks: int = 0

    @property
    def mean_success(self) -> float | None:
        """Average success over the window, or None until the window is full."""
        return float(np.mean(self.success)) if len(self.success) == WINDOW else None


class Monitor:
    """A monitor that raises alarms and decides when a run is solved.

    Args:
        stop_when: Conditions that end the run.
        saved: State saved with a checkpoint, or None for a new run.
        watch_success: Whether a drop of training success means a collapse. It does not with a curriculum, which makes
            levels harder.
    """

    def __init__(
        self,
        stop_when: Sequence[AlarmCondition] = (),
        saved: Mapping[str, Any] | None = None,
        *,
        watch_success: bool = True,
    ):
        self._stop_when, self._watch_success = tuple(stop_when), watch_success
        self.state = MonitorState(**saved or {})

    @property
    def solved(self) -> bool:
        """Whether `stop_when` has held for long enough."""
        return bool(self._stop_when) and self.state.met >= SOLVED_UPDATES

    @property
    def lr_scale(self) -> float:
        """Factor on the learning rate after the rollbacks so far."""
        return 0.5**self.state.rollbacks

    @property
    def nothing_learned(self) -> bool:
        """Whether every update of the run was skipped or rejected."""
        return 0 < self.state.updates == self.state.unchanged

    def saved(self) -> dict[str, Any]:
        """Return the state as a JSON value."""
        return dataclasses.asdict(self.state)

    def observe(self, step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        """Process the metrics of an update and return the alarms that it raises.

        An alarm is raised once, and again only after its cause has disappeared in between.

        Raises:
            RunError: `stop_when` names a metric that the run does not have.
        """
        state = self.state
        state.updates += 1
        tried = metrics["optimizer_steps"] > 0 or metrics["skipped"] > 0
        lost = tried and (metrics["optimizer_steps"] == 0 or metrics.get("rejected", 0.0) >= 1)
        state.unchanged += int(lost)
        state.skipped = state.skipped + 1 if lost else 0 if tried else state.skipped
        informative = metrics.get("informative_share", 1.0) > 0
        state.uninformative = 0 if informative else state.uninformative + 1
        if self._watch_success and "success" in metrics:
            state.success = [*state.success, float(metrics["success"])][-WINDOW:]
        mean = state.mean_success
        if mean is not None and mean > state.best:
            state.best, state.best_step = mean, step
        state.met = state.met + 1 if self._stop_when and self._meets(metrics) else 0
        causes = {alarm.kind: alarm for alarm in self._causes(metrics)}
        new = [alarm for kind, alarm in causes.items() if kind not in state.raised]
        state.raised = list(causes)
        return new

    def is_good(self, saved: Mapping[str, Any]) -> tuple[bool, float]:
        """Judge the state saved with a checkpoint.

        Returns:
            Whether the checkpoint is good to return to, and its average success for comparison with others.
        """
        then = MonitorState(**saved)
        recent = float(np.mean(then.success)) if then.success else 0.0
        healthy = not then.raised and not then.uninformative and not then.skipped
        return healthy and recent >= GOOD * self.state.best, recent

    def rolled_back(self) -> None:
        """Count a rollback and reset the alarms that led to it."""
        state = self.state
        state.rollbacks += 1
        state.success, state.raised, state.uninformative, state.skipped = [], [], 0, 0

    def _meets(self, metrics: Mapping[str, float]) -> bool:
        for condition in self._stop_when:
            if condition.metric not in metrics:
                known = ", ".join(sorted(metrics))
                raise RunError(
                    f"stop_when names {condition.metric!r}, but the run has no such metric. Use one of: {known}."
                )
        return all(condition.holds(metrics) for condition in self._stop_when)

    def _causes(self, metrics: Mapping[str, float]) -> Iterator[Alarm]:
        state = self.state
        recent = state.success[-UNINFORMATIVE:]
        solved = bool(recent) and min(recent) >= 0.99
        now = f" (success {100 * recent[-1]:.1f} %{self._best()})" if recent else ""
        if state.uninformative >= UNINFORMATIVE and not solved:
            yield Alarm(
                "uninformative",
                f"No group of the last {state.uninformative} updates has different rewards{now}, so the policy no "
                "longer changes. Return to an earlier checkpoint with a lower optim.lr (alarm=rollback does so), or "
                "make the task easier or the reward finer.",
            )
        if state.skipped >= SKIPPED:
            yield Alarm(
                "skipped",
                f"The last {state.skipped} updates were all skipped: their gradients were not finite, or the guard "
                "rejected them. Lower optim.lr, or raise algo.guard_drop.",
            )
        mean = state.mean_success
        if mean is not None and state.best >= WORTH_WATCHING and mean < COLLAPSE * state.best:
            yield Alarm(
                "collapse",
                f"Training success averages {100 * mean:.1f} % over {WINDOW} updates{self._best()}. Return to an "
                "earlier checkpoint with a lower optim.lr (alarm=rollback does so).",
            )

    def _best(self) -> str:
        best, step = self.state.best, self.state.best_step
        return f", best average {100 * best:.1f} % at step {step}" if best else ""
