"""Tensor names and settings of GPT-2 and DialoGPT; `models/gpt2.py` has the modules."""

from __future__ import annotations

from typing import Any

from models import gpt2
from models.config import ModelConfig
from models.families import vision
from models.families.family import Family, Leaves
from models.hf_config import Fields

NAMES = {
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

GGUF_NAMES = {
    "embed": "token_embd.weight",
    "positions": "position_embd.weight",
    "norm": "output_norm.weight",
    "norm_bias": "output_norm.bias",
    "layers/attn/norm": "blk.{}.attn_norm.weight",
    "layers/attn/norm_bias": "blk.{}.attn_norm.bias",
    **{f"layers/attn/{p}": "blk.{}.attn_qkv.weight" for p in "qkv"},
    **{f"layers/attn/{p}_bias": "blk.{}.attn_qkv.bias" for p in "qkv"},
    "layers/attn/o": "blk.{}.attn_output.weight",
    "layers/attn/o_bias": "blk.{}.attn_output.bias",
    "layers/mlp/norm": "blk.{}.ffn_norm.weight",
    "layers/mlp/norm_bias": "blk.{}.ffn_norm.bias",
    "layers/mlp/up": "blk.{}.ffn_up.weight",
    "layers/mlp/up_bias": "blk.{}.ffn_up.bias",
    "layers/mlp/down": "blk.{}.ffn_down.weight",
    "layers/mlp/down_bias": "blk.{}.ffn_down.bias",
}


def leaves(cfg: ModelConfig) -> Leaves:
    """Return all parameters, see `Family`."""
    d, f, n, h = cfg.d_model, cfg.d_ff, cfg.n_heads, cfg.head_dim
    outside = {
        "embed": ((cfg.vocab_size, d), 0),
        "norm": ((d,), 0),
        "positions": ((cfg.max_positions, d), 0),
        "norm_bias": ((d,), 0),
    }
    attn = {
        "norm": ((d,), 0),
        **dict.fromkeys("qkv", ((d, n, h), 1)),
        "o": ((n, h, d), 2),
        **{f"{p}_bias": ((n, h), 0) for p in "qkv"},
        "norm_bias": ((d,), 0),
        "o_bias": ((d,), 0),
    }
    mlp = {
        "norm": ((d,), 0),
        "up": ((d, f), 1),
        "down": ((f, d), 1),
        "norm_bias": ((d,), 0),
        "up_bias": ((f,), 0),
        "down_bias": ((d,), 0),
    }
    attn = {f"layers/attn/{name}": leaf for name, leaf in attn.items()}
    return outside | attn | {f"layers/mlp/{name}": leaf for name, leaf in mlp.items()} | vision.leaves(cfg)


def read_config(fields: Fields) -> dict[str, Any]:
    """Return the fields of `ModelConfig` from a `config.json`."""
    d_model, heads = fields.integer("n_embd"), fields.integer("n_head")
    fields.one_of("activation_function", ("gelu_new", "gelu_pytorch_tanh"), "gelu_new")
    fields.one_of("scale_attn_weights", (True,), True)
    fields.one_of("scale_attn_by_inverse_layer_idx", (False,), False)
    fields.one_of("add_cross_attention", (False,), False)
    fields.one_of("tie_word_embeddings", (True,), True)
    return dict(
        d_model=d_model,
        n_layers=fields.integer("n_layer"),
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=d_model // heads,
        d_ff=fields.integer("n_inner", 4 * d_model),
        max_positions=fields.integer("n_positions"),
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        vision=vision.read(fields, d_model),
    )


def write_config(cfg: ModelConfig) -> dict[str, Any]:
    """Return the fields of a `config.json`, the inverse of `read_config`."""
    return {
        "n_embd": cfg.d_model,
        "n_layer": cfg.n_layers,
        "n_head": cfg.n_heads,
        "n_inner": cfg.d_ff,
        "n_positions": cfg.max_positions,
        "layer_norm_epsilon": cfg.norm_eps,
        "activation_function": "gelu_new",
        **vision.write(cfg),
    }


GPT2 = Family(
    ends=gpt2.Gpt2Ends,
    block=gpt2.Gpt2Block,
    fuse=gpt2.fuse,
    leaves=leaves,
    lora_targets=("q", "k", "v", "o", "up", "down"),
    architecture="GPT2LMHeadModel",
    read_config=read_config,
    write_config=write_config,
    hf_names=NAMES,
    hf_out_first=False,  # Conv1D is [in, out]
    gguf_names=GGUF_NAMES,
    gguf_norm_eps="attention.layer_norm_epsilon",
    learned_positions=True,
    fixed={"tie_embeddings": True},
)
