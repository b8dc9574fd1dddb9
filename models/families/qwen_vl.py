"""Settings of Qwen2.5-VL: the decoder of Qwen2 with mRoPE, and a vision tower.

Both forms of `config.json` can be read: flat, as published, and with `text_config`, as transformers 5 writes it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from models.config import ModelConfig
from models.families import rotary
from models.families.vision import RENAMED
from models.hf_config import Fields


def read_config(fields: Fields) -> dict[str, Any]:
    """Return the fields of `ModelConfig` from a `config.json`."""
    if fields.get("vision_config") is None:
        raise fields.error("vision_config", None, "an object")
    name = "rope_parameters" if fields.get("rope_parameters") else "rope_scaling"
    rope = fields.get(name) or {}
    sections = rope.get("mrope_section") if isinstance(rope, dict) else None
    if not isinstance(sections, list):
        raise fields.error(f"{name}.mrope_section", sections, "a list of three integers")
    plain = {key: "default" if value == "mrope" else value for key, value in rope.items()}
    values = {"rope_theta": 1e6, **fields.values, name: plain}
    own = rotary.read_config(
        Fields(values, fields.source, fields.prefix),
        window=rotary.qwen_window,
        norm_eps=1e-5,
        attention_bias=(True, False, None),
    )
    return own | {"mrope_sections": tuple(sections)}


def write_config(cfg: ModelConfig) -> dict[str, Any]:
    """Return the fields of a `config.json`, the inverse of `read_config`."""
    if cfg.vision is None or cfg.mrope_sections is None:
        raise ValueError("vision and mrope_sections must be set to write the config.json of Qwen2.5-VL")
    return rotary.write_qwen(cfg) | {
        "rope_scaling": {"type": "mrope", "mrope_section": list(cfg.mrope_sections)},
        "video_token_id": cfg.vision.image_id + 1,
    }


QWEN2_5_VL = dataclasses.replace(
    rotary.QWEN2,
    architecture="Qwen2_5_VLForConditionalGeneration",
    read_config=read_config,
    write_config=write_config,
    hf_modules=RENAMED["model."],
    gguf_names=None,
)
