"""Test results of all runs in a folder, as a Markdown table.

    python -m experiments.tables.evaluated runs/gpu_tasks/sql

Lists the subfolders with results of `--mode=eval`, oldest first, and writes the table to `evaluated.md` in the folder.
The scripts `scripts/gpu_tasks.sh` and `scripts/gpu_flows.sh` end with it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.tables import records
from experiments.tables.intervals import Rate

HEAD = ("run", "updates", "training tokens", "episodes", "success, %", "reward", "failed episodes")


def table(folder: Path) -> str:
    """Return the table of a folder.

    Raises:
        Damaged: A file of results cannot be read.
    """
    paths = sorted(folder.glob("*/evaluation.json"), key=lambda path: path.stat().st_mtime)
    lines = [HEAD, ("---",) * len(HEAD), *(cells for path in paths for cells in _rows(path.parent))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _rows(folder: Path) -> list[Sequence[str]]:
    """Return the cells of a run's evaluations."""
    result, spent = records.read_json(folder / "evaluation.json"), records.spent(folder)
    tokens = spent[result["step"]].parts()[0] if result["step"] in spent else "–" if result["step"] else "0"
    rows = []
    for row in result["rows"]:
        name = folder.name if row["opponent"] == "self" else f"{folder.name}, {row['opponent']}"
        success = str(Rate(row["success"], row["success_low"], row["success_high"])) if "success" in row else "–"
        reward = f"{row['reward']:.3f} [{row['reward_low']:.3f}, {row['reward_high']:.3f}]" if "reward" in row else "–"
        rows.append((name, str(result["step"]), tokens, str(row["games"]), success, reward, str(row.get("failed", 0))))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    try:
        text = table(folder)
    except records.Damaged as error:
        sys.exit(str(error))
    if text.count("\n") == 2:
        sys.exit(f"{folder} has no run with an evaluation.json. Run --mode=eval first.")
    (folder / "evaluated.md").write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
