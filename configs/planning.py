"""The planning puzzles in their forms: one agent or two roles, untrained, GRPO or AT-GRPO.

Every form that learns gathers the same number of answers a step: with two roles a move takes two answers, so half as
many games are played, and AT-GRPO, which answers each prompt GROUP times, plays that many times fewer.
"""

from ml_collections import ConfigDict

from configs import algorithms, defaults, models, variants

GROUP = 4
ROLES = {"roles", "roles_grpo", "at_grpo", "at_grpo_lora"}
FORMS = ("single", "grpo", "roles", "roles_grpo", "at_grpo", "at_grpo_lora")


def puzzle(name: str, form: str | None, moves: int, **params) -> ConfigDict:
    """A puzzle of at most `moves` moves in one of its forms, written FORM or FORM+MODEL; the default is at_grpo.

    single, roles            not trained, for `--mode=eval`: one agent, or planner and executor
    grpo, roles_grpo         whole episodes from one start in groups
    at_grpo, at_grpo_lora    candidates of one prompt in groups; one policy for both roles, or an adapter for each
    """
    form, _, model = (form or "at_grpo").partition("+")
    if form not in FORMS:
        raise ValueError(f"form {form!r} is unknown; accepted: {', '.join(FORMS)}, with +MODEL behind it or not")
    config = defaults.get_config()
    roles = form in ROLES
    config.env = defaults.environment(name, roles="two" if roles else "one", budget=moves, **params)
    config.algo = algorithms.at_grpo(GROUP) if form.startswith("at_grpo") else algorithms.grpo(GROUP)
    config.algo.update(dict(entropy_coef=0.01, minibatches=2))
    config.rollout.turns = moves * (2 if roles else 1)
    config.steps = 400
    config.optim.lr = 1e-3
    config.eval.update(dict(every=50, games=256, opponents=()))
    config.checkpoint.best_metric = "self/success"
    config = variants.choose(config, model or None)
    config.rollout.games //= (2 if roles else 1) * (GROUP if form.startswith("at_grpo") else 1)
    if form == "at_grpo_lora":
        per_role(config)
    return config


def per_role(config: ConfigDict) -> None:
    """A LoRA adapter of its own for each role, on one base."""
    config.agents = ConfigDict(dict(planner="planner", executor="executor"))
    config.policies = ConfigDict(dict(planner=defaults.policy(), executor=defaults.policy()))
    config.model.lora = ConfigDict(dict(rank=16, alpha=32.0, targets=models.ALL_LINEAR))
