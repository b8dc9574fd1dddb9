"""Replacements for old field names and values, and for names used by other libraries."""

from __future__ import annotations

import re
from typing import Any

from ml_collections import ConfigDict

from marl_jax.algorithms import ALGORITHMS
from registries import did_you_mean

RENAMED: dict[str, str] = {
    "algo.answers": "algo.completions",
    "algo.normalise": "algo.normalize",
    "algo.role_decay": "algo.baseline_decay",
    "curriculum.grades": "curriculum.difficulty_levels",
    "env.params.grades": "env.params.difficulty_levels",
    "eval.part": "eval.split",
    "opponents.prioritised": "opponents.prioritized",
    "rollout.answer": "rollout.completion",
    "rollout.games": "rollout.num_envs",
    "rollout.turns": "rollout.unroll_length",
    "serve.rows": "serve.max_num_seqs",
    "task.part": "task.split",
    "task.rows": "task.max_num_seqs",
}
"""Old field → new field."""

_ELSEWHERE: dict[tuple[str, ...], str] = {
    ("--workdir",): "output_dir save_dir logging_dir log_dir default_local_dir resume_from_checkpoint resume_mode",
    ("algo.clip_high",): "epsilon_high clip_ratio_high",
    ("algo.clip_low",): "epsilon_low clip_ratio_low",
    ("algo.clip_low", "algo.clip_high"): "clip_eps clip_epsilon clip_range clip_ratio cliprange epsilon",
    ("algo.dual_clip",): "clip_ratio_c delta",
    ("algo.entropy_coef",): "ent_coef entropy_coeff",
    ("algo.epochs",): "n_epochs num_epochs num_iterations num_ppo_epochs ppo_epochs update_epochs",
    ("algo.grad_accum_steps",): "gradient_accumulation_steps micro_batch_size ppo_micro_batch_size "
    "ppo_micro_batch_size_per_gpu",
    ("algo.group_size",): "n n_samples_per_prompt num_generations num_return_sequences",
    ("algo.group_std",): "norm_adv_by_std_in_grpo scale_rewards",
    ("algo.kl_coef",): "beta init_kl_coef kl_coeff kl_loss_coef use_kl_loss",
    ("algo.kl_in",): "use_kl_in_reward",
    ("algo.kl_kind",): "kl_estimator kl_loss_type kl_penalty",
    ("algo.lam",): "gae_lambda lambda",
    ("algo.loss_agg",): "loss_agg_mode loss_type",
    ("algo.minibatches",): "mini_batch_size n_minibatches num_mini_batches num_minibatches ppo_mini_batch_size",
    ("algo.name",): "adv_estimator algorithm",
    ("algo.overlong",): "mask_truncated_completions",
    ("algo.ratio",): "importance_sampling_level",
    ("algo.tis_clip",): "tis_imp_ratio_cap vllm_importance_sampling_cap",
    ("algo.value_clip",): "clip_range_vf cliprange_value",
    ("algo.value_coef",): "vf_coef",
    ("checkpoint.best_metric",): "metric_for_best_model",
    ("checkpoint.best_mode",): "greater_is_better",
    ("checkpoint.every",): "save_freq save_interval save_steps",
    ("checkpoint.keep",): "max_to_keep save_total_limit",
    ("distributed.processes",): "nnodes num_nodes",
    ("env.name",): "env_id env_name game",
    ("eval.every",): "eval_freq eval_interval eval_steps test_freq",
    ("eval.games",): "eval_batch_size n_eval_episodes num_eval_episodes per_device_eval_batch_size val_batch_size",
    ("log.every",): "log_freq log_interval logging_steps",
    ("log.wandb", "log.tensorboard"): "logger report_to use_wandb wandb_project",
    ("mesh.data",): "n_gpus_per_node num_gpus",
    ("mesh.fsdp",): "fsdp_size",
    ("mesh.tensor",): "tensor_model_parallel_size tensor_parallel_size tp_size",
    ("model.dtype",): "bf16 fp16 precision torch_dtype",
    ("model.lora.alpha",): "lora_alpha",
    ("model.lora.rank",): "lora_r lora_rank r",
    ("model.lora.targets",): "lora_target_modules target_modules",
    ("model.name", "model.weights"): "base_model model_id model_name model_name_or_path model_path path pretrained",
    ("model.remat",): "enable_gradient_checkpointing gradient_checkpointing",
    ("name",): "experiment_name run_name",
    ("optim.b1",): "adam_beta1 beta1",
    ("optim.b2",): "adam_beta2 beta2",
    ("optim.critic_lr",): "value_lr",
    ("optim.eps",): "adam_epsilon",
    ("optim.lr",): "actor_lr learning_rate lr",
    ("optim.max_grad_norm",): "clip_grad clip_grad_norm grad_clip gradient_clipping",
    ("optim.min_lr_ratio",): "min_lr min_lr_rate",
    ("optim.schedule",): "lr_scheduler lr_scheduler_type lr_warmup_style warmup_style",
    ("optim.warmup",): "lr_warmup_steps lr_warmup_steps_ratio warmup_ratio warmup_steps",
    ("rollout.num_envs",): "games n_envs",
    ("rollout.num_envs", "task.n_episodes"): "per_device_train_batch_size rollout_batch_size train_batch_size",
    ("rollout.num_envs", "task.n_episodes", "algo.minibatches"): "batch_size",
    ("rollout.temperature",): "temperature",
    ("rollout.unroll_length", "steps"): "n_steps num_steps",
    ("sampling.memory_frac",): "gpu_memory_utilization vllm_gpu_memory_utilization",
    ("seed",): "data_seed",
    ("steps",): "max_steps num_train_epochs num_train_steps total_episodes total_epochs total_steps total_timesteps "
    "total_training_steps train_steps training_steps",
    ("task.max_length",): "max_model_len max_prompt_length max_seq_len max_seq_length",
    ("task.max_new_tokens", "rollout.max_new_tokens"): "max_completion_length max_new_tokens max_response_length "
    "max_tokens response_length",
    ("task.name", "task.params"): "dataset dataset_name train_files",
}

