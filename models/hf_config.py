"""A Hugging Face `config.json` to a ModelConfig and back.

What cannot be computed exactly is refused: an unknown architecture, another activation, a rope type or a bias that
the decoder does not have. Both ways of writing the rotary settings are read (`rope_theta` + `rope_scaling`, and
`rope_parameters` of transformers 5); the older way is written, because every version of transformers since 4.45
reads it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from models.config import FAMILIES, ModelConfig, RopeScaling

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}
DTYPES = ("float32", "bfloat16", "float16")


class ConfigError(ValueError):
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
    fields = _Fields(values, source)
    family = fields.one_of("model_type", FAMILIES)
    fields.one_of("quantization_config", (None,), None)
    return _gpt2(fields) if family == "gpt2" else _rotary(fields, family)


def to_dict(cfg: ModelConfig, dtype: str = "float32") -> dict[str, Any]:
    """The contents of a `config.json` that transformers (4.45 and later, 5 included) reads as this model."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; accepted: {', '.join(DTYPES)}")
    common = {
        "architectures": [ARCHITECTURES[cfg.family]],
        "model_type": cfg.family,
        "vocab_size": cfg.vocab_size,
        "tie_word_embeddings": cfg.tie_embeddings,
        **token_ids(cfg),
        "torch_dtype": dtype,
    }
    if cfg.family == "gpt2":
        return common | {
            "n_embd": cfg.d_model,
            "n_layer": cfg.n_layers,
            "n_head": cfg.n_heads,
            "n_inner": cfg.d_ff,
            "n_positions": cfg.max_positions,
            "layer_norm_epsilon": cfg.norm_eps,
            "activation_function": "gelu_new",
        }
    rotary = common | {
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
    }
    if cfg.family in ("qwen2", "qwen3"):
        rotary |= {"use_sliding_window": cfg.sliding_window is not None, "max_window_layers": 0}
    if cfg.family == "phi3":
        # transformers pads with id 32000 unless told otherwise, which a smaller vocabulary does not have.
        rotary |= {"original_max_position_embeddings": cfg.max_positions, "pad_token_id": None}
    return rotary


def token_ids(cfg: ModelConfig) -> dict[str, Any]:
    """The first and the stop tokens, as both `config.json` and `generation_config.json` write them."""
    stops = cfg.eos_ids[0] if len(cfg.eos_ids) == 1 else list(cfg.eos_ids) or None
    return {"bos_token_id": cfg.bos_id, "eos_token_id": stops}


def _rotary(fields: _Fields, family: str) -> ModelConfig:
    heads = fields.integer("num_attention_heads")
    d_model = fields.integer("hidden_size")
    layers = fields.integer("num_hidden_layers")
    fields.one_of("hidden_act", ("silu",), "silu")
    fields.one_of("mlp_bias", (False,), False)
    # Qwen2 always has biases on q, k and v and never on o; the flag, where it is written at all, changes nothing.
    if family != "qwen2":
        fields.one_of("attention_bias", (False,), False)
    theta, scaling = _rope(fields)
    return ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        d_model=d_model,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim", 128 if family == "qwen3" else d_model // heads),
        d_ff=fields.integer("intermediate_size"),
        max_positions=fields.integer("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps", 1e-5 if family == "phi3" else 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_embeddings=fields.one_of("tie_word_embeddings", (True, False), False),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        sliding_window=_window(fields, family, layers),
        bos_id=fields.get("bos_token_id"),
        eos_ids=fields.ids("eos_token_id"),
    )


def _gpt2(fields: _Fields) -> ModelConfig:
    d_model, heads = fields.integer("n_embd"), fields.integer("n_head")
    fields.one_of("activation_function", ("gelu_new", "gelu_pytorch_tanh"), "gelu_new")
    fields.one_of("scale_attn_weights", (True,), True)
    fields.one_of("scale_attn_by_inverse_layer_idx", (False,), False)
    fields.one_of("add_cross_attention", (False,), False)
    fields.one_of("tie_word_embeddings", (True,), True)
    return ModelConfig(
        family="gpt2",
        vocab_size=fields.integer("vocab_size"),
        d_model=d_model,
        n_layers=fields.integer("n_layer"),
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=d_model // heads,
        d_ff=fields.integer("n_inner", 4 * d_model),
        max_positions=fields.integer("n_positions"),
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        tie_embeddings=True,
        bos_id=fields.get("bos_token_id"),
        eos_ids=fields.ids("eos_token_id"),
    )


def _rope(fields: _Fields) -> tuple[float, RopeScaling | None]:
    """The base of the rotary frequencies and how they are stretched, from either way of writing them."""
    name = "rope_parameters" if fields.get("rope_parameters") else "rope_scaling"
    rope = fields.get(name) or {}
    if not isinstance(rope, dict):
        raise fields.error(name, rope, "an object or null")
    rope = _Fields(rope, fields.source, prefix=f"{name}.")
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


def _window(fields: _Fields, family: str, layers: int) -> int | None:
    """The sliding window of every layer; Qwen writes one that counts only where a second field switches it on."""
    if family == "llama":
        return None
    window = fields.get("sliding_window", 4096 if family == "mistral" else None)
    kinds = fields.get("layer_types") or ()
    if len(set(kinds)) > 1:
        raise fields.error("layer_types", sorted(set(kinds)), "one and the same kind for every layer")
    if family in ("qwen2", "qwen3"):
        if not fields.get("use_sliding_window", False):
            return None
        first = fields.integer("max_window_layers", 28)  # layers before this one see everything
        if first >= layers:
            return None
        if first:
            raise fields.error("max_window_layers", first, f"0 or at least num_hidden_layers, {layers}")
    return window


class _Fields:
    """Checked access to the values of one JSON object."""

    def __init__(self, values: dict[str, Any], source: str, prefix: str = ""):
        self.values, self.source, self.prefix = values, source, prefix

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)

    def error(self, name: str, found: Any, accepted: str) -> ConfigError:
        return ConfigError(f"{self.source}: {self.prefix}{name} is {found!r}; accepted: {accepted}")

    def one_of(self, name: str, accepted: tuple, default: Any = None) -> Any:
        found = self.values.get(name, default)
        if found not in accepted:
            raise self.error(name, found, ", ".join(map(repr, accepted)))
        return found

    def integer(self, name: str, default: int | None = None) -> int:
        found = self.values.get(name)
        found = default if found is None else found
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise self.error(name, found, "a whole number")
        return found

    def number(self, name: str, default: float | None = None) -> float:
        found = self.values.get(name)
        found = default if found is None else found
        if not isinstance(found, int | float) or isinstance(found, bool):
            raise self.error(name, found, "a number")
        return float(found)

    def ids(self, name: str) -> tuple[int, ...]:
        found = self.values.get(name)
        found = [] if found is None else found if isinstance(found, list) else [found]
        if not all(isinstance(i, int) for i in found):
            raise self.error(name, found, "an id, a list of ids or null")
        return tuple(found)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} is absent; expected the config of a Hugging Face model") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds a {type(values).__name__}; expected an object")
    return values
