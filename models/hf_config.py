"""Conversion between a Hugging Face `config.json` and a `ModelConfig`.

Configs that cannot be computed exactly are rejected: unknown architectures, other activations, rope types, or biases
that the modules do not have. This module has the parts that all models share. `models/families` has the parts that are
specific to a family.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from models.config import ModelConfig
from models.errors import ModelFileError, refuse_malformed
from models.families import FAMILIES

DTYPES = ("float32", "bfloat16", "float16")


class ModelConfigError(ModelFileError):
    """A config file with an unsupported value; the message names the file and the field."""


def read(folder: str | Path) -> ModelConfig:
    """Return the config of a Hugging Face folder.

    Stop ids come from `generation_config.json` if it exists.
    """
    path = Path(folder) / "config.json"
    values = _read_json(path)
    generation = Path(folder) / "generation_config.json"
    if generation.exists():
        stops = _read_json(generation).get("eos_token_id")
        values = values if stops is None else {**values, "eos_token_id": stops}
    return from_dict(values, source=str(path))


def from_dict(values: dict[str, Any], source: str = "config.json") -> ModelConfig:
    """Return the `ModelConfig` for the contents of a `config.json`; `source` names it in errors."""
    text = values.get("text_config")  # the decoder of a vision-language model, written by transformers 5
    if isinstance(text, dict):
        values = {**text, **{name: value for name, value in values.items() if value is not None}}
    fields = Fields(values, source)
    name = fields.one_of("model_type", FAMILIES.names())
    fields.one_of("quantization_config", (None,), None)
    family = FAMILIES.get(name)
    with refuse_malformed(ModelConfigError, source):
        return ModelConfig(
            family=name,
            vocab_size=fields.integer("vocab_size"),
            bos_id=fields.get("bos_token_id"),
            eos_ids=fields.ids("eos_token_id"),
            **family.read_config(fields),
            **family.fixed,
        )


def to_dict(cfg: ModelConfig, dtype: str = "float32") -> dict[str, Any]:
    """Return the contents of a `config.json` for transformers 4.45 and later."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}, but must be one of: {', '.join(DTYPES)}")
    family = FAMILIES.get(cfg.family)
    return {
        "architectures": [family.architecture],
        "model_type": cfg.family,
        "vocab_size": cfg.vocab_size,
        "tie_word_embeddings": cfg.tie_embeddings,
        **token_ids(cfg),
        "torch_dtype": dtype,
        **family.write_config(cfg),
    }


def token_ids(cfg: ModelConfig) -> dict[str, Any]:
    """Return the bos and stop tokens in the form of `config.json` and `generation_config.json`."""
    stops = cfg.eos_ids[0] if len(cfg.eos_ids) == 1 else list(cfg.eos_ids) or None
    return {"bos_token_id": cfg.bos_id, "eos_token_id": stops}


class Fields:
    """Checked access to the fields of a JSON object."""

    def __init__(self, values: dict[str, Any], source: str, prefix: str = ""):
        self.values, self.source, self.prefix = values, source, prefix

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a field, unchecked."""
        return self.values.get(name, default)

    def error(self, name: str, value: Any, accepted: str) -> ModelConfigError:
        """Return an error about an unsupported value of a field."""
        return ModelConfigError(f"{self.source}: {self.prefix}{name} is {value!r}, but must be {accepted}")

    def one_of(self, name: str, accepted: tuple, default: Any = None) -> Any:
        """Return the value of a field, which must be one of `accepted`."""
        value = self.values.get(name, default)
        if value not in accepted:
            raise self.error(name, value, ("one of: " if len(accepted) > 1 else "") + ", ".join(map(repr, accepted)))
        return value

    def integer(self, name: str, default: int | None = None, low: int = 1) -> int:
        """Return the value of an integer field, which must be >= `low`."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise self.error(name, value, f"an integer >= {low}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return the value of a numeric field."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(name, value, "a number")
        return float(value)

    def ids(self, name: str) -> tuple[int, ...]:
        """Return the token ids of a field: one id, a list of ids, or null."""
        value = self.values.get(name)
        value = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and -1 <= i < 1 << 31 for i in value):
            raise self.error(name, value, "an id, a list of ids or null")
        return tuple(value)


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelConfigError(f"{path} does not exist, but a Hugging Face model needs it") from None
    except (ValueError, RecursionError) as error:
        raise ModelConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelConfigError(f"{path} contains a {type(values).__name__}, but must contain an object")
    return values
