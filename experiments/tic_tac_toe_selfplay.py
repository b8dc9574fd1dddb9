"""Tic-tac-toe: one policy learns both seats by playing against itself.

    python launch.py --config=experiments/tic_tac_toe_selfplay.py

The run takes about six minutes on two CPU cores. Expect 85 to 90 % wins and hardly a loss against random play, and
draws in all games against minimax (in each of ten runs on two kinds of CPU). On one H200, expect 93 % wins in seven
minutes with `:smollm2`, and 92 % in nine minutes with adapters (`:smollm2-lora`); both draw all games against minimax
(docs/results.md).

Variants with pretrained models, for one GPU or more: `:smollm2`, `:smollm2-lora`, `:qwen2.5-0.5b`,
`:qwen2.5-coder-0.5b`, `:qwen2.5-7b` and the others of `configs/variants.py`. `:sft` and `:sft+MODEL` imitate minimax.
"""

from configs import defaults, variants


def get_config(variant: str | None = None):
    """Configure self-play PPO on tic-tac-toe."""
    stages, model = variants.stages(variant)
    config = defaults.get_config()
    config.name = "tic_tac_toe_selfplay"
    config.env = defaults.environment("tic_tac_toe")
    config.env.symmetry = True  # a position is equivalent to its rotations and reflections
    config.steps = 200
    config.rollout.update(dict(num_envs=512, unroll_length=9))  # nine turns: the longest game
    config.algo.update(dict(epochs=1, minibatches=8, entropy_coef=0.1))  # one pass over fresh games
    # Self-play between equals soon ends in draws; games against a weak player preserve the knowledge of how to win.
    config.opponents.update(dict(self_play_frac=0.7, bots=("random",), bot_frac=0.3))
    config.optim.warmup = 2
    config.eval.every = 20
    config.checkpoint.every = 20
    config.eval.opponents = ("random", "minimax")
    config.checkpoint.best_metric = "random/win_rate"
    config = variants.choose(config, model)
    if model is None and stages == variants.SCRATCH:
        # A large entropy bonus makes self-play visit the lines that minimax plays. It decays so that play converges.
        # A random player does not punish mistakes there, so only a tenth of the games are against one.
        config.algo.update(dict(entropy_coef=0.3, entropy_ratio=0.1))
        config.opponents.update(dict(self_play_frac=0.9, bot_frac=0.1))
        config.rollout.num_envs = 768  # with 512, one run in ten ended with a line that loses to minimax
        config.optim.lr = 2e-3
    elif model is not None:
        config.steps = 340 if config.model.lora.rank else 250  # adapters need longer to converge
        config.algo.update(dict(entropy_coef=0.1, tis_clip=0.0))  # one token: sampler and learner hardly differ
        config.optim.schedule = "linear"
        config.opponents.update(dict(self_play_frac=0.6, bot_frac=0.4))
        config.eval.every = 25
        config.checkpoint.every = 50
    return variants.with_stages(config, stages, model)
