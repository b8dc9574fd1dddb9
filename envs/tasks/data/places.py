"""Where data files lie, and one name for each kind of source."""

from __future__ import annotations

import os
from pathlib import Path

from envs.tasks.data.dataset import DataError, Dataset
from envs.tasks.data.hub import from_hub
from envs.tasks.data.jsonl import from_jsonl
from envs.tasks.data.tfds import from_tfds

ROOT = "MARL_JAX_DATA"
"""The environment variable that names the folder of data files."""

SUFFIXES = ("", ".jsonl", ".jsonl.gz", ".jsonl.xz")


def find(name: str) -> Path | None:
    """A data file in the folder of $MARL_JAX_DATA or one folder below, with or without its suffix; None if absent."""
    root = os.environ.get(ROOT)
    if not root:
        return None
    folder = Path(root).expanduser()
    for place in (folder, *sorted(p for p in folder.glob("*") if p.is_dir())):
        for suffix in SUFFIXES:
            if (path := place / f"{name}{suffix}").is_file():
                return path
    return None


def open_dataset(source: str, part: str) -> Dataset:
    """A dataset by its name in a config.

    train.jsonl, train.jsonl.gz      a file; a relative path may also lie in $MARL_JAX_DATA
    tfds:FOLDER                      prepared by tensorflow-datasets, its split `part`
    hub:OWNER/NAME, hub:OWNER/NAME@CONFIG    of the Hugging Face hub, or a folder with a copy; its split `part`
    """
    kind, _, rest = source.partition(":")
    if kind == "tfds" and rest:
        return from_tfds(rest, part)
    if kind == "hub" and rest:
        name, _, config = rest.partition("@")
        return from_hub(name, part, config=config or None)
    path = Path(source).expanduser()
    path = path if path.is_file() else find(source)
    if path is None:
        raise DataError(
            f"{source}: no such file, here or in ${ROOT} ({os.environ.get(ROOT) or 'not set'}); accepted: a JSONL "
            "file, tfds:FOLDER or hub:OWNER/NAME"
        )
    return from_jsonl(path)
