"""Registries of named objects that other packages can extend, such as games and algorithms.

    GAMES = Registry("games")
    GAMES.add("nim", "my_package.nim:GAME")      # imported on first use; or the object itself
    GAMES.get("nim"), GAMES.names(), "nim" in GAMES

A package can add an entry without being imported by declaring an entry point of the group `marl_jax.<kind>`:

    [project.entry-points."marl_jax.games"]
    nim = "my_package.nim:GAME"

or in a module or script that calls `add`, which a run imports with `load_plugins`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import operator
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any


class Registry:
    """Objects by name; iteration yields the names in the order in which they were added.

    Args:
        kind: Plural noun, such as "games". The group of entry points is `marl_jax.<kind>`.
    """

    def __init__(self, kind: str):
        self.kind = kind
        self._entries: dict[str, Any] = {}
        self._origins: dict[str, str] = {}
        self._entry_points_read = False

    def __repr__(self) -> str:
        return f"Registry({self.kind!r})"

    @property
    def group(self) -> str:
        """Entry point group of the registry."""
        return f"marl_jax.{self.kind}"

    def add(self, name: str, entry: Any, origin: str = "") -> None:
        """Add an entry: an object, or "module:attribute" to import it on first use.

        Args:
            name: Name of the entry.
            entry: The entry.
            origin: Module that adds it, if a later entry of the same module may replace it, as in a notebook.
        """
        if origin and self._origins.get(name) == origin:
            self._entries.pop(name, None)
        _put(self._noun, self._entries, name, entry)
        self._origins[name] = origin

    def get(self, name: str) -> Any:
        """Return the entry called `name`.

        Raises:
            ValueError: There is no such entry. The message lists the names.
        """
        self._read_entry_points()
        if name not in self._entries:
            hint = did_you_mean(str(name), self._entries)
            raise ValueError(
                f"unknown {self._noun} {name!r}; must be one of: {', '.join(self._entries) or 'none'}{hint}"
            )
        entry = self._entries[name]
        return self._load(name, entry) if isinstance(entry, str) else entry

    def names(self) -> tuple[str, ...]:
        """Return all names without importing any entry."""
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
        """Import an entry."""
        try:
            return import_object(where)
        except ImportError as error:
            raise ValueError(f"{self._noun} {name!r} cannot be imported from {where!r}: {error}") from error
        except AttributeError as error:
            raise ValueError(f"{self._noun} {name!r} is not at {where!r}: {error}") from error

    def _read_entry_points(self) -> None:
        """Add the entry points of the group, once."""
        if self._entry_points_read:
            return
        entries = dict(self._entries)
        try:
            for point in importlib.metadata.entry_points(group=self.group):
                _put(self._noun, entries, point.name, f"{point.module}:{point.attr}")
        except ValueError as error:
            raise ValueError(f"entry points of the group {self.group}: {error}") from error
        self._entries, self._entry_points_read = entries, True


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return a hint with the most similar known word, or "".

    Case, underscores and dashes do not count. Known words that begin with the unknown one are the most similar.

    Args:
        word: Unknown word.
        known: Known words.
        cutoff: Minimum similarity, from 0 to 1.
    """
    plain = {re.sub("[_-]", "", name).lower(): name for name in known}
    word = re.sub("[_-]", "", word).lower()
    near = [word] if word in plain else [name for name in plain if len(word) > 2 and name.startswith(word)]
    near = near or difflib.get_close_matches(word, plain, n=1, cutoff=cutoff)
    return f"; did you mean {' or '.join(plain[name] for name in near[:2])}?" if near else ""


# --------------------------------------------------------------------------------------------- modules and scripts

_importing: list[str] = []
"""Scripts that are being imported, innermost last."""


class ScriptEnd(BaseException):
    """Ends the import of a script before it would start a run; see `end_import`."""


def load_plugins(modules: Iterable[str]) -> None:
    """Import modules and scripts that add to registries.

    Raises:
        ValueError: One of them cannot be imported.
    """
    if isinstance(modules, str) or not isinstance(modules, Iterable) or not all(isinstance(m, str) for m in modules):
        raise ValueError(f"{modules!r} must be a tuple of module names")
    for module in modules:
        if not module.endswith(".py") and not all(part.isidentifier() for part in module.split(".")):
            raise ValueError(f"plugin {module!r} is not the name of a module or script, such as 'my_package.games'")
        try:
            import_module(module)
        except ImportError as error:
            raise ValueError(f"plugin {module!r} cannot be imported: {error}") from error
        except (Exception, SystemExit) as error:
            raise ValueError(f"plugin {module!r} failed: {describe_failure(error)}") from error


def describe_failure(error: BaseException, file: str | None = None) -> str:
    """Describe an exception in one line: file, line, type and message.

    Args:
        error: Exception of code that a user wrote.
        file: File whose last frame is named. Defaults to that of the last frame outside of the import system.
    """
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    frames = [frame for frame in frames if frame[0] == file or file is None and "importlib" not in frame[0]]
    if isinstance(error, SyntaxError):
        frames = [(error.filename or file or "?", error.lineno)]
    words = " ".join(str(error).split())[:300]
    place = "{}:{}: ".format(*frames[-1]) if frames else ""
    return f"{place}{type(error).__name__}{f': {words}' if words else ''}"


def import_object(where: str) -> Any:
    """Import "module:attribute" or "script.py:attribute"."""
    module, _, attribute = where.rpartition(":")
    return operator.attrgetter(attribute)(import_module(module))


def import_module(name: str) -> ModuleType:
    """Import a module by name, or a script by its path, which ends with ".py".

    The module of a script has the absolute path of its file as its name. A script that is already running as
    `__main__` is not run again. Otherwise it runs up to its first call that would start a run (`end_import`), so that a
    script can register a task, train on it, and later be imported to resume the run.
    """
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = str(Path(name).expanduser().resolve())
    main = sys.modules.get("__main__")
    if path not in sys.modules and str(Path(getattr(main, "__file__", None) or "").resolve()) == path:
        return sys.modules["__main__"]
    if path not in sys.modules:
        spec = importlib.util.spec_from_file_location(path, path)
        if spec is None or spec.loader is None or not Path(path).is_file():
            raise ImportError(f"there is no file {path}")
        sys.modules[path] = module = importlib.util.module_from_spec(spec)
        sys.path.append(str(Path(path).parent))  # a script may import its neighbours
        _importing.append(path)
        try:
            spec.loader.exec_module(module)
        except ScriptEnd:
            pass
        except BaseException:
            del sys.modules[path]
            raise
        finally:
            _importing.pop()
    return sys.modules[path]


def end_import() -> None:
    """End the import of a script, if there is one, before it starts a run."""
    if _importing:
        raise ScriptEnd(f"{_importing[-1]} is imported and does not start a run")


def _put(noun: str, entries: dict[str, Any], name: str, entry: Any) -> None:
    """Add an entry under a new name; a string must be its location."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"{noun} name is {name!r}, but must be a non-empty string")
    if name in entries:
        raise ValueError(f"{noun} {name!r} already exists; choose another name")
    if isinstance(entry, str) and not re.fullmatch(r"(.+\.py|[\w.]+):[\w.]+", entry):
        raise ValueError(f"{noun} {name!r} is {entry!r}, but must be 'module:attribute'")
    entries[name] = entry
