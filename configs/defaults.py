"""Default config of a run, which experiments change as needed.

Fields, defaults and rules are those of `marl_jax/schema/run_fields.py` and of the algorithm (`configs/algorithms.py`).
"""

from ml_collections import ConfigDict

from configs import algorithms, models
from marl_jax.schema import run_fields


def get_config() -> ConfigDict:
    """Configure tic-tac-toe self-play with the embedded `tiny` model and PPO."""
    config = run_fields.defaults()
    config.model = models.tiny()
    config.algo = algorithms.ppo()
    return config


def environment(name: str, **params) -> ConfigDict:
    """Return `config.env` for a game; `params` are parameters of the game."""
    return run_fields.group("env", name=name, params=params)


def use_task(config: ConfigDict, name: str, **params) -> None:
    """Set a task as the environment of a run; `params` are parameters of the task."""
    config.env.name = ""
    config.task.name, config.task.params = name, ConfigDict(params)
    config.eval.opponents = ()


def policy(**changes) -> ConfigDict:
    """Return an entry of `config.policies`: model or adapter, and whether it learns."""
    config = run_fields.policy()
    config.update(changes)
    return config


def optimizer(**changes) -> ConfigDict:
    """Return `config.optim`: AdamW with a schedule."""
    return run_fields.group("optim", **changes)
