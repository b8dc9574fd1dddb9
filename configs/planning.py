"""Planning puzzles in their forms: one agent or two roles, several ways to train.

Every form that learns has room for the same number of completions per step. With two roles, a move takes two
completions, so half as many games are played at once. AT-GRPO samples GROUP completions per prompt, so it plays GROUP
times fewer games. GRPO plays complete games only. Its rows have time for ROUNDS games of maximum length, one after the
other, so that little is left empty when games end early, and there are ROUNDS times fewer rows.
"""

from ml_collections import ConfigDict

from configs import algorithms, defaults, variants

GROUP = 4
ROUNDS = 4
ADAPTER_LR = 2e-4
SMALL = "+small"
ROLES = {"roles", "roles_sft", "roles_grpo", "at_grpo", "at_grpo_lora", "at_grpo_apart"}
IMITATE = ("sft", "roles_sft")
PLAY = ("single", "grpo", "roles", "roles_grpo", "at_grpo", "at_grpo_lora", "at_grpo_apart")
FORMS = (*PLAY, *IMITATE)


def puzzle(name: str, form: str | None, moves: int, **params) -> ConfigDict:
    """Configure a puzzle of at most `moves` moves in one of its forms.

    A form is written FORM, MODEL, FORM+MODEL or FORM+MODEL+small:

    - `single`, `roles`: No training, for `--mode=eval`: one agent, or planner and executor.
    - `sft`, `roles_sft`: Imitation of the solver, as a start for the forms below.
    - `grpo`, `roles_grpo`: Groups of complete episodes from one start.
    - `at_grpo`: Groups of candidates for one prompt, with one policy for both roles (the default).
    - `at_grpo_lora`: The same with an adapter for each role on one model.
    - `at_grpo_apart`: The same with a model for each role, copies of one at the start.

    With a policy for each role, evaluations also let them play each other's role (`swapped`).
    """
    form, model = _parts(form)
    config = defaults.get_config()
    roles = form in ROLES
    config.env = defaults.environment(name, roles="two" if roles else "one", budget=moves, **params)
    changes = dict(minibatches=2, clip_high=0.28)
    if form.startswith("at_grpo"):
        # By continuing from a random candidate instead of the best, a policy also sees the results of its mistakes.
        config.algo = algorithms.at_grpo(GROUP, continuation="random", **changes)
    else:
        config.algo = algorithms.grpo(GROUP, **changes)
    config.rollout.update(
        dict(num_envs=512, unroll_length=moves * (2 if roles else 1) * (ROUNDS if _whole_games(form) else 1))
    )
    config.steps = 200
    config.optim.update(dict(lr=1e-3, schedule="constant", warmup=5))
    config.eval.update(dict(every=50, games=256, opponents=()))
    config.checkpoint.best_metric = "self/success"
    config = variants.choose(config, model)
    config.algo.entropy_coef = 0.05  # with less, candidates soon agree, and equal ones teach nothing
    if config.mesh.fsdp == 1:  # a sharded model gathers its weights for every microbatch, so it has few
        config.algo.grad_accum_steps = 8  # soon most groups are uniform, and microbatches of such groups are skipped
    if model is not None:
        _pretrained(config)
    config.rollout.num_envs //= fewer(form)
    if form in ("at_grpo_lora", "at_grpo_apart"):
        per_role(config, adapters=form == "at_grpo_lora")
    return variants.imitate(config, model) if form in IMITATE else config


def fewer(form: str) -> int:
    """Return how many times fewer games than one agent a form plays at once.

    The comparison is with one game per row and as many completions.
    """
    candidates = GROUP if form.startswith("at_grpo") else ROUNDS if _whole_games(form) else 1
    return candidates * (2 if form in ROLES else 1)


def per_role(config: ConfigDict, adapters: bool) -> None:
    """Give each role its own policy: a LoRA adapter on one base, or a copy."""
    config.agents = ConfigDict(dict(planner="planner", executor="executor"))
    config.policies = ConfigDict(dict(planner=defaults.policy(), executor=defaults.policy()))
    config.eval.swap_roles = True
    if adapters and not config.model.lora.rank:
        config.model.lora.rank = 16
        config.optim.lr = max(3 * config.optim.lr, ADAPTER_LR)  # adapters need a higher learning rate than all weights
    elif not adapters:
        config.model.lora.rank = 0


def _whole_games(form: str) -> bool:
    return form in ("grpo", "roles_grpo")


def _pretrained(config: ConfigDict) -> None:
    """Adjust the settings for a model that is already confident after imitation.

    Its candidates agree, so few completions are informative. With the learning rate of self-play, those few undo its
    knowledge (docs/lab/results_trials.md).
    """
    # Completions have one token, so sampler and learner hardly differ.
    config.algo.update(dict(entropy_coef=0.02, tis_clip=0.0))
    if config.mesh.fsdp == 1:
        config.algo.minibatches = 4
    lr = min(config.optim.lr, ADAPTER_LR) if config.model.lora.rank else config.optim.lr / 2
    config.optim.update(dict(lr=lr, schedule="linear"))


def imitates(form: str | None) -> bool:
    """Return whether a form learns from the solver's moves."""
    return _parts(form)[0] in IMITATE


def is_pretrained(form: str | None) -> bool:
    """Return whether a form has a model other than the embedded one."""
    return _parts(form)[1] is not None


def is_small(form: str | None) -> bool:
    """Return whether the puzzle has the size for the embedded model.

    It has this size for the embedded model, and for others if the form ends with +small.
    """
    return not is_pretrained(form) or (form or "").endswith(SMALL)


def _parts(form: str | None) -> tuple[str, str | None]:
    """Split a form into form and model; None is the embedded model.

    A model alone has the default form.
    """
    return variants.split_form((form or "at_grpo").removesuffix(SMALL), FORMS, "at_grpo")
