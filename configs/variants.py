"""Variants of experiments with larger models: `:smollm2`, `:qwen2.5-0.5b`, `:qwen3-8b` and others.

A variant has a pretrained model, so it learns with small steps and stays near its start. `:sft` and `:sft+smollm2`
imitate a bot instead of playing; `:both` and `:both+smollm2` imitate it first and then play.
"""

from collections.abc import Collection

from ml_collections import ConfigDict

from configs import algorithms, defaults, meshes, models
from registries import did_you_mean

SFT, SCRATCH, BOTH = "sft", "scratch", "both"


def tiny(config: ConfigDict) -> ConfigDict:
    """Configure the embedded model for two CPU cores (the default)."""
    config.env.update(dict(text="brief", style="plain"))
    config.algo.tis_clip = 0.0  # in float32, sampler and learner agree almost exactly
    return config


def smollm2(config: ConfigDict) -> ConfigDict:
    """Configure SmolLM2-135M with all weights trained on one GPU."""
    config.model = models.smollm2()
    _pretrained(config, lr=4e-5)
    config.rollout.update(dict(num_envs=512))
    return config


def smollm2_lora(config: ConfigDict) -> ConfigDict:
    """Configure SmolLM2-135M with LoRA on one GPU."""
    config = smollm2(config)
    config.model.lora.rank = 32
    config.optim.lr = 3e-4
    return config


def qwen2_5_half_billion(config: ConfigDict) -> ConfigDict:
    """Configure Qwen2.5-0.5B with all weights trained on one GPU."""
    config.model = models.qwen2_5_half_billion()
    _pretrained(config, lr=2e-5)
    config.rollout.update(dict(num_envs=512))
    return config


def qwen2_5_coder_half_billion(config: ConfigDict) -> ConfigDict:
    """Configure Qwen2.5-Coder-0.5B with all weights trained on one GPU."""
    config = qwen2_5_half_billion(config)
    config.model = models.qwen2_5_coder_half_billion()
    return config


def qwen2_5_coder_1_5_billion(config: ConfigDict) -> ConfigDict:
    """Configure Qwen2.5-Coder-1.5B with LoRA on one GPU."""
    config.model = models.qwen2_5_coder_1_5_billion()
    _pretrained(config, lr=1e-4)
    config.rollout.update(dict(num_envs=512))
    config.algo.grad_accum_steps = 8
    return config


def qwen3_two_billion(config: ConfigDict) -> ConfigDict:
    """Configure Qwen3-1.7B with all weights trained on one GPU."""
    config.model = models.qwen3_two_billion()
    _pretrained(config, lr=2e-6)
    config.rollout.update(dict(num_envs=512))
    config.algo.grad_accum_steps = 2
    return config


def qwen3_eight_billion(config: ConfigDict) -> ConfigDict:
    """Configure Qwen3-8B with LoRA and parameters sharded over all devices."""
    return _large(config, models.qwen3_eight_billion())


def qwen2_5_seven_billion(config: ConfigDict) -> ConfigDict:
    """Configure Qwen2.5-7B with LoRA and parameters sharded over all devices."""
    return _large(config, models.qwen2_5_seven_billion())


VARIANTS = {
    "tiny": tiny,
    "smollm2": smollm2,
    "smollm2-lora": smollm2_lora,
    "qwen2.5-0.5b": qwen2_5_half_billion,
    "qwen2.5-coder-0.5b": qwen2_5_coder_half_billion,
    "qwen2.5-coder-1.5b": qwen2_5_coder_1_5_billion,
    "qwen2.5-7b": qwen2_5_seven_billion,
    "qwen3-1.7b": qwen3_two_billion,
    "qwen3-8b": qwen3_eight_billion,
}


def stages(variant: str | None, default: str = SCRATCH) -> tuple[str, str | None]:
    """Split a variant into its stages and its model; None is the embedded model.

    The stages are `default` if the variant names none:

    - `sft`: Imitate a bot.
    - `scratch`: Play, without imitation.
    - `both`: Imitate, then play.
    """
    return split_form(variant, (SFT, SCRATCH, BOTH), default)


def only_first_stage(config: ConfigDict) -> ConfigDict:
    """Return the config of an experiment's first stage as a separate run."""
    changes = config.first_stage.to_dict()
    config.first_stage = {}
    config.algo = algorithms.sft(**{name: value for name, value in changes.pop("algo").items() if name != "name"})
    config.update(changes)
    return config


def split_form(form: str | None, forms: Collection[str], default: str) -> tuple[str, str | None]:
    """Split FORM, MODEL or FORM+MODEL into form and model; None is the embedded model.

    Args:
        form: The form as given on the command line.
        forms: Names of all forms.
        default: Form of a model alone, or without either.
    """
    first, _, model = (form or default).partition("+")
    if first in VARIANTS and not model:
        first, model = default, first
    wrong = [word for word, known in ((first, forms), (model or "tiny", VARIANTS)) if word not in known]
    if wrong:
        raise ValueError(
            f"form is {form!r}, but must be one of: {', '.join(forms)}, MODEL or FORM+MODEL, where MODEL is one of: "
            f"{', '.join(VARIANTS)}{did_you_mean(wrong[0], (*forms, *VARIANTS))}"
        )
    return first, None if model in ("", "tiny") else model


def choose(config: ConfigDict, model: str | None) -> ConfigDict:
    """Return the config with the named model; None is the embedded model."""
    if model is not None and model not in VARIANTS:
        raise ValueError(
            f"model is {model!r}, but must be one of: {', '.join(VARIANTS)}{did_you_mean(model, VARIANTS)}"
        )
    return VARIANTS[model or "tiny"](config)


def with_stages(config: ConfigDict, chosen: str, model: str | None) -> ConfigDict:
    """Apply the chosen stages (see `stages`) to a self-play config with the named model."""
    if chosen == SFT:
        return imitate(config, model)
    if chosen == BOTH:
        lr = choose(defaults.get_config(), model).optim.lr
        rollout, parts = dict(num_envs=128, unroll_length=8), config.algo.grad_accum_steps
        config.first_stage = algorithms.imitation_stage(steps=100, lr=lr, rollout=rollout, grad_accum_steps=parts)
        config.algo.kl_coef = 0.05  # KL to the imitated policy
    return config


def imitate(config: ConfigDict, model: str | None) -> ConfigDict:
    """Change an experiment's config to imitate a bot with the model's own learning rate."""
    return algorithms.imitate(config, lr=choose(defaults.get_config(), model).optim.lr)


def _large(config: ConfigDict, model: ConfigDict) -> ConfigDict:
    """Configure a model that a single chip cannot train.

    It has adapters, fewer games, and several microbatches.
    """
    config.model = model
    _pretrained(config, lr=1e-4)
    config.rollout.update(dict(num_envs=256))
    config.algo.grad_accum_steps = 4
    config.mesh = meshes.sharded()
    return config


def _pretrained(config: ConfigDict, lr: float) -> None:
    """Configure training of a pretrained model.

    The weights get a small learning rate, the new value head a large one, and entropy keeps games varied. Without the
    entropy bonus, self-play collapses to one line of play within twenty updates and stops learning.
    """
    config.optim.lr = lr
    config.optim.critic_lr = 1e-3
    config.optim.schedule = "constant"
    config.optim.warmup = 5
    config.algo.entropy_coef = 0.03
