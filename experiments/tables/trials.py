"""Rows of tasks that are trained, tested and compared at equal generated tokens.

A table of tasks has a `Spec`, whose `make` returns the `Trial` of a row. Each seed is trained in its folder, and its
tested checkpoint (`--step`) is evaluated once on every test in a folder below it. Comparisons are paired over seeds and
examples and are made at equal tokens in two ways:

- training: Of the row that has generated more, the checkpoint nearest to the total of the other is tested as well.
  Checkpoints must still exist for that; `--config.checkpoint.keep` sets how many do.
- an example: One agent is sampled as often as the row's tokens per example allow, and its answers are combined by vote
  (maj@n) or by scores (best-of-n and a weighted vote). All of its samples are listed as well, without equal tokens.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from experiments.tables import records
from experiments.tables.runner import Session, config_of, steps_flags
from experiments.tables.runs import Run

IDENTITY = (
    "name", "model.name", "algo.name", "algo.loss_agg", "task.params.form", "task.params.game", "task.params.answer",
    "task.params.scorer", "agents", "seed",
)  # fmt: skip
"""Config fields by which a run from elsewhere is recognised as a trial, in addition to whether it has adapters."""


@dataclasses.dataclass(frozen=True)
class Test:
    """An evaluation of a trial: its flags, and its number of episodes for estimates."""

    __test__ = False  # not a pytest test

    flags: tuple[str, ...]
    episodes: int


@dataclasses.dataclass(frozen=True)
class Trial:
    """A row with a seed.

    Attributes:
        group: Name of the group.
        row: Name of the row.
        experiment: Experiment with its form, `experiments/NAME.py:FORM`.
        steps: Number of updates; 0 to test the untrained model.
        completions: Maximum number of completions in training, and in an episode of a test.
        tests: Tests by name.
        flags: Flags for training and tests.
        training: Flags for training only.
        identity: Config fields that `flags` change, among IDENTITY.
        seed: Random seed.
    """

    group: str
    row: str
    experiment: str
    steps: int
    completions: tuple[int, int]
    tests: Mapping[str, Test]
    flags: tuple[str, ...] = ()
    training: tuple[str, ...] = ()
    identity: Mapping[str, object] = dataclasses.field(default_factory=dict)
    seed: int = 0

    @property
    def name(self) -> str:
        """Folder of the trial."""
        return f"{self.group}/{self.row}" + (f"-{self.seed}" if self.seed else "")


@dataclasses.dataclass(frozen=True)
class Spec:
    """How a table makes and compares its trials.

    Attributes:
        make: Returns the trial of a group and a row.
        untrained: Untrained row that a trained row starts from; "" for an untrained row.
        baselines: Rows that a row is compared with; two trained rows at equal tokens of training.
        sampled: Rows whose samples a row is compared with, and their names.
        samples: Name of the test that samples several times for a test; "" for none.
    """

    make: Callable[[Session, str, str], Trial]
    untrained: Callable[[str], str]
    baselines: Callable[[str], Sequence[str]]
    sampled: Callable[[str], Mapping[str, str]] = lambda row: {}
    samples: Callable[[str], str] = lambda test: ""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of tables with trials."""
    parser.add_argument("--step", choices=("best", "newest"), default="newest", help="Checkpoint to test")


def steps_of(session: Session, experiment: str) -> int:
    """Return the number of updates of a row that learns."""
    return session.flags.steps or config_of(experiment).steps


# ------------------------------------------------------------------------------------------------------------- runs


def trials_of(session: Session, spec: Spec, groups: Sequence[str] = ()) -> dict[tuple[str, str], list[Trial]]:
    """Return the trials of the selected rows; untrained rows have one seed."""
    made = {key: spec.make(session, *key) for key in session.wanted if not groups or key[0] in groups}
    seeds = range(session.flags.seeds)
    return {
        key: [dataclasses.replace(trial, seed=seed) for seed in (seeds if trial.steps else (0,))]
        for key, trial in made.items()
    }


def plan(session: Session, spec: Spec, groups: Sequence[str] = ()) -> Iterator[Run]:
    """Yield training and tests of all trials, and the tests of pairs at equal tokens."""
    made = trials_of(session, spec, groups)
    everyone = [trial for own in made.values() for trial in own]
    tests = {
        trial.name: dict.fromkeys((tested_step(session, trial), test) for test in trial.tests) for trial in everyone
    }
    for (group, row), own in made.items():
        for ours, baseline in [
            pair for other in spec.baselines(row) for pair in pairs(own, made.get((group, other), ()))
        ]:
            if steps := session.read(equal_steps, session, ours, baseline):
                for trial, step in zip((ours, baseline), steps, strict=True):
                    tests[trial.name] |= {(step, test): None for test in ours.tests if test in baseline.tests}
    for trial in everyone:
        config, here = config_of(trial.experiment), elsewhere(session, trial)
        common = [f"--config={trial.experiment}", *trial.flags, *session.seeded(trial.seed)]
        length = config.task.max_new_tokens
        if trial.steps and not here:
            command = [*common, *steps_flags(config, trial.steps), *trial.training, *session.passed]
            yield Run(trial.name, command, records.trained(trial.steps), tokens=trial.completions[0] * length)
        bases = ["model", *(f"policies.{name}.model" for name, one in config.policies.items() if one.model)]
        for step, name in tests[trial.name]:
            if not (here and step in records.tested_steps(here)):
                start = [
                    f"--config.{base}.init_from={folder_of(session, trial)}@{step}" for base in bases if trial.steps
                ]
                test = trial.tests[name]
                command = [
                    *common,
                    "--mode=eval",
                    *start,
                    "--config.eval.split=test",
                    *test.flags,
                    *session.for_tests(),
                ]
                after = (trial.name,) if trial.steps and not here else ()
                tokens = test.episodes * trial.completions[1] * length
                yield Run(test_name(session, trial, name, step), command, records.evaluated, after, tokens)


