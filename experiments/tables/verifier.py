"""Verifier table: balanced and unbalanced training, compared on the test split.

    python -m experiments.tables.verifier                                                # the embedded model
    python -m experiments.tables.verifier --task=gsm8k --model=qwen2.5-coder-0.5b        # one GPU

Both verifiers are trained on the same labels. `--config.FIELD=VALUE` goes to every run. The table is written to
verifier.md in --workdir, with the AUC as a chart. The embedded model gives no right answers, so its table only shows
that everything works.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from configs import verifier
from experiments.tables import records
from experiments.tables.intervals import Rate
from experiments.tables.runner import Figure, Page, Session, Table, config_of, main, markdown_table, steps_flags
from experiments.tables.runs import Run

ARMS = {"balanced": True, "unbalanced": False}
SHOWN = {
    "accuracy": "accuracy", "auc": "AUC", "auc_by_question": "AUC by question", "ece": "ECE", "brier": "Brier",
}  # fmt: skip


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flag of the task."""
    parser.add_argument("--task", default="arithmetic", choices=tuple(verifier.TASKS))


def plan(session: Session) -> Iterator[Run]:
    """Yield labelling, training of the arms, and their evaluations."""
    experiment = f"experiments/verifier.py:{session.form(session.flags.task)}"
    config = config_of(experiment)
    steps, labels = session.flags.steps or config.steps, session.folder / "labels"
    command = [f"--config={experiment}", "--mode=label", *session.passed]
    algo = config.algo
    tokens = (algo.questions + 2 * algo.held_out) * algo.samples * config.task.max_new_tokens
    yield Run("labels", command, lambda folder: (folder / "labelled" / "summary.json").exists(), tokens=tokens)
    for _, arm in session.wanted:
        command = [f"--config={experiment}", *steps_flags(config, steps), *session.passed]
        command += [f"--config.algo.data={labels}", f"--config.algo.balanced={ARMS[arm]}"]
        yield Run(arm, command, records.trained(steps), ("labels",))
        yield Run(f"{arm} evaluation", ["--mode=eval"], lambda at: _evaluated(at, steps), (arm,), folder=arm)


def _evaluated(folder: Path, step: int) -> bool:
    return records.evaluated(folder) and records.read_json(folder / "evaluation.json")["step"] == step


def page(session: Session) -> Page | None:
    """Return the results so far."""
    rows, figures = [], []
    for _, arm in session.wanted:
        folder = session.folder / arm
        result = session.read(records.read_json, folder / "evaluation.json") if records.evaluated(folder) else None
        for row in result["rows"] if result else ():
            shown = {
                name: Rate(*(row[f"{name}{end}"] for end in ("", "_low", "_high"))) for name in SHOWN if name in row
            }
            cells = [f"{r.value:.3f} [{r.low:.3f}, {r.high:.3f}]" if (r := shown.get(name)) else None for name in SHOWN]
            rows.append([arm, row["opponent"], row["games"], row["distinct"], *cells])
            figures += [Figure(f"{SHOWN[name]}, {row['opponent']} answers", arm, rate) for name, rate in shown.items()]
    heads = ["trained on", "evaluated on", "answers", "questions", *SHOWN.values()]
    lines = [f"# Verifier of {session.flags.task} with {session.model()}", "", *markdown_table(heads, rows)]
    summary = session.folder / "labels" / "labelled" / "summary.json"
    counts = session.read(records.read_json, summary) if summary.exists() else None
    if counts:
        words = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts["train"].items())
        lines += [f"Labelled for training: {words}.", ""]
    return Page(lines, [figure for figure in figures if figure.group.startswith("AUC,")]) if rows or counts else None


TABLE = Table("verifier", 1, __doc__, {"verifier": {arm: arm for arm in ARMS}}, plan, page, add_flags)

if __name__ == "__main__":
    sys.exit(main(TABLE))
