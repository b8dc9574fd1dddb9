"""Arithmetic: one agent evaluates an expression, and a verifier reads its answer.

    python launch.py --config=experiments/arithmetic.py                     # GRPO, the embedded model
    python launch.py --config=experiments/arithmetic.py:ppo
    python launch.py --config=experiments/arithmetic.py:grpo+qwen2.5-0.5b   # on a GPU

Forms: `grpo` (the default), `ppo` or `at_grpo`, a model of `configs/variants.py`, or both with + between them.

The embedded model is not pretrained and writes two bytes, so it cannot learn to compute; the run only shows that
everything works. With `grpo` it learns to answer with a number in 100 steps, three minutes on two CPU cores:
completions without one (`task/parse_failure`) go from all to almost none, and hardly any of the numbers are right.
"""

from configs import tasks


def get_config(form: str | None = None):
    """Configure arithmetic for one agent."""
    config = tasks.task("arithmetic", form, ("grpo", "ppo", "at_grpo"), max_length=512, small_episodes=64)
    config.name = "arithmetic"
    return config