def pairs(ours: Sequence[Trial], baseline: Sequence[Trial]) -> list[tuple[Trial, Trial]]:
    """Return trials by seed; an untrained one is paired with all seeds."""
    most = max(len(ours), len(baseline))
    both = [own if len(own) == most else [*own] * most for own in (ours, baseline)]
    return list(zip(*both, strict=False))


def test_name(session: Session, trial: Trial, test: str, step: int) -> str:
    """Return the folder of a test."""
    return f"{trial.name}/test_{step}{f'_{session.flags.problems}' if session.flags.problems else ''}/{test}"


def tested_step(session: Session, trial: Trial) -> int:
    """Return the checkpoint that is tested, or the last step before it has been trained."""
    kept = testable(session, trial) if trial.steps else []
    if session.flags.step == "best" and kept:
        rows = session.read(records.evaluations, folder_of(session, trial), default=[])
        success = {row["step"]: row["success"] for row in rows if row["step"] in kept and "success" in row}
        return max(success or kept, key=lambda step: (success.get(step, 0.0), step))
    return max(kept, default=trial.steps)


def testable(session: Session, trial: Trial) -> list[int]:
    """Return the steps of a trained trial that have a checkpoint or have been tested."""
    folder = folder_of(session, trial)
    if not (elsewhere(session, trial) or session.read(records.trained(trial.steps), folder)):
        return []
    tests = (session.folder / trial.name).glob("test_*/*/evaluation.json")
    below = [int(path.parts[-3].split("_")[1]) for path in tests]
    return sorted({*records.checkpoints(folder), *records.tested_steps(folder), *below} - {0})


def equal_steps(session: Session, ours: Trial, baseline: Trial) -> tuple[int, int] | None:
    """Return steps with about as many tokens; None before both are trained.

    An untrained trial has no tokens of training, and the other one is tested as usual.
    """
    if not (ours.steps and baseline.steps):
        return tested_step(session, ours), tested_step(session, baseline)
    curves = []
    for trial in (ours, baseline):
        total, last = records.spent(folder_of(session, trial)), tested_step(session, trial)
        curves.append({s: total[s].tokens for s in testable(session, trial) if s in total and s <= last})
    return records.equal_tokens(*curves) if all(curves) else None


def folder_of(session: Session, trial: Trial) -> Path:
    """Return the folder of a trial, which may be one of `--runs`."""
    return elsewhere(session, trial) or session.folder / trial.name


def elsewhere(session: Session, trial: Trial) -> Path | None:
    """Return the finished run in `--runs` that has the settings of a trial, or None.

    The test of a trained run before its first update counts as that of an untrained trial.
    """
    if not session.flags.runs or (session.folder / trial.name / "config.json").exists():
        return None
    if "runs" not in session.memory:
        session.memory["runs"] = list(_finished_runs(session.flags.runs, session.problems.append))
    expected = _identity(config_of(trial.experiment).to_dict()) | {"seed": trial.seed, **trial.identity}
    runs = [
        run
        for run, identity, steps in session.memory["runs"]
        if identity == expected and (steps > 0 if trial.steps else steps == 0 or 0 in records.tested_steps(run))
    ]
    return runs[0] if runs else None


def _finished_runs(places: str, report: Callable[[str], None]) -> Iterator[tuple[Path, dict[str, object], int]]:
    """Yield the folder, identity and number of updates of finished runs."""
    for place in places.split(","):
        folders = sorted(path.parent for path in Path(place).glob("**/config.json"))
        if not folders:
            report(f"--runs is {place}, but has no runs (config.json)")
        for folder in folders:
            try:
                config = records.read_json(folder / "config.json")
                steps, solved = max(records.spent(folder), default=0), records.solved_at(folder)
            except records.Damaged as error:
                report(str(error))
                continue
            if steps and steps < config["steps"] and steps != solved:
                report(f"{folder} ended after {steps} of {config['steps']} updates")
            elif not records.tested_steps(folder) and not records.checkpoints(folder):
                report(f"{folder} has neither answers/test_*.jsonl nor checkpoints")
            else:
                yield folder, _identity(config), steps


def _identity(config: Mapping) -> dict[str, object]:
    values: dict[str, object] = {}
    for path in IDENTITY:
        value = config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        values[path] = value
    return values | {"adapters": bool(config["model"]["lora"]["rank"])}
