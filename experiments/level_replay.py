"""Plan-Path and Sokoban on replayed or edited levels, against uniformly drawn ones.

    python launch.py --config=experiments/level_replay.py                        # ACCEL on Plan-Path
    python launch.py --config=experiments/level_replay.py:uniform+plan_path

A form is METHOD or METHOD+GAME: `uniform`, `plr`, `robust_plr` or `accel`, and `plan_path` (5x5, PPO from scratch) or
`sokoban` (6x6, PPO after 60 steps of imitation). All methods play the same number of turns per step and are evaluated
on held-out levels. Robust methods learn from half of the turns only (docs/level_replay.md).
"""

from configs import algorithms, defaults

METHODS = ("uniform", "plr", "robust_plr", "accel")
GAMES = {
    "plan_path": dict(size=5, budget=12, n_train=2048, n_test=2048, shaping_reward=2.0),
    "sokoban": dict(size=6, budget=20, n_train=2048, n_test=1024),
}


def get_config(form: str | None = None):
    """Configure a method and a game, METHOD[+GAME]."""
    method, _, game = (form or "accel").partition("+")
    game = game or "plan_path"
    for word, known in ((method, METHODS), (game, tuple(GAMES))):
        if word not in known:
            raise ValueError(f"form is {form!r}, but {word!r} must be one of: {', '.join(known)}")
    config = defaults.get_config()
    config.name = "level_replay"
    config.env = defaults.environment(game, **GAMES[game])
    config.env.update(dict(text="brief", style="plain"))
    config.model.shape.update(dict(d_model=32, n_layers=1, n_heads=2, n_kv_heads=2, d_ff=64))
    config.level_replay.method = "" if method == "uniform" else method
    config.algo = algorithms.ppo()
    config.algo.update(dict(epochs=1, minibatches=4, entropy_coef=0.02, tis_clip=0.0, gamma=0.8))
    config.rollout.update(dict(num_envs=64, unroll_length=12))
    config.steps = 150
    config.optim.update(dict(lr=3e-3, schedule="constant", warmup=5))
    config.eval.update(dict(every=150, games=2048, opponents=(), temperature=1.0))
    config.checkpoint.update(dict(every=150, best_metric="self/success"))
    if game == "sokoban":  # PPO from scratch solves no level at this scale
        config.optim.lr = 1e-3
        config.first_stage = algorithms.imitation_stage(
            steps=60, lr=3e-3, rollout=dict(num_envs=64, unroll_length=12), minibatches=4
        )
    return config
