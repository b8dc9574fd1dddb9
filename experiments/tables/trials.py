"""Rows of tasks that are trained, tested and compared at equal generated tokens.

A table of tasks has a `Spec`, whose `make` returns the `Trial` of a row. Each seed is trained in its folder, and its
tested checkpoint (`--step`) is evaluated once on every test in a folder below it. Comparisons are paired over seeds and
examples and are made at equal tokens in two ways:

- training: Of the row that has generated more, the checkpoint nearest to the total of the other is tested as well.
  Checkpoints must still exist for that; `--config.checkpoint.keep` sets how many do.
- an example: One agent is sampled as often as the row's tokens per example allow, and its answers are combined by vote
  (maj@n) or by scores (best-of-n and a weighted vote).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.tables import records
from experiments.tables.intervals import Rate, difference, mean
from experiments.tables.records import Record, Spent
from experiments.tables.runner import Figure, Run, Session, config_of, markdown_table, steps_flags

IDENTITY = (
    "name", "model.name", "algo.name", "algo.loss_agg", "task.params.form", "task.params.game", "task.params.answer",
    "agents", "seed",
)  # fmt: skip
"""Config fields by which a run from elsewhere is recognised as a trial."""
METHODS: dict[str, tuple[Callable[[Sequence[Record]], float], Callable[[Sequence[Record]], bool]]] = {
    "maj@{}": (records.majority, records.has_answers),
    "best-of-{}": (records.best, records.has_scores),
    "weighted vote of {}": (records.weighted_vote, lambda some: records.has_answers(some) and records.has_scores(some)),
}
"""Ways to combine samples, and whether records allow it."""


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
    """Return the finished run in `--runs` that has the settings of a trial, or None."""
    if not session.flags.runs or (session.folder / trial.name / "config.json").exists():
        return None
    if "runs" not in session.memory:
        session.memory["runs"] = list(_finished_runs(session.flags.runs, session.problems.append))
    expected = _identity(config_of(trial.experiment).to_dict()) | {"seed": trial.seed, **trial.identity}
    runs = [
        run
        for run, identity, steps in session.memory["runs"]
        if identity == expected and bool(steps) == bool(trial.steps)
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
    values = {}
    for path in IDENTITY:
        value = config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        values[path] = value
    return values


# ---------------------------------------------------------------------------------------------------------- results


def episodes(session: Session, trial: Trial, test: str, step: int | None = None) -> Sequence[Record]:
    """Return the episodes of a test, of the tested step by default; none without results."""
    step, here = tested_step(session, trial) if step is None else step, elsewhere(session, trial)
    place = (session.folder / test_name(session, trial, test, step), None)
    place = (here, step) if here and step in records.tested_steps(here) else place
    if test not in trial.tests:
        return []
    if place not in session.memory:
        session.memory[place] = session.read(records.episodes, *place, default=[])
    return session.memory[place]


@dataclasses.dataclass(frozen=True)
class Cell:
    """Result of a row on a test over all seeds.

    Attributes:
        rate: Success.
        values: Success by example of every seed.
        spent: Mean tokens and completions of an example in the test.
        training: Mean tokens and completions of training until the tested checkpoint, or None.
        updates: Mean step of the tested checkpoint.
    """

    rate: Rate
    values: Sequence[Mapping[str, float]]
    spent: Spent
    training: Spent | None
    updates: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Difference between two rows on the same examples, with their success and their costs."""

    change: Rate
    rates: tuple[Rate, Rate]
    examples: int
    costs: tuple[Spent, Spent]

    def verdict(self) -> str:
        """Describe the difference, without a claim if the interval contains 0."""
        return "**better**" if self.change.low > 0 else "**worse**" if self.change.high < 0 else "no difference shown"


def grid(rows: Sequence[Mapping[str, float]]) -> np.ndarray | None:
    """Return success [S, L] of S seeds on their common examples, or None."""
    common = sorted(set.intersection(*map(set, rows))) if rows else []
    return np.array([[row[id_] for id_ in common] for row in rows]) if common else None


def compare(
    ours: Sequence[Mapping[str, float]], baseline: Sequence[Mapping[str, float]], costs: tuple[Spent, Spent]
) -> Comparison | None:
    """Compare rows on the examples that all seeds have; None if there are none."""
    together = grid([*ours, *baseline]) if ours and baseline else None
    if together is None:
        return None
    first, second = together[: len(ours)], together[len(ours) :]
    change = difference(first, second if len(first) == len(second) else second.mean(0))
    return Comparison(change, (mean([first]), mean([second])), together.shape[1], costs)


def mean_spent(several: Sequence[Spent]) -> Spent:
    """Return the mean of costs."""
    return Spent(*(float(np.mean(column)) for column in zip(*several, strict=True)))


