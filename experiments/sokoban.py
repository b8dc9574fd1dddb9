"""Sokoban: push the boxes onto the goals, alone or as planner and executor.

    python launch.py --config=experiments/sokoban.py                      # two roles, one policy, AT-GRPO
    python launch.py --config=experiments/sokoban.py:at_grpo_apart        # a model for each role
    python launch.py --config=experiments/sokoban.py:roles --mode=eval    # the untrained model

Forms and models are those of `plan_path.py`.
"""

from configs import planning


def get_config(form: str | None = None):
    """Configure Sokoban with one box: 5x5 for the embedded model, 6x6 for others.

    The sizes include the walls.
    """
    small = planning.is_small(form)
    # There are few distinct 5x5 levels.
    pool = dict(size=5, n_train=200, n_test=64) if small else dict(size=6, n_train=2048, n_test=512)
    # Candidates are compared by the reward of one move, so every move of a solution must have a reward.
    config = planning.puzzle("sokoban", form, moves=12 if small else 24, shaping_reward=1.0, **pool)
    config.name = "sokoban"
    # A wrong push cannot be undone: at higher learning rates all forms forget imitation (docs/lab/results_trials.md).
    if not planning.imitates(form):
        scale = 0.5 if planning.is_pretrained(form) else 0.3
        config.optim.update(dict(lr=scale * config.optim.lr, schedule="linear"))
    return config
