"""The registry of model families.

A family needs its modules (see `models/gpt2.py`), the names and settings of its files (see `models/families/gpt2.py`),
and a line below. Other packages can add a family with `FAMILIES.add("name", "module:FAMILY")` or an entry point of the
group `marl_jax.model_families`. Its name is the `model_type` of its `config.json`.
"""

from __future__ import annotations

from registries import Registry

FAMILIES = Registry("model_families")
FAMILIES.add("llama", "models.families.rotary:LLAMA")
FAMILIES.add("mistral", "models.families.rotary:MISTRAL")
FAMILIES.add("phi3", "models.families.rotary:PHI3")
FAMILIES.add("qwen2", "models.families.rotary:QWEN2")
FAMILIES.add("qwen3", "models.families.rotary:QWEN3")
FAMILIES.add("qwen2_5_vl", "models.families.qwen_vl:QWEN2_5_VL")
FAMILIES.add("gpt2", "models.families.gpt2:GPT2")
