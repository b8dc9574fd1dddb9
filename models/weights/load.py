"""Loading of weights: `load(path) -> (cfg, params)`.

Parameters are read one at a time. The tensors of all layers are memory-mapped, copied to one stacked array of the
target dtype (or, with a sharding, only the part that a device holds), and moved to the device. The host therefore holds
one parameter at a time in addition to the result, never a second copy of the model.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from models import hf_config
from models.config import ModelConfig
from models.errors import WeightsError, refuse_malformed
from models.families.vision import RENAMED
from models.weights.gguf_file import GGUFFile
from models.weights.names import HARMLESS, TIED_HEAD, Slot, gguf_slots, hugging_face_slots
from models.weights.safetensors_folder import SafetensorsFolder

log = logging.getLogger(__name__)

Params = dict[str, Any]
THREADS = min(8, os.cpu_count() or 1)
SHOWN = 40  # maximum number of problems in an error


class Source(Protocol):
    """Named tensors on disk.

    Attributes:
        where: Path for messages.
        dequantises: Whether reading a part of a tensor costs as much as reading all of it.
    """

    where: str
    dequantises: bool

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors."""
        ...

    def tensor(self, name: str) -> np.ndarray:
        """Return a tensor."""
        ...

    def unreadable(self, names) -> list[str]:
        """Return one line for each tensor among `names` with an unsupported type."""
        ...


def load(path: str | Path, cfg: ModelConfig | None = None, dtype=jnp.float32, shardings: Any = None):
    """Load a Hugging Face folder or a GGUF file and return `(cfg, params)`.

    Args:
        path: The folder or the file.
        cfg: Config that overrides the one on disk.
        dtype: Dtype of the parameters.
        shardings: One sharding for all parameters, or a tree of them. None: the default device.
    """
    path = find(path)
    with refuse_malformed(WeightsError, path):
        if path.is_file():
            source = GGUFFile(path)
            cfg = cfg or source.config()
            slots = gguf_slots(cfg, source.architecture)
        else:
            cfg = cfg or hf_config.read(path)
            source = SafetensorsFolder(path)
            slots = hugging_face_slots(cfg)
        names = match(slots, source)
    log.info("loading %s: %s, %s parameters as %s", path, cfg.family, f"{cfg.n_params:,}", jnp.dtype(dtype).name)
    params: Params = {}
    for slot in slots:
        sharding = _lookup(shardings, slot.path)
        leaf = _place(slot, [names[name] for name in slot.tensors], source, np.dtype(dtype), sharding)
        node = params
        for key in slot.path[:-1]:
            node = node.setdefault(key, {})
        node[slot.path[-1]] = leaf
    return cfg, params


def read_config(path: str | Path) -> ModelConfig:
    """Return the config of a Hugging Face folder or a GGUF file."""
    path = find(path)
    with refuse_malformed(WeightsError, path):
        return GGUFFile(path).config() if path.is_file() else hf_config.read(path)


def find(path: str | Path) -> Path:
    """Return the GGUF file or Hugging Face folder at `path`.

    A folder without a `config.json` must contain a single GGUF file.
    """
    path = Path(path)
    if not path.exists():
        raise WeightsError(f"{path} does not exist, but must be a Hugging Face folder or a GGUF file")
    if path.is_file():
        if path.suffix != ".gguf":
            raise WeightsError(f"{path} must be a GGUF file or the folder of a Hugging Face model")
        return path
    if (path / "config.json").exists():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) != 1:
        held = ", ".join(p.name for p in files) or "neither"
        raise WeightsError(f"{path} must have a config.json or one GGUF file, but has {held}")
    return files[0]


