"""Reports of failed updates and alarms, and rollback to a good checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from marl_jax.errors import RunError
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.events import Events
from marl_jax.running.monitor import ROLLBACKS, Alarm, Monitor

log = logging.getLogger(__name__)


def report_update(events: Events, step: int, metrics: Mapping[str, Any], limit: float | None) -> None:
    """Log an update that was skipped or rejected, and record it as an event.

    Args:
        events: Events of the run.
        step: Step of the update.
        metrics: Metrics of the update.
        limit: `algo.guard_drop`; None for an algorithm without a guard.
    """
    if metrics["skipped"]:
        events.write(step, "skipped", f"{metrics['skipped']:.0f} optimizer steps were skipped: not finite.")
    if metrics.get("rejected", 0.0) > 0:
        drop = f"completions lost {metrics['completion_drop']:.1f} nats on average"
        message = f"The update was rejected: {drop}, and algo.guard_drop is {limit:g}."
        log.info("step %d: %s", step, message)
        events.write(step, "rejected", message)


def report_alarms(events: Events, step: int, alarms: Iterable[Alarm]) -> None:
    """Log alarms and record them as events."""
    for alarm in alarms:
        log.warning("step %d: %s", step, alarm.message)
        events.write(step, "alarm", alarm.message)


def roll_back(checkpoints: Checkpoints, monitor: Monitor, like: dict, events: Events, step: int) -> dict:
    """Restore the last good checkpoint and lower the learning rate.

    The rollout and its data continue from their current state. A checkpoint is good if no alarm was active and success
    was close to its best. Without a good checkpoint, the one with the highest success is restored.

    Args:
        checkpoints: Checkpoints of the run.
        monitor: Monitor of the run.
        like: State of the run as it is saved.
        events: Events of the run.
        step: Current step.

    Returns:
        The saved state of that checkpoint.

    Raises:
        RunError: The run has used up its rollbacks or has no checkpoint.
    """
    if monitor.state.rollbacks >= ROLLBACKS:
        raise RunError(
            f"step {step}: training failed again after {ROLLBACKS} rollbacks. Lower optim.lr, or look at the episodes "
            "in games.jsonl."
        )
    judged = {one: monitor.is_good(checkpoints.meta(one)["monitor"]) for one in checkpoints.steps}
    if not judged:
        raise RunError(f"step {step}: alarm is 'rollback', but there is no checkpoint yet. Lower checkpoint.every.")
    newest_good = max((one for one, (good, _) in judged.items() if good), default=None)
    chosen = newest_good or max(judged, key=lambda one: (judged[one][1], one))
    restored = checkpoints.restore(like, step=chosen)
    assert restored is not None
    monitor.rolled_back()
    message = f"Returned to the weights of step {chosen} at {monitor.lr_scale:g} of the learning rate."
    log.warning("step %d: %s", step, message)
    events.write(step, "rollback", message)
    return restored.state
