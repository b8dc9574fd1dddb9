"""Results of trials over all seeds, and their comparison at equal generated tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from experiments.tables import records
from experiments.tables.intervals import Rate, difference, mean
from experiments.tables.records import Record, Spent
from experiments.tables.runner import Figure, Session, markdown_table
from experiments.tables.trials import (
    Spec,
    Trial,
    elsewhere,
    equal_steps,
    folder_of,
    pairs,
    test_name,
    tested_step,
    trials_of,
)

METHODS: dict[str, tuple[Callable[[Sequence[Record]], float], Callable[[Sequence[Record]], bool]]] = {
    "maj@{}": (records.majority, records.has_answers),
    "best-of-{}": (records.best, records.has_scores),
    "weighted vote of {}": (records.weighted_vote, lambda some: records.has_answers(some) and records.has_scores(some)),
}
"""Ways to combine samples, and whether records allow it."""


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
        cells: Existing results by group, row and test.
    """

    def __init__(self, session: Session, spec: Spec, groups: Sequence[str] = ()):
        self._session, self._spec, self.trials = session, spec, trials_of(session, spec, groups)
        cells = {(*key, test): self._cell(own, test) for key, own in self.trials.items() for test in own[0].tests}
        self.cells = {key: cell for key, cell in cells.items() if cell}

    def rows(self, group: str) -> dict[str, list[Trial]]:
        """Return the trials of a group by row."""
        return {row: own for (g, row), own in self.trials.items() if g == group}

    def episodes(self, own: Sequence[Trial], test: str) -> list[Record]:
        """Return the episodes of a test of all seeds."""
        return [record for trial in own for record in episodes(self._session, trial, test)]

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
                groups = records.by_example(samples)
                equal = records.samples_at(samples, cell.spent.tokens) if samples else 0
                for n in {equal: None, max(map(len, groups.values())): None} if samples else ():
                    for method, (value, usable) in METHODS.items():
                        if usable(samples):
                            values = {id_: value(several[:n]) for id_, several in groups.items()}
                            one = compare(cell.values, [values], (cell.spent, records.cost(samples, n)))
                            yield f"{method.format(n)}, {words}", "an example" if n == equal else "–", one

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
