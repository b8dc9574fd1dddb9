"""Which tensor on disk holds which parameter, for every family and both file formats.

A table maps a parameter's path to the name of a tensor. Paths that share a name lie in that tensor one after
another along its output axis (Phi-3's `qkv_proj`, GPT-2's `c_attn`). Everything else follows from the shapes, so
reading and writing use the same table.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from models.config import ModelConfig

_LLAMA = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "layers/attn/norm": "model.layers.{}.input_layernorm.weight",
    "layers/attn/q": "model.layers.{}.self_attn.q_proj.weight",
    "layers/attn/k": "model.layers.{}.self_attn.k_proj.weight",
    "layers/attn/v": "model.layers.{}.self_attn.v_proj.weight",
    "layers/attn/o": "model.layers.{}.self_attn.o_proj.weight",
    "layers/attn/q_bias": "model.layers.{}.self_attn.q_proj.bias",
    "layers/attn/k_bias": "model.layers.{}.self_attn.k_proj.bias",
    "layers/attn/v_bias": "model.layers.{}.self_attn.v_proj.bias",
    "layers/attn/q_norm": "model.layers.{}.self_attn.q_norm.weight",
    "layers/attn/k_norm": "model.layers.{}.self_attn.k_norm.weight",
    "layers/mlp/norm": "model.layers.{}.post_attention_layernorm.weight",
    "layers/mlp/gate": "model.layers.{}.mlp.gate_proj.weight",
    "layers/mlp/up": "model.layers.{}.mlp.up_proj.weight",
    "layers/mlp/down": "model.layers.{}.mlp.down_proj.weight",
}

_PHI3 = {
    **_LLAMA,
    **{f"layers/attn/{p}": "model.layers.{}.self_attn.qkv_proj.weight" for p in "qkv"},
    **{f"layers/mlp/{p}": "model.layers.{}.mlp.gate_up_proj.weight" for p in ("gate", "up")},
}

_GPT2 = {
    "embed": "transformer.wte.weight",
    "positions": "transformer.wpe.weight",
    "norm": "transformer.ln_f.weight",
    "norm_bias": "transformer.ln_f.bias",
    "layers/attn/norm": "transformer.h.{}.ln_1.weight",
    "layers/attn/norm_bias": "transformer.h.{}.ln_1.bias",
    **{f"layers/attn/{p}": "transformer.h.{}.attn.c_attn.weight" for p in "qkv"},
    **{f"layers/attn/{p}_bias": "transformer.h.{}.attn.c_attn.bias" for p in "qkv"},
    "layers/attn/o": "transformer.h.{}.attn.c_proj.weight",
    "layers/attn/o_bias": "transformer.h.{}.attn.c_proj.bias",
    "layers/mlp/norm": "transformer.h.{}.ln_2.weight",
    "layers/mlp/norm_bias": "transformer.h.{}.ln_2.bias",
    "layers/mlp/up": "transformer.h.{}.mlp.c_fc.weight",
    "layers/mlp/up_bias": "transformer.h.{}.mlp.c_fc.bias",
    "layers/mlp/down": "transformer.h.{}.mlp.c_proj.weight",
    "layers/mlp/down_bias": "transformer.h.{}.mlp.c_proj.bias",
}

_GGUF_LLAMA = {
    "embed": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
    "layers/attn/norm": "blk.{}.attn_norm.weight",
    "layers/attn/q": "blk.{}.attn_q.weight",
    "layers/attn/k": "blk.{}.attn_k.weight",
    "layers/attn/v": "blk.{}.attn_v.weight",
    "layers/attn/o": "blk.{}.attn_output.weight",
    "layers/attn/q_bias": "blk.{}.attn_q.bias",
    "layers/attn/k_bias": "blk.{}.attn_k.bias",
    "layers/attn/v_bias": "blk.{}.attn_v.bias",
    "layers/attn/q_norm": "blk.{}.attn_q_norm.weight",
    "layers/attn/k_norm": "blk.{}.attn_k_norm.weight",
    "layers/mlp/norm": "blk.{}.ffn_norm.weight",
    "layers/mlp/gate": "blk.{}.ffn_gate.weight",
    "layers/mlp/up": "blk.{}.ffn_up.weight",
    "layers/mlp/down": "blk.{}.ffn_down.weight",
}

_GGUF_PHI3 = {
    **_GGUF_LLAMA,
    **{f"layers/attn/{p}": "blk.{}.attn_qkv.weight" for p in "qkv"},
    **{f"layers/mlp/{p}": "blk.{}.ffn_up.weight" for p in ("gate", "up")},
}

_GGUF_GPT2 = {
    **_GGUF_LLAMA,
    "positions": "position_embd.weight",
    "norm_bias": "output_norm.bias",
    "layers/attn/norm_bias": "blk.{}.attn_norm.bias",
    **{f"layers/attn/{p}": "blk.{}.attn_qkv.weight" for p in "qkv"},
    **{f"layers/attn/{p}_bias": "blk.{}.attn_qkv.bias" for p in "qkv"},
    "layers/attn/o_bias": "blk.{}.attn_output.bias",
    "layers/mlp/norm_bias": "blk.{}.ffn_norm.bias",
    "layers/mlp/up_bias": "blk.{}.ffn_up.bias",
    "layers/mlp/down_bias": "blk.{}.ffn_down.bias",
}

HUGGING_FACE = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "phi3": _PHI3,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gpt2": _GPT2,
}
GGUF = {"llama": _GGUF_LLAMA, "phi3": _GGUF_PHI3, "qwen2": _GGUF_LLAMA, "qwen3": _GGUF_LLAMA, "gpt2": _GGUF_GPT2}

# Tensors that files carry and the model does not need: rotary tables, causal masks, the copy of a tied head.
HARMLESS = re.compile(r"rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$|^rope_freqs\.weight$")
TIED_HEAD = {"lm_head.weight", "output.weight"}


@dataclasses.dataclass(frozen=True)
class Slot:
    """One parameter and the place of its slices on disk.

    `shape` is that of one layer, without L; `layers` is L, or None for a parameter outside the layers. `n_in` counts
    the leading axes of `shape` that are summed over: 1 for q [D | N, H], 2 for o [N, H | D], 0 for what is no matrix.
    """

    path: tuple[str, ...]
    shape: tuple[int, ...]
    layers: int | None
    n_in: int
    tensor: str  # name on disk, {} stands for the layer
    disk_shape: tuple[int, ...]  # of the whole tensor on disk, neighbours included
    start: int  # where this parameter begins along the output axis on disk
    out_first: bool  # a matrix on disk is [out, in], not [in, out]
    interleaved_heads: int = 0  # llama.cpp interleaves the two halves of each head in q and k; 0: it did not

    @property
    def full_shape(self) -> tuple[int, ...]:
        return self.shape if self.layers is None else (self.layers, *self.shape)

    @property
    def tensors(self) -> list[str]:
        """The names on disk, one per layer."""
        return [self.tensor] if self.layers is None else [self.tensor.format(i) for i in range(self.layers)]

    @property
    def _in_out(self) -> tuple[int, int]:
        return int(np.prod(self.shape[: self.n_in])), int(np.prod(self.shape[self.n_in :]))

    def from_disk(self, tensor: np.ndarray) -> np.ndarray:
        """The parameter's slice `shape` out of a tensor `disk_shape`; a view, except where heads are interleaved."""
        if not self.n_in and self.start == 0 and self.disk_shape == self.shape:
            return tensor
        width = self._in_out[1]
        axis = 0 if self.out_first else tensor.ndim - 1
        part = tensor[(slice(None),) * axis + (slice(self.start, self.start + width),)]
        if self.interleaved_heads:
            part = _deinterleave(part, self.interleaved_heads)
        return (part.T if self.out_first else part).reshape(self.shape)

    def to_disk(self, value: np.ndarray) -> np.ndarray:
        """The inverse of `from_disk`, without the neighbours: [out, in] or [in, out], [out] for a fused bias."""
        if not self.n_in:
            return value.reshape(-1) if len(self.disk_shape) == 1 else value
        matrix = value.reshape(self._in_out)
        return matrix.T if self.out_first else matrix


