"""Sokoban: push the boxes onto the goals, alone or as planner and executor.

    python launch.py --config=experiments/sokoban.py                      # two roles, one policy, AT-GRPO
    python launch.py --config=experiments/sokoban.py:at_grpo_lora         # an adapter for each role
    python launch.py --config=experiments/sokoban.py:roles --mode=eval    # the model as it comes

Forms and models are those of `plan_path.py`.
"""

from configs import planning


def get_config(form: str | None = None):
    """Sokoban in one of its forms: 6x6 with one box, its generator's default."""
    config = planning.puzzle("sokoban", form, moves=24)
    config.name = "sokoban"
    return config
