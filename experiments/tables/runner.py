"""The runner of all tables: flags, runs with their dependencies, output files.

A table is a `Table` with two functions of a `Session` (flags and selected rows): `plan` lists its runs, and `page`
reads their results. `main` does everything else. Each run is a separate `launch.py` with its own folder under
--workdir, so the same command continues where it was stopped, repeats nothing and collects finished runs. A failed run
is reported, the runs that need it are skipped, and all others continue. SIGTERM and Ctrl-C are passed on: running runs
save and stop, and the table shows the results so far.

    TABLE = Table("mine", 1, __doc__, groups={"game": {"single": "one agent"}}, plan=plan, page=page)

    def plan(session):
        for group, row in session.wanted:
            command = (f"--config=experiments/{group}.py:{row}", *session.passed)
            yield Run(f"{group}/{row}", command, done=records.trained(10))

    if __name__ == "__main__":
        sys.exit(main(TABLE))
"""

from __future__ import annotations

import argparse
import copy
import csv
import dataclasses
import functools
import hashlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs import variants
from experiments.tables.charts import Bar, bar_chart
from experiments.tables.intervals import Rate
from experiments.tables.records import Damaged
from experiments.tables.runs import Run, run_all

LEARNING = ("steps", "stop_when", "algo.", "optim.", "rollout.")
"""Prefixes of config fields that affect how a row learns; they are not passed to warm starts and evaluations."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """A bar in a block of the chart, and a line of the CSV file."""

    group: str
    row: str
    value: Rate | None
    before: Rate | None = None
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Page:
    """Results of a table: Markdown lines, figures, and a chart; bars by default."""

    lines: Sequence[str]
    figures: Sequence[Figure] = ()
    drawing: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: Name of the command and of the output files.
        version: Number to increase with every change that makes figures incomparable.
        doc: Help text.
        groups: Display names of the rows of every group.
        plan: Lists the runs. It is called again after every run, so that later runs may depend on results.
        page: Reads the results, or returns None if there are none.
        add_flags: Adds flags to the parser.
        check: Exits if the flags or the data files do not fit.
    """

    name: str
    version: int
    doc: str | None
    groups: Mapping[str, Mapping[str, str]]
    plan: Callable[[Session], Iterable[Run]]
    page: Callable[[Session], Page | None]
    add_flags: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    check: Callable[[Session], None] = lambda session: None


