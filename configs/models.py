"""Models and how they are trained: from scratch, all weights, or LoRA adapters."""

from ml_collections import ConfigDict

ATTENTION = ("q", "k", "v", "o")
ALL_LINEAR = ATTENTION + ("gate", "up", "down")


def model(name: str, **changes) -> ConfigDict:
    """A model by its name in the registry; its weights are fetched when `weights` is "" and they are not there."""
    config = ConfigDict(
        dict(
            name=name,
            weights="",  # a Hugging Face folder or a GGUF file; "random" starts from noise
            init_from="",  # the folder of a run to start from, with @STEP or not: its weights, or its adapters too
            shape={},  # fields of models.config.ModelConfig to change, for a model that starts from noise
            dtype="bfloat16",  # of the arithmetic
            param_dtype="float32",  # of the master weights (under LoRA: of the frozen base)
            remat="full",  # what is computed again in the backward pass: none, dots or full
            unroll=0,  # layers to one turn of the learner's loop; 0: all of them on a GPU, one elsewhere
            lora=dict(rank=0, alpha=32.0, targets=ALL_LINEAR),  # rank 0 trains all weights
        )
    )
    config.update(changes)
    return config


def tiny() -> ConfigDict:
    """The embedded default: bytes for tokens, a tenth of a million parameters, trained from scratch on a laptop.

    Half as deep and half as wide as the registered `tiny`: on two CPU cores more updates teach more than more weights.
    Prompts are short, so positions turn fast (`rope_theta`): neighbours must look different.
    """
    shape = dict(d_model=64, n_layers=2, n_heads=4, n_kv_heads=4, head_dim=16, d_ff=128, rope_theta=100.0)
    return model("tiny", weights="random", shape=shape, dtype="float32", remat="none")


def smollm2() -> ConfigDict:
    """SmolLM2-135M-Instruct, all weights trained."""
    return model("smollm2-135m")


def qwen2_5_half_billion() -> ConfigDict:
    """Qwen2.5-0.5B-Instruct, all weights trained."""
    return model("qwen2.5-0.5b-instruct")


def qwen2_5_coder_half_billion() -> ConfigDict:
    """Qwen2.5-Coder-0.5B-Instruct, all weights trained."""
    return model("qwen2.5-coder-0.5b-instruct")


def qwen3_two_billion() -> ConfigDict:
    """Qwen3-1.7B, all weights trained."""
    return model("qwen3-1.7b")


def qwen3_eight_billion() -> ConfigDict:
    """Qwen3-8B with LoRA on every projection over a bf16 base."""
    return model("qwen3-8b", param_dtype="bfloat16", lora=dict(rank=32, alpha=64.0, targets=ALL_LINEAR))


def qwen2_5_seven_billion() -> ConfigDict:
    """Qwen2.5-7B-Instruct with LoRA on every projection over a bf16 base."""
    return model("qwen2.5-7b-instruct", param_dtype="bfloat16", lora=dict(rank=32, alpha=64.0, targets=ALL_LINEAR))
