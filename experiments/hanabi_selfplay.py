"""Hanabi: one policy for all seats imitates the convention bot, then learns by self-play.

    python launch.py --config=experiments/hanabi_selfplay.py

The command runs both stages and resumes whichever was interrupted (`config.first_stage`). A KL keeps PPO near the
imitated policy, and its entropy bonus decays. The default is the small game (2 colours, 2 cards in hand, 1 life) with
the embedded model, for two CPU cores: expect 5 of 10 points after imitation and 6.5 after self-play, in twelve minutes
altogether (docs/results.md). The variants `:smollm2`, `:smollm2-lora`, `:qwen2.5-0.5b`, `:qwen2.5-7b` and the others of
`configs/variants.py` play the full game of two, where SmolLM2 scores 21 of 25 after imitation and after self-play, in
23 minutes on an H200.

`:scratch` and `:scratch+MODEL` skip the imitation, `:sft` and `:sft+MODEL` stop after it.
"""

from configs import algorithms, defaults, models, variants


def get_config(variant: str | None = None):
    """Configure imitation and self-play PPO; rewards belong to the team."""
    stages, model = variants.stages(variant, default="both")
    config = defaults.get_config()
    config.name = "hanabi_selfplay"
    config.steps = 200
    # Part of a lost score is still rewarded, more of it while players lose every game (docs/lab/results_trials.md).
    consolation = 0.5 if stages == "scratch" else 0.3
    config.env = defaults.environment("hanabi", preset="full" if model else "small", consolation=consolation)
    config.rollout.update(dict(num_envs=128, unroll_length=16))
    config.algo.update(dict(gamma=0.99, epochs=1, minibatches=4, entropy_coef=0.01))
    config.eval.update(dict(every=20, opponents=()))  # evaluated with itself in every seat
    config.checkpoint.best_metric = "self/score"
    config = variants.choose(config, model)
    config.algo.tis_clip = 0.0  # completions have one token, so sampler and learner hardly differ
    if model:  # longer games and longer prompts
        config.steps = 130
        config.rollout.update(dict(num_envs=128, unroll_length=24))
        config.algo.update(dict(grad_accum_steps=8, entropy_coef=0.02))
        config.optim.schedule = "linear"
    else:
        config.model.unroll = 2
    if stages == "scratch":
        return config
    (_full if model else _small)(config)
    return variants.only_first_stage(config) if stages == "sft" else config


def _small(config) -> None:
    """Configure the embedded model: fifteen minutes on two CPU cores."""
    config.steps = 100
    config.reward.update(dict(team=0.2, process=0.2))  # values of about 1, so that the value loss does not dominate
    config.algo.update(dict(kl_coef=0.02, entropy_ratio=0.0))
    config.optim.update(dict(lr=5e-4, warmup=5))
    config.eval.every = 25
    config.first_stage = algorithms.imitation_stage(
        steps=110, lr=2e-3, rollout=dict(num_envs=256, unroll_length=16), minibatches=16, noise=0.03
    )


def _full(config) -> None:
    """Configure a pretrained model: supervised learning rates, then self-play near the imitation."""
    config.reward.update(dict(team=0.1, process=0.1))
    config.algo.update(dict(entropy_coef=0.01, kl_coef=0.02, entropy_ratio=0.0))
    lr = 1e-3 if config.model.lora.rank else 3e-4
    config.first_stage = algorithms.imitation_stage(
        steps=250, lr=lr, rollout=dict(num_envs=512, unroll_length=16), minibatches=8, grad_accum_steps=8, noise=0.02
    )
    config.first_stage.eval.every = 50
    if config.model.name == models.smollm2().name:
        _half_an_hour(config)


def _half_an_hour(config) -> None:
    """Configure SmolLM2-135M for one H200: short rows and large batches.

    The rows hold all but one position in thousands.
    """
    config.env.update(dict(text="compact", turn_tokens=128))
    config.model.remat = "none"
    config.steps = 100
    config.rollout.update(dict(num_envs=512, unroll_length=16))
    config.algo.grad_accum_steps = 8
    config.first_stage.steps = 160
    config.first_stage.algo.grad_accum_steps = 4
