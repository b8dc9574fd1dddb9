"""Host tasks in their forms: an algorithm and a model."""

from ml_collections import ConfigDict

from configs import algorithms, defaults, variants

GROUP = 8
ALGORITHMS = {
    "ppo": lambda: algorithms.ppo(epochs=1, minibatches=2, entropy_coef=0.0),
    "grpo": lambda: algorithms.grpo(GROUP, minibatches=2),
    "at_grpo": lambda: algorithms.at_grpo(GROUP, minibatches=2),
}


def task(
    name: str, form: str | None, accepted: tuple[str, ...], max_length: int, small_episodes: int, **params
) -> ConfigDict:
    """Configure a task in one of its forms, written ALGORITHM, MODEL or ALGORITHM+MODEL.

    Args:
        name: Name of the task.
        form: The form.
        accepted: Algorithms for the task; the first is the default.
        max_length: Maximum number of tokens in a conversation of a pretrained model.
        small_episodes: Number of episodes per step for the embedded model.
        **params: Parameters of the task.
    """
    algorithm, model = variants.split_form(form, accepted, accepted[0])
    config = defaults.get_config()
    config.algo = ALGORITHMS[algorithm]()
    config.steps = 100
    config.optim.update(dict(lr=1e-3, schedule="constant", warmup=5))
    config.eval.update(dict(every=25, games=256))
    config.checkpoint.update(dict(every=25, best_metric="self/success"))
    config = variants.choose(config, model)
    config.algo.entropy_coef = 0.0
    defaults.use_task(config, name, **params)
    episodes = 256 if algorithm != "at_grpo" else 64  # with GROUP completions per turn
    config.task.update(dict(n_episodes=episodes, max_new_tokens=256, max_num_seqs=256, max_length=max_length))
    if model is None:
        # Sized for two CPU cores and a model without pretraining: few episodes, and completions of two bytes.
        config.task.update(dict(n_episodes=small_episodes, max_new_tokens=2, max_num_seqs=32, max_length=768))
        config.eval.games = 32
    return config
