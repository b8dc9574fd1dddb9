"""Warehouse: one policy controls all robots, which fetch requested shelves and return them.

    python launch.py --config=experiments/warehouse.py                     # imitate the planner on two CPU cores
    python launch.py --config=experiments/warehouse.py:play                # PPO, without imitation
    python launch.py --config=experiments/warehouse.py:both+smollm2        # imitate, then play, on a GPU
    python launch.py --config=experiments/warehouse.py:single              # one robot, as many rounds
    python launch.py --config=experiments/warehouse.py:local               # robots sense only the cells around them

The embedded model plays a warehouse of 8×4 cells with four shelves for 50 rounds; evaluations report deliveries per
episode (`score`). Imitation takes 500 updates, with about 2 s of CPU time each. After 200 of them, an episode has
0.5 and 0.2 deliveries (two seeds) instead of none. Random play delivers almost nothing, so PPO alone starts from a
reward for lifting a requested shelf.

The warehouses of RWARE are `--config.env.params.preset=tiny-2ag` and so on. docs/warehouse.md describes the game.
"""

from configs import algorithms, defaults, variants

PLAY, SINGLE, LOCAL = "play", "single", "local"
FORMS = {
    variants.SFT: dict(),
    PLAY: dict(pickup_reward=0.2),
    variants.BOTH: dict(),
    SINGLE: dict(players=1),
    LOCAL: dict(view="local"),
}


def get_config(form: str | None = None):
    """Configure imitation of the planner, or PPO."""
    chosen, model = variants.split_form(form, FORMS, variants.SFT)
    config = defaults.get_config()
    config.name, config.steps = "warehouse", 300
    config.env = defaults.environment("warehouse", **FORMS[chosen])
    config.rollout.update(dict(num_envs=64, unroll_length=20))
    config.algo.update(dict(epochs=1, minibatches=8, entropy_coef=0.02))
    config.optim.update(dict(lr=2e-3, warmup=2))
    config.eval.update(dict(every=100, games=64, opponents=()))
    config.checkpoint.update(dict(every=100))
    config = variants.choose(config, model)
    if chosen == variants.BOTH:
        lr = variants.choose(defaults.get_config(), model).optim.lr
        config.first_stage = algorithms.imitation_stage(steps=300, lr=lr, rollout=dict(num_envs=128, unroll_length=8))
    if chosen not in (variants.SFT, SINGLE, LOCAL):
        return config
    config = variants.imitate(config, model)
    if model is None:
        config.steps, config.optim.lr = 500, 2e-3  # 200 are too few: an episode has 0.5 and 0.2 deliveries
    return config
