"""The tensor on disk that stores each parameter, for both file formats.

The tables of a family (`models/families`) map the path of a parameter to the name of a tensor. Paths with the same name
are stored in that tensor one after the other along its output axis (Phi-3's `qkv_proj`, GPT-2's `c_attn`). Everything
else follows from the shapes, so reading and writing use the same table.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from models.config import ModelConfig
from models.families import FAMILIES, vision

# Tensors that the model does not need: rotary tables, causal masks, the copy of a tied head.
HARMLESS = re.compile(r"rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$|^rope_freqs\.weight$")
TIED_HEAD = {"lm_head.weight", "output.weight"}


@dataclasses.dataclass(frozen=True)
class Slot:
    """One parameter and its location on disk.

    Attributes:
        path: Path of the parameter.
        shape: Its shape in one layer, without L.
        layers: L, or None for a parameter outside the layers.
        n_in: Number of leading axes of `shape` that are contracted: 1 for q [D | N, H], 2 for o [N, H | D], 0 if it is
            not a matrix, 4 for a kernel over patches, whose axes stay separate on disk.
        tensor: Name on disk, with {} for the layer.
        disk_shape: Shape of the tensor on disk, including other parameters.
        start: First index of this parameter along the output axis on disk.
        out_first: Whether a matrix on disk is [out, in] rather than [in, out].
        interleaved_heads: Number of heads if llama.cpp has interleaved the two halves of each head in q and k, or 0.
    """

    path: tuple[str, ...]
    shape: tuple[int, ...]
    layers: int | None
    n_in: int
    tensor: str
    disk_shape: tuple[int, ...]
    start: int
    out_first: bool
    interleaved_heads: int = 0

    @property
    def full_shape(self) -> tuple[int, ...]:
        """Shape of the stacked parameter."""
        return self.shape if self.layers is None else (self.layers, *self.shape)

    @property
    def tensors(self) -> list[str]:
        """Names on disk, one per layer."""
        return [self.tensor] if self.layers is None else [self.tensor.format(i) for i in range(self.layers)]

    @property
    def _in_out(self) -> tuple[int, int]:
        """Shape of the parameter as a matrix."""
        return int(np.prod(self.shape[: self.n_in])), int(np.prod(self.shape[self.n_in :]))

    def from_disk(self, tensor: np.ndarray) -> np.ndarray:
        """Return the parameter's slice of a tensor on disk.

        The result is a view, except if heads are interleaved.
        """
        if not self.n_in and self.start == 0 and self.disk_shape == self.shape:
            return tensor
        tensor = tensor.reshape(len(tensor), -1) if tensor.ndim > 2 else tensor
        width = self._in_out[1]
        axis = 0 if self.out_first else tensor.ndim - 1
        part = tensor[(slice(None),) * axis + (slice(self.start, self.start + width),)]
        if self.interleaved_heads:
            part = _deinterleave(part, self.interleaved_heads)
        return (part.T if self.out_first else part).reshape(self.shape)

    def to_disk(self, value: np.ndarray) -> np.ndarray:
        """Return the parameter in its layout on disk, the inverse of `from_disk`."""
        if not self.n_in:
            return value.reshape(-1) if len(self.disk_shape) == 1 else value
        matrix = value.reshape(self._in_out)
        matrix = matrix.T if self.out_first else matrix
        return matrix.reshape(self.disk_shape) if len(self.disk_shape) > 2 else matrix


def hugging_face_slots(cfg: ModelConfig) -> tuple[Slot, ...]:
    """Return the location of each parameter in a Hugging Face checkpoint."""
    family = FAMILIES.get(cfg.family)
    return _slots(cfg, family.hf_names, out_first=family.hf_out_first)


def gguf_slots(cfg: ModelConfig, architecture: str) -> tuple[Slot, ...]:
    """Return the location of each parameter in a GGUF file of an architecture."""
    family = FAMILIES.get(architecture)
    heads = {"layers/attn/q": cfg.n_heads, "layers/attn/k": cfg.n_kv_heads} if family.gguf_interleaved else {}
    return _slots(cfg, family.gguf_names, out_first=True, interleaved=heads)


def _slots(cfg, table, *, out_first, interleaved=None) -> tuple[Slot, ...]:
    """Return the location of each parameter by a table of names."""
    interleaved, table = interleaved or {}, {**vision.NAMES, **table}
    every = FAMILIES.get(cfg.family).leaves(cfg)
    widths: dict[str, int] = {}  # current size of each tensor along its output axis
    starts = {}
    for path, (shape, n_in) in every.items():
        name = table[path]
        starts[path] = widths.get(name, 0)
        widths[name] = starts[path] + int(np.prod(shape[n_in:]))
    slots = []
    for path, (shape, n_in) in every.items():
        name, out_first_here = table[path], out_first or path.startswith("vision/")
        if n_in > 2:
            disk_shape = (widths[name], *shape[:n_in])
        elif n_in:
            size_in = int(np.prod(shape[:n_in]))
            disk_shape = (widths[name], size_in) if out_first_here else (size_in, widths[name])
        else:
            disk_shape = (widths[name],) if "/" in path else shape
        slots.append(
            Slot(
                path=tuple(path.split("/")),
                shape=shape,
                layers=cfg.depth_of(path),
                n_in=n_in,
                tensor=name,
                disk_shape=disk_shape,
                start=starts[path],
                out_first=out_first_here and bool(n_in),
                interleaved_heads=interleaved.get(path, 0),
            )
        )
    return tuple(slots)


def _deinterleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo the interleaving of the two halves of each head."""
    split = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)
