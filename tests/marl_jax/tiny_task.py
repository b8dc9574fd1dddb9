"""A run on a task of a few seconds, for tests: `python launch.py --config=tests/marl_jax/tiny_task.py:grpo`."""

from configs import algorithms, defaults

ALGORITHMS = {"ppo": algorithms.ppo, "grpo": algorithms.grpo, "at_grpo": algorithms.at_grpo}


def get_config(variant="grpo"):
    """ALGORITHM or ALGORITHM+TASK with a few thousand parameters; TASK is `plain` of `tiny_tasks.py` by default."""
    algorithm, _, task = variant.partition("+")
    config = defaults.get_config()
    config.name = "tiny_task"
    config.steps = 3
    config.mesh.data = 1  # programs for one device compile sooner
    config.plugins = ("tests.marl_jax.tiny_tasks",)
    defaults.use_task(config, task or "plain", n_examples=16)
    config.task.update(dict(n_episodes=4, max_new_tokens=6, max_num_seqs=8, max_length=1024 if task else 256))
    config.model.shape = dict(d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16)
    config.algo = ALGORITHMS[algorithm]()
    config.algo.update(dict(epochs=1, minibatches=1))
    if "group_size" in config.algo:
        config.algo.update(dict(group_size=2, filter_zero_std_groups=False))
    config.optim.update(dict(warmup=1, schedule="constant"))
    config.eval.update(dict(every=0, games=4))
    config.checkpoint.every = 2
    config.log.update(dict(games=0, tensorboard=False, progress=False))
    return config
