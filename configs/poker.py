"""Small poker games by self-play: PPO with or without a magnet and seat baselines.

The last policy counts, not an average. Rewards are chips, scaled by `reward.agent`, and advantages are not whitened, so
that the coefficients of entropy and magnet have the same unit in all forms.
"""

from ml_collections import ConfigDict

from configs import algorithms, defaults, variants

POPULATIONS = ("psro", "league")
FORMS = ("magnet", "ppo", "role", "magnet_role", *POPULATIONS)


def poker(
    name: str,
    form: str | None,
    *,
    steps: int,
    turns: int,
    entropy: tuple[float, float],
    chips: float,
    shape: dict,
    **params,
) -> ConfigDict:
    """Configure a game in one of its forms.

    A form is written FORM, MODEL, FORM+MODEL, sft or sft+MODEL:

    - `ppo`: Self-play PPO with a value head and a decaying entropy bonus.
    - `magnet`: The same, kept close to a slow copy of itself (the default).
    - `role`: The same without a critic: returns minus the average of the seat.
    - `magnet_role`: Both.
    - `psro`: A population of responses to its own mixture, which starts with `magnet`.
    - `league`: A main policy trained as in `magnet`, with exploiters.
    - `sft`: Imitation of the equilibrium bot.

    Args:
        name: Name of the game.
        form: The form.
        steps: Number of updates.
        turns: Number of turns in a rollout.
        entropy: Entropy bonus at the first and at the last step, the same in all forms.
        chips: Reward of a chip.
        shape: Shape of the embedded model.
        **params: Parameters of the game.
    """
    form, model = variants.split_form(form, (*FORMS, variants.SFT), FORMS[0])
    config = defaults.get_config()
    config.name, config.steps = name, steps
    config.env = defaults.environment(name, **params)
    config.algo = _algorithm(form)
    if form in POPULATIONS:
        config.population.update(dict(method=form, meta_solver="least_exploitable", steps=120))
    config.reward.agent = chips
    config.rollout.update(dict(num_envs=256, unroll_length=turns))
    config.optim.update(dict(lr=2e-3, warmup=2))
    config.model.shape.update(shape)
    # Cards are hidden, so a good policy is stochastic: it is evaluated as it is trained, not greedily.
    config.eval.update(dict(every=20, games=512, temperature=1.0, opponents=("random", "equilibrium")))
    config.checkpoint.update(dict(every=20, best_metric="best_response/exploitability", best_mode="min"))
    config = variants.choose(config, model)
    first, last = entropy
    config.algo.update(dict(entropy_coef=first, entropy_ratio=round(last / first, 6)))
    return variants.imitate(config, model) if form == variants.SFT else config


def _algorithm(form: str) -> ConfigDict:
    changes = dict(epochs=1, minibatches=4, whiten="none", value_coef=0.25)
    if form.endswith("role"):
        changes["baseline"] = "seat_ema"
    make = algorithms.magnetic_ppo if form.startswith(("magnet", *POPULATIONS)) else algorithms.ppo
    return make(**changes)
