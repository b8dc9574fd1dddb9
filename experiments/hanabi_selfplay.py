"""Hanabi: one policy for all seats learns to cooperate by playing with itself.

    python launch.py --config=experiments/hanabi_selfplay.py

The default is the small game (2 colours, 2 cards in hand); the variants `:smollm2`, `:smollm2-lora`, `:qwen2.5-0.5b`
and `:qwen2.5-7b` play the full game of two players.
"""

from configs import defaults, variants


def get_config(variant: str | None = None):
    """Self-play PPO on Hanabi; rewards belong to the team."""
    config = defaults.get_config()
    config.name = "hanabi_selfplay"
    config.steps = 300
    config.env = defaults.environment("hanabi", preset="small" if variant in (None, "tiny") else "full")
    config.rollout.turns = 24
    config.algo.gamma = 0.99
    config.eval.opponents = ()  # evaluated with itself in every seat
    config.checkpoint.best_metric = "self/score"
    return variants.choose(config, variant)
