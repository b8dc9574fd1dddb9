"""Hugging Face folders: one `model.safetensors`, or shards with an index. Memory-mapped; nothing is copied here.

A safetensors file is eight bytes with the length of a JSON header, the header (name -> dtype, shape, offsets), and
the raw numbers.
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
LONGEST_HEADER = 100_000_000  # as in the safetensors library
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class SafetensorsEntry(NamedTuple):
    """Where one tensor lies: `start` counts from the beginning of the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsFolder:
    """The tensors of a folder by name; `tensor(name)` is a view of the mapped file."""

    dequantises = False  # reading a part of a tensor costs a part of the work

    def __init__(self, folder: str | Path):
        self.where = str(folder)
        self._tensors = {name: t for file in _files(Path(folder)) for name, t in read_header(file)[0].items()}
        self._maps: dict[Path, np.ndarray] = {}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def unreadable(self, names: Iterable[str]) -> list[str]:
        """One line for each tensor among `names` whose type cannot be read."""
        return [
            f"{name} has type {t.dtype}, but must be one of: {', '.join(DTYPES)}"
            for name in names
            if (t := self._tensors[name]).dtype not in DTYPES
        ]

    def tensor(self, name: str) -> np.ndarray:
        found = self._tensors[name]
        if found.file not in self._maps:
            self._maps[found.file] = np.memmap(found.file, mode="r", dtype=np.uint8)
        raw = self._maps[found.file][found.start : found.stop]
        return raw.view(DTYPES[found.dtype]).reshape(found.shape)


def read_header(file: Path) -> tuple[dict[str, SafetensorsEntry], dict[str, str]]:
    """The tensors of one file and its metadata, checked against the file's size."""
    size = file.stat().st_size
    with open(file, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > LONGEST_HEADER:
            raise WeightsError(f"{file}: its header has {length:,} bytes, but must be up to {LONGEST_HEADER:,}")
        if size < 8 + length:
            raise WeightsError(f"{file} is truncated: {size:,} bytes, its header alone ends at {8 + length:,}")
        try:
            header = json.loads(stream.read(length))
            metadata = dict(header.pop("__metadata__", {}))
            tensors = {name: _tensor(file, name, entry, 8 + length) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, WeightsError):
                raise
            raise WeightsError(f"{file} is no safetensors file: its header is malformed ({error!r})") from error
    end = max((t.stop for t in tensors.values()), default=0)
    if size < end:
        cut = [name for name, t in tensors.items() if t.stop > size]
        raise WeightsError(f"{file} is truncated: {size:,} bytes of {end:,}; cut off: {', '.join(cut)}")
    return tensors, metadata


def write(file: Path, tensors: dict[str, tuple[np.dtype, tuple[int, ...]]], values, metadata: dict[str, str]) -> None:
    """Writes one file; `values` yields the arrays in the order of `tensors`, so that one is held at a time."""
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
                    f"{name} is {value.dtype}{list(value.shape)}; the header of {file} says {dtype}{list(shape)}"
                )
            stream.write(np.ascontiguousarray(value).view(np.uint8).data)


def _tensor(file: Path, name: str, entry: dict[str, Any], base: int) -> SafetensorsEntry:
    start, stop = entry["data_offsets"]
    shape = tuple(entry["shape"])
    dtype = DTYPES.get(entry["dtype"])
    if not all(type(size) is int and size >= 0 for size in (*shape, start, stop)):
        raise WeightsError(f"{file}: {name} has shape {list(shape)} and data_offsets {[start, stop]}, not all whole")
    if not 0 <= start <= stop:
        raise WeightsError(f"{file}: {name} has data_offsets {[start, stop]}; expected 0 <= start <= stop")
    if dtype is not None and stop - start != math.prod(shape) * dtype.itemsize:
        raise WeightsError(
            f"{file}: {name} takes {stop - start:,} bytes; {entry['dtype']}{list(shape)} needs "
            f"{math.prod(shape) * dtype.itemsize:,}"
        )
    return SafetensorsEntry(file, entry["dtype"], shape, base + start, base + stop)


def _files(folder: Path) -> list[Path]:
    """The weight files of a folder; every shard the index names must be there."""
    index = folder / INDEX
    if not index.exists():
        single = folder / SINGLE
        if single.exists():
            return [single]
        pickled = sorted(p.name for p in folder.glob("*.bin"))
        hint = f"; {', '.join(pickled)} is a pickle and is not read, save it as safetensors" if pickled else ""
        raise WeightsError(f"{folder} holds neither {SINGLE} nor {INDEX}{hint}")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        files = [folder / Path(name).name for name in names]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{index} is no index of shards: {error!r}") from error
    absent = [file.name for file in files if not file.exists()]
    if absent:
        raise WeightsError(f"{folder} lacks shards that {INDEX} names: {', '.join(absent)}")
    return files
