"""A run of a few seconds for tests: `python launch.py --config=tests/marl_jax/tiny_run.py`."""

from configs import defaults


def get_config(variant=None):
    """Tic-tac-toe with a few thousand parameters; `:pool` has opponents of every kind."""
    config = defaults.get_config()
    config.name = "tiny_run"
    config.steps = 8
    config.mesh.data = 1  # programs for one device compile sooner
    config.env.update(dict(text="brief", style="plain"))
    config.model.shape = dict(d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16)
    config.rollout.update(dict(num_envs=16, unroll_length=4))
    config.algo.update(dict(epochs=1, minibatches=2, tis_clip=0.0))
    config.optim.update(dict(warmup=1, schedule="constant"))  # so that runs of any length have the same programs
    config.eval.update(dict(every=0, games=16))
    config.checkpoint.every = 2
    config.log.update(dict(games=0, tensorboard=False, progress=False))
    if variant == "pool":
        config.opponents.update(
            dict(self_play_frac=0.5, bot_frac=0.25, bots=("random",), pool_size=2, snapshot_every=3)
        )
    return config
