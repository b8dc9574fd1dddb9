"""Connect four: imitation of the search bot, then self-play PPO with past opponents.

    python launch.py --config=experiments/connect_four_selfplay.py

One policy plays both seats. It imitates the search bot, then plays against itself, its past and the bot. The command
runs both stages and resumes whichever was interrupted (`config.first_stage`). A KL keeps PPO near the imitated policy,
and its entropy bonus decays. The default is the embedded model, for two CPU cores: expect half of the points against
the bot after the imitation and about three quarters at the end, with swings between evaluations (docs/results.md).

Variants with pretrained models, for one GPU or more: `:smollm2`, `:smollm2-lora`, `:qwen2.5-0.5b`, `:qwen2.5-7b` and
the others of `configs/variants.py`. `:scratch` and `:scratch+MODEL` skip the imitation, `:sft` and `:sft+MODEL` stop
after it.
"""

from configs import algorithms, defaults, variants


def get_config(variant: str | None = None):
    """Configure imitation and self-play PPO with a pool of past opponents."""
    stages, model = variants.stages(variant, default="both")
    config = defaults.get_config()
    config.name = "connect_four_selfplay"
    config.steps = 150
    config.env = defaults.environment("connect_four")
    config.env.symmetry = True  # a position is equivalent to its mirror image
    config.rollout.update(dict(num_envs=128, unroll_length=42))  # 42 turns: the longest game
    config.algo.update(dict(gamma=0.99, epochs=1, minibatches=8, entropy_coef=0.05))  # a win sooner is worth more
    # Games against past policies and sometimes a weak player preserve the knowledge of how to win.
    config.opponents.update(dict(self_play_frac=0.6, pool_size=4, bots=("random",), bot_frac=0.2))
    config.eval.every = 25
    config.eval.opponents = ("random", "search")
    config.checkpoint.best_metric = "random/win_rate" if stages == "scratch" else "search/score"
    config = variants.choose(config, model)
    if model:
        config.env.text = "compact"
    if stages == "scratch":
        return config
    _near_the_bot(config)
    (_real if model else _small)(config)
    return variants.only_first_stage(config) if stages == "sft" else config


def _near_the_bot(config) -> None:
    """Keep PPO near the imitated policy, with half of the games against the bot."""
    config.algo.update(dict(entropy_coef=0.01, entropy_ratio=0.0, kl_coef=0.02))
    config.opponents.update(dict(self_play_frac=0.3, pool_size=4, snapshot_every=20, bots=("search",), bot_frac=0.5))


def _small(config) -> None:
    """Configure the embedded model for two CPU cores."""
    # Half of the longest game: rows continue in the next update.
    config.rollout.update(dict(num_envs=256, unroll_length=21))
    config.optim.update(dict(lr=5e-4, warmup=5))
    config.steps = 100
    config.first_stage = algorithms.imitation_stage(
        steps=150, lr=2e-3, rollout=dict(num_envs=256, unroll_length=16), minibatches=16, noise=0.2
    )
    config.first_stage.eval.every = 50


def _real(config) -> None:
    """Configure a pretrained model: supervised learning rates, then self-play near the imitation."""
    config.rollout.unroll_length = 21
    config.algo.grad_accum_steps = max(2, config.algo.grad_accum_steps)
    config.algo.tis_clip = 0.0  # completions have one token, so sampler and learner hardly differ
    config.optim.schedule = "linear"
    lr = 1e-3 if config.model.lora.rank else 3e-4
    parts = config.algo.grad_accum_steps
    config.first_stage = algorithms.imitation_stage(
        steps=150, lr=lr, rollout=dict(num_envs=512, unroll_length=16), minibatches=8, grad_accum_steps=parts, noise=0.2
    )
    config.first_stage.eval.every = 50
