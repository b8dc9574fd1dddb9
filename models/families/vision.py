"""Tensor names and settings of the vision tower; `models/vision.py` has its modules.

The names are those of Qwen2.5-VL. A tower in front of a decoder of another family is stored in the same way, next to
the tensors of the decoder.
"""

from __future__ import annotations

from typing import Any

from models.config import ModelConfig, VisionConfig
from models.families.family import Leaves
from models.hf_config import Fields

# Names in transformers 5 of the modules that published files call otherwise.
RENAMED = {"visual.": "model.visual.", "model.": "model.language_model."}
BLOCK = "visual.blocks.{}."

NAMES = {
    "vision/embed": "visual.patch_embed.proj.weight",
    "vision/norm": "visual.merger.ln_q.weight",
    "vision/up": "visual.merger.mlp.0.weight",
    "vision/up_bias": "visual.merger.mlp.0.bias",
    "vision/down": "visual.merger.mlp.2.weight",
    "vision/down_bias": "visual.merger.mlp.2.bias",
    "vision/layers/attn/norm": BLOCK + "norm1.weight",
    **{f"vision/layers/attn/{p}": BLOCK + "attn.qkv.weight" for p in "qkv"},
    **{f"vision/layers/attn/{p}_bias": BLOCK + "attn.qkv.bias" for p in "qkv"},
    "vision/layers/attn/o": BLOCK + "attn.proj.weight",
    "vision/layers/attn/o_bias": BLOCK + "attn.proj.bias",
    "vision/layers/mlp/norm": BLOCK + "norm2.weight",
    **{f"vision/layers/mlp/{p}": BLOCK + f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")},
    **{f"vision/layers/mlp/{p}_bias": BLOCK + f"mlp.{p}_proj.bias" for p in ("gate", "up", "down")},
}


def leaves(cfg: ModelConfig) -> Leaves:
    """Return the parameters of the tower, see `Family`; none without a tower."""
    if cfg.vision is None:
        return {}
    v = cfg.vision
    d, f, n, h, merged = v.d_model, v.d_ff, v.n_heads, v.head_dim, v.d_model * v.merge**2
    outside = {
        "embed": ((v.channels, v.frames, v.patch, v.patch, d), 4),
        "norm": ((d,), 0),
        "up": ((merged, merged), 1),
        "up_bias": ((merged,), 0),
        "down": ((merged, cfg.d_model), 1),
        "down_bias": ((cfg.d_model,), 0),
    }
    attn = {
        "norm": ((d,), 0),
        **dict.fromkeys("qkv", ((d, n, h), 1)),
        **{f"{p}_bias": ((n, h), 0) for p in "qkv"},
        "o": ((n, h, d), 2),
        "o_bias": ((d,), 0),
    }
    mlp = {
        "norm": ((d,), 0),
        **dict.fromkeys(("gate", "up"), ((d, f), 1)),
        **dict.fromkeys(("gate_bias", "up_bias"), ((f,), 0)),
        "down": ((f, d), 1),
        "down_bias": ((d,), 0),
    }
    layers = {f"attn/{name}": leaf for name, leaf in attn.items()} | {f"mlp/{name}": leaf for name, leaf in mlp.items()}
    return {f"vision/{name}": leaf for name, leaf in outside.items()} | {
        f"vision/layers/{name}": leaf for name, leaf in layers.items()
    }


def read(fields: Fields, width: int) -> VisionConfig | None:
    """Return the tower in a `config.json`, or None without one.

    Args:
        fields: Contents of the file.
        width: Width of the decoder.
    """
    values = fields.get("vision_config")
    if values is None:
        return None
    if not isinstance(values, dict):
        raise fields.error("vision_config", values, "an object")
    own = Fields(values, fields.source, prefix="vision_config.")
    own.one_of("hidden_act", ("silu",), "silu")
    own.one_of("out_hidden_size", (width,), width)
    rope = own.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise own.error("rope_parameters", rope, "an object or null")
    layers = own.integer("depth", 32)
    full = own.get("fullatt_block_indexes", [7, 15, 23, 31])
    if not isinstance(full, list) or not all(type(i) is int and 0 <= i < layers for i in full):
        raise own.error("fullatt_block_indexes", full, f"a list of layers from 0 to {layers - 1}")
    return VisionConfig(
        n_layers=layers,
        d_model=own.integer("hidden_size", 3584),
        n_heads=own.integer("num_heads", 16),
        d_ff=own.integer("intermediate_size", 3420),
        image_id=fields.integer("image_token_id", 151_655, low=0),
        start_id=fields.get("vision_start_token_id"),
        end_id=fields.get("vision_end_token_id"),
        channels=own.integer("in_channels", own.integer("in_chans", 3)),
        patch=own.integer("patch_size", 14),
        frames=own.integer("temporal_patch_size", 2),
        merge=own.integer("spatial_merge_size", 2),
        window=own.integer("window_size", 112),
        full_layers=None if len(set(full)) == layers else tuple(full),
        rope_theta=Fields(rope, fields.source, prefix="vision_config.rope_parameters.").number("rope_theta", 10_000.0),
    )


def write(cfg: ModelConfig) -> dict[str, Any]:
    """Return the fields of a `config.json`, the inverse of `read`; none without a tower."""
    if others := [name for name in ("audio", "table", "resampler") if getattr(cfg, name) is not None]:
        raise ValueError(f"{others[0]} is set, but must be None to write files: there are no names for its tensors")
    v = cfg.vision
    if v is None:
        return {}
    if v.norm_eps != 1e-6:
        raise ValueError(f"vision.norm_eps is {v.norm_eps}, but must be 1e-06, because config.json has no such field")
    return {
        "image_token_id": v.image_id,
        "vision_start_token_id": v.start_id,
        "vision_end_token_id": v.end_id,
        "vision_config": {
            "model_type": "qwen2_5_vl",
            "depth": v.n_layers,
            "hidden_size": v.d_model,
            "hidden_act": "silu",
            "intermediate_size": v.d_ff,
            "num_heads": v.n_heads,
            "in_channels": v.channels,
            "out_hidden_size": cfg.d_model,
            "patch_size": v.patch,
            "temporal_patch_size": v.frames,
            "spatial_merge_size": v.merge,
            "window_size": v.window,
            "fullatt_block_indexes": list(range(v.n_layers)) if v.full_layers is None else list(v.full_layers),
            "tokens_per_second": 2,
            "rope_parameters": {"rope_type": "axial", "rope_theta": v.rope_theta},
        },
    }
