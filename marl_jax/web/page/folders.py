"""Run folders that the page may show.

A place is the folder of a run, or a folder that contains runs at any depth, such as `runs/` or the folder of a table.
The id of a run is the name of its place and its path in it. Clients send ids and file names. Both are looked up, so no
path from a client reaches the file system.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from marl_jax.errors import ConfigError
from marl_jax.evaluation.task_scores import FOLDER as ANSWERS
from marl_jax.serving.http.errors import ApiError

FILES = ("metrics.jsonl", "eval.jsonl", "events.jsonl", "games.jsonl")
ANSWER_FILE = re.compile(r"\w[\w.+@-]*\.jsonl", re.ASCII)
INSIDE_OF_RUNS = ("checkpoints", "logs", "tensorboard", "journal", ANSWERS)
DEEPEST = 4
MOST = 2000


@dataclasses.dataclass(frozen=True)
class NamedFolder:
    """A folder with its name on the page."""

    name: str
    folder: Path


class RunFolders:
    """The runs in some places. Every call searches again, so new runs appear."""

    def __init__(self, places: Sequence[str | Path]):
        folders: dict[str, Path] = {}
        for place in places:
            folder = Path(place).expanduser().resolve()
            if not folder.is_dir():
                raise ConfigError([f"config.serve.runs has {str(place)!r}, which is not a folder"])
            if folder in folders.values():
                continue
            name, number = folder.name or "runs", 2
            while name in folders:
                name, number = f"{folder.name}~{number}", number + 1
            folders[name] = folder
        self.places = [NamedFolder(name, folder) for name, folder in folders.items()]

    def runs(self) -> dict[str, Path]:
        """Return all runs by id, each once."""
        runs_by_id: dict[str, Path] = {}
        seen: set[Path] = set()
        for place in self.places:
            for folder in _folders(place.folder):
                if _config(folder) is not None and folder not in seen:
                    runs_by_id[_id(place, folder)] = folder
                    seen.add(folder)
                if len(runs_by_id) >= MOST:
                    return runs_by_id
        return runs_by_id

    def folders(self) -> Iterator[tuple[str, Path]]:
        """Yield (id, folder) of all folders that are not runs, where tables are."""
        for place in self.places:
            for folder in _folders(place.folder):
                if _config(folder) is None:
                    yield _id(place, folder), folder

    def run(self, id_: str) -> Path:
        """Return the folder of a run."""
        for place in self.places:  # without searching all other runs
            if id_ == place.name or id_.startswith(f"{place.name}/"):
                folder = place.folder.joinpath(*id_.split("/")[1:])
                safe = all(part not in ("", ".", "..") for part in id_.split("/")) and "\0" not in id_
                if safe and _inside(folder, place.folder) and _config(folder) is not None:
                    return folder
        raise ApiError(404, f"the run {id_[:200]!r} does not exist", param="run")

    def file(self, id_: str, name: str) -> Path:
        """Return the path of a file of rows in the folder of a run.

        The file need not exist.
        """
        folder = self.run(id_)
        part, slash, last = name.rpartition("/")
        known = (part == ANSWERS and ANSWER_FILE.fullmatch(last)) if slash else name in FILES
        if not known or not _inside(folder / name, folder):
            choices = f"{', '.join(FILES)}, {ANSWERS}/NAME.jsonl"
            raise ApiError(404, f"file is {name[:200]!r}, but must be one of: {choices}", param="file")
        return folder / name

    def describe(self, id_: str, folder: Path) -> dict[str, Any]:
        """Return the fields of a run in the list of runs."""
        config = _config(folder) or {}
        task, env = _group(config, "task"), _group(config, "env")
        sizes = {name: _size(folder / name) for name in FILES if _inside(folder / name, folder)}
        return {
            "id": id_,
            "environment": _text(task.get("name")) or _text(env.get("name")) or "?",
            "is_task": bool(task.get("name")),
            "model": _text(_group(config, "model").get("name")) or "?",
            "algorithm": _text(_group(config, "algo").get("name")) or "?",
            "steps": config.get("steps") if isinstance(config.get("steps"), int) else None,
            "changed": max((_changed(folder / name) for name in sizes), default=0.0),
            "files": sizes,
            "answers": answer_files(folder),
        }


def answer_files(folder: Path) -> list[str]:
    """Return the file names of a run's evaluations, sorted by split and step."""
    paths = (folder / ANSWERS).glob("*.jsonl")
    return sorted(path.name for path in paths if ANSWER_FILE.fullmatch(path.name) and _inside(path, folder))


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config of a run."""
    return _config(folder) or {}


def read_inside(folder: Path, name: str, most: int = 1 << 22) -> str | None:
    """Return the text of a file in a folder.

    Returns None if the file is missing, outside the folder, or larger than `most` bytes.
    """
    path = folder / name
    try:
        if not _inside(path, folder) or path.stat().st_size > most:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _folders(root: Path) -> Iterator[Path]:
    """Yield a folder and its subfolders to a limited depth, without links to other places."""
    level = [root]
    for _ in range(DEEPEST):
        yield from level
        level = [
            child
            for folder in level
            for child in _children(folder)
            if child.name not in INSIDE_OF_RUNS and not child.name.startswith(".") and _inside(child, root)
        ][:MOST]


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(child for child in folder.iterdir() if child.is_dir())
    except OSError:
        return []


def _id(place: NamedFolder, folder: Path) -> str:
    return "/".join((place.name, *folder.relative_to(place.folder).parts))


def _inside(path: Path, folder: Path) -> bool:
    """Return whether a path is in a folder after following links."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # circular links, or a name with a NUL
        return False


def _config(folder: Path) -> dict[str, Any] | None:
    """Return the config of the run in a folder, or None without a run."""
    path = folder / "config.json"
    try:
        return _parsed(path, path.stat().st_mtime_ns) if _inside(path, folder) else None
    except OSError:
        return None


@functools.lru_cache(maxsize=4096)
def _parsed(path: Path, changed: int) -> dict[str, Any] | None:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) and {"env", "model", "algo"} <= config.keys() else None


def _group(config: dict[str, Any], name: str) -> dict[str, Any]:
    return config[name] if isinstance(config.get(name), dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
