"""Untrusted queries in SQLite: read-only and limited.

An authorizer refuses everything but reading tables and calling functions, so a query cannot write, attach files or load
extensions. The work of a query is counted in instructions of SQLite's virtual machine, and not in seconds, so that a
verdict does not depend on the load of the machine.
"""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple

MAX_QUERY = 4_000
"""Maximum length of a query in characters."""
MAX_ROWS = 10_000
MAX_STEPS = 5_000_000
"""Maximum number of instructions of a query."""
_EVERY = 1_000
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_REFUSED = {"load_extension", "random", "randomblob", "fts3_tokenizer"}
"""Functions that load code or whose results do not follow from the data."""
_SCRIPT_REFUSED = {
    sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_CREATE_VTABLE,
    sqlite3.SQLITE_CREATE_TRIGGER,
}  # fmt: skip
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 100_000, sqlite3.SQLITE_LIMIT_SQL_LENGTH: 4 * MAX_QUERY,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100, sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20, sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100, sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
}  # fmt: skip


class QueryError(ValueError):
    """A query that failed; the message is SQLite's, or names the limit."""


class Table(NamedTuple):
    """The result of a query.

    Attributes:
        columns: Names of the columns.
        rows: The rows.
    """

    columns: tuple[str, ...]
    rows: list[tuple]


def load(script: str) -> sqlite3.Connection:
    """Create a database in memory by the script of a dataset.

    The script must not reach files or change settings.

    Raises:
        QueryError: The script fails.
    """
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.set_authorizer(lambda action, *_: action in _SCRIPT_REFUSED)  # 1 is SQLITE_DENY
    try:
        connection.executescript(script)
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        connection.close()
        raise QueryError(str(error)) from None
    connection.set_authorizer(None)
    return connection


def restrict(connection: sqlite3.Connection) -> None:
    """Refuse everything but limited queries from now on."""
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    connection.set_authorizer(_authorize)


def run(connection: sqlite3.Connection, query: str) -> Table:
    """Run one query.

    Raises:
        QueryError: The query is invalid, forbidden or too long, or exceeds a limit.
    """
    if len(query) > MAX_QUERY:
        raise QueryError(f"the query has {len(query)} characters, but must have at most {MAX_QUERY}")
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += _EVERY
        return steps > MAX_STEPS

    connection.set_progress_handler(count, _EVERY)
    try:
        cursor = connection.execute(query)
        if cursor.description is None:
            raise QueryError("the text is not a query that returns rows")
        rows = cursor.fetchmany(MAX_ROWS + 1)
        columns = tuple(column[0] for column in cursor.description)
        cursor.close()
    except (sqlite3.Error, sqlite3.Warning, UnicodeError, OverflowError, MemoryError, ValueError) as error:
        if isinstance(error, QueryError):
            raise
        interrupted = steps > MAX_STEPS
        raise QueryError("the query takes too long" if interrupted else f"{error}") from None
    finally:
        connection.set_progress_handler(None, 0)
    if len(rows) > MAX_ROWS:
        raise QueryError(f"the query returns more than {MAX_ROWS} rows")
    return Table(columns, rows)


def _authorize(action: int, first: str | None, second: str | None, *_: Any) -> int:
    refused = action not in _ALLOWED
    if action == sqlite3.SQLITE_FUNCTION:
        refused = (second or "").lower() in _REFUSED
    elif action == sqlite3.SQLITE_READ:  # the schema is in the prompt, and statistics describe the copies
        refused = (first or "").lower().startswith("sqlite_")
    return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK


def show(table: Table, rows: int = 5, width: int = 40) -> str:
    """Format the first rows of a result for a prompt."""
    lines = [" | ".join(table.columns)]
    lines += [" | ".join(_cell(value, width) for value in row) for row in table.rows[:rows]]
    count = f"{len(table.rows)} rows" if len(table.rows) != 1 else "1 row"
    return "\n".join([*lines, f"({count})" if len(table.rows) <= rows else f"… ({count})"])


def _cell(value: Any, width: int) -> str:
    text = "NULL" if value is None else str(value)
    return text if len(text) <= width else f"{text[:width]}…"
