"""The published hyperparameters of the models that the project knows by name.

Base and tuned variants of a size share one architecture and differ in hub id, stop ids and chat style. Other
differences between the published files are noted at the variant. Weights with their own config (a Hugging Face folder
or a GGUF file) always override these values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from models.config import ModelConfig, RopeScaling, VisionConfig
from models.media_config import AudioConfig, ResamplerConfig, TableConfig

KIBI = 1024


@dataclasses.dataclass(frozen=True)
class Entry:
    """A named model.

    Attributes:
        name: Name in the registry.
        config: Its architecture.
        hub_id: Repository of its weights on the Hugging Face hub, or None.
        chat: Chat template that it was trained with, see `models.chat_templates`. None for a base model.
        decoder: Name of the text model whose weights and tokenizer it starts from, if its encoder of images is new.
    """

    name: str
    config: ModelConfig
    hub_id: str | None
    chat: str | None
    decoder: str | None = None

    @property
    def files(self) -> str:
        """Name of the model whose files it needs."""
        return self.decoder or self.name


def get(name: str) -> Entry:
    """Return the entry called `name`, ignoring case."""
    entry = _ENTRIES.get(ALIASES.get(name.lower(), name.lower()))
    if entry is None:
        raise ValueError(f"model is {name!r}, but must be one of: {', '.join(names())}")
    return entry


def names() -> tuple[str, ...]:
    """Return all registered names, without aliases."""
    return tuple(_ENTRIES)


def _tiny() -> Iterator[Entry]:
    # Ids of the byte tokenizer: 256 bytes, then pad, bos, im_start, im_end, eos and three spare tokens.
    config = ModelConfig(
        family="qwen2", vocab_size=264, d_model=128, n_layers=4, n_heads=4, n_kv_heads=2, head_dim=32, d_ff=384,
        max_positions=4 * KIBI, tie_embeddings=True, qkv_bias=True, bos_id=257, eos_ids=(260, 259),
    )  # fmt: skip
    yield Entry("tiny", config, None, "chatml")
    tower = VisionConfig(n_layers=1, d_model=32, n_heads=2, d_ff=64, image_id=261)
    yield Entry("tiny-vl", dataclasses.replace(config, vision=tower), None, "chatml")
    media = dataclasses.replace(
        config, vision=tower,
        audio=AudioConfig(n_layers=1, d_model=32, n_heads=2, d_ff=64, n_mels=32, max_frames=512),
        table=TableConfig(n_layers=1, d_model=32, n_heads=2, d_ff=64, n_columns=2),
    )  # fmt: skip
    yield Entry("tiny-media", media, None, "chatml")
    resampler = ResamplerConfig(n_layers=2, n_heads=4, d_ff=128, n_queries=4)
    yield Entry("tiny-media-cross", dataclasses.replace(media, resampler=resampler), None, "chatml")


def _qwen25() -> Iterator[Entry]:
    sizes = {  # vocab, D, L, N, K, H, F, tied
        "0.5B": (151_936, 896, 24, 14, 2, 64, 4_864, True),
        "1.5B": (151_936, 1_536, 28, 12, 2, 128, 8_960, True),
        "3B": (151_936, 2_048, 36, 16, 2, 128, 11_008, True),
        "7B": (152_064, 3_584, 28, 28, 4, 128, 18_944, False),
        "14B": (152_064, 5_120, 48, 40, 8, 128, 13_824, False),
    }
    endoftext, im_end = 151_643, 151_645
    for line in ("Qwen2.5", "Qwen2.5-Coder"):
        for size, (v, d, layers, n, k, h, f, tied) in sizes.items():
            instruct = ModelConfig(
                family="qwen2", vocab_size=v, d_model=d, n_layers=layers, n_heads=n, n_kv_heads=k, head_dim=h, d_ff=f,
                max_positions=32 * KIBI, rope_theta=1e6, tie_embeddings=tied, qkv_bias=True,
                bos_id=endoftext, eos_ids=(im_end, endoftext),
            )  # fmt: skip
            long = line == "Qwen2.5" and size in ("1.5B", "7B", "14B")  # published with more positions
            base = dataclasses.replace(
                instruct,
                max_positions=128 * KIBI if long else 32 * KIBI,
                norm_eps=1e-5 if size == "14B" else 1e-6,  # only in the published 14B base models
                eos_ids=(endoftext,),
            )
            yield Entry(f"{line}-{size}".lower(), base, f"Qwen/{line}-{size}", None)
            yield Entry(f"{line}-{size}-instruct".lower(), instruct, f"Qwen/{line}-{size}-Instruct", "qwen2.5")


def _qwen25_vl() -> Iterator[Entry]:
    sizes = {  # vocab, D, L, N, K, F, tied, F of the tower
        "3B": (151_936, 2_048, 36, 16, 2, 11_008, True, 3_420),
        "7B": (152_064, 3_584, 28, 28, 4, 18_944, False, 3_420),
        "32B": (152_064, 5_120, 64, 40, 8, 27_648, False, 3_456),
    }
    endoftext, im_end = 151_643, 151_645
    for size, (v, d, layers, n, k, f, tied, f_vision) in sizes.items():
        vision = VisionConfig(
            n_layers=32, d_model=1_280, n_heads=16, d_ff=f_vision, image_id=151_655, start_id=151_652, end_id=151_653,
            full_layers=(7, 15, 23, 31),
        )  # fmt: skip
        config = ModelConfig(
            family="qwen2_5_vl", vocab_size=v, d_model=d, n_layers=layers, n_heads=n, n_kv_heads=k, head_dim=128,
            d_ff=f, max_positions=128_000, rope_theta=1e6, tie_embeddings=tied, qkv_bias=True,
            bos_id=endoftext, eos_ids=(im_end, endoftext), mrope_sections=(16, 24, 24), vision=vision,
        )  # fmt: skip
        yield Entry(f"qwen2.5-vl-{size}".lower(), config, f"Qwen/Qwen2.5-VL-{size}-Instruct", "qwen2.5-vl")


def _qwen3() -> Iterator[Entry]:
    sizes = {  # D, L, N, F, tied
        "0.6B": (1_024, 28, 16, 3_072, True),
        "1.7B": (2_048, 28, 16, 6_144, True),
        "4B": (2_560, 36, 32, 9_728, True),
        "8B": (4_096, 36, 32, 12_288, False),
    }
    endoftext, im_end = 151_643, 151_645
    for size, (d, layers, n, f, tied) in sizes.items():
        tuned = ModelConfig(
            family="qwen3", vocab_size=151_936, d_model=d, n_layers=layers, n_heads=n, n_kv_heads=8, head_dim=128,
            d_ff=f, max_positions=40 * KIBI, rope_theta=1e6, tie_embeddings=tied, qk_norm=True,
            bos_id=endoftext, eos_ids=(im_end, endoftext),
        )  # fmt: skip
        base = dataclasses.replace(tuned, max_positions=32 * KIBI, eos_ids=(endoftext,))
        yield Entry(f"qwen3-{size}".lower(), tuned, f"Qwen/Qwen3-{size}", "qwen3")
        yield Entry(f"qwen3-{size}-base".lower(), base, f"Qwen/Qwen3-{size}-Base", None)


def _llama() -> Iterator[Entry]:
    two = ModelConfig(
        family="llama", vocab_size=32_000, d_model=4_096, n_layers=32, n_heads=32, n_kv_heads=32, head_dim=128,
        d_ff=11_008, max_positions=4 * KIBI, norm_eps=1e-5, bos_id=1, eos_ids=(2,),
    )  # fmt: skip
    yield Entry("llama-2-7b", two, "meta-llama/Llama-2-7b-hf", None)
    yield Entry("llama-2-7b-chat", two, "meta-llama/Llama-2-7b-chat-hf", "llama2")

    tiny = dataclasses.replace(
        two, d_model=2_048, n_layers=22, n_kv_heads=4, head_dim=64, d_ff=5_632, max_positions=2 * KIBI
    )
    yield Entry("tinyllama-1.1b", tiny, "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T", None)
    yield Entry("tinyllama-1.1b-chat", tiny, "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "zephyr")

    sizes = {  # D, L, N, H, F, tied, rope factor
        "3.1-8B": (4_096, 32, 32, 128, 14_336, False, 8.0),
        "3.2-1B": (2_048, 16, 32, 64, 8_192, True, 32.0),
        "3.2-3B": (3_072, 28, 24, 128, 8_192, True, 32.0),
    }
    for size, (d, layers, n, h, f, tied, factor) in sizes.items():
        base = ModelConfig(
            family="llama", vocab_size=128_256, d_model=d, n_layers=layers, n_heads=n, n_kv_heads=8, head_dim=h,
            d_ff=f, max_positions=128 * KIBI, norm_eps=1e-5, rope_theta=500_000.0, tie_embeddings=tied,
            rope_scaling=RopeScaling("llama3", factor), bos_id=128_000, eos_ids=(128_001,),
        )  # fmt: skip
        instruct = dataclasses.replace(base, eos_ids=(128_001, 128_008, 128_009))
        yield Entry(f"llama-{size}".lower(), base, f"meta-llama/Llama-{size}", None)
        yield Entry(f"llama-{size}-instruct".lower(), instruct, f"meta-llama/Llama-{size}-Instruct", "llama3")


def _mistral() -> Iterator[Entry]:
    first = ModelConfig(
        family="mistral", vocab_size=32_000, d_model=4_096, n_layers=32, n_heads=32, n_kv_heads=8, head_dim=128,
        d_ff=14_336, max_positions=32 * KIBI, norm_eps=1e-5, sliding_window=4_096, bos_id=1, eos_ids=(2,),
    )  # fmt: skip
    third = dataclasses.replace(first, vocab_size=32_768, rope_theta=1e6, sliding_window=None)
    for version, config in (("v0.1", first), ("v0.3", third)):
        yield Entry(f"mistral-7b-{version}", config, f"mistralai/Mistral-7B-{version}", None)
        yield Entry(f"mistral-7b-instruct-{version}", config, f"mistralai/Mistral-7B-Instruct-{version}", "mistral")


def _phi3() -> Iterator[Entry]:
    config = ModelConfig(
        family="phi3", vocab_size=32_064, d_model=3_072, n_layers=32, n_heads=32, n_kv_heads=32, head_dim=96,
        d_ff=8_192, max_positions=4 * KIBI, norm_eps=1e-5, sliding_window=2_047,
        bos_id=1, eos_ids=(32_000, 32_001, 32_007),
    )  # fmt: skip
    yield Entry("phi-3-mini", config, "microsoft/Phi-3-mini-4k-instruct", "phi3")


def _smollm2() -> Iterator[Entry]:
    sizes = {  # D, L, N, K, F, theta
        "135M": (576, 30, 9, 3, 1_536, 100_000.0),
        "360M": (960, 32, 15, 5, 2_560, 100_000.0),
        "1.7B": (2_048, 24, 32, 32, 8_192, 130_000.0),
    }
    for size, (d, layers, n, k, f, theta) in sizes.items():
        instruct = ModelConfig(
            family="llama", vocab_size=49_152, d_model=d, n_layers=layers, n_heads=n, n_kv_heads=k, head_dim=64,
            d_ff=f, max_positions=8 * KIBI, norm_eps=1e-5, rope_theta=theta, tie_embeddings=True,
            bos_id=1, eos_ids=(2,),
        )  # fmt: skip
        base = dataclasses.replace(instruct, bos_id=0, eos_ids=(0,))
        # The tuned model has the plain name, because it is the one that is available from a package index.
        yield Entry(f"smollm2-{size}".lower(), instruct, f"HuggingFaceTB/SmolLM2-{size}-Instruct", "smollm2")
        yield Entry(f"smollm2-{size}-base".lower(), base, f"HuggingFaceTB/SmolLM2-{size}", None)
        if size == "135M":  # with a new encoder, and the special token <empty_output> in the place of each cell
            tower = VisionConfig(n_layers=2, d_model=64, n_heads=4, d_ff=128, image_id=16)
            seeing = dataclasses.replace(instruct, vision=tower)
            yield Entry("smollm2-vl", seeing, f"HuggingFaceTB/SmolLM2-{size}-Instruct", "smollm2", "smollm2-135m")


def _gpt2() -> Iterator[Entry]:
    config = ModelConfig(
        family="gpt2", vocab_size=50_257, d_model=1_024, n_layers=24, n_heads=16, n_kv_heads=16, head_dim=64,
        d_ff=4_096, max_positions=1 * KIBI, norm_eps=1e-5, tie_embeddings=True, bos_id=50_256, eos_ids=(50_256,),
    )  # fmt: skip
    yield Entry("dialogpt-medium", config, "microsoft/DialoGPT-medium", "dialogpt")


_ENTRIES = {
    entry.name: entry
    for family in (_tiny, _qwen25, _qwen25_vl, _qwen3, _llama, _mistral, _phi3, _smollm2, _gpt2)
    for entry in family()
}

ALIASES = {
    "mistral-7b": "mistral-7b-v0.1",
    "phi-3-mini-4k-instruct": "phi-3-mini",
    **{f"{name}-instruct": name for name in ("smollm2-135m", "smollm2-360m", "smollm2-1.7b")},
    **{f"qwen2.5-vl-{size}-instruct": f"qwen2.5-vl-{size}" for size in ("3b", "7b", "32b")},
}
