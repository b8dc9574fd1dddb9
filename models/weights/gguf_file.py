"""GGUF files: the header parsed here, the numbers dequantised by the `gguf` package, tensor by tensor.

The layout: magic, version, counts; metadata (key, type, value); one record per tensor (name, dimensions with the
fastest first, type, offset); padding; the data. Llama-architecture files come with the rows of q and k interleaved
for llama.cpp's rotation (undone by the name tables) and with Llama 3's frequency factors as a tensor, `rope_freqs`,
instead of the settings they were computed from (recovered here).
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

from models.config import ModelConfig, RopeScaling, is_whole
from models.errors import WeightsError
from models.families import FAMILIES

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
ROWS = 4096  # dequantised at a time: the package holds each result twice while it works


class GgufTensor(NamedTuple):
    """Where one tensor lies; `shape` has the slowest axis first, `start` counts from the beginning of the file."""

    shape: tuple[int, ...]
    type: int
    start: int


class GGUFFile:
    """The metadata and the tensors of a GGUF file; `tensor(name)` is float32."""

    dequantises = True

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.where = str(path)
        empty = self.path.stat().st_size == 0  # cannot be mapped
        self._map: np.ndarray = np.empty(0, np.uint8) if empty else np.memmap(self.path, mode="r", dtype=np.uint8)
        self.metadata, self._tensors = _parse(self.path, self._map.data)
        if self.metadata.get("split.count", 0) not in (0, 1):
            raise WeightsError(f"{path} is part of a split file; expected one file (gguf-split --merge joins them)")
        self._check_size()

    @property
    def architecture(self) -> str:
        found = self.metadata.get("general.architecture")
        if not isinstance(found, str) or found not in FAMILIES or FAMILIES.get(found).gguf_names is None:
            accepted = ", ".join(repr(name) for name in FAMILIES if FAMILIES.get(name).gguf_names is not None)
            raise WeightsError(f"{self.path}: general.architecture is {found!r}, but must be {accepted}")
        return found

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def unreadable(self, names: Iterable[str]) -> list[str]:
        """One line for each tensor among `names` whose type the `gguf` package cannot dequantise."""
        types = {name: self._tensors[name].type for name in names}
        return [
            f"{name} has type {_type_name(kind)}, which cannot be dequantised"
            for name, kind in types.items()
            if not _can_dequantize(kind)
        ]

    def tensor(self, name: str) -> np.ndarray:
        shape, kind, start = self._tensors[name]
        quantisation = gguf.GGMLQuantizationType(kind)
        *front, row_bytes = gguf.quant_shape_to_byte_shape(shape, quantisation)
        rows = math.prod(front)
        raw = np.asarray(self._map[start : start + rows * row_bytes]).reshape(rows, row_bytes)
        out = np.empty((rows, shape[-1]), np.float32)
        for at in range(0, rows, ROWS):
            out[at : at + ROWS] = gguf.dequantize(raw[at : at + ROWS], quantisation)
        return out.reshape(shape)

    def config(self) -> ModelConfig:
        """The shape of the model, from the metadata."""
        family = FAMILIES.get(self.architecture)
        heads = self._whole("attention.head_count")
        d_model = self._whole("embedding_length")
        if self._get("expert_count", 0):
            raise self._error("expert_count", self._get("expert_count"), "0 (mixtures of experts are not supported)")
        if "token_embd.weight" not in self._tensors:
            raise WeightsError(f"{self.path}: the tensor token_embd.weight is missing")
        shape = dict(
            vocab_size=self._tensors["token_embd.weight"].shape[0],
            d_model=d_model,
            n_layers=self._whole("block_count"),
            n_heads=heads,
            n_kv_heads=self._whole("attention.head_count_kv", heads),
            head_dim=self._whole("attention.key_length", d_model // heads),
            d_ff=self._whole("feed_forward_length"),
            max_positions=self._whole("context_length"),
            norm_eps=_short(self._need(family.gguf_norm_eps)),
            rope_theta=_short(self._get("rope.freq_base", 10_000.0)),
            rope_scaling=None if family.learned_positions else self._rope_scaling(),
            tie_embeddings="output.weight" not in self._tensors,
            sliding_window=self._get("attention.sliding_window") or None,
            bos_id=self.metadata.get("tokenizer.ggml.bos_token_id"),
            eos_ids=self._stops(),
        )
        return ModelConfig(family=self.architecture, **{**shape, **family.fixed})

    def _rope_scaling(self) -> RopeScaling | None:
        kind = self._get("rope.scaling.type", "none")
        if kind == "linear":
            return RopeScaling("linear", _short(self._need("rope.scaling.factor")))
        if kind != "none":
            raise self._error("rope.scaling.type", kind, "'none', 'linear'")
        if "rope_freqs.weight" not in self._tensors:
            return None
        factors = self.tensor("rope_freqs.weight")
        # The largest divisor is the stretch of the long wavelengths; Llama 3.1, 3.2 and 3.3 share the other numbers.
        scaling = RopeScaling("llama3", round(float(factors.max()), 6))
        theta = self._get("rope.freq_base", 10_000.0)
        if not np.allclose(factors, _llama3_divisors(scaling, len(factors), theta), rtol=1e-3):
            raise WeightsError(
                f"{self.path}: rope_freqs.weight is no Llama 3 stretch; expected one with low_freq_factor "
                f"{scaling.low_freq_factor}, high_freq_factor {scaling.high_freq_factor} and original context "
                f"{scaling.original_max_positions}"
            )
        return scaling

    def _stops(self) -> tuple[int, ...]:
        ids = (self.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
        return tuple(dict.fromkeys(i for i in ids if i is not None))

    def _get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def _need(self, key: str) -> Any:
        found = self._get(key)
        if found is None:
            raise WeightsError(f"{self.path}: the metadata field {self.architecture}.{key} is missing")
        return found

    def _whole(self, key: str, default: int | None = None) -> int:
        found = self._need(key) if default is None else self._get(key, default)
        if not is_whole(found):
            raise self._error(key, found, "one whole number from 1 up for all layers")
        return found

    def _error(self, key: str, found: Any, accepted: str) -> WeightsError:
        return WeightsError(f"{self.path}: {self.architecture}.{key} is {found!r}, but must be {accepted}")

    def _check_size(self) -> None:
        size = len(self._map)
        cut = [name for name, tensor in self._tensors.items() if tensor.start + _n_bytes(tensor) > size]
        if cut:
            raise WeightsError(f"{self.path} is truncated: {size:,} bytes; cut off: {', '.join(cut)}")


def _parse(path: Path, data: memoryview) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    """The metadata and the tensor records of a file."""
    if bytes(data[:4]) != b"GGUF":
        raise WeightsError(f"{path} is no GGUF file: it begins with {bytes(data[:4])!r}, expected b'GGUF'")
    try:
        version, n_tensors, n_fields = struct.unpack_from("<IQQ", data, 4)
        if version not in (2, 3):
            raise WeightsError(f"{path}: GGUF version is {version}, but must be 2, 3 (little-endian)")
        at = 24
        metadata: dict[str, Any] = {}
        for _ in range(n_fields):
            key, at = _string(data, at)
            (kind,) = struct.unpack_from("<I", data, at)
            metadata[key], at = _value(data, at + 4, kind)
        records = []
        for _ in range(n_tensors):
            name, at = _string(data, at)
            (n_dims,) = struct.unpack_from("<I", data, at)
            *dims, kind, offset = struct.unpack_from(f"<{n_dims}QIQ", data, at + 4)
            at += 4 + 8 * n_dims + 12
            records.append((name, tuple(reversed(dims)), kind, offset))
    except (struct.error, UnicodeDecodeError) as error:
        raise WeightsError(f"{path} is truncated or damaged: its header cannot be read ({error})") from error
    alignment = metadata.get("general.alignment", 32)
    if not is_whole(alignment):
        raise WeightsError(f"{path}: general.alignment is {alignment!r}, but must be an integer >= 1")
    base = -(-at // alignment) * alignment
    return metadata, {name: GgufTensor(shape, kind, base + offset) for name, shape, kind, offset in records}


def _string(data: memoryview, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, at)
    end = at + 8 + length
    if end > len(data):
        raise struct.error("a string runs past the end of the file")
    return str(data[at + 8 : end], "utf-8", "surrogateescape"), end


def _value(data: memoryview, at: int, kind: int) -> tuple[Any, int]:
    if kind == _STRING:
        return _string(data, at)
    if kind == _ARRAY:
        inner, length = struct.unpack_from("<IQ", data, at)
        at += 12
        if inner in _SCALARS:
            array = struct.unpack_from(f"<{length}{_SCALARS[inner][1]}", data, at)
            return list(array), at + length * struct.calcsize(_SCALARS[inner])
        values = []
        for _ in range(length):
            value, at = _value(data, at, inner)
            values.append(value)
        return values, at
    if kind not in _SCALARS:
        raise struct.error(f"unknown metadata type {kind}")
    (value,) = struct.unpack_from(_SCALARS[kind], data, at)
    return value, at + struct.calcsize(_SCALARS[kind])


@functools.cache
def _can_dequantize(kind: int) -> bool:
    """Whether the `gguf` package turns this type into floats, found out on one block of zeros."""
    try:
        quantisation = gguf.GGMLQuantizationType(kind)
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[quantisation][1]), np.uint8), quantisation)
    except (ValueError, NotImplementedError):
        return False
    return True


def _type_name(kind: int) -> str:
    known = kind in gguf.GGMLQuantizationType._value2member_map_
    return gguf.GGMLQuantizationType(kind).name if known else f"number {kind}"


def _n_bytes(tensor: GgufTensor) -> int:
    if tensor.type not in gguf.GGMLQuantizationType._value2member_map_:
        return 0
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.type)]
    return math.prod(tensor.shape) // block * size


def _short(value: float) -> float:
    """The shortest decimal that is this float32: metadata holds 1e-5 as 9.99999974e-06."""
    return float(str(np.float32(value)))


def _llama3_divisors(scaling: RopeScaling, half: int, theta: float) -> np.ndarray:
    """What Llama 3's stretch divides each of the H/2 frequencies by."""
    wavelength = 2 * np.pi * theta ** (np.arange(half) / half)
    low = scaling.original_max_positions / scaling.low_freq_factor
    high = scaling.original_max_positions / scaling.high_freq_factor
    smooth = np.clip((low / wavelength - 1) / (low / high - 1), 0, 1)
    return 1 / ((1 - smooth) / scaling.factor + smooth)