class Results:
    """Results of all trials of a session, as parts of a page.

    Attributes:
        trials: Trials by group and row.
        cells: Results by group, row and test, as far as they exist.
    """

    def __init__(self, session: Session, spec: Spec, groups: Sequence[str] = ()):
        self._session, self._spec, self.trials = session, spec, trials_of(session, spec, groups)
        cells = {(*key, test): self._cell(own, test) for key, own in self.trials.items() for test in own[0].tests}
        self.cells = {key: cell for key, cell in cells.items() if cell}

    def rows(self, group: str) -> dict[str, list[Trial]]:
        """Return the trials of a group by row."""
        return {row: own for (g, row), own in self.trials.items() if g == group}

    def _cell(self, own: Sequence[Trial], test: str) -> Cell | None:
        session = self._session
        played = [(trial, some) for trial in own if (some := episodes(session, trial, test))]
        values = [records.success(some) for _, some in played]
        together = grid(values)
        if together is None:
            return None
        steps = [tested_step(session, trial) for trial, _ in played]
        totals = [session.read(records.spent, folder_of(session, trial), default={}) for trial, _ in played]
        used = [total[step] for total, step in zip(totals, steps, strict=True) if step in total]
        training = mean_spent(used) if len(used) == len(played) else None
        costs = mean_spent([records.cost(some) for _, some in played])
        return Cell(mean([together]), values, costs, training, float(np.mean(steps)))

    def summary(
        self, group: str, tests: Mapping[str, str], last: Mapping[str, Mapping[str, str]] | None = None
    ) -> list[str]:
        """Return a table of all rows of a group.

        Args:
            group: The group.
            tests: Headings of the tests.
            last: Further columns: a text by row for every heading.
        """
        last = last or {}
        lines = []
        for row in self.rows(group):
            here = [self.cells.get((group, row, test)) for test in tests]
            first = next((cell for cell in here if cell), None)
            cost = (first.training.parts() if first.training else (None, None)) if first else (None, None)
            runs = [len(first.values), f"{first.updates:g}"] if first else [None, None]
            shown = [cell and f"{cell.rate}, {cell.spent.parts()[0]} tokens" for cell in here]
            lines.append(
                [self._session.words(group, row), *runs, *cost, *shown, *(text.get(row) for text in last.values())]
            )
        return markdown_table(["", "seeds", "updates", "training tokens", "completions", *tests.values(), *last], lines)

    def figures(self, group: str, tests: Mapping[str, str]) -> Iterator[Figure]:
        """Yield the figures of a group; `tests` has a title for each test."""
        for test, title in tests.items():
            for row in self.rows(group):
                if cell := self.cells.get((group, row, test)):
                    before = self.cells.get((group, self._spec.untrained(row), test))
                    more = dict(seeds=len(cell.values), updates=cell.updates, test_tokens=cell.spent.tokens)
                    if cell.training:
                        more |= dict(tokens=cell.training.tokens, completions=cell.training.completions)
                    words = self._session.words(group, row)
                    yield Figure(title, words, cell.rate, before and before.rate, more)

    def comparisons(self, group: str, tests: Mapping[str, str]) -> list[str]:
        """Return a table of all comparisons of a group at equal generated tokens."""
        lines = []
        for row in self.rows(group):
            for test, heading in tests.items():
                for words, equal, one in self._of_row(group, row, test):
                    if one:
                        tokens = " and ".join(cost.parts()[0] for cost in one.costs)
                        success = " and ".join(f"{100 * rate.value:.1f}" for rate in one.rates)
                        cells = [self._session.words(group, row), heading, words, equal, tokens, success]
                        lines.append([*cells, one.change.points(), one.examples, one.verdict()])
        heads = ["", "test", "compared with", "equal tokens of", "tokens", "success", "difference", "examples", ""]
        return markdown_table(heads, lines) if lines else []

    def _of_row(self, group: str, row: str, test: str) -> Iterator[tuple[str, str, Comparison | None]]:
        """Yield the comparisons of a row: baseline, kind of equal tokens, and result."""
        cell = self.cells.get((group, row, test))
        if cell is None:
            return
        for other in [other for other in self._spec.baselines(row) if (group, other) in self.trials]:
            both = all(self.trials[group, one][0].steps for one in (row, other))
            words, one = self._session.words(group, other), self.at_equal_tokens(group, row, other, test)
            yield words, "training" if both else "–", one
        for other, words in self._spec.sampled(row).items():
            for trial in self.trials.get((group, other), ())[:1]:
                samples = episodes(self._session, trial, self._spec.samples(test))
                n = records.samples_at(samples, cell.spent.tokens) if samples else 0
                for method, (value, usable) in METHODS.items():
                    if n and usable(samples):
                        values = {id_: value(several[:n]) for id_, several in records.by_example(samples).items()}
                        one = compare(cell.values, [values], (cell.spent, records.cost(samples, n)))
                        yield f"{method.format(n)}, {words}", "an example", one

    def at_equal_tokens(self, group: str, row: str, baseline: str, test: str) -> Comparison | None:
        """Compare rows, seed by seed, at checkpoints with about as many tokens."""
        session, values, costs = self._session, ([], []), ([], [])
        for both in pairs(self.trials[group, row], self.trials[group, baseline]):
            steps = session.read(equal_steps, session, *both)
            some = [episodes(session, trial, test, step) for trial, step in zip(both, steps or (), strict=False)]
            for i, trial in enumerate(both) if len(some) == 2 and all(some) else ():
                values[i].append(records.success(some[i]))
                total = records.spent(folder_of(session, trial)) if all(trial.steps for trial in both) else {}
                costs[i].append(total.get(steps[i]) or records.cost(some[i]))
        return compare(*values, (mean_spent(costs[0]), mean_spent(costs[1]))) if values[0] else None
