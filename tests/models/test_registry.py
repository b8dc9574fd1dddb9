"""The registry against published totals, and against transformers' own configs."""

import dataclasses

import pytest

from models import chat_templates, hf_config, registry
from models.weights.names import hugging_face_slots

PUBLISHED = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-vl-3b": 3_754_622_976,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen2.5-vl-32b": 33_452_718_336,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "phi-3-mini": 3_821_079_552,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "tinyllama-1.1b": 1_100_048_384,
    "dialogpt-medium": 354_823_168,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_number_of_parameters_is_the_published_one(name):
    assert registry.get(name).config.n_params == PUBLISHED[name]


def test_every_size_of_the_qwen_lines_comes_base_and_instruct():
    for line in ("qwen2.5", "qwen2.5-coder"):
        for size in ("0.5b", "1.5b", "3b", "7b", "14b"):
            base, instruct = registry.get(f"{line}-{size}"), registry.get(f"{line}-{size}-instruct")
            assert base.config.n_params == instruct.config.n_params == PUBLISHED[f"qwen2.5-{size}"]
            assert base.chat is None and instruct.chat == "qwen2.5"
            assert base.config.eos_ids == (151_643,) and instruct.config.eos_ids[0] == 151_645
            assert instruct.hub_id == f"{base.hub_id}-Instruct"


def test_variants_differ_in_ids_eps_and_context_only():
    may_differ = {"eos_ids", "bos_id", "max_positions", "norm_eps"}
    pairs = [(n, f"{n}-instruct") for n in registry.names() if f"{n}-instruct" in registry.names()]
    pairs += [(n, f"{n}-base") for n in registry.names() if f"{n}-base" in registry.names()]
    assert len(pairs) >= 17
    for pair in pairs:
        one, two = (dataclasses.asdict(registry.get(name).config) for name in pair)
        assert {field for field in one if one[field] != two[field]} <= may_differ, pair


def test_tiny_is_small_and_fits_the_byte_tokenizer():
    tiny = registry.get("tiny")
    assert tiny.config.n_params <= 2_000_000
    assert tiny.config.family == "qwen2" and tiny.config.vocab_size == 264 and tiny.hub_id is None


def test_names_are_found_in_any_case_and_through_aliases():
    assert registry.get("Qwen2.5-7B-Instruct") is registry.get("qwen2.5-7b-instruct")
    assert registry.get("SmolLM2-135M-Instruct") is registry.get("smollm2-135m")
    assert set(registry.ALIASES.values()) <= set(registry.names())


def test_chat_styles_are_built_in():
    styles = {registry.get(name).chat for name in registry.names()} - {None}
    assert styles <= set(chat_templates.BUILTIN)


def test_heads_fill_the_model_width_except_in_qwen3():
    for name in registry.names():
        cfg = registry.get(name).config
        if cfg.family != "qwen3":
            assert cfg.n_heads * cfg.head_dim == cfg.d_model, name


def test_transformers_has_the_same_tensors_for_every_shape():
    torch = pytest.importorskip("torch", reason="torch is not installed: no live comparison with transformers")
    from transformers import AutoConfig, AutoModelForCausalLM

    for cfg in {dataclasses.replace(registry.get(n).config, bos_id=None, eos_ids=()) for n in registry.names()}:
        fields = hf_config.to_dict(cfg)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(fields.pop("model_type"), **fields))
        theirs = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        if cfg.tie_embeddings:
            del theirs["lm_head.weight"]
        slots = hugging_face_slots(cfg)
        assert theirs == {name: slot.disk_shape for slot in slots for name in slot.tensors}, cfg
        assert sum(p.numel() for p in model.parameters()) == cfg.n_params


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(
        ValueError, match="'gpt-5', but must be one of: tiny, tiny-vl, tiny-media, tiny-media-cross, qwen2.5-0.5b"
    ):
        registry.get("gpt-5")
