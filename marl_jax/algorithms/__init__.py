"""Registry of the algorithms, each a module in this package."""

from ml_collections import ConfigDict

from marl_jax.learning.settings import LearnerSettings
from registries import Registry

ALGORITHMS = Registry("algorithms")
ALGORITHMS.add("ppo", "marl_jax.algorithms.ppo:PPO")
ALGORITHMS.add("grpo", "marl_jax.algorithms.grpo:GRPO")
ALGORITHMS.add("at_grpo", "marl_jax.algorithms.at_grpo:AT_GRPO")
ALGORITHMS.add("sft", "marl_jax.algorithms.sft:SFT")
ALGORITHMS.add("verifier", "marl_jax.algorithms.verifier:VERIFIER")
ALGORITHMS.add("dpo", "marl_jax.algorithms.preference:DPO")
ALGORITHMS.add("ipo", "marl_jax.algorithms.preference:IPO")
ALGORITHMS.add("sppo", "marl_jax.algorithms.preference:SPPO")
ALGORITHMS.add("reward_model", "marl_jax.algorithms.reward_model:REWARD_MODEL")
ALGORITHMS.add("nash_md", "marl_jax.algorithms.preference:NASH_MD")
ALGORITHMS.add("vdn", "marl_jax.algorithms.vdn:VDN")
ALGORITHMS.add("qmix", "marl_jax.algorithms.qmix:QMIX")
ALGORITHMS.add("coma", "marl_jax.algorithms.coma:COMA")
ALGORITHMS.add("maddpg", "marl_jax.algorithms.maddpg:MADDPG")
ALGORITHMS.add("playouts", "marl_jax.algorithms.playouts:PLAYOUTS")


def settings_from(algo: ConfigDict) -> LearnerSettings:
    """Return the settings of the algorithm that `config.algo` names."""
    return ALGORITHMS.get(algo.name).settings.from_config(algo)
