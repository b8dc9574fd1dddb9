"""Poker table: exploitability of self-play with and without magnet and seat baselines.

    python -m experiments.tables.poker                                   # the embedded model, one run at a time
    python -m experiments.tables.poker --jobs=8                          # on a machine with more cores
    python -m experiments.tables.poker --only=kuhn/magnet,kuhn/ppo --seeds=3

Every form is run with two seeds or more. `--config.FIELD=VALUE` goes to every run. The table is written to poker.md and
poker.svg in --workdir. The figures are exact for each policy; only the seeds differ.
"""

from __future__ import annotations

import sys

from experiments.tables import records
from experiments.tables.charts import Curve, curve_chart
from experiments.tables.runner import Page, Session, Table, main, markdown_table, plan_games

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
    for game, form in session.wanted:
        folders = [session.folder / f"{game}-{form}-{seed}" for seed in range(session.flags.seeds)]
        runs = [session.read(records.evaluations, folder, default=[]) for folder in folders]
        runs = [[row for row in one if row["opponent"] == "best_response"] for one in runs]
        if not (runs := [one for one in runs if one]):
            continue
        values = [[row["exploitability"] for row in one] for one in runs]
        steps = [[row["step"] for row in one] for one in runs]
        curves.setdefault(GAMES[game], []).extend(
            Curve(SHORT[form], x, y) for x, y in zip(steps, values, strict=True)
        )  # fmt: skip
        rows.append([
            GAMES[game], WORDS[form], ", ".join(dict.fromkeys(str(one[-1]) for one in steps)),
            ", ".join(f"{one[0]:.3f}" for one in values), ", ".join(f"**{one[-1]:.3f}**" for one in values),
            ", ".join(f"{one[-1]['nash_conv']:.3f}" for one in runs), ", ".join(f"{min(one):.3f}" for one in values),
        ])  # fmt: skip
    heads = ["game", "", "updates", "before", "after", "NashConv after", "lowest during training"]
    lines = [f"# Poker with {session.model()}", "", *markdown_table(heads, rows)]
    return Page(lines, drawing=curve_chart(curves, "updates", GOALS)) if rows else None


TABLE = Table(
    "poker", 1, __doc__, dict.fromkeys(GAMES, WORDS), plan_games, page, lambda parser: parser.set_defaults(seeds=2)
)

if __name__ == "__main__":
    sys.exit(main(TABLE))
