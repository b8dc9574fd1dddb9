"""Arithmetic: one agent computes an expression, and a verifier reads its answer.

    python launch.py --config=experiments/arithmetic.py                     # GRPO, the embedded model
    python launch.py --config=experiments/arithmetic.py:ppo
    python launch.py --config=experiments/arithmetic.py:grpo+qwen2.5-0.5b   # on a GPU

Forms: `grpo` (the default), `ppo` or `at_grpo`, a model of `configs/variants.py`, or both with + between them.

The embedded model has never read a word and answers with two bytes, so it cannot learn to compute; the run shows that
everything works. With `grpo`, three minutes on two CPU cores, it learns in 100 steps to answer with a number: answers
without one (`task/parse_failure`) go from all to almost none, and about none of the numbers are right.
"""

from configs import tasks


def get_config(form: str | None = None):
    """Arithmetic with a verifier; one agent."""
    config = tasks.task("arithmetic", form, ("grpo", "ppo", "at_grpo"), max_length=512, small_episodes=64)
    config.name = "arithmetic"
    return config
