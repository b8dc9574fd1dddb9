"""Copies of a database with other rows.

The published databases have few rows, so a wrong query often returns the right ones by chance, and constants always do.
In a copy, some rows are missing, some are repeated under a new key, and values are exchanged for others of the same
column. Keys stay unique: a column that may link tables (the name occurs in two tables, or ends in id or code) keeps its
values if they are unique, or if the table has only such columns.

A result may depend on the order in which rows are stored. `judge` finds out by storing the rows of every table
backwards. A database with another result then, as of ORDER BY … LIMIT 1 among equal values, does not decide. If only
the order of the result differs, rows that change places may be in any order.
"""

from __future__ import annotations

import functools
import hashlib
import random
import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from envs.tasks.sql import engine
from envs.tasks.sql.compare import equal, is_ordered

COPIES = 12
KEPT, REPEATED = (0.6, 1.0), (0.1, 0.6)
"""Shares of rows that are kept, and of rows that are repeated, in copies that shrink and in those that grow."""
EXCHANGED, CHANGED, EMPTIED = 0.25, 0.2, 0.05
"""Shares of values that are exchanged, changed (numbers) or set to NULL."""


class Database(NamedTuple):
    """A database, and the same one with rows stored backwards and without keys."""

    forward: sqlite3.Connection
    backward: sqlite3.Connection


@functools.lru_cache(maxsize=64)
def databases(script: str, copies: int = COPIES) -> tuple[Database, ...]:
    """Return the database of a script, followed by its copies."""
    original = engine.load(script)
    seed = int.from_bytes(hashlib.sha256(script.encode()).digest()[:8], "big")
    filled = [_rows(original)]
    filled += [_changed(original, random.Random(seed + k), grows=k % 2) for k in range(copies)]
    made = tuple(Database(_made(original, rows), _made(original, rows, backward=True)) for rows in filled)
    original.close()
    return made


@functools.lru_cache(maxsize=256)
def schema(script: str) -> str:
    """Return the CREATE statements of a script."""
    connection = engine.load(script)
    statements = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table'").fetchall()
    connection.close()
    return "\n".join(f"{statement};" for (statement,) in statements)


# ------------------------------------------------------------------------------------------------------------- verdicts


class Judgement(NamedTuple):
    """The verdict on a query.

    Attributes:
        right: Whether the query agrees with one of the gold queries on every database that decides.
        error: SQLite's message if the query fails on the original database, or None.
        table: Result on the original database, or None.
    """

    right: bool
    error: str | None
    table: engine.Table | None


def judge(script: str, golds: Sequence[str], query: str, copies: int = COPIES) -> Judgement:
    """Compare a query with the gold queries on a database and its copies.

    Raises:
        engine.QueryError: A gold query fails.
    """
    made = databases(script, copies)
    try:
        table = engine.run(made[0].forward, query)
    except engine.QueryError as error:
        return Judgement(False, str(error), None)
    return Judgement(any(_agree(made, script, copies, gold, query) for gold in golds), None, table)


def _agree(made: Sequence[Database], script: str, copies: int, gold: str, query: str) -> bool:
    decisive = [(database, e) for database, e in zip(made, _expected(script, gold, copies), strict=True) if e]
    try:
        return all(equal(e.rows, engine.run(database.forward, query).rows, e.fixed) for database, e in decisive)
    except engine.QueryError:
        return False


def is_informative(script: str, gold: str, copies: int = COPIES) -> bool:
    """Return whether a gold query returns more than nothing, NULL and 0 on some database."""
    rows = [row for expected in _expected(script, gold, copies) if expected for row in expected.rows]
    return any(value not in (None, 0) for row in rows for value in row)


class Expected(NamedTuple):
    """The result of a gold query that a right query must return.

    Attributes:
        rows: The rows.
        fixed: Indices of rows whose place follows from the query; rows that it does not order have none.
    """

    rows: list[tuple]
    fixed: list[int]


