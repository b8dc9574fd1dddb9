"""Runs of tables of games, and the course of a figure over each run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from experiments.tables.charts import Curve
from experiments.tables.records import trained
from experiments.tables.runner import Session, config_of, steps_flags
from experiments.tables.runs import Run

Course = list[tuple[float, ...]]
"""Evaluations of a run in order: the budget that it has spent, the figure, and further figures."""


def plan(session: Session) -> Iterator[Run]:
    """Yield a run for every form of every game and every seed."""
    for game, form in session.wanted:
        experiment = f"experiments/{game}.py:{session.form(form)}"
        config = config_of(experiment)
        steps = session.flags.steps or config.steps
        moves = steps * config.rollout.num_envs * config.rollout.unroll_length
        for seed in range(session.flags.seeds):
            command = [f"--config={experiment}", f"--config.seed={seed}", *steps_flags(config, steps), *session.passed]
            yield Run(f"{game}-{form}-{seed}", command, trained(steps), tokens=moves)


def courses(session: Session, read: Callable[[Path], Course]) -> Iterator[tuple[str, str, list[Course]]]:
    """Yield each game and form with the courses of its evaluated seeds.

    Args:
        session: The flags and the selected rows.
        read: Returns the course of a run, given its folder.
    """
    for game, form in session.wanted:
        folders = [session.folder / f"{game}-{form}-{seed}" for seed in range(session.flags.seeds)]
        runs = [session.read(read, folder, default=[]) for folder in folders]
        if runs := [run for run in runs if run]:
            yield game, form, runs


def curves(kind: str, runs: Iterable[Course]) -> list[Curve]:
    """Return the courses of runs of one kind as curves."""
    return [Curve(kind, [point[0] for point in run], [point[1] for point in run]) for run in runs]
