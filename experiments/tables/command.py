"""Flags and output files of all table commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from configs import variants
from experiments.tables.runs import Runs, run_all


def at_least(low: int) -> Callable[[str], int]:
    """Return the type of a flag that is an integer >= `low`."""

    def whole_number(text: str) -> int:
        if int(text) < low:
            raise argparse.ArgumentTypeError(f"value is {text}, but must be >= {low}")
        return int(text)

    return whole_number


def add_flags(parser: argparse.ArgumentParser, table: str) -> None:
    """Add the flags that all tables have."""
    parser.add_argument("--model", default="", help="Model variant, such as smollm2 or qwen3-1.7b; tiny by default")
    parser.add_argument("--workdir", default="", help=f"Output folder; runs/{table}[-MODEL] by default")
    parser.add_argument(
        "--steps", type=at_least(0), default=0, help="Number of updates of rows that learn; 0 uses the experiment's"
    )
    parser.add_argument(
        "--jobs", type=at_least(1), default=1, help="Number of concurrent runs, which share the memory of a GPU"
    )
    parser.add_argument(
        "--collect", action="store_true", help="Write the results of existing runs without running anything"
    )


def read_flags(
    parser: argparse.ArgumentParser, table: str, argv: Sequence[str] | None
) -> tuple[argparse.Namespace, list[str]]:
    """Parse the flags of the table and those for every run."""
    flags, rest = parser.parse_known_args(argv)
    for flag in rest:
        if not flag.startswith("--config."):
            parser.error(f"{flag} is not a flag; write fields of the runs as --config.FIELD=VALUE")
    if flags.model and flags.model not in variants.VARIANTS:
        parser.error(f"--model is {flags.model}, but must be one of: {', '.join(variants.VARIANTS)}")
    flags.workdir = flags.workdir or f"runs/{table}{f'-{flags.model}' if flags.model else ''}"
    return flags, rest


LEARNING = ("steps", "algo.", "optim.", "rollout.")
"""Prefixes of config fields that affect how a row learns."""


def without_learning(passed: Sequence[str]) -> list[str]:
    """Remove flags that affect learning, for warm starts and evaluations."""
    return [flag for flag in passed if not flag.removeprefix("--config.").startswith(LEARNING)]


def select(table: str, only: str, groups: Iterable[str], rows: Iterable[str]) -> list[tuple[str, str]]:
    """Return the (group, row) pairs that `--only` selects, in the order of the table.

    Args:
        table: Name of the table.
        only: Names separated by commas, each GROUP or GROUP/ROW; "" selects everything.
        groups: All groups.
        rows: All rows.
    """
    groups, rows = tuple(groups), tuple(rows)
    everything = [(group, row) for group in groups for row in rows]
    if not only:
        return everything
    selected = only.split(",")
    for name in selected:
        group, _, row = name.partition("/")
        if group not in groups or (row and row not in rows):
            known = f"{', '.join(groups)}, optionally with a slash and one of: {', '.join(rows)}"
            raise SystemExit(f"{table}.py: --only has {name!r}, but must be one of: {known}")
    return [(group, row) for group, row in everything if group in selected or f"{group}/{row}" in selected]


def check_files(table: str, names: Iterable[str]) -> None:
    """Exit if a published data file is missing.

    A table never shows a built-in sample instead of a published dataset.
    """
    root = Path(os.environ.get("MARL_JAX_DATA") or "?")
    missing = [name for name in names if not [*root.glob(f"{name}.jsonl*"), *root.glob(f"*/{name}.jsonl*")]]
    if missing:
        raise SystemExit(f"{table}.py: no files {', '.join(missing)} in $MARL_JAX_DATA ({root})")


def run_rounds(rounds: Iterable[Runs], folder: Path, jobs: int) -> tuple[list[str], bool]:
    """Run what is missing; return the failed runs, and whether it was stopped."""
    try:
        return run_all(rounds, folder, jobs), False
    except KeyboardInterrupt:
        return [], True


def finish(table: str, folder: Path, text: str, drawing: str, failed: Sequence[str], stopped: bool) -> int:
    """Write and print the table, with a drawing unless it is "".

    Returns:
        Exit status: 1 if a run failed, 130 if the command was stopped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{table}.md").write_text(text, encoding="utf-8")
    if drawing:
        (folder / f"{table}.svg").write_text(drawing, encoding="utf-8")
    sys.stdout.write(text)
    for name in failed:
        sys.stderr.write(f"{table}.py: {name} failed; see the end of {folder / name / 'launch.log'}\n")
    return 130 if stopped else 1 if failed else 0
