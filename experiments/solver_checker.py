"""Solver and checker: one role solves a problem, the other checks it (AT-GRPO).

    python launch.py --config=experiments/solver_checker.py                        # AT-GRPO, the embedded model
    python launch.py --config=experiments/solver_checker.py:grpo
    python launch.py --config=experiments/solver_checker.py:at_grpo+qwen2.5-0.5b   # on a GPU

Both roles have K candidates at every turn. Forms: `at_grpo` (the default), `grpo` or `ppo`, a model of
`configs/variants.py`, or both with + between them.

A step of the embedded model takes about four seconds on two CPU cores. It is not pretrained and writes two bytes, so it
cannot learn to compute. Only the first steps were tried; numbers are rare in its completions there.
"""

from configs import tasks


def get_config(form: str | None = None):
    """Configure AT-GRPO for two roles that share a policy."""
    config = tasks.task("solver_checker", form, ("at_grpo", "grpo", "ppo"), max_length=4096, small_episodes=8, rounds=2)
    config.name = "solver_checker"
    return config
