"""Old names of fields, values and modes, and names usual elsewhere, each with what to write instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ml_collections import ConfigDict

RENAMED: dict[str, str] = {
    "algo.accumulate": "algo.grad_accum_steps",
    "algo.agg": "algo.loss_agg",
    "algo.drop_equal": "algo.filter_zero_std_groups",
    "algo.group": "algo.group_size",
    "algo.is_clip": "algo.tis_clip",
    "algo.share_prefix": "",
    "model.start": "model.init_from",
    "opponents.bot_share": "opponents.bot_frac",
    "opponents.self_share": "opponents.self_play_frac",
    "optim.final": "optim.min_lr_ratio",
    "optim.moments": "optim.adam_state_dtype",
    "sft.bot": "algo.bot",
    "sft.games": "rollout.games",
    "sft.lr": "optim.lr",
    "sft.minibatches": "algo.minibatches",
    "sft.noise": "algo.noise",
    "sft.schedule": "optim.schedule",
    "sft.steps": "steps",
    "sft.turns": "rollout.turns",
    "sft.warmup": "optim.warmup",
}
"""Old field → new field; "" where there is none any more."""

REASONS = {
    "algo.share_prefix": "AT-GRPO always shares the prompt of its candidates",
    "sft.": "supervised training is an algorithm, see --config=experiments/NAME.py:sft",
}
"""Why, by the beginning of the old field."""

ELSEWHERE: dict[str, tuple[str, ...]] = {
    "batch_size": ("rollout.games", "task.n_episodes", "algo.minibatches"),
    "beta": ("algo.kl_coef",),
    "clip_eps": ("algo.clip_low", "algo.clip_high"),
    "clip_range": ("algo.clip_low", "algo.clip_high"),
    "clip_ratio": ("algo.clip_low", "algo.clip_high"),
    "cliprange": ("algo.clip_low", "algo.clip_high"),
    "ent_coef": ("algo.entropy_coef",),
    "epsilon": ("algo.clip_low", "algo.clip_high"),
    "epsilon_high": ("algo.clip_high",),
    "gae_lambda": ("algo.lam",),
    "gradient_accumulation_steps": ("algo.grad_accum_steps",),
    "init_kl_coef": ("algo.kl_coef",),
    "learning_rate": ("optim.lr",),
    "lora_alpha": ("model.lora.alpha",),
    "lora_r": ("model.lora.rank",),
    "lora_rank": ("model.lora.rank",),
    "loss_type": ("algo.loss_agg",),
    "lr": ("optim.lr",),
    "max_completion_length": ("task.max_new_tokens", "rollout.max_new_tokens"),
    "max_steps": ("steps",),
    "max_tokens": ("task.max_new_tokens", "rollout.max_new_tokens"),
    "mini_batch_size": ("algo.minibatches",),
    "model_name_or_path": ("model.name", "model.weights"),
    "num_envs": ("rollout.games",),
    "num_epochs": ("algo.epochs",),
    "num_generations": ("algo.group_size",),
    "num_iterations": ("algo.epochs",),
    "num_minibatches": ("algo.minibatches",),
    "num_train_epochs": ("steps",),
    "per_device_train_batch_size": ("rollout.games", "task.n_episodes"),
    "ppo_epochs": ("algo.epochs",),
    "total_timesteps": ("steps",),
    "vf_coef": ("algo.value_coef",),
    "warmup_steps": ("optim.warmup",),
}
"""What other libraries call a field → what it is called here."""

VALUES: dict[tuple[str, Any], str] = {
    ("algo.whiten", True): "agent",
    ("algo.whiten", False): "none",
    ("rollout.answer", "choice"): "constrained",
    ("eval.step", -1): "newest",
    ("eval.step", "-1"): "newest",
    ("eval.step", -2): "best",
    ("eval.step", "-2"): "best",
}
"""(field, old value) → new value."""

MODES = {"sft": "supervised training is an algorithm: --config=experiments/NAME.py:sft with --mode=train"}
"""Old mode → what to write."""


def field(name: str) -> str | None:
    """The problem with a field that has another name now; None if it is not one. A policy's own model counts too."""
    parts = name.split(".")
    old = ".".join(parts[2:]) if parts[0] == "policies" and parts[2:3] == ["model"] else name
    if old not in RENAMED:
        return None
    place = name.removesuffix(old)
    why = next((f": {reason}" for start, reason in REASONS.items() if old.startswith(start)), "")
    return f"config.{name} is now config.{place}{RENAMED[old]}{why}" if RENAMED[old] else f"config.{name} is gone{why}"


def usual(name: str, known: Iterable[str]) -> str:
    """A hint at the fields that are meant by the last word of a name that is usual elsewhere, or nothing."""
    meant = [here for here in ELSEWHERE.get(name.rpartition(".")[2].lower(), ()) if here in known]
    return f"; did you mean {' or '.join(meant)}?" if meant else ""


def value(name: str, found: Any) -> str | None:
    """The problem with a value that is written otherwise now; None if it is not one."""
    if not isinstance(found, int | str) or (name, found) not in VALUES:
        return None
    return f"config.{name} is {found!r}, which is now {VALUES[name, found]!r}"


def problems(config: ConfigDict, prefix: str = "") -> list[str]:
    """Every old name and value in a config that was written earlier."""
    found = []
    for key, item in config.items():
        name = prefix + key
        if isinstance(item, ConfigDict):
            found += problems(item, name + ".")
        else:
            found += [problem for problem in (field(name), value(name, item)) if problem]
    return found
