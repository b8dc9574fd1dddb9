"""Poker table: exploitability of self-play with and without magnet and seat baselines.

    python -m experiments.tables.poker                                   # the embedded model, one run at a time
    python -m experiments.tables.poker --jobs=8                          # on a machine with more cores
    python -m experiments.tables.poker --only=kuhn/magnet,kuhn/ppo --seeds=3

Every form is run with two seeds or more. `--config.FIELD=VALUE` goes to every run. The table is written to poker.md and
poker.svg in --workdir. The figures are exact for each policy; only the seeds differ.
"""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.tables import games, records
from experiments.tables.charts import Curve, curve_chart
from experiments.tables.runner import Page, Session, Table, main, markdown_table

GAMES = {"kuhn": "Kuhn", "leduc": "Leduc"}
WORDS = {
    "ppo": "PPO",
    "magnet": "PPO, magnet",
    "role": "PPO, role baselines",
    "magnet_role": "PPO, magnet and role baselines",
}
SHORT = {"ppo": "PPO", "magnet": "magnet", "role": "role", "magnet_role": "magnet and role"}
GOALS = {"Kuhn": 0.05}


def page(session: Session) -> Page | None:
    """Return exploitability before and after training, and its minimum, per seed."""
    curves: dict[str, list[Curve]] = {}
    rows = []
    for game, form, runs in games.courses(session, _course):
        curves.setdefault(GAMES[game], []).extend(games.curves(SHORT[form], runs))
        rows.append([
            GAMES[game], WORDS[form], ", ".join(dict.fromkeys(str(run[-1][0]) for run in runs)),
            ", ".join(f"{run[0][1]:.3f}" for run in runs), ", ".join(f"**{run[-1][1]:.3f}**" for run in runs),
            ", ".join(f"{run[-1][2]:.3f}" for run in runs),
            ", ".join(f"{min(x for _, x, _ in run):.3f}" for run in runs),
        ])  # fmt: skip
    heads = ["game", "", "updates", "before", "after", "NashConv after", "lowest during training"]
    lines = [f"# Poker with {session.model()}", "", *markdown_table(heads, rows)]
    return Page(lines, drawing=curve_chart(curves, "updates", GOALS)) if rows else None


def _course(folder: Path) -> games.Course:
    """Return the updates, exploitability and NashConv of every evaluation of a run."""
    rows = [row for row in records.evaluations(folder) if row["opponent"] == "best_response"]
    return [(row["step"], row["exploitability"], row["nash_conv"]) for row in rows]


TABLE = Table(
    "poker", 1, __doc__, dict.fromkeys(GAMES, WORDS), games.plan, page, lambda parser: parser.set_defaults(seeds=2)
)

if __name__ == "__main__":
    sys.exit(main(TABLE))
