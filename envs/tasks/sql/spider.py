"""Rows for the schemas of Spider, whose data files contain none.

Every table gets rows with consecutive keys, foreign keys that refer to existing rows, and values that the gold queries
mention in a comparison with the column. Results on such rows are "fuzzed execution", not Spider's published accuracy.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Mapping
from typing import Any

ROWS = 24
_COMPARISON = re.compile(
    r"(\w+)\s*(?:=|!=|<>|>=|<=|>|<|like|between|in\s*\()\s*(\"[^\"]*\"|'[^']*'|-?\d+(?:\.\d+)?)", re.IGNORECASE
)
_WORDS = ("Alder", "Birch", "Cedar", "Elm", "Fir", "Hazel", "Larch", "Maple", "Oak", "Pine", "Rowan", "Willow")


def script(schema: Mapping[str, Any], queries: Iterable[str]) -> str:
    """Return a script that creates the tables of a schema and fills them.

    Args:
        schema: A row of Spider's tables.json.
        queries: Gold queries of the database, whose constants are used as values.
    """
    return "\n".join(_Filler(schema, queries).statements())


class _Filler:
    def __init__(self, schema: Mapping[str, Any], queries: Iterable[str]):
        self.tables: list[str] = schema["table_names_original"]
        self.columns: list[tuple[int, str]] = [(table, name) for table, name in schema["column_names_original"]]
        self.types: list[str] = schema["column_types"]
        self.primary = set(schema["primary_keys"])
        self.foreign = {column: target for column, target in schema["foreign_keys"] if column != target}
        self.rng = random.Random(hashlib.sha256(schema["db_id"].encode()).hexdigest())
        self.constants: dict[str, list[Any]] = {}
        for query in queries:
            for column, text in _COMPARISON.findall(query):
                value = _constant(text)
                known = self.constants.setdefault(column.lower(), [])
                if value not in known:
                    known.append(value)
        self._domains: dict[int, list[Any]] = {}

    def statements(self) -> list[str]:
        lines = []
        for number, table in enumerate(self.tables):
            if table.startswith("sqlite_"):  # a table of SQLite that was published with the others
                continue
            own = [i for i, (of, _) in enumerate(self.columns) if of == number]
            fields = ", ".join(f"{_quoted(self.columns[i][1])} {self._type(i)}" for i in own)
            lines.append(f"CREATE TABLE {_quoted(table)} ({fields});")
            filled = [self._domain(i) if i in self.primary else self._values(i) for i in own]
            rows = ["(" + ", ".join(map(_literal, row)) + ")" for row in zip(*filled, strict=False)]
            lines.append(f"INSERT INTO {_quoted(table)} VALUES {', '.join(dict.fromkeys(rows))};")
        return lines

    def _type(self, column: int) -> str:
        target = self.foreign.get(column, column)
        kinds = {self.types[column], self.types[target]}
        key = " PRIMARY KEY" if column in self.primary else ""
        return ("INTEGER" if kinds == {"number"} and self._is_whole(column) else "NUMERIC" if kinds == {"number"}
                else "TEXT") + key  # fmt: skip

    def _is_whole(self, column: int) -> bool:
        return all(isinstance(value, int) for value in self.constants.get(self.columns[column][1].lower(), []))

    def _domain(self, column: int, seen: tuple[int, ...] = ()) -> list[Any]:
        """Return the distinct values of a key."""
        if column not in self._domains:
            target = self.foreign.get(column)
            if target is not None and target not in seen:
                self._domains[column] = self._domain(target, (*seen, column))
            elif self.types[column] == "number":
                self._domains[column] = list(range(1, ROWS + 1))
            else:
                known = [str(value) for value in self.constants.get(self.columns[column][1].lower(), [])]
                names = [f"{word} {n}" for n in (1, 2) for word in _WORDS]
                self._domains[column] = list(dict.fromkeys(known + names))[:ROWS]
        return self._domains[column]

    def _values(self, column: int) -> list[Any]:
        """Return the values of a column that is not a key, with repetitions."""
        if column in self.foreign:
            return [self.rng.choice(self._domain(self.foreign[column])) for _ in range(ROWS)]
        known = self.constants.get(self.columns[column][1].lower(), [])
        if self.types[column] == "number":
            near = [value + step for value in known if not isinstance(value, str) for step in (-1, 0, 1)]
            pool = near * 2 + [self.rng.randint(1, 60) for _ in range(12)]
        elif self.types[column] == "time":
            dates = [f"{self.rng.randint(1970, 2020)}-{self.rng.randint(1, 12):02}-{self.rng.randint(1, 28):02}"
                     for _ in range(12)]  # fmt: skip
            pool = [str(value) for value in known] * 2 + dates
        else:
            pool = [str(value) for value in known] * 2 + self.rng.sample(_WORDS, 6)
        return [self.rng.choice(pool) for _ in range(ROWS)]


def _constant(text: str) -> Any:
    if text[0] in "'\"":
        return text[1:-1].replace("%", " ").strip() if "%" in text else text[1:-1]
    return float(text) if "." in text else int(text)


def _literal(value: Any) -> str:
    return str(value) if not isinstance(value, str) else "'" + value.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return f'"{name}"'
