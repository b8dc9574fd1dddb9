"""Runs of a few seconds on a puzzle: Plan-Path by planner and executor with a few thousand parameters."""

from configs import planning
from experiments import plan_path


def get_config(form="at_grpo"):
    """Plan-Path on 5x5 in one of its forms, with few levels, few games and short runs."""
    config = plan_path.get_config(form)
    config.name = "tiny_plan"
    config.steps = 4
    config.mesh.data = 1
    config.env.params.update(dict(n_train=24, n_test=8))
    config.model.shape = dict(d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16)
    config.rollout.num_envs = 8
    config.algo.grad_accum_steps = 1
    config.optim.warmup = 1
    config.eval.update(dict(every=0, games=16))
    config.checkpoint.update(dict(every=2, best_metric=""))
    if planning.imitates(form):
        config.rollout.update(dict(num_envs=16, unroll_length=4))
        config.algo.minibatches = 2
        config.optim.update(dict(schedule="constant", lr=1e-2))
    config.log.update(dict(games=0, tensorboard=False, progress=False))
    return config
