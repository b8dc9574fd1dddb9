"""The `discovery` task: write the law of a table as a program.

A completion contains a program with a function `predict(row)`, in a ```python block. It runs in the sandbox, where it
can read some rows of the table with the column (`ROWS`), and predicts the column for other rows, whose values never
enter the sandbox. The R² on the probe rows is shown to the next completion (`envs/tasks/revising.py`), the R² on the
hidden rows is the success of the episode.
"""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from envs.tasks.data import Dataset
from envs.tasks.discovery import sources
from envs.tasks.discovery.tables import r_squared
from envs.tasks.revising import Revising, Trial, fenced
from envs.tasks.sandbox import Limits, same_sandbox, shared_sandbox
from envs.tasks.task import check_params

SANDBOXES = ("auto", "process")
SHOWN = 12
"""Number of known rows in the prompt."""
MAX_PROGRAM = 20_000
START_LIMIT = 30.0
"""Extra seconds beyond a program's limit, for starting a sandbox."""
RIGHT = 0.95
"""R² from which a program counts as right."""
ANALYST = (
    "You find the law of a table and write it as a Python program in a ```python block, with a function predict(row) "
    "that returns a number."
)
CRITIC = (
    "You check a Python program that another agent wrote for the law of a table, and write the final program in a "
    "```python block, with a function predict(row) that returns a number."
)
_BEFORE = "import json as _json, sys as _sys\n_DATA = _json.loads(_sys.stdin.read())\nROWS = _DATA['known']\n"
_AFTER = "\n\nprint('\\n' + _DATA['mark'] + _json.dumps([predict(dict(_row)) for _row in _DATA['rows']]))\n"


@dataclasses.dataclass(frozen=True)
class Discovery(Revising):
    """Laws of tables for an analyst and a critic, or for one agent.

    Attributes:
        dataset: "discoverybench" or "sample".
        sandbox: "auto" for real isolation or an error; "process" for limits only, for trusted programs.
        wall: Time limit of a program in seconds.
    """

    dataset: str = sources.BENCH
    sandbox: str = "auto"
    wall: float = 3.0

    seats: ClassVar[tuple[str, str]] = ("analyst", "critic")
    systems: ClassVar[tuple[str, str]] = (ANALYST, CRITIC)
    kinds: ClassVar[tuple[str, ...]] = ("right", "partial", "error", "no_program", "failed")

    def __post_init__(self):
        super().__post_init__()
        check_params(self, dict(dataset=sources.DATASETS, sandbox=SANDBOXES), dict(wall=(0.1, 600)))

    def splits(self) -> dict[str, Dataset]:
        """Return the tables by split."""
        return sources.load(self.dataset)

    def prepare(self) -> None:
        """Start the sandbox.

        Raises:
            SandboxUnavailable: This machine does not allow isolation.
        """
        shared_sandbox(self.sandbox)

    def opening(self, example: dict[str, Any]) -> str:
        """Return the columns, some rows and the request."""
        names = list(example["columns"])
        lines = [f"{name}: {about}" for name, about in example["columns"].items() if about]
        table = [", ".join(names), *(", ".join(str(row[name]) for name in names) for row in example["known"][:SHOWN])]
        return (
            ("The columns of a table:\n" + "\n".join(lines) + "\n\n" if lines else "")
            + f"Some rows of the table:\n{chr(10).join(table)}\n\nHow does {example['target']} follow from the other "
            f"columns? Write predict(row), where row is a dict without {example['target']!r}. The program may use the "
            f"standard library, and the list ROWS of {len(example['known'])} rows with {example['target']!r}."
        )

    def trial(self, text: str, example: dict[str, Any]):
        """Return the call that runs and scores the program of a completion."""
        settings = shared_sandbox(self.sandbox).settings
        rows = [example[part] for part in ("known", "probe", "hidden")]
        return tried, (settings, text, *rows, example["target"], self.wall), self.wall + START_LIMIT

    def gold_reply(self, example: dict[str, Any]) -> str | None:
        """Return a program with the law, where it is known."""
        return f"```python\n{example['solution']}\n```" if example["solution"] else None


def tried(
    sandbox: Mapping, text: str, known: list[dict], probe: list[dict], hidden: list[dict], target: str, wall: float
) -> Trial:
    """Run the program of a completion and score its predictions."""
    program = fenced(text, ("python", "py", "python3"))
    if program is None or len(program) > MAX_PROGRAM:
        return Trial(right=0.0, answer=None, kind="no_program", shown="There was no ```python block.")
    rows = [{name: value for name, value in row.items() if name != target} for row in (*probe, *hidden)]
    mark = secrets.token_hex(16)
    given = json.dumps({"known": known, "rows": rows, "mark": mark})
    limits = Limits(wall=wall, cpu=wall)
    result = same_sandbox(sandbox).run_sync(_BEFORE + program + _AFTER, stdin=given, limits=limits)
    predictions = read_predictions(result.stdout, mark, len(rows)) if result.status == "ok" else None
    if predictions is None:
        reason = {"limit": f"it exceeded the limit of {result.limit}", "refused": "it did something forbidden"}
        last = result.stderr.strip().splitlines()[-1:] or ["predict did not return a finite number for every row"]
        shown = f"The program failed: {reason.get(result.status, last[0][:300])}."
        return Trial(right=0.0, answer=program, kind="error", shown=shown)
    scores = [
        r_squared([row[target] for row in part], guesses)
        for part, guesses in ((probe, predictions[: len(probe)]), (hidden, predictions[len(probe) :]))
    ]
    shown = (
        f"On {len(probe)} other rows, the predictions have an R² of {max(scores[0], -99):.3f}; 1 is perfect, 0 is as "
        "good as the mean."
    )
    right = min(max(scores[1], 0.0), 1.0)
    return Trial(right=right, answer=program, kind="right" if right >= RIGHT else "partial", shown=shown)


def read_predictions(stdout: str, mark: str, number: int) -> Sequence[float] | None:
    """Return the finite numbers after the last mark, or None if there are others."""
    _, separator, after = stdout.rpartition(mark)
    try:
        values = json.loads(after) if separator else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, list) or len(values) != number:
        return None
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return None
    try:
        numbers = [float(value) for value in values]
    except OverflowError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None
