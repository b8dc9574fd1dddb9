"""GGUF files: the header is parsed here, and the `gguf` package dequantizes the tensors.

The layout is: magic, version, counts; metadata (key, type, value); one record per tensor (name, dimensions with the
fastest first, type, offset); padding; the data. Files of the llama architecture have two peculiarities. The rows of q
and k are interleaved for llama.cpp's rotation, which the name tables undo. Llama 3's frequency factors are stored as
the tensor `rope_freqs` instead of the settings that they were computed from, which are recovered here.
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
ROWS = 4096  # rows dequantized at a time, because the package holds each result twice


class GgufTensor(NamedTuple):
    """The location of a tensor.

    Attributes:
        shape: Shape with the slowest axis first.
        type: Quantization type.
        start: Offset in the file.
    """

    shape: tuple[int, ...]
    type: int
    start: int


class GGUFFile:
    """The metadata and the tensors of a GGUF file, dequantized to float32."""

    dequantises = True

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.where = str(path)
        empty = self.path.stat().st_size == 0  # an empty file cannot be mapped
        self._map: np.ndarray = np.empty(0, np.uint8) if empty else np.memmap(self.path, mode="r", dtype=np.uint8)
        self.metadata, self._tensors = _parse(self.path, self._map.data)
        if self.metadata.get("split.count", 0) not in (0, 1):
            raise WeightsError(
                f"{path} is part of a split file, but must be a single file; merge the parts with gguf-split --merge"
            )
        self._check_size()

    @property
    def architecture(self) -> str:
        """Name of the architecture."""
        value = self.metadata.get("general.architecture")
        if not isinstance(value, str) or value not in FAMILIES or FAMILIES.get(value).gguf_names is None:
            accepted = ", ".join(repr(name) for name in FAMILIES if FAMILIES.get(name).gguf_names is not None)
            raise WeightsError(f"{self.path}: general.architecture is {value!r}, but must be one of: {accepted}")
        return value

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def unreadable(self, names: Iterable[str]) -> list[str]:
        """Return one line for each tensor with a type that cannot be dequantized."""
        types = {name: self._tensors[name].type for name in names}
        return [
            f"{name} has type {_type_name(kind)}, which cannot be dequantized"
            for name, kind in types.items()
            if not _can_dequantize(kind)
        ]

    def tensor(self, name: str) -> np.ndarray:
        """Return a tensor as float32."""
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
        """Return the config of the model from the metadata."""
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
        """Return the scaling of the rotary frequencies."""
        kind = self._get("rope.scaling.type", "none")
        if kind == "linear":
            return RopeScaling("linear", _short(self._need("rope.scaling.factor")))
        if kind != "none":
            raise self._error("rope.scaling.type", kind, "one of: 'none', 'linear'")
        if "rope_freqs.weight" not in self._tensors:
            return None
        factors = self.tensor("rope_freqs.weight")
        # The largest divisor is the factor of the long wavelengths. Llama 3.1, 3.2 and 3.3 share the other settings.
        scaling = RopeScaling("llama3", round(float(factors.max()), 6))
        theta = self._get("rope.freq_base", 10_000.0)
        if not np.allclose(factors, _llama3_divisors(scaling, len(factors), theta), rtol=1e-3):
            raise WeightsError(
                f"{self.path}: rope_freqs.weight must be the scaling of Llama 3 with low_freq_factor "
                f"{scaling.low_freq_factor}, high_freq_factor {scaling.high_freq_factor} and original context "
                f"{scaling.original_max_positions}"
            )
        return scaling

    def _stops(self) -> tuple[int, ...]:
        """Return the ids that end a turn."""
        ids = (self.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
        return tuple(dict.fromkeys(i for i in ids if i is not None))

    def _get(self, key: str, default: Any = None) -> Any:
        """Return a metadata field of the architecture."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def _need(self, key: str) -> Any:
        """Return a metadata field of the architecture, which must exist."""
        value = self._get(key)
        if value is None:
            raise WeightsError(f"{self.path}: the metadata field {self.architecture}.{key} is missing")
        return value

    def _whole(self, key: str, default: int | None = None) -> int:
        """Return a metadata field of the architecture, which must be an integer >= 1."""
        value = self._need(key) if default is None else self._get(key, default)
        if not is_whole(value):
            raise self._error(key, value, "one integer >= 1 for all layers")
        return value

    def _error(self, key: str, value: Any, accepted: str) -> WeightsError:
        """Return an error about an unsupported value."""
        return WeightsError(f"{self.path}: {self.architecture}.{key} is {value!r}, but must be {accepted}")

    def _check_size(self) -> None:
        """Raise WeightsError if the file is truncated."""
        size = len(self._map)
        cut = [name for name, tensor in self._tensors.items() if tensor.start + _n_bytes(tensor) > size]
        if cut:
            raise WeightsError(f"{self.path} is truncated after {size:,} bytes; incomplete tensors: {', '.join(cut)}")


def _parse(path: Path, data: memoryview) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    """Return the metadata and the tensor records of a file."""
    if bytes(data[:4]) != b"GGUF":
        raise WeightsError(f"{path} is not a GGUF file: it begins with {bytes(data[:4])!r}, not with b'GGUF'")
    try:
        version, n_tensors, n_fields = struct.unpack_from("<IQQ", data, 4)
        if version not in (2, 3):
            raise WeightsError(f"{path}: GGUF version is {version}, but must be 2 or 3 (little-endian)")
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
    """Return a string and the offset after it."""
    (length,) = struct.unpack_from("<Q", data, at)
    end = at + 8 + length
    if end > len(data):
        raise struct.error("a string runs past the end of the file")
    return str(data[at + 8 : end], "utf-8", "surrogateescape"), end


def _value(data: memoryview, at: int, kind: int) -> tuple[Any, int]:
    """Return a value of the given type and the offset after it."""
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
    """Return whether the `gguf` package can dequantize a type, tested on a block of zeros."""
    try:
        quantisation = gguf.GGMLQuantizationType(kind)
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[quantisation][1]), np.uint8), quantisation)
    except (ValueError, NotImplementedError):
        return False
    return True


def _type_name(kind: int) -> str:
    """Return the name of a quantization type."""
    known = kind in gguf.GGMLQuantizationType._value2member_map_
    return gguf.GGMLQuantizationType(kind).name if known else f"number {kind}"


def _n_bytes(tensor: GgufTensor) -> int:
    """Return the size of a tensor in bytes, or 0 for an unknown type."""
    if tensor.type not in gguf.GGMLQuantizationType._value2member_map_:
        return 0
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.type)]
    return math.prod(tensor.shape) // block * size


def _short(value: float) -> float:
    """Return the shortest decimal of a float32: metadata has 9.99999974e-06 for 1e-5."""
    return float(str(np.float32(value)))


def _llama3_divisors(scaling: RopeScaling, half: int, theta: float) -> np.ndarray:
    """Return the divisor of each of the H/2 frequencies in Llama 3's scaling."""
    wavelength = 2 * np.pi * theta ** (np.arange(half) / half)
    low = scaling.original_max_positions / scaling.low_freq_factor
    high = scaling.original_max_positions / scaling.high_freq_factor
    smooth = np.clip((low / wavelength - 1) / (low / high - 1), 0, 1)
    return 1 / ((1 - smooth) / scaling.factor + smooth)
