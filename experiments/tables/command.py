"""What the commands of all tables share: their flags, and what they leave behind."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from configs import variants
from experiments.tables.runs import Runs, run_all


def at_least(low: int) -> Callable[[str], int]:
    """The type of a flag that is a whole number from `low` up."""

    def whole_number(text: str) -> int:
        if int(text) < low:
            raise argparse.ArgumentTypeError(f"{text} is below {low}")
        return int(text)

    return whole_number


def add_flags(parser: argparse.ArgumentParser, table: str) -> None:
    """The flags of every table."""
    parser.add_argument("--model", default="", help="a variant of the experiments: smollm2, qwen3-1.7b, …; '': tiny")
    parser.add_argument("--workdir", default="", help=f"default: runs/{table}[-MODEL]")
    parser.add_argument("--steps", type=at_least(0), default=0, help="updates of rows that learn; 0: the experiment's")
    parser.add_argument("--jobs", type=at_least(1), default=1, help="runs at a time; on a GPU they share its memory")
    parser.add_argument("--collect", action="store_true", help="run nothing, write what is there")


def read_flags(
    parser: argparse.ArgumentParser, table: str, argv: Sequence[str] | None
) -> tuple[argparse.Namespace, list[str]]:
    """The flags of the table, and those for every run."""
    flags, rest = parser.parse_known_args(argv)
    for flag in rest:
        if not flag.startswith("--config."):
            parser.error(f"{flag} is not a flag; fields of the runs are written --config.FIELD=VALUE")
    if flags.model and flags.model not in variants.VARIANTS:
        parser.error(f"--model={flags.model}: accepted are {', '.join(variants.VARIANTS)}")
    flags.workdir = flags.workdir or f"runs/{table}{f'-{flags.model}' if flags.model else ''}"
    return flags, rest


LEARNING = ("steps", "algo.", "optim.", "rollout.")
"""Beginnings of fields that say how a row learns."""


def without_learning(passed: Sequence[str]) -> list[str]:
    """The flags for runs that are not rows, such as warm starts and evaluations: fields of learning stay behind."""
    return [flag for flag in passed if not flag.removeprefix("--config.").startswith(LEARNING)]


def select(table: str, only: str, groups: Iterable[str], rows: Iterable[str]) -> list[tuple[str, str]]:
    """The (group, row) pairs that `--only` asks for as GROUP or GROUP/ROW, in the order of the table; '' is all."""
    groups, rows = tuple(groups), tuple(rows)
    everything = [(group, row) for group in groups for row in rows]
    if not only:
        return everything
    asked = only.split(",")
    for name in asked:
        group, _, row = name.partition("/")
        if group not in groups or (row and row not in rows):
            known = f"{', '.join(groups)}, and behind a slash {', '.join(rows)}"
            raise SystemExit(f"{table}.py: --only has {name!r}; accepted: {known}")
    return [(group, row) for group, row in everything if group in asked or f"{group}/{row}" in asked]


def check_files(table: str, names: Iterable[str]) -> None:
    """Ends the program where a published data file is missing: a table never shows a built-in sample in its place."""
    root = Path(os.environ.get("MARL_JAX_DATA") or "?")
    missing = [name for name in names if not [*root.glob(f"{name}.jsonl*"), *root.glob(f"*/{name}.jsonl*")]]
    if missing:
        raise SystemExit(f"{table}.py: no files {', '.join(missing)} in $MARL_JAX_DATA ({root})")


def run_rounds(rounds: Iterable[Runs], folder: Path, jobs: int) -> tuple[list[str], bool]:
    """Runs what is missing: the names of those that failed, and whether it was stopped."""
    try:
        return run_all(rounds, folder, jobs), False
    except KeyboardInterrupt:
        return [], True


def finish(table: str, folder: Path, text: str, drawing: str, failed: Sequence[str], stopped: bool) -> int:
    """Writes the table and prints it; the status is 1 when a run failed, 130 when it was stopped."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{table}.md").write_text(text, encoding="utf-8")
    (folder / f"{table}.svg").write_text(drawing, encoding="utf-8")
    sys.stdout.write(text)
    for name in failed:
        sys.stderr.write(f"{table}.py: {name} failed; its last lines are in {folder / name / 'launch.log'}\n")
    return 130 if stopped else 1 if failed else 0
