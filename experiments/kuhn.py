"""Kuhn poker draft."""

from configs import defaults, variants


def get_config(variant: str | None = None):
    """Self-play on Kuhn poker."""
    sft, model = variants.parts(variant)
    config = defaults.get_config()
    config.name = "kuhn"
    config.env = defaults.environment("kuhn")
    config.steps = 200
    config.rollout.update(dict(games=512, turns=6))
    config.algo.update(dict(epochs=1, minibatches=4, entropy_coef=0.05))
    config.optim.update(dict(warmup=2))
    config.eval.update(dict(every=10, games=256, temperature=1.0, opponents=("random", "equilibrium")))
    config.checkpoint.every = 50
    config.checkpoint.best_metric = "best_response/exploitability"
    config.checkpoint.best_mode = "min"
    config = variants.choose(config, model)
    return variants.imitate(config, model) if sft else config
