"""Solver and checker: one role solves a problem, the other checks it; K candidates at every turn of both (AT-GRPO).

    python launch.py --config=experiments/solver_checker.py                        # AT-GRPO, the embedded model
    python launch.py --config=experiments/solver_checker.py:grpo
    python launch.py --config=experiments/solver_checker.py:at_grpo+qwen2.5-0.5b   # on a GPU

Forms: `at_grpo` (the default), `grpo` or `ppo`, a model of `configs/variants.py`, or both with + between them.

On two CPU cores a step of the embedded model takes about four seconds. It has never read a word and answers with two
bytes, so it cannot learn to compute; in the first steps, which are all that was tried, a number is rare in its answers.
"""

from configs import tasks


def get_config(form: str | None = None):
    """AT-GRPO for two roles that share a policy."""
    config = tasks.task("solver_checker", form, ("at_grpo", "grpo", "ppo"), max_length=4096, small_episodes=8, rounds=2)
    config.name = "solver_checker"
    return config
