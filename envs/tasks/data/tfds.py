"""Datasets of tensorflow-datasets, prepared from any dataset and read without TensorFlow.

    folder = prepare_tfds("anli", {"train": from_jsonl("train.jsonl.gz"), "test": from_jsonl("test.jsonl.gz")})
    train = from_tfds(folder, "train")

Records are stored in array_record files, which allow random access. The package is imported on first use.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs.tasks.data.dataset import DataError, Dataset, NoSplit

log = logging.getLogger(__name__)

CACHE = "~/.cache/marl_jax/tfds"
VERSION = "1.0.0"
_JSON = "json_fields"  # key in a builder's metadata: fields that are stored as JSON text


def prepare_tfds(
    name: str,
    parts: Mapping[str, Dataset],
    folder: str | Path = CACHE,
    *,
    description: str = "",
    version: str = VERSION,
) -> Path:
    """Prepare a builder with the given splits and return its folder.

    Data that was already prepared is kept if it is the same. Fields with strings, integers, floats or booleans in every
    row of every split become features of that type; other fields are stored as JSON text.

    Args:
        name: Name of the builder, in lower case with underscores.
        parts: The splits by name.
        folder: Parent folder; the builder is prepared in NAME/VERSION.
        description: Description, origin and licence of the data, which are stored with it.
        version: Version of the data.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise DataError(f"name is {name!r}, but must be lower-case letters, digits and _, starting with a letter")
    if not parts or not all(len(part) for part in parts.values()):
        raise DataError(
            f"{name}: the splits have { ({k: len(v) for k, v in parts.items()}) } rows, but need at least 1"
        )
    place = Path(folder).expanduser() / name / version
    kinds = _kinds(parts)
    noted = {
        _JSON: [field for field, kind in kinds.items() if kind == "json"],
        "fingerprints": {part: data.fingerprint for part, data in parts.items()},
    }
    if (place / "metadata.json").is_file():
        there = json.loads((place / "metadata.json").read_text())
        if there.get("fingerprints") == noted["fingerprints"]:
            return place
        raise DataError(f"{place} holds different data; remove it, or prepare the new data as another version")
    tfds = _imported()
    tfds.disable_progress_bar()
    log.info("preparing %s in %s", name, place)
    made = _builder_class(tfds, name, parts, kinds, noted, description or name, version)
    builder = made(data_dir=str(Path(folder).expanduser()), file_format="array_record")
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(compute_stats=tfds.download.ComputeStatsMode.SKIP)
    )
    return Path(builder.data_dir)


def from_tfds(builder: Any, split: str) -> Dataset:
    """Open a split of a builder.

    Args:
        builder: A builder, or its folder: …/NAME/VERSION, or …/NAME for the newest version.
        split: Name of the split.
    """
    tfds = _imported()
    if isinstance(builder, str | Path):
        folder = _newest(Path(builder).expanduser())
        builder = tfds.builder_from_directory(str(folder))
    if split not in builder.info.splits:
        raise NoSplit(f"{builder.info.name} has no split {split!r}; the splits are: {', '.join(builder.info.splits)}")
    try:
        rows = builder.as_data_source(split=split)
    except NotImplementedError as error:
        raise DataError(f"{builder.data_dir} has no random access; prepare it as array_record: {error}") from None
    return _Records(f"{builder.info.name} ({split})", rows, (builder.info.metadata or {}).get(_JSON, ()))


class _Records(Dataset):
    def __init__(self, name: str, rows: Any, json_fields: list[str]):
        self.name, self._rows, self._json = name, rows, frozenset(json_fields)

    def __len__(self):
        return len(self._rows)

    def row(self, i):
        row = {name: _plain(value, lambda: self.where(i)) for name, value in self._rows[i].items()}
        for name in self._json & set(row):
            for value in json.loads(row.pop(name)):  # one value, or none if the row had no such field
                row[name] = value
        return row


def _builder_class(tfds: Any, called: str, parts, kinds, noted, description: str, version: str) -> type:
    """Return a builder class whose examples are the rows of the splits, in order."""
    with tfds.core.registered.skip_registration():  # the class is used only once

        class Prepared(tfds.core.GeneratorBasedBuilder):
            name = called
            pkg_dir_path = Path(__file__).parent
            VERSION = tfds.core.Version(version)

            def _info(self):
                return tfds.core.DatasetInfo(
                    builder=self,
                    features=tfds.features.FeaturesDict({f: _feature(tfds, kind) for f, kind in kinds.items()}),
                    description=description,
                    metadata=tfds.core.MetadataDict(noted),
                    disable_shuffling=True,
                )

            def _split_generators(self, dl_manager):
                return {part: self._generate_examples(data) for part, data in parts.items()}

            def _generate_examples(self, data):
                for i in range(len(data)):
                    row = data.row(i)
                    yield i, {field: _stored(row, field, kind) for field, kind in kinds.items()}

    return Prepared


def _kinds(parts: Mapping[str, Dataset]) -> dict[str, str]:
    """Return the type of every field, over all rows."""
    kinds: dict[str, set[str]] = {}
    rows = 0
    seen: dict[str, int] = {}
    for data in parts.values():
        for i in range(len(data)):
            rows += 1
            for field, value in data.row(i).items():
                kinds.setdefault(field, set()).add(_kind(value))
                seen[field] = seen.get(field, 0) + 1
    plain = {field: next(iter(types)) if len(types) == 1 else "json" for field, types in kinds.items()}
    return {field: kind if seen[field] == rows else "json" for field, kind in plain.items()}


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else "json"
    return "text" if isinstance(value, str) else "float" if isinstance(value, float) else "json"


def _feature(tfds: Any, kind: str) -> Any:
    import numpy as np

    types = {"bool": np.bool_, "int": np.int64, "float": np.float64}
    return types[kind] if kind in types else tfds.features.Text()


def _stored(row: Mapping[str, Any], field: str, kind: str) -> Any:
    if kind != "json":
        return row[field]
    return json.dumps([row[field]] if field in row else [], ensure_ascii=False)


def _plain(value: Any, where: Any) -> Any:
    """Convert a value to plain Python: bytes to strings, arrays to lists."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{where()}: invalid UTF-8: {error.reason} at byte {error.start}") from None
    if isinstance(value, Mapping):
        return {name: _plain(inner, where) for name, inner in value.items()}
    if hasattr(value, "tolist"):  # a NumPy array or number
        return _plain(value.tolist(), where)
    return [_plain(inner, where) for inner in value] if isinstance(value, list | tuple) else value


def _newest(folder: Path) -> Path:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; use one that was prepared by tensorflow-datasets")
    versions = [p for p in folder.iterdir() if re.fullmatch(r"\d+\.\d+\.\d+", p.name)]
    return max(versions, key=lambda p: tuple(map(int, p.name.split(".")))) if versions else folder


def _imported() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise DataError(f"tensorflow-datasets cannot be imported: {error}; see requirements.txt") from error
    return tensorflow_datasets
