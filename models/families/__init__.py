"""The families of models and what each of them brings, in one table.

A family is two files and a line: its modules (as `models/gpt2.py`), the names and settings of its files (as
`models/families/gpt2.py`), and the line below. Another package adds one with `FAMILIES.add("name", "module:FAMILY")` or
an entry point of the group `marl_jax.model_families`; the name is the `model_type` of its `config.json`.
"""

from __future__ import annotations

from registries import Registry

FAMILIES = Registry("model_families")
FAMILIES.add("llama", "models.families.rotary:LLAMA")
FAMILIES.add("mistral", "models.families.rotary:MISTRAL")
FAMILIES.add("phi3", "models.families.rotary:PHI3")
FAMILIES.add("qwen2", "models.families.rotary:QWEN2")
FAMILIES.add("qwen3", "models.families.rotary:QWEN3")
FAMILIES.add("gpt2", "models.families.gpt2:GPT2")