@functools.lru_cache(maxsize=4096)
def _expected(script: str, gold: str, copies: int) -> tuple[Expected | None, ...]:
    """Return the expected result on each database.

    It is None where the result depends on the order of stored rows. The original database always decides, so that no
    query is right without a comparison.
    """
    results: list[Expected | None] = []
    for number, (forward, backward) in enumerate(databases(script, copies)):
        rows, reverse = engine.run(forward, gold).rows, engine.run(backward, gold).rows
        if number and not equal(rows, reverse):
            results.append(None)
            continue
        fixed = [i for i, (row, other) in enumerate(zip(rows, reverse, strict=False)) if row == other]
        results.append(Expected(rows, fixed if is_ordered(gold) else []))
    return tuple(results)


# ----------------------------------------------------------------------------------------------------------------- rows


def _tables(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


def _columns(connection: sqlite3.Connection, table: str) -> list[tuple[str, bool]]:
    """Return the columns of a table, and whether they may be NULL."""
    return [(row[1], not row[3] and not row[5]) for row in connection.execute(f"PRAGMA table_info({_quoted(table)})")]


def _rows(connection: sqlite3.Connection) -> dict[str, list[tuple]]:
    return {table: connection.execute(f"SELECT * FROM {_quoted(table)}").fetchall() for table in _tables(connection)}


def _changed(connection: sqlite3.Connection, rng: random.Random, grows: int) -> dict[str, list[tuple]]:
    """Return changed rows of all tables, fewer or, with `grows` = 1, more than before."""
    names = Counter(name.lower() for table in _tables(connection) for name, _ in _columns(connection, table))
    result = {}
    for table, rows in _rows(connection).items():
        columns = _columns(connection, table)
        links = [names[name.lower()] > 1 or name.lower().endswith(("id", "code")) for name, _ in columns]
        values = [[row[j] for row in rows] for j in range(len(columns))]
        unique = [len(set(column)) == len(column) for column in values]
        counted = bool(rows) and unique[0] and all(type(value) is int for value in values[0])
        new = [row for row in rows if rng.random() < KEPT[grows]] or rows[:1]
        if counted:
            top = max(values[0])
            again = [row for row in rows if rng.random() < REPEATED[grows]]
            new += [(top + 1 + k, *row[1:]) for k, row in enumerate(again)]
        fixed = [
            (j == 0 and counted) or (link and (unique[j] or all(links))) for j, link in enumerate(links)
        ]  # fmt: skip
        result[table] = [
            tuple(
                value if fixed[j] else _other(value, values[j], not links[j], columns[j][1] and not links[j], rng)
                for j, value in enumerate(row)
            )
            for row in new
        ]
    return result


def _other(value, column: list, may_change: bool, may_be_null: bool, rng: random.Random):
    chance = rng.random()
    if chance < EMPTIED and may_be_null:
        return None
    if chance < EMPTIED + CHANGED and may_change and isinstance(value, int | float):
        return value + rng.choice((-2, -1, 1, 2, round(value / 15), -round(value / 15)))
    return rng.choice(column) if chance < EMPTIED + CHANGED + EXCHANGED else value


def _made(original: sqlite3.Connection, rows: dict[str, list[tuple]], backward: bool = False) -> sqlite3.Connection:
    """Return a restricted database with the schema of another one and the given rows."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    create = dict(original.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
    for table, values in rows.items():
        columns = original.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
        fields = ", ".join(f"{_quoted(name)} {kind}" for _, name, kind, *_ in columns)
        connection.execute(f"CREATE TABLE {_quoted(table)} ({fields})" if backward else create[table])
        marks, stored = ", ".join("?" * len(columns)), values[::-1] if backward else values
        connection.executemany(f"INSERT OR IGNORE INTO {_quoted(table)} VALUES ({marks})", stored)
    engine.restrict(connection)
    return connection


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
