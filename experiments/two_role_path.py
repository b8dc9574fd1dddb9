"""Two-role Plan-Path from scratch with five cooperative methods.

    python launch.py --config=experiments/two_role_path.py:qmix

A planner, who sees the whole 5x5 grid, proposes every move to an executor, who sees the neighboring cells only. The
methods are `:vdn`, `:qmix`, `:coma`, `:maddpg` and `:mappo` (the default), with one policy for both roles or one each
(`:qmix+per_role`). All of them play 64 games for 24 turns per step. `python -m experiments.tables.cooperative` compares
them.
"""

from configs import cooperative


def get_config(form: str | None = None):
    """Configure a method on Plan-Path with a planner and an executor."""
    config = cooperative.cooperative(
        "plan_path", form or "mappo", size=5, budget=12, n_train=2048, n_test=2048, shaping_reward=2.0, roles="two",
        view="local",
    )  # fmt: skip
    config.name = "two_role_path"
    config.steps = 200
    config.model.shape.update(dict(d_model=32, n_layers=1, n_heads=2, n_kv_heads=2, d_ff=64))
    config.rollout.update(dict(num_envs=64, unroll_length=24))
    config.algo.gamma = 0.9
    config.optim.update(dict(lr=3e-3, schedule="constant", warmup=5))
    # A greedy policy without memory that walks into a wall once does so until the end.
    config.eval.update(dict(every=50, games=1024, temperature=config.rollout.temperature))
    return config
