"""Tensor names and settings of the LLaMA families; `models/decoder.py` has their modules.

Both forms of the rotary settings can be read (`rope_theta` with `rope_scaling`, and `rope_parameters` of transformers
5). The older form is written, because every version of transformers since 4.45 reads it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from models import decoder, lora
from models.config import ModelConfig, RopeScaling
from models.families import vision
from models.families.family import Family, Leaves
from models.hf_config import Fields

NAMES = {
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

PHI3_NAMES = {
    **NAMES,
    **{f"layers/attn/{p}": "model.layers.{}.self_attn.qkv_proj.weight" for p in "qkv"},
    **{f"layers/mlp/{p}": "model.layers.{}.mlp.gate_up_proj.weight" for p in ("gate", "up")},
}

GGUF_NAMES = {
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

PHI3_GGUF_NAMES = {
    **GGUF_NAMES,
    **{f"layers/attn/{p}": "blk.{}.attn_qkv.weight" for p in "qkv"},
    **{f"layers/mlp/{p}": "blk.{}.ffn_up.weight" for p in ("gate", "up")},
}


def leaves(cfg: ModelConfig) -> Leaves:
    """Return all parameters, see `Family`."""
    d, f, n, k, h = cfg.d_model, cfg.d_ff, cfg.n_heads, cfg.n_kv_heads, cfg.head_dim
    outside = {"embed": ((cfg.vocab_size, d), 0), "norm": ((d,), 0)}
    if not cfg.tie_embeddings:
        outside["head"] = ((d, cfg.vocab_size), 1)
    attn = {"norm": ((d,), 0), "q": ((d, n, h), 1), "k": ((d, k, h), 1), "v": ((d, k, h), 1), "o": ((n, h, d), 2)}
    if cfg.qkv_bias:
        attn |= {"q_bias": ((n, h), 0), "k_bias": ((k, h), 0), "v_bias": ((k, h), 0)}
    if cfg.qk_norm:
        attn |= {"q_norm": ((h,), 0), "k_norm": ((h,), 0)}
    mlp = {"norm": ((d,), 0), "gate": ((d, f), 1), "up": ((d, f), 1), "down": ((f, d), 1)}
    attn = {f"layers/attn/{name}": leaf for name, leaf in attn.items()}
    return outside | attn | {f"layers/mlp/{name}": leaf for name, leaf in mlp.items()} | vision.leaves(cfg)


# --- Settings -------------------------------------------------------------------------------------------------------


def no_window(fields: Fields, layers: int) -> None:
    """Return None: no sliding window."""
    return None


def plain_window(fields: Fields, layers: int, default: int | None = None) -> int | None:
    """Return the sliding window of all layers."""
    kinds = fields.get("layer_types") or ()
    if len(set(kinds)) > 1:
        raise fields.error("layer_types", sorted(set(kinds)), "the same for all layers")
    return fields.get("sliding_window", default)


def qwen_window(fields: Fields, layers: int) -> int | None:
    """Return the sliding window of Qwen, which a second field enables."""
    window = plain_window(fields, layers)
    if not fields.get("use_sliding_window", False):
        return None
    first = fields.integer("max_window_layers", 28, low=0)  # layers before this one have no window
    if first >= layers:
        return None
    if first:
        raise fields.error("max_window_layers", first, f"0 or >= num_hidden_layers, which is {layers}")
    return window


def read_config(
    fields: Fields,
    *,
    window: Callable[[Fields, int], int | None] = no_window,
    head_dim: int | None = None,
    norm_eps: float = 1e-6,
    attention_bias: tuple = (False,),
    activation: str = "silu",
) -> dict[str, Any]:
    """Return the fields of `ModelConfig` from a `config.json`.

    Args:
        fields: Contents of the file.
        window: Returns the sliding window, given the fields and the number of layers.
        head_dim: Default head size. None: d_model / n_heads.
        norm_eps: Default epsilon of the norms.
        attention_bias: Supported values of `attention_bias`.
        activation: Supported activation.
    """
    heads = fields.integer("num_attention_heads")
    d_model = fields.integer("hidden_size")
    layers = fields.integer("num_hidden_layers")
    fields.one_of("hidden_act", (activation,), activation)
    fields.one_of("mlp_bias", (False,), False)
    fields.one_of("attention_bias", attention_bias, False)
    theta, scaling = _rope(fields)
    return dict(
        d_model=d_model,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim", head_dim or d_model // heads),
        d_ff=fields.integer("intermediate_size"),
        max_positions=fields.integer("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps", norm_eps),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_embeddings=fields.one_of("tie_word_embeddings", (True, False), False),
        sliding_window=window(fields, layers),
        vision=vision.read(fields, d_model),
    )


def write_config(cfg: ModelConfig) -> dict[str, Any]:
    """Return the fields of a `config.json`, the inverse of `read_config`."""
    return {
        "hidden_size": cfg.d_model,
        "num_hidden_layers": cfg.n_layers,
        "num_attention_heads": cfg.n_heads,
        "num_key_value_heads": cfg.n_kv_heads,
        "head_dim": cfg.head_dim,
        "intermediate_size": cfg.d_ff,
        "max_position_embeddings": cfg.max_positions,
        "rms_norm_eps": cfg.norm_eps,
        "rope_theta": cfg.rope_theta,
        "rope_scaling": _rope_scaling_dict(cfg.rope_scaling),
        "hidden_act": "silu",
        "sliding_window": cfg.sliding_window,
        **vision.write(cfg),
    }


def write_qwen(cfg: ModelConfig) -> dict[str, Any]:
    """Return the fields of a `config.json` with the one that enables the sliding window."""
    return write_config(cfg) | {"use_sliding_window": cfg.sliding_window is not None, "max_window_layers": 0}


def write_phi3(cfg: ModelConfig) -> dict[str, Any]:
    """Return the fields of a `config.json` with an explicit padding id.

    Otherwise transformers pads with 32000, which a smaller vocabulary does not have.
    """
    return write_config(cfg) | {"original_max_position_embeddings": cfg.max_positions, "pad_token_id": None}


def _rope(fields: Fields) -> tuple[float, RopeScaling | None]:
    """Return the base and the scaling of the rotary frequencies from either form."""
    name = "rope_parameters" if fields.get("rope_parameters") else "rope_scaling"
    rope = fields.get(name) or {}
    if not isinstance(rope, dict):
        raise fields.error(name, rope, "an object or null")
    rope = Fields(rope, fields.source, prefix=f"{name}.")
    theta = rope.number("rope_theta", fields.number("rope_theta", 10_000.0))
    for owner in (fields, rope):
        owner.one_of("partial_rotary_factor", (1.0,), 1.0)
    kind_field = "rope_type" if "rope_type" in rope.values else "type"
    kind = rope.one_of(kind_field, ("default", "linear", "llama3"), "default")
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", rope.number("factor"))
    return theta, RopeScaling(
        "llama3",
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_positions=rope.integer("original_max_position_embeddings"),
    )


def _rope_scaling_dict(scaling: RopeScaling | None) -> dict[str, Any] | None:
    """Return the field `rope_scaling` of a `config.json`."""
    if scaling is None:
        return None
    if scaling.kind == "linear":
        return {"rope_type": "linear", "factor": scaling.factor}
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_positions,
    }


# --- The families ---------------------------------------------------------------------------------------------------

_family = functools.partial(
    Family,
    ends=decoder.Ends,
    block=decoder.Block,
    fuse=decoder.fuse,
    leaves=leaves,
    lora_targets=lora.TARGETS,
    read_config=read_config,
    write_config=write_config,
    hf_names=NAMES,
)

LLAMA = _family(architecture="LlamaForCausalLM", gguf_names=GGUF_NAMES, gguf_interleaved=True)

MISTRAL = _family(  # GGUF files of Mistral have the architecture llama
    architecture="MistralForCausalLM",
    read_config=functools.partial(read_config, window=functools.partial(plain_window, default=4096)),
)

PHI3 = _family(
    architecture="Phi3ForCausalLM",
    read_config=functools.partial(read_config, window=plain_window, norm_eps=1e-5),
    write_config=write_phi3,
    hf_names=PHI3_NAMES,
    gguf_names=PHI3_GGUF_NAMES,
)

QWEN2 = _family(
    architecture="Qwen2ForCausalLM",
    # q, k and v always have biases and o never has one. The flag, if present, changes nothing.
    read_config=functools.partial(read_config, window=qwen_window, attention_bias=(True, False, None)),
    write_config=write_qwen,
    gguf_names=GGUF_NAMES,
    fixed={"qkv_bias": True},
)

QWEN3 = _family(
    architecture="Qwen3ForCausalLM",
    read_config=functools.partial(read_config, window=qwen_window, head_dim=128),
    write_config=write_qwen,
    gguf_names=GGUF_NAMES,
    fixed={"qk_norm": True},
)
