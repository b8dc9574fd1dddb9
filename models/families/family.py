"""The definition of a model family: modules, parameter names and file formats."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from models.config import ModelConfig
from models.hf_config import Fields

Leaves = dict[str, tuple[tuple[int, ...], int]]


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """Everything that is specific to one model family.

    Attributes:
        ends: NNX module of the embedding, the last norm and the head, see `models/decoder.py`.
        block: NNX module of one layer.
        fuse: `fuse(layer, cfg)` returns the parameters of a layer in the layout for decoding.
        leaves: `leaves(cfg)` returns the path of every parameter, such as layers/attn/q, with its shape in one layer
            and the number of leading axes that are contracted (0 if it is not a matrix). Parameters that share a tensor
            on disk are listed in the order in which it stores them. Those of a vision tower begin with vision/.
        lora_targets: Projections that support LoRA adapters.
        architecture: Hugging Face: name of the architecture in `config.json`.
        read_config: Hugging Face: `read_config(fields)` returns the fields of `ModelConfig` except family, vocabulary
            and token ids.
        write_config: Hugging Face: `write_config(cfg)` is the inverse.
        hf_names: Hugging Face: tensor name of every parameter, with {} for the layer.
        gguf_names: GGUF: tensor name of every parameter. None if GGUF has no such architecture.
        hf_modules: Hugging Face: beginning of the names of the decoder's modules in transformers, where it differs from
            the `model.` of the tensors.
        hf_out_first: Hugging Face: whether matrices are stored as [out, in].
        gguf_norm_eps: GGUF: metadata field for the epsilon of the norms.
        gguf_interleaved: GGUF: whether llama.cpp interleaves the two halves of each head in q and k.
        learned_positions: Whether positions are rows of a table, which limits them to `max_positions`.
        fixed: Fields of `ModelConfig` with the same value in all models of the family.
    """

    ends: Callable[..., Any]
    block: Callable[..., Any]
    fuse: Callable[[dict, ModelConfig], dict]
    leaves: Callable[[ModelConfig], Leaves]
    lora_targets: tuple[str, ...]
    architecture: str
    read_config: Callable[[Fields], dict[str, Any]]
    write_config: Callable[[ModelConfig], dict[str, Any]]
    hf_names: Mapping[str, str]
    gguf_names: Mapping[str, str] | None = None
    hf_modules: str | None = None
    hf_out_first: bool = True
    gguf_norm_eps: str = "attention.layer_norm_rms_epsilon"
    gguf_interleaved: bool = False
    learned_positions: bool = False
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
