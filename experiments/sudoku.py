"""Sudoku: fill in the digits, alone or as planner and executor.

    python launch.py --config=experiments/sudoku.py                      # two roles, one policy, AT-GRPO
    python launch.py --config=experiments/sudoku.py:at_grpo_apart        # a model for each role
    python launch.py --config=experiments/sudoku.py:roles --mode=eval    # the untrained model

Forms and models are those of `plan_path.py`.
"""

from configs import planning


def get_config(form: str | None = None):
    """Configure 4x4 Sudoku.

    The embedded model has 3 to 5 empty cells, other models have 6 to 10.
    """
    small = planning.is_small(form)
    config = planning.puzzle("sudoku", form, moves=8 if small else 16, empties=(3, 5) if small else (6, 10))
    config.name = "sudoku"
    return config
