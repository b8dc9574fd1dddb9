"""Models and their training: from scratch, all weights, or LoRA adapters."""

from ml_collections import ConfigDict

from marl_jax.schema import run_fields


def model(name: str, lora: dict | None = None, **changes) -> ConfigDict:
    """Return the config of a registered model.

    If `weights` is "", missing weights are downloaded.
    """
    config = run_fields.group("model", name=name, **changes)
    config.lora.update(lora or {})
    return config


def tiny() -> ConfigDict:
    """Configure the embedded default: byte tokens, 0.1 M parameters, trained from scratch.

    It is half as deep and half as wide as the registered `tiny`: on two CPU cores, more updates teach more than more
    weights. Prompts are short, so positions rotate fast (`rope_theta`) to make neighbours look different.
    """
    shape = dict(d_model=64, n_layers=2, n_heads=4, n_kv_heads=4, head_dim=16, d_ff=128, rope_theta=100.0)
    return model("tiny", weights="random", shape=shape, dtype="float32", remat="none")


def tiny_vl() -> ConfigDict:
    """Configure the embedded model with an encoder of images, all trained from scratch."""
    config = tiny()
    config.name = "tiny-vl"
    return config


def tiny_media(cross_attention: bool = False) -> ConfigDict:
    """Configure the embedded model with encoders of images, sounds and tables, all trained from scratch.

    Args:
        cross_attention: Whether learned queries read all media, and only the queries enter the sequence.
    """
    config = tiny()
    config.name = "tiny-media-cross" if cross_attention else "tiny-media"
    return config


def smollm2_vl() -> ConfigDict:
    """Configure SmolLM2-135M-Instruct with a new encoder of images, all weights trained."""
    return model("smollm2-vl")


def smollm2() -> ConfigDict:
    """Configure SmolLM2-135M-Instruct with all weights trained."""
    return model("smollm2-135m")


def qwen2_5_half_billion() -> ConfigDict:
    """Configure Qwen2.5-0.5B-Instruct with all weights trained."""
    return model("qwen2.5-0.5b-instruct")


def qwen2_5_coder_half_billion() -> ConfigDict:
    """Configure Qwen2.5-Coder-0.5B-Instruct with all weights trained."""
    return model("qwen2.5-coder-0.5b-instruct")


def qwen2_5_coder_1_5_billion() -> ConfigDict:
    """Configure Qwen2.5-Coder-1.5B-Instruct with LoRA on every projection over a bf16 base."""
    return model("qwen2.5-coder-1.5b-instruct", param_dtype="bfloat16", lora=dict(rank=32, alpha=64.0))


def qwen3_two_billion() -> ConfigDict:
    """Configure Qwen3-1.7B with all weights trained."""
    return model("qwen3-1.7b")


def qwen3_eight_billion() -> ConfigDict:
    """Configure Qwen3-8B with LoRA on every projection over a bf16 base."""
    return model("qwen3-8b", param_dtype="bfloat16", lora=dict(rank=32, alpha=64.0))


def qwen2_5_seven_billion() -> ConfigDict:
    """Configure Qwen2.5-7B-Instruct with LoRA on every projection over a bf16 base."""
    return model("qwen2.5-7b-instruct", param_dtype="bfloat16", lora=dict(rank=32, alpha=64.0))
