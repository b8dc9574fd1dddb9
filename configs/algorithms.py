"""Algorithms: `config.algo` is the name of one and its fields, here with the defaults of this project.

What a field means stands beside its default in `marl_jax/algorithms/*_config.py`. The exact forms of papers are in
`configs/published.py`.
"""

from ml_collections import ConfigDict

from marl_jax import fields
from marl_jax.algorithms.at_grpo_config import ATGRPOSettings
from marl_jax.algorithms.grpo_config import GRPOSettings
from marl_jax.algorithms.ppo_config import PPOSettings
from marl_jax.algorithms.sft_config import SFTSettings
from marl_jax.algorithms.verifier_config import VerifierSettings
from marl_jax.learning.settings import LearnerSettings, fields_of
from marl_jax.schema import run_fields


def make(name: str, settings: type[LearnerSettings], /, **changes) -> ConfigDict:
    """Return `config.algo` of an algorithm with its default settings, some of them changed."""
    return ConfigDict({"name": name, **fields.defaults(fields.with_defaults(fields_of(settings), **changes))})


def ppo(**changes) -> ConfigDict:
    """PPO: GAE over an agent's own turns, clipped ratio per token, a trained value head."""
    return make("ppo", PPOSettings, **changes)


def magnetic_ppo(**changes) -> ConfigDict:
    """PPO held close to a slow copy of itself, with an entropy bonus that falls: zero-sum play that does not cycle.

    The estimate k2 has the gradient of KL(policy ‖ copy); that of k3 would be KL(copy ‖ policy)'s.
    """
    return make(
        "ppo", PPOSettings, **dict(magnet_coef=0.5, magnet_decay=0.95, kl_kind="k2", entropy_ratio=0.2) | changes
    )


def grpo(group_size: int | None = None, **changes) -> ConfigDict:
    """GRPO: K whole episodes from one start, advantages within the group, no critic."""
    return make("grpo", GRPOSettings, **_sized(group_size), **changes)


def at_grpo(group_size: int | None = None, **changes) -> ConfigDict:
    """AT-GRPO: K candidates from the same prompt at every turn of every agent, one of them continued."""
    return make("at_grpo", ATGRPOSettings, **_sized(group_size), **changes)


def dr_mas(group_size: int | None = None) -> ConfigDict:
    """Dr. MAS: the standard deviation taken per agent over the batch, so that agents learn at one pace."""
    return grpo(group_size, normalize="agent")


def sft(**changes) -> ConfigDict:
    """Supervised training on what a bot plays."""
    return make("sft", SFTSettings, **changes)


def verifier(**changes) -> ConfigDict:
    """A verifier of a task's answers, trained on labelled ones."""
    return make("verifier", VerifierSettings, **changes)


def imitate(config: ConfigDict, lr: float = run_fields.OPTIM["lr"].default, **changes) -> ConfigDict:
    """An experiment's config, changed to imitate a bot; another run starts from it with `model.init_from`.

    The game, the model, the evaluation and the number of gradient accumulation steps stay. `changes` are fields of
    the algorithm: `bot`, `noise`, …
    """
    config.algo = sft(**{"grad_accum_steps": config.algo.grad_accum_steps} | changes)
    config.steps = 100
    config.rollout.update(dict(num_envs=128, unroll_length=8))
    config.optim.update(dict(lr=lr, schedule="linear", warmup=5))
    # A bot plays all seats and all levels.
    config.opponents, config.curriculum = run_fields.group("opponents"), run_fields.group("curriculum")
    return config


def imitation_stage(steps: int, lr: float, rollout: dict, **changes) -> ConfigDict:
    """For `config.first_stage`: imitate a bot before the run; the game, the model and the evaluation are the run's.

    rollout  games and turns of a step
    changes  fields of `sft`
    """
    optim = dict(lr=lr, schedule="linear", warmup=5)
    stage = ConfigDict(dict(steps=steps, algo=dict(name="sft", **changes), rollout=rollout, optim=optim))
    # A bot plays all seats and all levels.
    stage.opponents = dict(self_play_frac=1.0, pool_size=0, bot_frac=0.0, bots=())
    stage.curriculum = dict(enabled=False)
    stage.eval = dict(best_of=1)  # nothing has learnt values yet
    return stage


def _sized(group_size: int | None) -> dict[str, int]:
    return {} if group_size is None else {"group_size": group_size}