def match(slots: tuple[Slot, ...], source: Source) -> dict[str, str]:
    """Return the name in `source` of every tensor that the slots need.

    All missing, extra and unsupported tensors are reported in a single error.
    """
    shapes = source.shapes
    wanted = {name: slot.disk_shape for slot in slots for name in slot.tensors}
    names = _names_in_file(slots, wanted, shapes)
    missing = [f"missing: {name} {list(shape)}" for name, shape in wanted.items() if names[name] not in shapes]
    bent = [
        f"mis-shaped: {names[name]} is {list(shapes[names[name]])}, but must be {list(shape)}"
        for name, shape in wanted.items()
        if names[name] in shapes and shapes[names[name]] != shape
    ]
    used = set(names.values())
    tied = set() if used & TIED_HEAD else TIED_HEAD
    extra = [
        f"extra: {name} {list(shape)}"
        for name, shape in shapes.items()
        if name not in used and name not in tied and not HARMLESS.search(name)
    ]
    unreadable = [f"unreadable: {line}" for line in source.unreadable(name for name in used if name in shapes)]
    problems = missing + bent + extra + unreadable
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        shown = problems if len(problems) <= SHOWN else [*problems[:SHOWN], f"and {len(problems) - SHOWN} more"]
        raise WeightsError(f"{source.where} does not fit the model, {count}:\n  " + "\n  ".join(shown))
    return names


def _names_in_file(slots: tuple[Slot, ...], wanted: dict[str, Any], shapes: dict[str, Any]) -> dict[str, str]:
    """Map expected names to the names in the file.

    Checkpoints that were saved without their head lack the leading `model.`. Those with the module names of
    transformers 5 have more in front.
    """
    if any(name.startswith(RENAMED["model."]) for name in shapes):
        fronts = {name: name.split(".")[0] + "." for name in wanted}
        return {name: RENAMED.get(front, front) + name.removeprefix(front) for name, front in fronts.items()}
    embed = next(slot.tensor for slot in slots if slot.path == ("embed",))
    prefix = (
        embed.split(".")[0] + "." if embed.count(".") > 1 else ""
    )  # such as `model.` of `model.embed_tokens.weight`
    if any(name.startswith(prefix) for name in shapes):
        return {name: name for name in wanted}
    return {name: name.removeprefix(prefix) for name in wanted}


def _place(slot: Slot, names: list[str], source: Source, dtype: np.dtype, sharding) -> jax.Array:
    """Load one parameter onto its devices."""

    def read(index: tuple[slice, ...]) -> np.ndarray:
        """Return a part of the parameter."""
        out = np.empty([len(range(size)[part]) for size, part in zip(slot.full_shape, index, strict=True)], dtype)
        if slot.layers is None:
            copy_into(out, slot.from_disk(source.tensor(names[0]))[index])
            return out

        def read_layer(row: np.ndarray, name: str) -> None:
            """Read the part of one layer."""
            copy_into(row, slot.from_disk(source.tensor(name))[index[1:]])

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(read_layer, out, names[index[0]]))  # the list re-raises errors of the threads
        return out

    everything = tuple(slice(None) for _ in slot.full_shape)
    if sharding is None:
        return jax.device_put(read(everything))
    if source.dequantises:
        whole = read(everything)
        return jax.make_array_from_callback(slot.full_shape, sharding, lambda index: whole[index])
    parts: dict[str, np.ndarray] = {}  # shared by devices that hold the same part

    def read_once(index: tuple[slice, ...] | None) -> np.ndarray:
        """Return a part of the parameter, shared by devices that hold the same part."""
        assert index is not None
        key = repr(index)
        if key not in parts:
            parts[key] = read(index)
        return parts[key]

    return jax.make_array_from_callback(slot.full_shape, sharding, read_once)


def copy_into(out: np.ndarray, view: np.ndarray) -> None:
    """Copy and cast a view of a file.

    A transposed view is copied 64 rows of the file at a time, which stay in the CPU cache.
    """
    if out.dtype == view.dtype and out.itemsize == 2:
        out, view = out.view(np.uint16), view.view(np.uint16)  # NumPy copies its own types without the GIL
    axis = int(np.argmax(view.strides))
    if axis == 0:
        out[...] = view
        return
    step = 64 if axis == view.ndim - 1 else 1  # the last axis is rows of the file, an inner one is heads
    for start in range(0, view.shape[axis], step):
        part = (slice(None),) * axis + (slice(start, start + step),)
        out[part] = view[part]


def _lookup(shardings: Any, path: tuple[str, ...]) -> Any:
    """Return the sharding of a parameter."""
    for key in path if isinstance(shardings, dict) else ():
        shardings = shardings[key]
    return shardings
