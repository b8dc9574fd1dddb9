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
VALUE_BASED = ("vdn", "qmix")

PER_ROLE = "per_role"


def cooperative(name: str, form: str, **params) -> ConfigDict:
    """Configure a cooperative game of two with the embedded model.

    Args:
        name: Name of the game.
        form: One of `FORMS`, with `+per_role` for one policy per seat.
        **params: Parameters of the game.
    """
    form, _, policies = form.partition("+")
    if form not in FORMS:
        raise ValueError(f"form is {form!r}, but must be one of: {', '.join(FORMS)}{did_you_mean(form, FORMS)}")
    if policies not in ("", PER_ROLE):
        raise ValueError(f"form is '{form}+{policies}', but must end with +{PER_ROLE} or with the method")
    config = defaults.get_config()
    config.env = defaults.environment(name, **params)
    config.env.update(dict(text="brief", style="plain"))
    config.algo = FORMS[form]()
    config.algo.update(dict(epochs=1, minibatches=4))
    if "tis_clip" in config.algo:
        config.algo.tis_clip = 0.0  # in float32, sampler and learner agree almost exactly
    if form in VALUE_BASED:
        config.rollout.temperature = 0.1  # values are about 1, so softmax(Q) would be nearly uniform
    config.eval.opponents = ()  # evaluated with itself in every seat
    config.checkpoint.best_metric = "self/score"
    if policies:
        seats = ("seat_0", "seat_1")
        config.agents = ConfigDict({seat: seat for seat in seats})
        config.policies = ConfigDict({seat: defaults.policy() for seat in seats})
        if form in VALUE_BASED:  # their loss needs all seats at once, so roles are adapters on one model
            config.model.lora.rank = 8
    return config