def leaves(cfg: ModelConfig) -> dict[str, tuple[tuple[int, ...], int]]:
    """Every parameter of a model: its path, the shape of one layer, and how many leading axes are summed over."""
    d, f, n, k, h = cfg.d_model, cfg.d_ff, cfg.n_heads, cfg.n_kv_heads, cfg.head_dim
    gpt2 = cfg.family == "gpt2"
    outside = {"embed": ((cfg.vocab_size, d), 0), "norm": ((d,), 0)}
    attn = {"norm": ((d,), 0), "q": ((d, n, h), 1), "k": ((d, k, h), 1), "v": ((d, k, h), 1), "o": ((n, h, d), 2)}
    mlp = {"norm": ((d,), 0)}
    if not gpt2:
        mlp["gate"] = ((d, f), 1)  # before up: the order in which Phi-3 fuses them
    mlp |= {"up": ((d, f), 1), "down": ((f, d), 1)}
    if cfg.qkv_bias or gpt2:
        attn |= {"q_bias": ((n, h), 0), "k_bias": ((k, h), 0), "v_bias": ((k, h), 0)}
    if cfg.qk_norm:
        attn |= {"q_norm": ((h,), 0), "k_norm": ((h,), 0)}
    if not cfg.tie_embeddings:
        outside["head"] = ((d, cfg.vocab_size), 1)
    if gpt2:
        outside |= {"positions": ((cfg.max_positions, d), 0), "norm_bias": ((d,), 0)}
        attn |= {"norm_bias": ((d,), 0), "o_bias": ((d,), 0)}
        mlp |= {"norm_bias": ((d,), 0), "up_bias": ((f,), 0), "down_bias": ((d,), 0)}
    attn = {f"layers/attn/{name}": leaf for name, leaf in attn.items()}
    return outside | attn | {f"layers/mlp/{name}": leaf for name, leaf in mlp.items()}


