"""Cooperative games with a choice of methods: value factorization, counterfactual critics and central critics.

All forms play the same number of turns per step, so runs of equal length have equal environment steps.
"""

from ml_collections import ConfigDict

from configs import algorithms, defaults
from registries import did_you_mean

FORMS = {
    "vdn": algorithms.vdn,
    "qmix": algorithms.qmix,
    "coma": algorithms.coma,
    "maddpg": algorithms.maddpg,
    "mappo": lambda: algorithms.ppo(critic="central"),
}
"""Name of a form → its algorithm; MAPPO is PPO with a central critic."""


def cooperative(name: str, form: str, **params) -> ConfigDict:
    """Configure a cooperative game with the embedded model.

    Args:
        name: Name of the game.
        form: One of `FORMS`.
        **params: Parameters of the game.
    """
    if form not in FORMS:
        raise ValueError(f"form is {form!r}, but must be one of: {', '.join(FORMS)}{did_you_mean(form, FORMS)}")
    config = defaults.get_config()
    config.env = defaults.environment(name, **params)
    config.env.update(dict(text="brief", style="plain"))
    config.algo = FORMS[form]()
    config.algo.update(dict(epochs=1, minibatches=4))
    if "tis_clip" in config.algo:
        config.algo.tis_clip = 0.0  # in float32, sampler and learner agree almost exactly
    config.eval.opponents = ()  # evaluated with itself in every seat
    config.checkpoint.best_metric = "self/score"
    return config
