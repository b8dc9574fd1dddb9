"""Small Hanabi from scratch with five cooperative methods.

    python launch.py --config=experiments/small_hanabi.py:qmix

The methods are `:vdn`, `:qmix`, `:coma`, `:maddpg` and `:mappo` (the default). All of them play 128 games for 16 turns
per step with one policy for both seats, or with one each (`:qmix+per_role`). `python -m experiments.tables.cooperative`
compares them.
"""

from configs import cooperative


def get_config(form: str | None = None):
    """Configure a method on the small game."""
    config = cooperative.cooperative("hanabi", form or "mappo", preset="small", consolation=0.5)
    config.name = "small_hanabi"
    config.steps = 200
    config.reward.update(dict(team=0.2, process=0.2))  # values of about 1
    config.rollout.update(dict(num_envs=128, unroll_length=16))
    config.algo.gamma = 0.99
    config.optim.update(dict(lr=5e-4, warmup=5))
    config.eval.update(dict(every=25))
    return config