class Session:
    """A table with its flags.

    Attributes:
        table: The table.
        flags: Flags of the table.
        passed: Flags for every run, `--config.FIELD=VALUE`.
        wanted: Selected (group, row) pairs, in the order of the table.
        folder: Output folder.
        problems: Lines about damaged or missing files, which the table reports.
        memory: Results of slow reads.
    """

    def __init__(self, table: Table, argv: Sequence[str] | None = None):
        parser = argparse.ArgumentParser(
            prog=f"python -m experiments.tables.{table.name}", description=table.doc,
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        )  # fmt: skip
        add = parser.add_argument
        add("--model", default="", help="Model variant, such as smollm2 or qwen3-1.7b; tiny by default")
        add("--workdir", default="", help=f"Output folder; runs/{table.name}[-MODEL] by default")
        add("--only", default="", help="Rows as GROUP/ROW or GROUP, separated by commas")
        add("--steps", type=at_least(0), default=0, help="Number of updates; 0 uses the experiment's")
        add("--seeds", type=at_least(1), default=1, help="Number of runs of a row that learns, with seeds 0, 1, …")
        add("--problems", type=at_least(0), default=0, help="Maximum number of test examples; 0 uses the table's")
        add("--jobs", type=at_least(1), default=1, help="Number of concurrent runs, which share the memory of a GPU")
        add("--runs", default="", help="Folders with finished runs from elsewhere, separated by commas")
        add("--collect", action="store_true", help="Write the results of existing runs without running anything")
        add("--dry_run", action="store_true", help="Print commands and estimated tokens without running anything")
        table.add_flags(parser)
        self.table = table
        self.flags, self.passed = parser.parse_known_args(argv)
        for flag in self.passed:
            if not flag.startswith("--config."):
                parser.error(f"{flag} is not a flag; write fields of the runs as --config.FIELD=VALUE")
        model = self.flags.model
        if model and model not in variants.VARIANTS:
            parser.error(f"--model is {model}, but must be one of: {', '.join(variants.VARIANTS)}")
        if self.flags.seeds > 1 and any(flag.startswith("--config.seed=") for flag in self.passed):
            parser.error("--seeds sets the seed of every run; remove --config.seed")
        self.folder = Path(self.flags.workdir or f"runs/{table.name}{f'-{model}' if model else ''}").absolute()
        self.wanted = select(table, self.flags.only)
        self.problems: list[str] = []
        self.memory: dict[Any, Any] = {}
        table.check(self)

    def words(self, group: str, row: str) -> str:
        """Return the display name of a row."""
        return self.table.groups[group][row]

    def model(self) -> str:
        """Return the display name of the model."""
        return self.flags.model or "the embedded model"

    def form(self, *words: str) -> str:
        """Return the words and the model as the form of an experiment."""
        return "+".join(word for word in (*words, self.flags.model) if word)

    def seeded(self, seed: int) -> list[str]:
        """Return the flags for a seed."""
        return [f"--config.seed={seed}"] if seed else []

    def for_tests(self) -> list[str]:
        """Return the flags for every run without those that affect learning."""
        return [flag for flag in self.passed if not flag.removeprefix("--config.").startswith(LEARNING)]

    def read(self, function: Callable, *args, default: Any = None) -> Any:
        """Read results; a damaged file gives the default and one line in `problems`."""
        try:
            return function(*args)
        except Damaged as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))
            return default

    def done(self, run: Run) -> bool:
        """Return whether a run has its results; a run with damaged results is run again."""
        return self.read(run.done, run.place(self.folder), default=False)

    def plan(self) -> list[Run]:
        """Return the runs of the table that are known so far, each once."""
        return list({run.name: run for run in self.table.plan(self)}.values())

    def fingerprint(self) -> str:
        """Return a hash of the version, the experiments' configs and all flags, without folders."""
        fresh = copy.copy(self)
        fresh.folder, fresh.memory, fresh.flags = Path("new"), {}, argparse.Namespace(**vars(self.flags) | {"runs": ""})
        parts = [f"{self.table.name} {self.table.version}"]
        for run in sorted(fresh.plan(), key=lambda run: run.name):
            flags = [re.sub(r"=\S*/", "=", flag) for flag in run.command if not flag.startswith("--config=")]
            forms = [flag.partition("=")[2] for flag in run.command if flag.startswith("--config=")]
            parts += [run.name, *flags, *map(_config_text, forms)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


@functools.lru_cache(maxsize=256)
def config_of(path: str):
    """Return the config of an experiment, `experiments/NAME.py:FORM`; do not change it."""
    name, _, form = path.removeprefix("experiments/").partition(".py:")
    return importlib.import_module(f"experiments.{name.removesuffix('.py')}").get_config(form or None)


def steps_flags(config, steps: int) -> list[str]:
    """Return the flags for a number of updates, with a warmup that fits."""
    return [f"--config.steps={steps}", f"--config.optim.warmup={min(config.optim.warmup, steps - 1)}"]


@functools.lru_cache(maxsize=256)
def _config_text(path: str) -> str:
    return config_of(path).to_json_best_effort(sort_keys=True)


# ------------------------------------------------------------------------------------------------------------ flags


def at_least(low: int) -> Callable[[str], int]:
    """Return the type of a flag that is an integer >= `low`."""

    def whole_number(text: str) -> int:
        if int(text) < low:
            raise argparse.ArgumentTypeError(f"value is {text}, but must be >= {low}")
        return int(text)

    return whole_number


def select(table: Table, only: str) -> list[tuple[str, str]]:
    """Return the (group, row) pairs that `--only` selects, in the order of the table."""
    everything = [(group, row) for group, rows in table.groups.items() for row in rows]
    names = only.split(",") if only else [group for group, _ in everything]
    known = {name for group, row in everything for name in (group, f"{group}/{row}")}
    for name in names:
        if name not in known:
            group = name.partition("/")[0]
            options = [f"{group}/{row}" for row in table.groups[group]] if group in table.groups else table.groups
            raise SystemExit(f"{table.name}: --only has {name!r}, but must be one of: {', '.join(options)}")
    return [(group, row) for group, row in everything if group in names or f"{group}/{row}" in names]


def check_files(session: Session, names: Iterable[str]) -> None:
    """Exit if a published data file is missing; the embedded model needs none."""
    needed = session.flags.model and not (session.flags.collect or session.flags.dry_run)
    if missing := [name for name in names if needed and not has_file(name)]:
        place = os.environ.get("MARL_JAX_DATA") or "not set"
        raise SystemExit(f"{session.table.name}: no files {', '.join(missing)} in $MARL_JAX_DATA ({place})")


def has_file(name: str) -> bool:
    """Return whether a data file is in $MARL_JAX_DATA."""
    root = Path(os.environ.get("MARL_JAX_DATA") or "?")
    return any((*root.glob(f"{name}.jsonl*"), *root.glob(f"*/{name}.jsonl*")))


def check_budgets(table: str, budgets: Mapping[tuple[str, str], int], advice: str = "") -> None:
    """Exit unless all (group, row) pairs of a group have the same budget."""
    for group in dict.fromkeys(group for group, _ in budgets):
        here = {row: budget for (g, row), budget in budgets.items() if g == group}
        if len(set(here.values())) > 1:
            raise SystemExit(f"{table}: budgets of {group} differ: {here}{advice}")


# ------------------------------------------------------------------------------------------------------------- runs


def main(table: Table, argv: Sequence[str] | None = None) -> int:
    """Run what is missing and write the table.

    Returns:
        Exit status: 1 if a run failed, 130 if the command was stopped.
    """
    session = Session(table, argv)
    if session.flags.dry_run:
        sys.stdout.write("\n".join(commands(session)) + "\n")
        return 0
    failed, stopped = (
        ({}, False)
        if session.flags.collect
        else run_all(session.plan, session.done, session.folder, session.flags.jobs)
    )
    if write(session) is None and session.flags.collect:
        raise SystemExit("\n".join(session.problems) or f"{table.name}: {session.folder} has no results to collect")
    for line in (*session.problems, *(f"{name} {reason}" for name, reason in failed.items())):
        sys.stderr.write(f"{table.name}: {line}\n")
    return 130 if stopped else 1 if failed else 0


def commands(session: Session) -> Iterator[str]:
    """Yield the commands of missing runs with the tokens that they generate at most."""
    missing = [run for run in session.plan() if not session.done(run)]
    for run in missing:
        command = " ".join((*run.command, f"--workdir={run.place(session.folder)}"))
        yield f"python launch.py {command}    # at most {run.tokens:,.0f} tokens"
    total = sum(run.tokens for run in missing)
    yield f"# {session.table.name}: {len(missing)} runs, at most {total:,.0f} generated tokens"


# ----------------------------------------------------------------------------------------------------------- output


def write(session: Session) -> str | None:
    """Write and print the page, and return it; None without results."""
    page = session.table.page(session)
    if page is None:
        return None
    name, folder = session.table.name, session.folder
    notes = [f"- Left out: {line}" for line in session.problems]
    last = f"Table {name}, version {session.table.version}, settings {session.fingerprint()}."
    text = "\n".join([*page.lines, *([*notes, ""] if notes else []), last]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (folder / f"{name}.svg").write_text(page.drawing or _bars(page.figures), encoding="utf-8")
    if page.figures:
        _write_csv(page.figures, folder / f"{name}.csv")
    sys.stdout.write(text)
    return text


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return a Markdown table; None is a dash."""
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    lines += [f"| {' | '.join('–' if cell is None else str(cell) for cell in row)} |" for row in rows]
    return [*lines, ""]


def _bars(figures: Sequence[Figure]) -> str:
    groups: dict[str, list[Bar]] = {}
    for figure in figures:
        groups.setdefault(figure.group, []).append(Bar(figure.row, figure.before, figure.value))
    return bar_chart(groups)


def _write_csv(figures: Sequence[Figure], path: Path) -> None:
    """Write figures as CSV, with rates between 0 and 1."""
    names = list(dict.fromkeys(name for figure in figures for name in figure.more))
    ends = ("value", "low", "high")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["group", "row", *ends, *(f"before_{end}" for end in ends), *names])
        for figure in figures:
            rates = [x for rate in (figure.value, figure.before) for x in (rate or ("", "", ""))]
            more = ["" if figure.more.get(name) is None else figure.more[name] for name in names]
            writer.writerow([figure.group, figure.row, *rates, *more])
