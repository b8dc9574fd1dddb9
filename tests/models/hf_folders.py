"""Hugging Face folders for the tests, written with the safetensors package rather than with the project's own code."""

import json
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import save_file

GOLDEN = Path(__file__).parent / "golden"


def golden(case: str) -> tuple[dict, dict[str, np.ndarray]]:
    """The config.json and the tensors that transformers wrote for a tiny model."""
    with np.load(GOLDEN / f"parity_{case}.npz") as file:
        tensors = {name.removeprefix("weights/"): file[name] for name in file if name.startswith("weights/")}
        return json.loads(str(file["config"])), tensors


def write_folder(folder: Path, config: dict, tensors: dict[str, np.ndarray], shards: int = 1) -> Path:
    """A Hugging Face folder written with the safetensors package."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map = {}
    for i in range(shards):
        part = dict(list(tensors.items())[i::shards])
        save_file(part, folder / f"model-{i + 1}.safetensors")
        weight_map |= dict.fromkeys(part, f"model-{i + 1}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def same(one, two) -> bool:
    """Equal trees: structure, dtype, and every bit."""
    if jax.tree.structure(one) != jax.tree.structure(two):
        return False
    equal = jax.tree.map(lambda a, b: a.dtype == b.dtype and np.array_equal(np.asarray(a), np.asarray(b)), one, two)
    return all(jax.tree.leaves(equal))
