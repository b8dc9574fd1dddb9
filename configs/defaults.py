"""The default run; an experiment starts here and changes what it needs.

Fields, defaults and rules are those of `marl_jax/schema/run_fields.py` and of the algorithm (`configs/algorithms.py`).
"""

from ml_collections import ConfigDict

from configs import algorithms, models
from marl_jax.schema import run_fields


def get_config() -> ConfigDict:
    """Tic-tac-toe self-play with the embedded `tiny` model and PPO."""
    config = run_fields.defaults()
    config.model = models.tiny()
    config.algo = algorithms.ppo()
    return config


def environment(name: str, **params) -> ConfigDict:
    """A game by name, for `config.env`; `params` go to the game itself."""
    return run_fields.group("env", name=name, params=params)


def use_task(config: ConfigDict, name: str, **params) -> None:
    """Makes a task the environment of a run in place of a game; `params` go to the task itself."""
    config.env.name = ""
    config.task.name, config.task.params = name, ConfigDict(params)
    config.eval.opponents = ()


def policy(**changes) -> ConfigDict:
    """One policy, for `config.policies`: its model or adapter, and whether it learns."""
    config = run_fields.policy()
    config.update(changes)
    return config


def optimizer(**changes) -> ConfigDict:
    """AdamW with a schedule, for `config.optim`."""
    return run_fields.group("optim", **changes)
