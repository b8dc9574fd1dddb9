"""The entries of the registry: name, fields and what is refused."""

from marl_jax.algorithms import Algorithm, checks, fields

PPO = Algorithm("ppo", fields.PPO, check=checks.ppo, critic=True)
GRPO = Algorithm("grpo", fields.GRPO, check=checks.grpo)
AT_GRPO = Algorithm("at_grpo", fields.AT_GRPO, check=checks.at_grpo)
SFT = Algorithm("sft", fields.SFT, check=checks.sft)