ELSEWHERE = {name: meant for meant, names in _ELSEWHERE.items() for name in names.split()}
"""Field name in other libraries (TRL, Transformers, verl, CleanRL, …) → field or flag here."""

MODES = {
    "chat": "play or serve",
    "evaluation": "eval",
    "finetune": "train",
    "generate": "serve",
    "resume": "train",
    "sft": "train with --config.algo.name=sft",
    "test": "eval",
    "validate": "eval",
    "validation": "eval",
}
"""Name of a mode in other libraries → mode here."""

_SETTINGS = {
    "dapo": "--config.algo.name=grpo with the settings of configs.published.dapo",
    "drgrpo": "--config.algo.name=grpo --config.algo.group_std=False --config.algo.loss_agg=constant",
    "gspo": "--config.algo.name=grpo --config.algo.ratio=sequence",
    "mappo": "--config.algo.name=ppo --config.algo.critic=central",
    "maporl": "--config.algo.name=ppo with the settings of configs.published.maporl",
    "rloo": "--config.algo.name=grpo --config.algo.group_baseline=leave_one_out --config.algo.group_std=False",
}
"""Algorithm without a name here → algorithm and settings."""

VALUES: dict[tuple[str, Any], str] = {
    ("algo.critic", "role"): "algo.baseline 'seat_ema'",
    ("algo.critic_reads", "answer"): "'completion'",
}
"""(field, old value) → new value, or the field that replaces it."""


def field(name: str) -> str | None:
    """Return the problem with a field that has been renamed, or None.

    Fields of a policy's model are recognized too.
    """
    parts = name.split(".")
    old = ".".join(parts[2:]) if parts[0] == "policies" and parts[2:3] == ["model"] else name
    if old not in RENAMED:
        return None
    return f"config.{name} is now config.{name.removesuffix(old)}{RENAMED[old]}"


def elsewhere(name: str) -> tuple[str, ...]:
    """Return the fields or flags that correspond to a name from another library."""
    return ELSEWHERE.get(last_word(name).lower(), ())


def last_word(name: str) -> str:
    """Return the field name without its groups, with underscores for dashes."""
    return name.rpartition(".")[2].replace("-", "_")


def unknown_algorithm(name: str) -> str:
    """Return the problem with an algorithm that does not exist, with a suggestion."""
    settings = _SETTINGS.get(re.sub(r"\W|_", "", str(name)).lower())
    hint = f"; did you mean {settings}?" if settings else did_you_mean(str(name), ALGORITHMS, cutoff=0.7)
    return f"config.algo.name is {name!r}, but must be one of: {', '.join(ALGORITHMS)}{hint}"


def value(name: str, old: Any) -> str | None:
    """Return the problem with a value that has been renamed, or None."""
    if not isinstance(old, int | str) or (name, old) not in VALUES:
        return None
    return f"config.{name} is {old!r}, which is now {VALUES[name, old]}"


def problems(config: ConfigDict, prefix: str = "") -> list[str]:
    """Return the problems with all old names and values in a config."""
    lines = []
    for key, item in config.items():
        name = prefix + key
        if isinstance(item, ConfigDict):
            lines += problems(item, name + ".")
        else:
            lines += [problem for problem in (field(name), value(name, item)) if problem]
    return lines
