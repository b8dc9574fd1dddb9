"""Export of parameters to a folder that transformers can load."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np

from models import hf_config
from models.config import ModelConfig
from models.errors import WeightsError
from models.weights import safetensors_folder as st
from models.weights.atomic import new_folder
from models.weights.names import Slot, hugging_face_slots


def export(
    folder: str | Path,
    cfg: ModelConfig,
    params: dict[str, Any],
    *,
    tokenizer: Any = None,
    dtype: Any = None,
    shard_bytes: int = 5_000_000_000,
    overwrite: bool = False,
) -> Path:
    """Write config, generation config, weights and optionally a tokenizer.

    The folder appears only when it is complete.

    Args:
        folder: Folder to create.
        cfg: Config of the model.
        params: Stacked parameters.
        tokenizer: An object with `save(folder)`, or None.
        dtype: Dtype of the weights. None: that of the embedding.
        shard_bytes: Maximum size of a weight file. Larger weights are split over several files with an index.
        overwrite: Whether to replace an existing folder.
    """
    dtype = np.dtype(dtype if dtype is not None else params["embed"].dtype)
    if dtype not in st.DTYPE_NAMES:
        raise WeightsError(f"dtype is {dtype}, but must be one of: {', '.join(str(d) for d in st.DTYPE_NAMES)}")
    tensors = _tensors(cfg)
    _check(cfg, params)
    with new_folder(folder, overwrite) as temporary:
        _write_json(temporary / "config.json", hf_config.to_dict(cfg, dtype.name))
        _write_json(temporary / "generation_config.json", hf_config.token_ids(cfg))
        _write_weights(temporary, tensors, params, dtype, shard_bytes)
        if tokenizer is not None:
            tokenizer.save(temporary)
    return Path(folder)


def _tensors(cfg: ModelConfig) -> dict[str, tuple[int | None, list[Slot]]]:
    """Return the layer and the parameters of every tensor, in the order of writing."""
    tensors: dict[str, tuple[int | None, list[Slot]]] = {}
    slots = hugging_face_slots(cfg)
    for layer in (None, *range(max(slot.layers or 0 for slot in slots))):
        for slot in slots:
            if slot.layers is None if layer is None else layer < (slot.layers or 0):
                name = slot.tensor if layer is None else slot.tensor.format(layer)
                tensors.setdefault(name, (layer, []))[1].append(slot)
    return tensors


def _check(cfg: ModelConfig, params: dict[str, Any]) -> None:
    """Raise WeightsError that lists all differences from the stacked parameters of `cfg`."""
    wanted = {"/".join(slot.path): slot.full_shape for slot in hugging_face_slots(cfg)}
    given = {
        "/".join(str(getattr(key, "key", key)) for key in path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    problems = [f"missing: {name} {list(shape)}" for name, shape in wanted.items() if name not in given]
    problems += [f"extra: {name} {list(leaf.shape)}" for name, leaf in given.items() if name not in wanted]
    problems += [
        f"mis-shaped: {name} is {list(given[name].shape)}, but must be {list(shape)}"
        for name, shape in wanted.items()
        if name in given and given[name].shape != shape
    ]
    problems += [
        f"not fully addressable by this process: {name}"
        for name, leaf in given.items()
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
    ]
    if problems:
        raise WeightsError("the parameters do not fit the config:\n  " + "\n  ".join(problems))


def _write_weights(
    folder: Path, tensors: dict[str, tuple[int | None, list[Slot]]], params, dtype: np.dtype, shard_bytes: int
) -> None:
    """Write the weight files and their index."""
    specs = {name: (dtype, slots[0].disk_shape) for name, (_, slots) in tensors.items()}
    shards = _split(specs, shard_bytes)
    files = [st.SINGLE] if len(shards) == 1 else [
        f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)
    ]  # fmt: skip
    for file, names in zip(files, shards, strict=True):
        values = (_value(*tensors[name], params, dtype) for name in names)
        st.write(folder / file, {name: specs[name] for name in names}, values, {"format": "pt"})
    if len(shards) > 1:
        total = sum(_n_bytes(spec) for spec in specs.values())
        weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        _write_json(folder / st.INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _split(specs, limit: int) -> list[list[str]]:
    """Split names into shards of at most `limit` bytes, in order."""
    shards: list[list[str]] = [[]]
    held = 0
    for name, spec in specs.items():
        if shards[-1] and held + _n_bytes(spec) > limit:
            shards.append([])
            held = 0
        shards[-1].append(name)
        held += _n_bytes(spec)
    return shards


def _value(layer: int | None, slots: list[Slot], params, dtype: np.dtype) -> np.ndarray:
    """Return one tensor in its layout on disk."""
    parts = []
    for slot in slots:
        leaf = params
        for key in slot.path:
            leaf = leaf[key]
        value = np.asarray(leaf if layer is None else leaf[layer])
        parts.append(slot.to_disk(value).astype(dtype, copy=False))
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts, axis=0 if slots[0].out_first else -1)


def _n_bytes(spec: tuple[np.dtype, tuple[int, ...]]) -> int:
    """Return the size of a tensor in bytes."""
    return math.prod(spec[1]) * spec[0].itemsize


def _write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
