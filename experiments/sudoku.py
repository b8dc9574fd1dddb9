"""Sudoku: fill in the digits, alone or as planner and executor.

    python launch.py --config=experiments/sudoku.py                      # two roles, one policy, AT-GRPO
    python launch.py --config=experiments/sudoku.py:at_grpo_lora         # an adapter for each role
    python launch.py --config=experiments/sudoku.py:roles --mode=eval    # the model as it comes

Forms and models are those of `plan_path.py`.
"""

from configs import planning


def get_config(form: str | None = None):
    """Sudoku in one of its forms: 4x4."""
    config = planning.puzzle("sudoku", form, moves=16)
    config.name = "sudoku"
    return config
