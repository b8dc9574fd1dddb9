"""Verifier table: balanced and unbalanced training, compared on the test split.

    python -m experiments.tables.verifier                                                # the embedded model
    python -m experiments.tables.verifier --task=gsm8k --model=qwen2.5-coder-0.5b        # one GPU

Both verifiers are trained on the same labels. Each step is a separate `launch.py` with its own folder under --workdir,
so the same command continues where it was stopped, and finished steps are not repeated. `--config.FIELD=VALUE` goes to
every run.

The table is written to verifier.md in --workdir. The embedded model gives no right answers, so its table only shows
that everything works.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from configs import verifier
from experiments.tables.command import add_flags, finish, read_flags, run_rounds
from experiments.tables.runs import Runs, is_done

TABLE = "verifier"
ARMS = {"balanced": True, "unbalanced": False}
SHOWN = {
    "accuracy": "accuracy", "auc": "AUC", "auc_by_question": "AUC by question", "ece": "ECE", "brier": "Brier",
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing and write the table.

    Returns:
        Exit status: 1 if a run failed, 130 if the command was stopped.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, TABLE)
    parser.add_argument("--task", default="arithmetic", choices=tuple(verifier.TASKS))
    flags, rest = read_flags(parser, TABLE, argv)
    folder = Path(flags.workdir).absolute()
    failed, stopped = ([], False) if flags.collect else run_rounds(rounds(flags, rest, folder), folder, flags.jobs)
    return finish(TABLE, folder, table(folder), "", failed, stopped)


def rounds(flags: argparse.Namespace, rest: Sequence[str], folder: Path) -> Iterator[Runs]:
    """Yield three rounds of runs: labelling, training of both arms, evaluation of both."""
    form = f"{flags.task}+{flags.model}" if flags.model else flags.task
    config = [f"--config=experiments/verifier.py:{form}"]
    steps = flags.steps or verifier.verifier(form).steps
    labels = folder / "labels"
    yield {"labels": ([*config, "--mode=label", *rest], (labels / "labelled" / "summary.json").exists())}
    arms = [*config, f"--config.steps={steps}", f"--config.algo.data={labels}", *rest]
    yield {
        name: ([*arms, f"--config.algo.balanced={balanced}"], is_done(folder / name, steps))
        for name, balanced in ARMS.items()
    }
    yield {name: (["--mode=eval"], _evaluated(folder / name) == steps) for name in ARMS}


def table(folder: Path) -> str:
    """Return the results so far as Markdown."""
    lines = ["| trained on | evaluated on | answers | questions | " + " | ".join(SHOWN.values()) + " |"]
    lines.append("|" + " --- |" * (4 + len(SHOWN)))
    for name in ARMS:
        for row in _rows(folder / name):
            values = [_interval(row, metric) for metric in SHOWN]
            lines.append(f"| {name} | {row['opponent']} | {row['games']} | {row['distinct']} | {' | '.join(values)} |")
    summary = folder / "labels" / "labelled" / "summary.json"
    if summary.exists():
        counts = json.loads(summary.read_text(encoding="utf-8"))["train"]
        words = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
        lines += ["", f"Labelled for training: {words}."]
    return "\n".join(lines) + "\n"


def _rows(folder: Path) -> list[dict]:
    path = folder / "evaluation.json"
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []


def _evaluated(folder: Path) -> int | None:
    path = folder / "evaluation.json"
    return json.loads(path.read_text(encoding="utf-8"))["step"] if path.exists() else None


def _interval(row: dict, metric: str) -> str:
    if metric not in row:
        return "–"
    return f"{row[metric]:.3f} [{row[f'{metric}_low']:.3f}, {row[f'{metric}_high']:.3f}]"


if __name__ == "__main__":
    sys.exit(main())
