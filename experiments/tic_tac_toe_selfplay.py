"""Tic-tac-toe: one policy learns both seats by playing against itself.

    python launch.py --config=experiments/tic_tac_toe_selfplay.py

Variants: `:smollm2`, `:smollm2-lora`, `:qwen2.5-0.5b`, `:qwen2.5-7b` (real models, for a GPU or more).
"""

from configs import defaults, variants


def get_config(variant: str | None = None):
    """Self-play PPO on tic-tac-toe."""
    config = defaults.get_config()
    config.name = "tic_tac_toe_selfplay"
    config.env = defaults.environment("tic_tac_toe")
    config.steps = 100
    config.rollout.turns = 9  # the longest game
    config.eval.every = 20
    config.checkpoint.every = 20
    config.eval.opponents = ("random", "minimax")
    config.checkpoint.best_metric = "random/win_rate"
    return variants.choose(config, variant)