def hugging_face_slots(cfg: ModelConfig) -> tuple[Slot, ...]:
    """Where each parameter lies in a Hugging Face checkpoint."""
    return _slots(cfg, HUGGING_FACE[cfg.family], out_first=cfg.family != "gpt2")  # GPT-2's Conv1D is [in, out]


def gguf_slots(cfg: ModelConfig, architecture: str) -> tuple[Slot, ...]:
    """Where each parameter lies in a GGUF file of an architecture."""
    interleaved = {"layers/attn/q": cfg.n_heads, "layers/attn/k": cfg.n_kv_heads} if architecture == "llama" else {}
    return _slots(cfg, GGUF[architecture], out_first=True, interleaved=interleaved)


def _slots(cfg, table, *, out_first, interleaved=None) -> tuple[Slot, ...]:
    interleaved = interleaved or {}
    every = leaves(cfg)
    widths: dict[str, int] = {}  # so far, along the output axis of each tensor
    starts = {}
    for path, (shape, n_in) in every.items():
        name = table[path]
        starts[path] = widths.get(name, 0)
        widths[name] = starts[path] + int(np.prod(shape[n_in:]))
    slots = []
    for path, (shape, n_in) in every.items():
        name = table[path]
        if n_in:
            size_in = int(np.prod(shape[:n_in]))
            disk_shape = (widths[name], size_in) if out_first else (size_in, widths[name])
        else:
            disk_shape = (widths[name],) if "/" in path else shape
        slots.append(
            Slot(
                path=tuple(path.split("/")),
                shape=shape,
                layers=cfg.n_layers if path.startswith("layers/") else None,
                n_in=n_in,
                tensor=name,
                disk_shape=disk_shape,
                start=starts[path],
                out_first=out_first and bool(n_in),
                interleaved_heads=interleaved.get(path, 0),
            )
        )
    return tuple(slots)


def _deinterleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Puts rows (0, 1), (2, 3), … of each head back into a first and a second half: [heads·H, …] -> the same."""
    split = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)
