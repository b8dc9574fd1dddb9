"""`config.json` in and out, and what is refused."""

import dataclasses
import json

import pytest

from models import hf_config, registry
from models.config import RopeScaling
from tests.models.tiny_models import CONFIGS

pytestmark = pytest.mark.quick

QWEN = {
    "model_type": "qwen2", "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip

# Models with encoders of sounds and tables, which have no published format.
WITHOUT_FILES = ("tiny-media", "tiny-media-cross")


def loaded(**fields):
    return hf_config.from_dict(QWEN | fields)


@pytest.mark.parametrize("name", [name for name in registry.names() if name not in WITHOUT_FILES])
def test_registered_configs_survive_the_way_there_and_back(name):
    cfg = registry.get(name).config
    assert hf_config.from_dict(json.loads(json.dumps(hf_config.to_dict(cfg)))) == cfg


@pytest.mark.parametrize("name", WITHOUT_FILES)
def test_configs_with_encoders_that_no_format_names_are_refused(name):
    with pytest.raises(ValueError, match="audio is set, but must be None to write files"):
        hf_config.to_dict(registry.get(name).config)


@pytest.mark.parametrize("family", CONFIGS)
def test_transformers_reads_what_is_written(family, tmp_path):
    transformers = pytest.importorskip("transformers")
    cfg = dataclasses.replace(CONFIGS[family], bos_id=1, eos_ids=(2, 3))
    (tmp_path / "config.json").write_text(json.dumps(hf_config.to_dict(cfg)))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert theirs.model_type == cfg.family and theirs.vocab_size == cfg.vocab_size
    assert (theirs.hidden_size, theirs.num_hidden_layers, theirs.num_attention_heads) == (
        cfg.d_model, cfg.n_layers, cfg.n_heads,
    )  # fmt: skip
    # Written by transformers itself, the config comes back to the same model: both ways of rotary settings are read.
    theirs.save_pretrained(tmp_path / "again")
    assert hf_config.read(tmp_path / "again") == cfg


def test_rotary_settings_are_read_in_both_forms():
    old = loaded(rope_theta=5e5, rope_scaling=LLAMA3)
    new = hf_config.from_dict({k: v for k, v in QWEN.items() if k != "rope_theta"}
                              | {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}})  # fmt: skip
    assert old == new
    assert old.rope_theta == 5e5 and old.rope_scaling == RopeScaling("llama3", 8.0)
    assert loaded(rope_scaling={"type": "linear", "factor": 2.0}).rope_scaling == RopeScaling("linear", 2.0)
    assert loaded(rope_parameters={"rope_type": "default", "rope_theta": 7.0}).rope_theta == 7.0


def test_qwens_window_counts_only_when_switched_on():
    assert loaded(sliding_window=32).sliding_window is None
    assert loaded(sliding_window=32, use_sliding_window=True, max_window_layers=4).sliding_window is None
    assert loaded(sliding_window=32, use_sliding_window=True, max_window_layers=0).sliding_window == 32
    with pytest.raises(
        hf_config.ModelConfigError, match="max_window_layers is 2, but must be 0 or >= num_hidden_layers"
    ):
        loaded(sliding_window=32, use_sliding_window=True, max_window_layers=2)


def test_mistrals_window_is_on_unless_null():
    mistral = QWEN | {"model_type": "mistral"}
    assert hf_config.from_dict(mistral).sliding_window == 4096
    assert hf_config.from_dict(mistral | {"sliding_window": None}).sliding_window is None


def test_stop_ids_come_from_the_generation_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    assert hf_config.read(tmp_path).eos_ids == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 2]}')
    assert hf_config.read(tmp_path).eos_ids == (5, 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba', but must be one of: 'llama', 'mistral'"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu', but must be 'silu'"),
        ({"hidden_size": "32"}, "hidden_size is '32', but must be an integer"),
        ({"num_hidden_layers": None}, "num_hidden_layers is None, but must be an integer"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type is 'yarn'"),
        ({"rope_scaling": {"type": "longrope"}}, "rope_scaling.type is 'longrope', but must be one of: 'default'"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_parameters.rope_type is 'dynamic'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, but must be 1.0"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}, but must be None"),
        ({"model_type": "llama", "attention_bias": True}, "attention_bias is True, but must be False"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types is .*, but must be the same for all layers",
        ),
    ],
)
def test_what_cannot_be_computed_is_refused(fields, message):
    with pytest.raises(hf_config.ModelConfigError, match=f"^some/config.json: {message}"):
        hf_config.from_dict(QWEN | fields, source="some/config.json")


def test_broken_files_are_named(tmp_path):
    with pytest.raises(hf_config.ModelConfigError, match="config.json does not exist"):
        hf_config.read(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(hf_config.ModelConfigError, match="config.json is not JSON"):
        hf_config.read(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(hf_config.ModelConfigError, match="config.json contains a list, but must contain an object"):
        hf_config.read(tmp_path)
