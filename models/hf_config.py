"""A Hugging Face `config.json` to a ModelConfig and back.

What cannot be computed exactly is refused: an unknown architecture, another activation, a rope type or a bias that
the modules do not have. What is common to all models is here, what a family writes in its own way in `models/families`.
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
    """A config file with a value the decoder cannot honour; the message names file, field, found and accepted."""


def read(folder: str | Path) -> ModelConfig:
    """The config of a Hugging Face folder; stop ids come from `generation_config.json` where there is one."""
    path = Path(folder) / "config.json"
    values = _read_json(path)
    generation = Path(folder) / "generation_config.json"
    if generation.exists():
        stops = _read_json(generation).get("eos_token_id")
        values = values if stops is None else {**values, "eos_token_id": stops}
    return from_dict(values, source=str(path))


def from_dict(values: dict[str, Any], source: str = "config.json") -> ModelConfig:
    """The ModelConfig that the contents of a `config.json` describe; `source` is the name used in errors."""
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
    """The contents of a `config.json` that transformers (4.45 and later, 5 included) reads as this model."""
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
    """The first and the stop tokens, as both `config.json` and `generation_config.json` write them."""
    stops = cfg.eos_ids[0] if len(cfg.eos_ids) == 1 else list(cfg.eos_ids) or None
    return {"bos_token_id": cfg.bos_id, "eos_token_id": stops}


class Fields:
    """Checked access to the values of one JSON object."""

    def __init__(self, values: dict[str, Any], source: str, prefix: str = ""):
        self.values, self.source, self.prefix = values, source, prefix

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field, unchecked."""
        return self.values.get(name, default)

    def error(self, name: str, found: Any, accepted: str) -> ModelConfigError:
        """The error that a field has a value that cannot be used."""
        return ModelConfigError(f"{self.source}: {self.prefix}{name} is {found!r}, but must be {accepted}")

    def one_of(self, name: str, accepted: tuple, default: Any = None) -> Any:
        """A field whose value is one of a few."""
        found = self.values.get(name, default)
        if found not in accepted:
            raise self.error(name, found, ", ".join(map(repr, accepted)))
        return found

    def integer(self, name: str, default: int | None = None, low: int = 1) -> int:
        """A field with an integer from `low` up."""
        found = self.values.get(name)
        found = default if found is None else found
        if not isinstance(found, int) or isinstance(found, bool) or found < low:
            raise self.error(name, found, f"an integer >= {low}")
        return found

    def number(self, name: str, default: float | None = None) -> float:
        """A field with a number."""
        found = self.values.get(name)
        found = default if found is None else found
        if not isinstance(found, int | float) or isinstance(found, bool):
            raise self.error(name, found, "a number")
        return float(found)

    def ids(self, name: str) -> tuple[int, ...]:
        """A field with a token id, several or none."""
        found = self.values.get(name)
        found = [] if found is None else found if isinstance(found, list) else [found]
        if not all(isinstance(i, int) and -1 <= i < 1 << 31 for i in found):
            raise self.error(name, found, "an id, a list of ids or null")
        return tuple(found)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelConfigError(f"{path} is absent; expected the config of a Hugging Face model") from None
    except (ValueError, RecursionError) as error:
        raise ModelConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelConfigError(f"{path} holds a {type(values).__name__}; expected an object")
    return values
