"""Table of cooperative methods on two-role Plan-Path and small Hanabi at equal environment steps.

    python -m experiments.tables.cooperative                            # the embedded model, one run at a time
    python -m experiments.tables.cooperative --jobs=5                   # on a machine with more cores or a GPU
    python -m experiments.tables.cooperative --only=two_role_path/qmix,two_role_path/vdn --seeds=3

Every method is run with two seeds or more. `--config.FIELD=VALUE` goes to every run. The table is written to
cooperative.md and cooperative.svg in --workdir.
"""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.tables import games, records
from experiments.tables.charts import Curve, curve_chart
from experiments.tables.runner import Page, Session, Table, main, markdown_table

GAMES = {"two_role_path": "Two-role Plan-Path, success", "small_hanabi": "Small Hanabi, points"}
WORDS = {"vdn": "VDN", "qmix": "QMIX", "coma": "COMA", "maddpg": "MADDPG", "mappo": "MAPPO"}


def check(session: Session) -> None:
    """Exit if a model is selected."""
    if session.flags.model:
        raise SystemExit(f"cooperative: --model is {session.flags.model}, but the table has the embedded model only")


def page(session: Session) -> Page | None:
    """Return the figure before and after training, with its interval, and its maximum, per seed."""
    curves: dict[str, list[Curve]] = {}
    rows = []
    for game, form, runs in games.courses(session, _course):
        curves.setdefault(GAMES[game], []).extend(games.curves(WORDS[form], runs))
        rows.append([
            GAMES[game], WORDS[form], ", ".join(dict.fromkeys(f"{run[-1][0]:,}" for run in runs)),
            ", ".join(f"{run[0][1]:.2f}" for run in runs),
            ", ".join("**{:.2f}** [{:.2f}, {:.2f}]".format(*run[-1][1:]) for run in runs),
            ", ".join(f"{max(point[1] for point in run):.2f}" for run in runs),
        ])  # fmt: skip
    heads = ["game", "method", "environment steps", "before", "after", "highest"]
    lines = ["# Cooperative methods", "", *markdown_table(heads, rows)]
    return Page(lines, drawing=curve_chart(curves, "environment steps", {})) if rows else None


def _course(folder: Path) -> games.Course:
    """Return environment steps and the success or score, with its interval, of every evaluation."""
    spent = records.spent(folder)
    rows = [row for row in records.evaluations(folder) if row["opponent"] == "self"]
    return [
        (
            int(spent[row["step"]].completions) if row["step"] else 0,
            *(row[f"{'success' if 'success' in row else 'score'}{end}"] for end in ("", "_low", "_high")),
        )
        for row in rows
    ]


TABLE = Table(
    "cooperative",
    1,
    __doc__,
    dict.fromkeys(GAMES, WORDS),
    games.plan,
    page,
    lambda parser: parser.set_defaults(seeds=2),
    check,
)

if __name__ == "__main__":
    sys.exit(main(TABLE))
