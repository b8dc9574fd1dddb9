"""Tables of things by name that other packages can add to: games, bots, model families, algorithms.

    GAMES = Registry("games")
    GAMES.add("nim", "my_package.nim:GAME")      # imported when it is first asked for; or the object itself
    GAMES.get("nim"), GAMES.names(), "nim" in GAMES

A package adds an entry without being imported by declaring an entry point of the group `marl_jax.<kind>`:

    [project.entry-points."marl_jax.games"]
    nim = "my_package.nim:GAME"

or in a module that calls `add`, which a run imports with `load_plugins`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import operator
import re
from collections.abc import Iterable, Iterator
from typing import Any


class Registry:
    """Entries by name; iterating gives the names, in the order in which they were added.

    kind  in the plural, as in "games": the group of entry points is `marl_jax.<kind>`
    """

    def __init__(self, kind: str):
        self.kind = kind
        self._entries: dict[str, Any] = {}
        self._entry_points_read = False

    def __repr__(self) -> str:
        return f"Registry({self.kind!r})"

    @property
    def group(self) -> str:
        """The group of entry points that belongs to the registry."""
        return f"marl_jax.{self.kind}"

    def add(self, name: str, entry: Any) -> None:
        """Adds an entry: an object, or "module:attribute" to be imported when it is first asked for."""
        _put(self._noun, self._entries, name, entry)

    def get(self, name: str) -> Any:
        """The entry called `name`; a ValueError lists the names there are."""
        self._read_entry_points()
        if name not in self._entries:
            near = difflib.get_close_matches(str(name), list(self._entries), n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(
                f"unknown {self._noun} {name!r}, but must be one of: {', '.join(self._entries) or 'none'}{hint}"
            )
        entry = self._entries[name]
        return self._load(name, entry) if isinstance(entry, str) else entry

    def names(self) -> tuple[str, ...]:
        """All names; nothing is imported for it."""
        self._read_entry_points()
        return tuple(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    @property
    def _noun(self) -> str:
        """The kind in the singular."""
        words = self.kind.replace("_", " ")
        return words.removesuffix("ies") + "y" if words.endswith("ies") else words.removesuffix("s")

    def _load(self, name: str, where: str) -> Any:
        module, _, attribute = where.partition(":")
        try:
            found = importlib.import_module(module)
        except ImportError as error:
            raise ValueError(f"{self._noun} {name!r} cannot be imported from {where!r}: {error}") from error
        try:
            return operator.attrgetter(attribute)(found)
        except AttributeError as error:
            raise ValueError(f"{self._noun} {name!r} is not at {where!r}: {error}") from error

    def _read_entry_points(self) -> None:
        if self._entry_points_read:
            return
        entries = dict(self._entries)
        try:
            for point in importlib.metadata.entry_points(group=self.group):
                _put(self._noun, entries, point.name, f"{point.module}:{point.attr}")
        except ValueError as error:
            raise ValueError(f"entry points of the group {self.group}: {error}") from error
        self._entries, self._entry_points_read = entries, True


def load_plugins(modules: Iterable[str]) -> None:
    """Imports modules by name, each of which adds to registries; one that cannot be imported is a ValueError."""
    if isinstance(modules, str) or not isinstance(modules, Iterable) or not all(isinstance(m, str) for m in modules):
        raise ValueError(f"found {modules!r}; expected a tuple of names of modules")
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(f"plugin {module!r} cannot be imported: {error}") from error


def _put(noun: str, entries: dict[str, Any], name: str, entry: Any) -> None:
    """Puts an entry under a new name; a string must say where the entry is."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"{noun} has the name {name!r}; expected a text that is not empty")
    if name in entries:
        raise ValueError(f"{noun} {name!r} exists already; choose another name")
    if isinstance(entry, str) and not re.fullmatch(r"[\w.]+:[\w.]+", entry):
        raise ValueError(f"{noun} {name!r} is {entry!r}; expected 'module:attribute'")
    entries[name] = entry
