"""Locations of data files, and names for each kind of source."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from envs.tasks.data.dataset import DataError, Dataset
from envs.tasks.data.hub import from_hub
from envs.tasks.data.jsonl import from_jsonl
from envs.tasks.data.tfds import from_tfds

ROOT = "MARL_JAX_DATA"
"""Environment variable with the folder of data files."""

log = logging.getLogger(__name__)

SUFFIXES = ("", ".jsonl", ".jsonl.gz", ".jsonl.xz")


def find(name: str) -> Path | None:
    """Find a data file in $MARL_JAX_DATA or one folder below, or return None.

    The suffix may be left out.
    """
    root = os.environ.get(ROOT)
    if not root:
        return None
    folder = Path(root).expanduser()
    for place in (folder, *sorted(p for p in folder.glob("*") if p.is_dir())):
        for suffix in SUFFIXES:
            if (path := place / f"{name}{suffix}").is_file():
                return path
    return None


def warn_of_sample(dataset: str, files: Sequence[str]) -> None:
    """Log that the built-in sample replaces missing files, and how to download them."""
    log.warning(
        "%s: file %s not found in $%s (%s); using the built-in sample. To download it: "
        "python -m envs.tasks.data.prepare %s",
        dataset, " or ".join(files), ROOT, os.environ.get(ROOT) or "not set", dataset,
    )  # fmt: skip


def open_dataset(source: str, part: str) -> Dataset:
    """Open a dataset by its name in a config.

    Args:
        source: A JSONL file, such as train.jsonl or train.jsonl.gz, in $MARL_JAX_DATA if the path does not exist;
            tfds:FOLDER for data prepared by tensorflow-datasets; or hub:OWNER/NAME or hub:OWNER/NAME@CONFIG for a
            dataset of the Hugging Face Hub, or for a folder with a copy of it.
        part: Split to open. JSONL files have only one.
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
            f"{source}: no such file, here or in ${ROOT} ({os.environ.get(ROOT) or 'not set'}); use a JSONL file, "
            "tfds:FOLDER or hub:OWNER/NAME"
        )
    return from_jsonl(path)
