"""Connect four: one policy for both seats imitates the search bot, then plays against itself, its past and the bot.

    python launch.py --config=experiments/connect_four_selfplay.py

Both stages are one command, which resumes whichever was interrupted (`config.first_stage`). PPO is held near the
imitated policy by a KL, and its entropy bonus falls. The default is the embedded model, for two CPU cores: expect half
of the points against the bot after the imitation and about three quarters at the end, with swings between evaluations
(docs/results.md).

Variants for a GPU or more, with real models: `:smollm2`, `:smollm2-lora`, `:qwen2.5-0.5b`, `:qwen2.5-7b` and the
others of `configs/variants.py`. `:scratch` and `:scratch+MODEL` leave the imitation out, `:sft` and `:sft+MODEL` stop
behind it.
"""

from configs import algorithms, defaults, variants


def get_config(variant: str | None = None):
    """Imitation and self-play PPO on connect four with a pool of historical opponents."""
    stages, model = variants.stages(variant, default="both")
    config = defaults.get_config()
    config.name = "connect_four_selfplay"
    config.steps = 150
    config.env = defaults.environment("connect_four")
    config.env.symmetry = True  # a position and its mirror image teach the same
    config.rollout.update(dict(num_envs=128, unroll_length=42))  # 42 turns: the longest game
    config.algo.update(dict(gamma=0.99, epochs=1, minibatches=8, entropy_coef=0.05))  # a win sooner is worth more
    # Past selves, and now and then a weak player, keep the ways to win in practice.
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
    """PPO that keeps what was imitated, half of its games against the bot."""
    config.algo.update(dict(entropy_coef=0.01, entropy_ratio=0.0, kl_coef=0.02))
    config.opponents.update(dict(self_play_frac=0.3, pool_size=4, snapshot_every=20, bots=("search",), bot_frac=0.5))


def _small(config) -> None:
    """Two CPU cores."""
    config.rollout.update(
        dict(num_envs=256, unroll_length=21)
    )  # half of the longest game: rows go on in the next update
    config.optim.update(dict(lr=5e-4, warmup=5))
    config.steps = 100
    config.first_stage = algorithms.imitation_stage(
        steps=150, lr=2e-3, rollout=dict(num_envs=256, unroll_length=16), minibatches=16, noise=0.2
    )
    config.first_stage.eval.every = 50


def _real(config) -> None:
    """Imitation with learning rates for supervised training; self-play near it."""
    config.rollout.unroll_length = 21
    config.algo.grad_accum_steps = max(2, config.algo.grad_accum_steps)
    config.algo.tis_clip = 0.0  # answers of one token: sampler and learner hardly differ
    config.optim.schedule = "linear"
    lr = 1e-3 if config.model.lora.rank else 3e-4
    parts = config.algo.grad_accum_steps
    config.first_stage = algorithms.imitation_stage(
        steps=150, lr=lr, rollout=dict(num_envs=512, unroll_length=16), minibatches=8, grad_accum_steps=parts, noise=0.2
    )
    config.first_stage.eval.every = 50
