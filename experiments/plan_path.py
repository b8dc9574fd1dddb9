"""Plan-Path: find the way through a grid, alone or as planner and executor.

    python launch.py --config=experiments/plan_path.py                      # two roles, one policy, AT-GRPO
    python launch.py --config=experiments/plan_path.py:at_grpo_lora         # an adapter for each role
    python launch.py --config=experiments/plan_path.py:roles --mode=eval    # the model as it comes

Forms: `single` and `roles` (not trained), `grpo` and `roles_grpo` (whole episodes in groups), `at_grpo` and
`at_grpo_lora` (candidates of one prompt in groups). A model may follow, e.g. `:at_grpo+smollm2`, which plays on 8x8.
"""

from configs import planning


def get_config(form: str | None = None):
    """Plan-Path in one of its forms: 5x5 for the embedded model, 8x8 for others."""
    small = "+" not in (form or "")
    config = planning.puzzle("plan_path", form, moves=12 if small else 24, size=5 if small else 8)
    config.name = "plan_path"
    return config
