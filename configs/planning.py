"""The planning puzzles in their forms: one agent or two roles, untrained, imitation, GRPO or AT-GRPO.

Every form that learns has room for the same number of answers a step: with two roles a move takes two answers, so half
as many games are played at once, and AT-GRPO, which answers each prompt GROUP times, plays that many times fewer. GRPO
plays whole games only; its rows have time for ROUNDS of the longest, one after the other, so that little is left empty
when games end early, and there are that many times fewer rows.
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
    """A puzzle of at most `moves` moves in one of its forms, written FORM, MODEL, FORM+MODEL or FORM+MODEL+small.

    single, roles             not trained, for `--mode=eval`: one agent, or planner and executor
    sft, roles_sft            imitation of the solver, a start for the forms below
    grpo, roles_grpo          whole episodes from one start in groups
    at_grpo                   candidates of one prompt in groups; one policy for both roles (the default)
    at_grpo_lora              … an adapter for each role, on one model
    at_grpo_apart             … a model for each role, copies of one at the start

    With a policy for each role, evaluation also lets them play each other's role (`swapped`).
    """
    form, model = _parts(form)
    if form not in FORMS:
        raise ValueError(f"form {form!r} is unknown; accepted: {', '.join(FORMS)}, with +MODEL behind it or not")
    config = defaults.get_config()
    roles = form in ROLES
    config.env = defaults.environment(name, roles="two" if roles else "one", budget=moves, **params)
    changes = dict(minibatches=2, clip_high=0.28)
    if form.startswith("at_grpo"):
        # Continuing from any candidate rather than the best, a policy also meets what its own mistakes lead to.
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
    config.algo.entropy_coef = 0.05  # with less, groups soon agree, and equal answers do not contribute
    if config.mesh.fsdp == 1:  # the parts of a split model's batch each gather its weights, so those have few
        config.algo.grad_accum_steps = 8  # soon most groups are equal; parts of a minibatch with no others are not read
    if model is not None:
        _pretrained(config)
    config.rollout.num_envs //= fewer(form)
    if form in ("at_grpo_lora", "at_grpo_apart"):
        per_role(config, adapters=form == "at_grpo_lora")
    return variants.imitate(config, model) if form in IMITATE else config


def fewer(form: str) -> int:
    """How many times fewer games a form plays at once than one agent, a game a row, could with as many answers."""
    candidates = GROUP if form.startswith("at_grpo") else ROUNDS if _whole_games(form) else 1
    return candidates * (2 if form in ROLES else 1)


def per_role(config: ConfigDict, adapters: bool) -> None:
    """A policy of its own for each role: a LoRA adapter on one base, or a copy of the model."""
    config.agents = ConfigDict(dict(planner="planner", executor="executor"))
    config.policies = ConfigDict(dict(planner=defaults.policy(), executor=defaults.policy()))
    config.eval.swap_roles = True
    if adapters and not config.model.lora.rank:
        config.model.lora.rank = 16
        config.optim.lr = max(3 * config.optim.lr, ADAPTER_LR)  # adapters learn with larger steps than all weights
    elif not adapters:
        config.model.lora.rank = 0


def _whole_games(form: str) -> bool:
    return form in ("grpo", "roles_grpo")


def _pretrained(config: ConfigDict) -> None:
    """What a model that imitation has made sure of its moves needs: candidates agree, and few answers teach.

    With the steps of self-play those few undo what it knows (docs/results_appendix.md).
    """
    # Answers of one token: sampler and learner hardly differ.
    config.algo.update(dict(entropy_coef=0.02, tis_clip=0.0))
    if config.mesh.fsdp == 1:
        config.algo.minibatches = 4
    lr = min(config.optim.lr, ADAPTER_LR) if config.model.lora.rank else config.optim.lr / 2
    config.optim.update(dict(lr=lr, schedule="linear"))


def imitates(form: str | None) -> bool:
    """Whether a form learns from the solver's moves."""
    return _parts(form)[0] in IMITATE


def is_pretrained(form: str | None) -> bool:
    """Whether the model of a form is another than the embedded one."""
    return _parts(form)[1] is not None


def is_small(form: str | None) -> bool:
    """Whether the puzzle has the size for the embedded model: with that, or where `small` stands behind another."""
    return not is_pretrained(form) or (form or "").endswith(SMALL)


def _parts(form: str | None) -> tuple[str, str | None]:
    """The form and the model; None is the embedded one. A model alone has the default form."""
    form, _, model = (form or "at_grpo").removesuffix(SMALL).partition("+")
    if form in variants.VARIANTS and not model:
        form, model = "at_grpo", form
    return form, None if model in ("", "tiny") else model
