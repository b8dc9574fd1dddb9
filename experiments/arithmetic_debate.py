"""A debate on arithmetic between two agents that answer, read each other, and revise.

    python launch.py --config=experiments/arithmetic_debate.py                     # GRPO, the embedded model
    python launch.py --config=experiments/arithmetic_debate.py:ppo
    python launch.py --config=experiments/arithmetic_debate.py:grpo+qwen2.5-0.5b   # on a GPU

Forms: `grpo` (the default) or `ppo`, a model of `configs/variants.py`, or both with + between them.

A step of the embedded model takes about five seconds on two CPU cores. It is not pretrained and writes two bytes, so it
cannot learn to compute. Only the first steps were tried; numbers are rare in its completions there.
"""

from configs import tasks


def get_config(form: str | None = None):
    """Configure a debate of two agents that share a policy."""
    config = tasks.task(
        "arithmetic_debate", form, ("grpo", "ppo"), max_length=2048, small_episodes=32, agents=2, turns=2
    )
    config.name = "arithmetic_debate"
    if config.algo.name == "ppo":
        config.algo.gamma = 0.0  # the reward of an answer already contains its effects
    return config
