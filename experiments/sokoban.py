"""Sokoban: push the boxes onto the goals, alone or as planner and executor.

    python launch.py --config=experiments/sokoban.py                      # two roles, one policy, AT-GRPO
    python launch.py --config=experiments/sokoban.py:at_grpo_apart        # a model for each role
    python launch.py --config=experiments/sokoban.py:roles --mode=eval    # the model untuned

Forms and models are those of `plan_path.py`.
"""

from configs import planning


def get_config(form: str | None = None):
    """Sokoban in one of its forms, with one box: 5x5, walls included, for the embedded model, 6x6 for others."""
    small = planning.is_small(form)
    # There are few distinct levels of 5x5.
    pool = dict(size=5, n_train=200, n_test=64) if small else dict(size=6, n_train=2048, n_test=512)
    # Candidates are compared by what one move pays, so every move of a solution must pay something.
    config = planning.puzzle("sokoban", form, moves=12 if small else 24, shaping_reward=1.0, **pool)
    config.name = "sokoban"
    # A wrong push cannot be undone: with larger steps every form forgets its imitation (docs/results_appendix.md).
    if not planning.imitates(form):
        scale = 0.5 if planning.is_pretrained(form) else 0.3
        config.optim.update(dict(lr=scale * config.optim.lr, schedule="linear"))
    return config
