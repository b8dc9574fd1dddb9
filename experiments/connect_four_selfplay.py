"""Connect four: one policy learns both seats by playing against itself and its past selves.

    python launch.py --config=experiments/connect_four_selfplay.py

Twenty minutes on two CPU cores. Expect about 90 % wins against random play, which a fresh network nearly has already,
and nothing against the search bot (docs/results.md).

Variants for a GPU or more, with real models: `:smollm2`, `:smollm2-lora`, `:qwen2.5-0.5b`, `:qwen2.5-7b` and the
others of `configs/variants.py`; `:sft` and `:sft+MODEL` imitate the search bot, `:both` and
`:both+MODEL` imitate it and then play, by one command.
"""

from configs import defaults, variants


def get_config(variant: str | None = None):
    """Self-play PPO on connect four with a pool of historical opponents."""
    stages, model = variants.stages(variant)
    config = defaults.get_config()
    config.name = "connect_four_selfplay"
    config.steps = 150
    config.env = defaults.environment("connect_four")
    config.env.symmetry = True  # a position and its mirror image teach the same
    config.rollout.update(dict(games=128, turns=42))  # 42 turns: the longest game
    config.algo.update(dict(gamma=0.99, epochs=1, minibatches=8, entropy_coef=0.05))  # a win sooner is worth more
    # Past selves, and now and then a weak player, keep the ways to win in practice.
    config.opponents.update(dict(self_play_frac=0.6, pool_size=4, bots=("random",), bot_frac=0.2))
    config.eval.every = 25
    config.eval.opponents = ("random", "search")
    config.checkpoint.best_metric = "random/win_rate"
    config = variants.choose(config, model)
    return variants.with_stages(config, stages, model)
