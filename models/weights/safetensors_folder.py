"""Hugging Face folders with one `model.safetensors`, or with shards and an index.

A safetensors file has eight bytes with the length of a JSON header, the header (name -> dtype, shape, offsets), and the
raw numbers. Files are memory-mapped and not copied.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from models.errors import WeightsError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
LONGEST_HEADER = 100_000_000  # the limit of the safetensors library
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class SafetensorsEntry(NamedTuple):
    """The location of a tensor; `start` and `stop` are file offsets."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsFolder:
    """The tensors of a folder by name, as views of the mapped files."""

    dequantises = False

    def __init__(self, folder: str | Path):
        self.where = str(folder)
        self._tensors = {name: t for file in _files(Path(folder)) for name, t in read_header(file)[0].items()}
        self._maps: dict[Path, np.ndarray] = {}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def unreadable(self, names: Iterable[str]) -> list[str]:
        """Return one line for each tensor among `names` with an unsupported type."""
        return [
            f"{name} has type {t.dtype}, but must be one of: {', '.join(DTYPES)}"
            for name in names
            if (t := self._tensors[name]).dtype not in DTYPES
        ]

    def tensor(self, name: str) -> np.ndarray:
        """Return a view of a tensor."""
        entry = self._tensors[name]
        if entry.file not in self._maps:
            self._maps[entry.file] = np.memmap(entry.file, mode="r", dtype=np.uint8)
        raw = self._maps[entry.file][entry.start : entry.stop]
        return raw.view(DTYPES[entry.dtype]).reshape(entry.shape)


def read_header(file: Path) -> tuple[dict[str, SafetensorsEntry], dict[str, str]]:
    """Return the tensors and the metadata of one file, checked against its size."""
    size = file.stat().st_size
    with open(file, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > LONGEST_HEADER:
            raise WeightsError(f"{file}: the header has {length:,} bytes, but must have at most {LONGEST_HEADER:,}")
        if size < 8 + length:
            raise WeightsError(f"{file} is truncated: it has {size:,} bytes, but its header ends at {8 + length:,}")
        try:
            header = json.loads(stream.read(length))
            metadata = dict(header.pop("__metadata__", {}))
            tensors = {name: _tensor(file, name, entry, 8 + length) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, WeightsError):
                raise
            raise WeightsError(f"{file} is not a safetensors file: its header is malformed ({error!r})") from error
    end = max((t.stop for t in tensors.values()), default=0)
    if size < end:
        cut = [name for name, t in tensors.items() if t.stop > size]
        raise WeightsError(
            f"{file} is truncated: it has {size:,} of {end:,} bytes; incomplete tensors: {', '.join(cut)}"
        )
    return tensors, metadata


def write(file: Path, tensors: dict[str, tuple[np.dtype, tuple[int, ...]]], values, metadata: dict[str, str]) -> None:
    """Write one file.

    `values` yields the arrays in the order of `tensors`, so that only one is held at a time.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little"))
        stream.write(text)
        for (name, (dtype, shape)), value in zip(tensors.items(), values, strict=True):
            if value.shape != shape or value.dtype != dtype:
                raise WeightsError(
                    f"{name} is {value.dtype}{list(value.shape)}, but the header of {file} says {dtype}{list(shape)}"
                )
            stream.write(np.ascontiguousarray(value).view(np.uint8).data)


def _tensor(file: Path, name: str, entry: dict[str, Any], base: int) -> SafetensorsEntry:
    """Return the location of a tensor from its entry in the header."""
    start, stop = entry["data_offsets"]
    shape = tuple(entry["shape"])
    dtype = DTYPES.get(entry["dtype"])
    if not all(type(size) is int and size >= 0 for size in (*shape, start, stop)):
        raise WeightsError(
            f"{file}: {name} has shape {list(shape)} and data_offsets {[start, stop]}, but all must be integers >= 0"
        )
    if not 0 <= start <= stop:
        raise WeightsError(f"{file}: {name} has data_offsets {[start, stop]}, but must have 0 <= start <= stop")
    if dtype is not None and stop - start != math.prod(shape) * dtype.itemsize:
        raise WeightsError(
            f"{file}: {name} has {stop - start:,} bytes, but {entry['dtype']}{list(shape)} needs "
            f"{math.prod(shape) * dtype.itemsize:,}"
        )
    return SafetensorsEntry(file, entry["dtype"], shape, base + start, base + stop)


def _files(folder: Path) -> list[Path]:
    """Return the weight files of a folder; all shards of the index must exist."""
    index = folder / INDEX
    if not index.exists():
        single = folder / SINGLE
        if single.exists():
            return [single]
        pickled = sorted(p.name for p in folder.glob("*.bin"))
        hint = (
            f"; {', '.join(pickled)} cannot be loaded because it is a pickle: save it as safetensors" if pickled else ""
        )
        raise WeightsError(f"{folder} has neither {SINGLE} nor {INDEX}{hint}")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        files = [folder / Path(name).name for name in names]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{index} is not an index of shards: {error!r}") from error
    absent = [file.name for file in files if not file.exists()]
    if absent:
        raise WeightsError(f"{folder} lacks shards that {INDEX} lists: {', '.join(absent)}")
    return files
