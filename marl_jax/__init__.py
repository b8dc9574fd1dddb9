"""Reinforcement learning for teams of language models.

    run = marl_jax.train("tic_tac_toe_selfplay", steps=50)
    run = marl_jax.grpo("smollm2-135m", dataset=rows, rewards=right)
    policy = marl_jax.load(run)
    policy.chat("What is the capital of France?")

`docs/python.md` has an example of every name. Names are imported on first use: importing the package does not import
JAX, so that reports and error messages appear quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.tasks.dataset_task import dataset_task
    from marl_jax.api.policies import Policy, load
    from marl_jax.api.registering import (
        make_env,
        register_algorithm,
        register_bot,
        register_game,
        register_model,
        register_reward,
        register_task,
    )
    from marl_jax.api.runs import Run
    from marl_jax.api.training import dpo, evaluate, grpo, reward_model, sft, train

__version__ = "0.1.0"

__all__ = [
    "Policy", "Run", "dataset_task", "dpo", "evaluate", "grpo", "load", "make_env", "register_algorithm",
    "register_bot", "register_game", "register_model", "register_reward", "register_task", "reward_model", "sft",
    "train",
]  # fmt: skip

_PLACES = {
    "envs.tasks.dataset_task": ("dataset_task",),
    "marl_jax.api.policies": ("Policy", "load"),
    "marl_jax.api.runs": ("Run",),
    "marl_jax.api.training": ("dpo", "evaluate", "grpo", "reward_model", "sft", "train"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = next((module for module, names in _PLACES.items() if name in names), "marl_jax.api.registering")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
