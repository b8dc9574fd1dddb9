"""What a model family defines: modules, parameter names and file formats."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from models.config import ModelConfig
from models.hf_config import Fields

Leaves = dict[str, tuple[tuple[int, ...], int]]


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """All that sets one family apart.

    ends, block        NNX modules: what is around the layers, and one layer, see `models/decoder.py`
    fuse               `fuse(layer, cfg)`: a layer's parameters as sampling reads them
    leaves             `leaves(cfg)`: the path of every parameter, such as layers/attn/q, with the shape of one layer
                       and the number of its leading axes that are summed over (0 for what is no matrix). Parameters
                       that share a tensor on disk stand in the order in which they lie there
    lora_targets       the projections that can have LoRA adapters
    learned_positions  positions are rows of a table, so that there are no more than `max_positions`
    fixed              fields of `ModelConfig` that are the same in all models of the family

    In Hugging Face folders:
    architecture       the name in `config.json`
    read_config        `read_config(fields)`: the fields of `ModelConfig` beside family, vocabulary and token ids
    write_config       `write_config(cfg)`: the opposite
    hf_names           the tensor of every parameter, {} for the layer
    hf_out_first       matrices are stored as [out, in]

    In GGUF files:
    gguf_names         the tensor of every parameter; None: there is no such architecture
    gguf_norm_eps      the metadata field of the norms' epsilon
    gguf_interleaved   llama.cpp interleaves the two halves of each head in q and k
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
    hf_out_first: bool = True
    gguf_norm_eps: str = "attention.layer_norm_rms_epsilon"
    gguf_interleaved: bool = False
    learned_positions: bool = False
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
