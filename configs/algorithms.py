"""Algorithms: `config.algo` with the name, the fields and this project's defaults.

The fields are documented next to their defaults in `marl_jax/algorithms/*_config.py`. The exact settings of papers are
in `configs/published.py`.
"""

from ml_collections import ConfigDict

from marl_jax import fields
from marl_jax.algorithms.at_grpo_config import ATGRPOSettings
from marl_jax.algorithms.coma_config import COMASettings
from marl_jax.algorithms.grpo_config import GRPOSettings
from marl_jax.algorithms.maddpg_config import MADDPGSettings
from marl_jax.algorithms.playouts_config import PlayoutSettings
from marl_jax.algorithms.ppo_config import PPOSettings
from marl_jax.algorithms.preference_config import DPOSettings, IPOSettings, NashMDSettings, SPPOSettings
from marl_jax.algorithms.qmix_config import QMIXSettings
from marl_jax.algorithms.reward_model_config import RewardModelSettings
from marl_jax.algorithms.sft_config import SFTSettings
from marl_jax.algorithms.vdn_config import VDNSettings
from marl_jax.algorithms.verifier_config import VerifierSettings
from marl_jax.learning.settings import LearnerSettings, fields_of
from marl_jax.schema import run_fields


def make(name: str, settings: type[LearnerSettings], /, **changes) -> ConfigDict:
    """Return `config.algo` of an algorithm with its default settings, some of them changed."""
    return ConfigDict({"name": name, **fields.defaults(fields.with_defaults(fields_of(settings), **changes))})


def ppo(**changes) -> ConfigDict:
    """Configure PPO: GAE over an agent's own turns, a clipped ratio, a trained critic."""
    return make("ppo", PPOSettings, **changes)


def magnetic_ppo(**changes) -> ConfigDict:
    """Configure PPO with a magnet, for zero-sum self-play that does not cycle.

    The policy is kept close to a slow copy of itself, and the entropy bonus decays. The estimator k2 has the gradient
    of KL(policy ‖ copy); that of k3 would be the gradient of KL(copy ‖ policy).
    """
    return make(
        "ppo", PPOSettings, **dict(magnet_coef=0.5, magnet_decay=0.95, kl_kind="k2", entropy_ratio=0.2) | changes
    )


def grpo(group_size: int | None = None, **changes) -> ConfigDict:
    """Configure GRPO: K complete episodes per start, advantages within the group, no critic."""
    return make("grpo", GRPOSettings, **_sized(group_size), **changes)


def at_grpo(group_size: int | None = None, **changes) -> ConfigDict:
    """Configure AT-GRPO: K candidates for every prompt of every agent, one of them continued."""
    return make("at_grpo", ATGRPOSettings, **_sized(group_size), **changes)


def dr_mas(group_size: int | None = None) -> ConfigDict:
    """Configure Dr. MAS, so that all agents learn at the same pace.

    The standard deviation is computed per agent over the batch.
    """
    return grpo(group_size, normalize="agent")


def vdn(**changes) -> ConfigDict:
    """Configure VDN: the value of a joint action is the sum of the seats' values."""
    return make("vdn", VDNSettings, **changes)


def qmix(**changes) -> ConfigDict:
    """Configure QMIX: a monotonic network mixes the seats' values."""
    return make("qmix", QMIXSettings, **changes)


def coma(**changes) -> ConfigDict:
    """Configure COMA: policy gradients with a counterfactual baseline, clipped as in PPO."""
    return make("coma", COMASettings, **changes)


def maddpg(**changes) -> ConfigDict:
    """Configure MADDPG with the exact gradient over all actions."""
    return make("maddpg", MADDPGSettings, **changes)


def playouts(**changes) -> ConfigDict:
    """Configure policy improvement by playouts of a bot."""
    return make("playouts", PlayoutSettings, **changes)


def sft(**changes) -> ConfigDict:
    """Configure supervised training on the moves of a bot."""
    return make("sft", SFTSettings, **changes)


def verifier(**changes) -> ConfigDict:
    """Configure a verifier of a task's answers, which is trained on labelled answers."""
    return make("verifier", VerifierSettings, **changes)


def dpo(**changes) -> ConfigDict:
    """Configure DPO on sampled pairs, or on those of a file (`data`)."""
    return make("dpo", DPOSettings, **changes)


def ipo(**changes) -> ConfigDict:
    """Configure IPO on sampled pairs, or on those of a file (`data`)."""
    return make("ipo", IPOSettings, **changes)


def sppo(**changes) -> ConfigDict:
    """Configure SPPO: self-play against the policy before each update."""
    return make("sppo", SPPOSettings, **changes)


def nash_md(**changes) -> ConfigDict:
    """Configure Nash-MD: play against a mixture of the policy and its start."""
    return make("nash_md", NashMDSettings, **changes)


def reward_model(**changes) -> ConfigDict:
    """Configure a reward model, which is trained on the pairs of a file (`data`)."""
    return make("reward_model", RewardModelSettings, **changes)


def imitate(config: ConfigDict, lr: float = run_fields.OPTIM["lr"].default, **changes) -> ConfigDict:
    """Change the config of an experiment to imitate a bot.

    The game, the model, the evaluation and the number of gradient accumulation steps stay the same. Another run can
    start from the result with `model.init_from`.

    Args:
        config: Config of the experiment.
        lr: Learning rate.
        **changes: Fields of the algorithm: `bot`, `noise`, …
    """
    config.algo = sft(**{"grad_accum_steps": config.algo.grad_accum_steps} | changes)
    config.steps = 100
    config.rollout.update(dict(num_envs=128, unroll_length=8))
    config.optim.update(dict(lr=lr, schedule="linear", warmup=5))
    # A bot plays all seats and all levels.
    config.opponents, config.curriculum = run_fields.group("opponents"), run_fields.group("curriculum")
    return config


def imitation_stage(steps: int, lr: float, rollout: dict, **changes) -> ConfigDict:
    """Return a `config.first_stage` that imitates a bot before the run.

    The game, the model and the evaluation are those of the run.

    Args:
        steps: Number of steps.
        lr: Learning rate.
        rollout: Number of games and turns of a step.
        **changes: Fields of `sft`.
    """
    optim = dict(lr=lr, schedule="linear", warmup=5)
    stage = ConfigDict(dict(steps=steps, algo=dict(name="sft", **changes), rollout=rollout, optim=optim))
    # A bot plays all seats and all levels.
    stage.opponents = dict(self_play_frac=1.0, pool_size=0, bot_frac=0.0, bots=())
    stage.curriculum = dict(enabled=False)
    stage.level_replay = dict(method="")
    stage.eval = dict(best_of=1)  # there is no trained value head yet
    return stage


def _sized(group_size: int | None) -> dict[str, int]:
    return {} if group_size is None else {"group_size": group_size}
