"""The `sql` task: write a query for a question about a database.

The query is the last ```sql block of a completion. It runs on the published database, and the first rows of its result,
or SQLite's message, are shown to the next completion (`envs/tasks/revising.py`). It is right if it agrees with one of
the gold queries on that database and on all copies with other rows (`copies.py`), which no agent sees.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from envs.tasks.data import Dataset
from envs.tasks.revising import Revising, Trial, fenced
from envs.tasks.sql import copies, engine, sources

LIMIT = 10.0
"""Time limit in seconds for all databases of a trial; the work of a query is limited by `engine.MAX_STEPS`."""
WRITER = "You answer questions about a database with one SQLite query in a ```sql block."
CHECKER = (
    "You check a SQLite query that another agent wrote for a question about a database, and write the final query in a "
    "```sql block."
)


@dataclasses.dataclass(frozen=True)
class Sql(Revising):
    """Questions about databases for a writer and a checker, or for one agent.

    Attributes:
        dataset: "sqleval", "spider", "sample", or a .jsonl file with db, script, question and gold_sql.
    """

    dataset: str = "sqleval"

    seats: ClassVar[tuple[str, str]] = ("writer", "checker")
    systems: ClassVar[tuple[str, str]] = (WRITER, CHECKER)
    kinds: ClassVar[tuple[str, ...]] = ("right", "wrong", "error", "no_query", "failed")

    def __post_init__(self):
        super().__post_init__()
        sources.check_name(self.dataset)

    def splits(self) -> dict[str, Dataset]:
        """Return the questions by split."""
        return sources.load(self.dataset)

    def opening(self, example: dict[str, Any]) -> str:
        """Return the schema and the question."""
        hint = f"\n\n{example['instructions']}" if example["instructions"] else ""
        return f"The tables of the database:\n{copies.schema(example['script'])}\n\n{example['question']}{hint}"

    def trial(self, text: str, example: dict[str, Any]):
        """Return the call that runs and judges the query of a completion."""
        return tried, (text, example["script"], example["golds"]), LIMIT

    def gold_reply(self, example: dict[str, Any]) -> str:
        """Return the first gold query in a block."""
        return f"```sql\n{example['golds'][0]}\n```"


def tried(text: str, script: str, golds: Sequence[str]) -> Trial:
    """Run the query of a completion and compare it with the gold queries."""
    query = fenced(text, ("sql", "sqlite"))
    if query is None:
        return Trial(right=0.0, answer=None, kind="no_query", shown="There was no ```sql block.")
    verdict = copies.judge(script, golds, query)
    if verdict.table is None:
        return Trial(right=0.0, answer=query, kind="error", shown=f"The query failed: {verdict.error}")
    kind, shown = "right" if verdict.right else "wrong", f"The result of the query:\n{engine.show(verdict.table)}"
    return Trial(right=float(verdict.right), answer=query, kind=kind, shown=shown)
