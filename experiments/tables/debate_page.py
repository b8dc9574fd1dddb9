"""Output of the table of debates as Markdown, CSV and a bar chart."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from experiments.tables import debate_records as read
from experiments.tables.charts import Bar, bar_chart
from experiments.tables.debate_rows import OTHER, ROWS, TASKS, size
from experiments.tables.intervals import rate
from experiments.tables.runs import Rate

Wanted = Sequence[tuple[str, str]]
Found = Mapping[tuple[str, str, str], Sequence[read.Record]]
"""Episodes of each (task, row, test)."""

MODELS = {"untuned": "the untuned model", "single": "the model trained as a single agent"}
"""Models whose samples every debate is compared with, in addition to those of its own model."""
CHANGES = {"RR": "right → right", "RW": "right → wrong", "WR": "wrong → right", "WW": "wrong → wrong"}


def markdown(flags: argparse.Namespace, wanted: Wanted, results: Found) -> str:
    """Return the page: accuracy by turn, equal budgets, transitions and transfer."""
    agents, turns = size(flags)
    page = [
        f"# Debates with {flags.model or 'the embedded model'}", "",
        f"Test parts, in per cent, with 95 % intervals over questions. Debates have {agents} agents and {turns} turns; "
        "the vote's answer counts, and a tie of n answers as 1/n.", "",
    ]  # fmt: skip
    for task in dict.fromkeys(task for task, _ in wanted):
        rows = [row for t, row in wanted if t == task]
        page += [f"## {words(flags, task)}", "", *_by_turn(task, rows, "debate", turns, results)]
        page += ["### As many answers", "", *_equal_budgets(flags, task, rows, results)]
        page += [*comparisons(flags, [(task, row) for row in rows], results), ""]
        page += ["### Changes of answers", "", *_transitions(task, rows, results)]
        if "transfer" in flags.tests.split(","):
            page += [f"### Transfer: debates on {words(flags, OTHER[task])}", ""]
            page += _by_turn(task, rows, "transfer", turns, results)
    return "\n".join(page)


def words(flags: argparse.Namespace, task: str) -> str:
    """Return the display name of a task. The embedded model uses built-in examples."""
    return TASKS[task].words + ("" if flags.model else " (built-in examples)")


def _by_turn(task: str, rows: Sequence[str], test: str, turns: int, results: Found) -> Iterator[str]:
    heads = [f"vote, turn {t + 1}" for t in range(turns)] + ["one agent, first turn", "one agent, last turn"]
    yield f"| | {' | '.join(heads)} |"
    yield "| --- |" + " --- |" * len(heads)
    for row in rows:
        if test not in ROWS[row].tests:
            continue
        records = results.get((task, row, test))
        cells = ["–"] * len(heads)
        if records:
            alone = read.by_turn(records, "accuracy", turns)
            cells = [str(one) for one in (*read.by_turn(records, "vote", turns), alone[0], alone[-1])]
        yield f"| {ROWS[row].words} | {' | '.join(cells)} |"
    yield ""


def lines(flags: argparse.Namespace, task: str, row: str, results: Found) -> Iterator[tuple[str, Rate, read.Cost]]:
    """Yield (method, accuracy, cost) of a row for equal budgets."""
    agents, turns = size(flags)
    most = agents * turns
    debate, samples, refine = (results.get((task, row, test)) for test in ("debate", "samples", "refine"))
    if debate:
        yield f"debate, {agents} agents × {turns} turns", _success(debate), read.cost(debate)
    if samples:
        yield f"maj@{most}", _success(samples), read.cost(samples)
        if debate:
            n = read.equal_tokens(samples, read.cost(debate).written)
            votes = rate([read.majority(record, n) for record in samples])
            yield f"maj@{n}, nearest to the debate in tokens written", votes, read.cost(samples, n)
        for method, value in _by_verifier(most).items():
            if right := [value(record) for record in read.scored(samples)]:
                yield method, rate(right), read.cost(samples)
    if refine:
        yield f"self-refinement, {most} turns", _success(refine), read.cost(refine)


def _by_verifier(n: int) -> dict[str, Callable[[read.Record], float]]:
    """Return ways to choose among n samples by a verifier's scores.

    Each is a function from a question to how right the choice is.
    """
    return {
        f"best-of-{n} by the verifier": read.best_of,
        f"vote of {n}, weighted by the verifier": read.weighted_vote,
    }


def _success(records: Sequence[read.Record]) -> Rate:
    return rate([record["success"] for record in records])


def _equal_budgets(flags: argparse.Namespace, task: str, rows: Sequence[str], results: Found) -> Iterator[str]:
    yield "| model | method | accuracy | answers | tokens written | tokens of all chats |"
    yield "| --- |" + " --- |" * 5
    for row in rows:
        for method, value, spent in lines(flags, task, row, results):
            yield f"| {ROWS[row].words} | {method} | {value} | {spent} |"
    yield ""


def comparisons(flags: argparse.Namespace, wanted: Wanted, results: Found) -> Iterator[str]:
    """Yield verdicts on whether debates beat equally many completions without a debate.

    The baselines are samples and self-refinement of the same model, the untuned model and a single agent.
    """
    agents, turns = size(flags)
    baselines = (
        (f"maj@{agents * turns}", "samples", tuple, lambda record: record["success"]),
        *((method, "samples", read.scored, value) for method, value in _by_verifier(agents * turns).items()),
        ("self-refinement", "refine", tuple, lambda record: record["success"]),
    )
    for task, row in wanted:
        debate = results.get((task, row, "debate"), ())
        for method, test, usable, value in baselines:
            for other in dict.fromkeys((row, *MODELS)):
                both = read.paired(debate, usable(results.get((task, other, test), ())), value)
                if both is not None:
                    whose = "the same model" if other == row else MODELS[other]
                    said = read.verdict(both[0], f"{method} of {whose}")
                    yield f"- {ROWS[row].words}: {said} ({read.points(both[0])} points on {both[1]:,} questions)."


def _transitions(task: str, rows: Sequence[str], results: Found) -> Iterator[str]:
    yield f"| | turn | {' | '.join(CHANGES.values())} |"
    yield "| --- |" + " --- |" * (1 + len(CHANGES))
    for row in rows:
        for t, shares in enumerate(read.transitions(results.get((task, row, "debate"), ())), 1):
            cells = " | ".join(f"{100 * shares[change]:.1f}" for change in CHANGES)
            yield f"| {ROWS[row].words} | {t} → {t + 1} | {cells} |"
    yield ""


def write_csv(flags: argparse.Namespace, wanted: Wanted, results: Found, path: Path) -> None:
    """Write the table as CSV: one line per figure, rates between 0 and 1."""
    _, turns = size(flags)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["task", "row", "what", "value", "low", "high", "answers", "written", "processed"])
        for task, row in wanted:
            for test in ("debate", "transfer"):
                if records := results.get((task, row, test)):
                    for metric in ("vote", "accuracy"):
                        for t, one in enumerate(read.by_turn(records, metric, turns), 1):
                            what = f"{test} {metric} {t}"
                            writer.writerow([task, row, what, one.value, one.low, one.high, "", "", ""])
            for method, one, spent in lines(flags, task, row, results):
                cost = (spent.answers, spent.written, spent.processed)
                writer.writerow([task, row, method, one.value, one.low, one.high, *cost])


def drawing(flags: argparse.Namespace, wanted: Wanted, results: Found) -> str:
    """Draw debates and independent samples as bars, before and after training."""
    agents, turns = size(flags)

    def bar(task: str, row: str, test: str):
        records = results.get((task, row, test))
        one = _success(records) if records else None
        return None if one is None else (one.value, one.low, one.high)

    groups: dict[str, list[Bar]] = {}
    for test, method in (("debate", f"{agents} × {turns} debate"), ("samples", f"maj@{agents * turns}")):
        for task, row in wanted:
            if ROWS[row].untuned and test in ROWS[row].tests:
                both = bar(task, ROWS[row].untuned, test), bar(task, row, test)
                groups.setdefault(f"{words(flags, task)}: {method}", []).append(Bar(ROWS[row].words, *both))
    return bar_chart(groups)
