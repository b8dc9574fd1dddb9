"""Datasets of the Hugging Face Hub: JSONL or Parquet files, fetched with huggingface_hub."""

from __future__ import annotations

import fnmatch
import functools
import re
from pathlib import Path
from typing import Any

from envs.tasks.data.dataset import DataError, Dataset, NoSplit
from envs.tasks.data.jsonl import from_jsonl

SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.xz")
_ALIASES = {"validation": ("validation", "valid", "val", "dev")}


def from_hub(
    name: str, split: str, *, config: str | None = None, revision: str | None = None, endpoint: str | None = None
) -> Dataset:
    """Open a split of a dataset.

    The code of the dataset is not run. Files are found by their names, as in `data/train-00000-of-00001.parquet`,
    `main/train/0000.parquet`, `main/train.jsonl` or `train.jsonl`.

    Args:
        name: OWNER/NAME on the Hub, or a folder with a copy of its files.
        split: Name of the split.
        config: Folder of files, for a dataset with several configurations.
        revision: Branch, tag or commit. Only a commit guarantees that the data stays the same.
        endpoint: Another address of the Hub.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        paths = [folder / file for file in files_of(files, split, config, name)]
    else:
        paths = _fetch(name, split, config, revision, endpoint)
    return _opened(paths, f"{name} ({split})")


def files_of(files: list[str], split: str, config: str | None, name: str) -> list[str]:
    """Return the files of a split, in order.

    Raises a DataError if there are none, or if they belong to several configurations.
    """
    usable = [file for file in files if file.endswith(SUFFIXES)]
    words = "|".join(map(re.escape, _ALIASES.get(split, (split,))))
    part = r"([_.-]\d+([_.-]of[_.-]\d+)?)?(-[0-9a-f]{8,})?"  # number of the file, and in older repositories a hash
    pattern = re.compile(rf"(.*[/_.-])?({words})({part}|/\d+)\.(parquet|jsonl(\.gz|\.xz)?)")
    matches = sorted(file for file in usable if pattern.fullmatch(file))
    if config is not None:
        matches = [
            f for f in matches if config in Path(f).parts[:-1] or fnmatch.fnmatch(Path(f).name, f"{config}[-_.]*")
        ]
    folders = sorted({str(Path(file).parent) for file in matches})
    if not matches:
        raise NoSplit(
            f"{name}: no Parquet or JSONL file of the split {split!r}{f' in {config!r}' if config else ''}; "
            f"files: {', '.join(usable[:8]) or 'none of these kinds'}"
        )
    if len(folders) > 1:
        raise DataError(f"{name}: the split {split!r} has several configurations; choose one of: {', '.join(folders)}")
    if len({Path(file).suffix == ".parquet" for file in matches}) > 1:
        raise DataError(f"{name}: the split {split!r} has files in two formats: {', '.join(matches[:4])}")
    return matches


def _fetch(name: str, split: str, config: str | None, revision: str | None, endpoint: str | None) -> list[Path]:
    import huggingface_hub

    # The HTTP library of huggingface_hub, and so the origin of this class, differs by version.
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    api = huggingface_hub.HfApi(endpoint=endpoint)
    try:
        info = api.dataset_info(name, revision=revision, timeout=30)
        wanted = files_of(sorted(file.rfilename for file in info.siblings or ()), split, config, name)
        fetch = functools.partial(api.hf_hub_download, name, repo_type="dataset", revision=info.sha)
        return [Path(fetch(filename=file)) for file in wanted]
    except (OSError, HTTPError) as error:
        raise DataError(f"{name}: the Hub returned no dataset: {type(error).__name__}: {str(error).strip()}") from error


def _opened(files: list[Path], name: str) -> Dataset:
    return from_jsonl(files, name) if files[0].suffix != ".parquet" else _Parquet(files, name)


class _Parquet(Dataset):
    """Parquet files, held in memory as Arrow tables."""

    def __init__(self, files: list[Path], name: str):
        import pyarrow
        from pyarrow import parquet

        self.name = name
        try:
            self._table = pyarrow.concat_tables([parquet.read_table(file) for file in files]).combine_chunks()
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{name}: {', '.join(map(str, files))}: {error}") from error

    def __len__(self):
        return self._table.num_rows

    def row(self, i: int) -> dict[str, Any]:
        try:
            return self._table.slice(i, 1).to_pylist()[0]
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise DataError(f"{self.where(i)}: invalid UTF-8: byte 0x{byte:02x}") from None
