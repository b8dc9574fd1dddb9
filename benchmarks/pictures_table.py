"""Success of runs of `experiments/pictures.py` after imitation and after reinforcement learning.

    python -m benchmarks.pictures_table runs/gpu_pictures

The folder holds runs called GAME-OBSERVATION-SEED (`scripts/gpu_pictures.sh`). A run evaluates held-out levels before
its first update, which follows the imitation, and later. The table has both, with Wilson intervals, also of runs that
have not ended.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

STAGE = "first_stage"


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the evaluations of a run's policy on held-out levels, in order."""
    file = folder / "eval.jsonl"
    lines = file.read_text().splitlines() if file.is_file() else []
    return [row for row in map(json.loads, lines) if row["opponent"] == "self"]


def table(folder: Path) -> list[str]:
    """Return the lines of a Markdown table of all runs in a folder."""
    lines = [
        "| game | observation | seed | after imitation | after RL | updates |",
        "| --- | --- | ---: | --- | --- | ---: |",
    ]
    for run in sorted(path for path in folder.iterdir() if path.name.count("-") == 2 and path.is_dir()):
        stage, played = rows_of(run / STAGE), rows_of(run)
        imitated = played[:1] or stage[-1:]
        trained = [row for row in played[-1:] if row["step"]]
        cells = [_share(rows) for rows in (imitated, trained)]
        steps = f"{stage[-1]['step'] if stage else 0} + {played[-1]['step'] if played else 0}"
        lines.append(f"| {' | '.join([*run.name.split('-'), *cells, steps])} |")
    return lines


def _share(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "–"
    share, low, high = (100 * rows[-1][name] for name in ("success", "success_low", "success_high"))
    return f"{share:.1f} [{low:.1f}, {high:.1f}]"


def main() -> None:
    """Print the table of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the runs")
    print("\n".join(table(parser.parse_args().folder)))


if __name__ == "__main__":
    main()
