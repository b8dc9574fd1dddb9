"""Hanabi: one policy for all seats learns to cooperate by playing with itself.

    python launch.py --config=experiments/hanabi_selfplay.py

The default is the small game (2 colours, 2 cards in hand). Expect a score of 1.6 after 60 of its 200 updates, from 0,
in eight minutes of processor time or so (docs/results.md); larger batches get further. The variants `:smollm2`,
`:smollm2-lora`, `:qwen2.5-0.5b`, `:qwen2.5-7b` and the others of `configs/variants.py` play the full game of two.

`:sft` and `:sft+MODEL` imitate the convention bot; `--config.model.init_from=FOLDER` starts another run from there.
"""

from configs import defaults, variants


def get_config(variant: str | None = None):
    """Self-play PPO on Hanabi; rewards belong to the team."""
    sft, model = variants.parts(variant)
    config = defaults.get_config()
    config.name = "hanabi_selfplay"
    config.steps = 200
    small = model is None
    # Half of a lost score is paid back in training; less or more of it taught less (docs/results.md).
    config.env = defaults.environment("hanabi", preset="small" if small else "full", consolation=0.5)
    config.rollout.update(dict(games=128, turns=16))
    config.algo.update(dict(gamma=0.99, epochs=1, minibatches=4, entropy_coef=0.01))
    config.eval.every = 20
    config.eval.opponents = ()  # evaluated with itself in every seat
    config.checkpoint.best_metric = "self/score"
    config = variants.choose(config, model)
    if not small:  # longer games and long prompts
        config.steps = 130
        config.rollout.update(dict(games=128, turns=24))
        # Answers of one token: sampler and learner hardly differ.
        config.algo.update(dict(grad_accum_steps=8, entropy_coef=0.02, tis_clip=0.0))
        config.optim.schedule = "linear"
    return variants.imitate(config, model) if sft else config
