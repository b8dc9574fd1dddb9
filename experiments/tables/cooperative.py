"""Table of cooperative methods on small Hanabi at equal environment steps.

    python -m experiments.tables.cooperative                            # the embedded model, one run at a time
    python -m experiments.tables.cooperative --jobs=5                   # on a machine with more cores or a GPU
    python -m experiments.tables.cooperative --only=small_hanabi/qmix,small_hanabi/vdn --seeds=3

Every method is run with two seeds or more. `--config.FIELD=VALUE` goes to every run. The table is written to
cooperative.md and cooperative.svg in --workdir.
"""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.tables import records
from experiments.tables.charts import Curve, curve_chart
from experiments.tables.runner import Page, Session, Table, main, markdown_table, plan_games

GAMES = {"small_hanabi": "Small Hanabi"}
WORDS = {"vdn": "VDN", "qmix": "QMIX", "coma": "COMA", "maddpg": "MADDPG", "mappo": "MAPPO"}


def check(session: Session) -> None:
    """Exit if a model is selected."""
    if session.flags.model:
        raise SystemExit(f"cooperative: --model is {session.flags.model}, but the table has the embedded model only")


def page(session: Session) -> Page | None:
    """Return the score before and after training, and its maximum, per seed."""
    curves: dict[str, list[Curve]] = {}
    rows = []
    for game, form in session.wanted:
        folders = [session.folder / f"{game}-{form}-{seed}" for seed in range(session.flags.seeds)]
        runs = [session.read(_curve, folder, default=[]) for folder in folders]
        if not (runs := [one for one in runs if one]):
            continue
        turns, values = ([[point[i] for point in one] for one in runs] for i in (0, 1))
        curves.setdefault(GAMES[game], []).extend(
            Curve(WORDS[form], x, y) for x, y in zip(turns, values, strict=True)
        )  # fmt: skip
        rows.append([
            GAMES[game], WORDS[form], ", ".join(dict.fromkeys(f"{one[-1]:,}" for one in turns)),
            ", ".join(f"{one[0]:.2f}" for one in values), ", ".join(f"**{one[-1]:.2f}**" for one in values),
            ", ".join(f"{max(one):.2f}" for one in values),
        ])  # fmt: skip
    heads = ["game", "method", "environment steps", "before", "after", "highest"]
    lines = ["# Cooperative methods", "", *markdown_table(heads, rows)]
    return Page(lines, drawing=curve_chart(curves, "environment steps", {})) if rows else None


def _curve(folder: Path) -> list[tuple[int, float]]:
    """Return the environment steps and the score of every evaluation of a run."""
    spent = records.spent(folder)
    rows = [row for row in records.evaluations(folder) if row["opponent"] == "self"]
    return [(int(spent[row["step"]].completions) if row["step"] else 0, row["score"]) for row in rows]


TABLE = Table(
    "cooperative",
    1,
    __doc__,
    dict.fromkeys(GAMES, WORDS),
    plan_games,
    page,
    lambda parser: parser.set_defaults(seeds=2),
    check,
)

if __name__ == "__main__":
    sys.exit(main(TABLE))
