"""Connect four: one policy learns both seats by playing against itself and its past selves.

    python launch.py --config=experiments/connect_four_selfplay.py

Variants: `:smollm2`, `:smollm2-lora`, `:qwen2.5-0.5b`, `:qwen2.5-7b` (real models, for a GPU or more).
"""

from configs import defaults, variants


def get_config(variant: str | None = None):
    """Self-play PPO on connect four with a pool of past selves."""
    config = defaults.get_config()
    config.name = "connect_four_selfplay"
    config.steps = 400
    config.env = defaults.environment("connect_four")
    config.rollout.turns = 42  # the longest game
    config.rollout.games = 128
    config.algo.gamma = 0.99  # a win sooner is worth more; games are long
    config.opponents.self_share = 0.75
    config.opponents.pool_size = 4
    config.eval.opponents = ("random", "search")
    config.checkpoint.best_metric = "random/win_rate"
    return variants.choose(config, variant)
