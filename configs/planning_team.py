"""The planning team of the AT-GRPO paper and its baselines.

Every form that learns has room for the same number of completions per step: GRPO plays GROUP episodes of a level,
AT-GRPO one episode with GROUP candidates per completion, and the team has two completions per turn. Episodes that are
solved early leave some of the room unused.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import algorithms, defaults, published, reasoning, variants

GROUP = 4
TURNS = 4
ROOM = 1024
"""Number of completions per step of a pretrained model."""
TEMPERATURE = 0.6
"""Sampling temperature of pretrained models in training, except as published. At 1 few of their programs run."""
ADAPTER_LR = 2e-4
SEATS = ("tool_agent", "plan_agent")
FORMS = {
    "single": "plan",
    "single_tool": "tool",
    "prompt": "team",
    "single_grpo": "plan",
    "tool_grpo": "tool",
    "at_grpo_shared": "team",
    "at_grpo_per_role": "team",
    "at_grpo_published": "team",
}
"""Forms of the experiment, with the form of the task."""
UNTRAINED = ("single", "single_tool", "prompt")
DEFAULT = "at_grpo_shared"
SMALL = dict(turns=2, n_train=64, n_validation=16, n_test=16)
"""Parameters of the task for the embedded model."""


def planning_team(form: str | None, **params) -> ConfigDict:
    """Configure the planning task in one of FORMS.

    A form is written FORM, MODEL or FORM+MODEL:

    - `single`, `single_tool`, `prompt`: No training, for `--mode=eval`: one agent without and with a tool, or the team.
    - `single_grpo`, `tool_grpo`: One agent without and with a tool, groups of complete episodes.
    - `at_grpo_shared`: The team with one policy for both roles (the default).
    - `at_grpo_per_role`: The team with an adapter for each role, or a copy of the embedded model.
    - `at_grpo_published`: The team with one policy and the algorithm as published, without this project's safeguards.

    Args:
        form: The form.
        **params: Parameters of the task.
    """
    form, model = variants.split_form(form, FORMS, DEFAULT)
    config = defaults.get_config()
    config.algo = _algorithm(form)
    config.steps = 60
    config.optim.update(dict(lr=1e-3, schedule="constant"))
    config.eval.update(dict(every=10, games=512))
    config.checkpoint.update(dict(every=10, best_metric="self/success"))
    config = variants.choose(config, model)
    config.algo.entropy_coef = 0.0
    config.optim.warmup = 0 if model is None else 2
    small = SMALL if model is None else {}
    defaults.use_task(config, "planning", **dict(game="plan_path", turns=TURNS) | small | params, form=FORMS[form])
    room = 32 if model is None else ROOM
    if model is None:
        # Sized for two CPU cores and a model without pretraining, whose tokens are bytes.
        config.task.update(dict(max_new_tokens=4, max_num_seqs=16, max_length=3072, time_limit=120.0))
        config.eval.games = 16
    else:
        config.task.update(dict(max_new_tokens=600, max_num_seqs=512, max_length=3072, time_limit=600.0))
        config.algo.update(dict(grad_accum_steps=16, tis_clip=0.0))
        if form != "at_grpo_published":
            config.rollout.temperature = TEMPERATURE
        if config.algo.name == "grpo":
            config.algo.pack = 4
    config.task.n_episodes = room // answers_of(config)
    if form == "at_grpo_published":
        config.optim.update(published.AT_GRPO_OPTIM)
    if config.model.lora.rank:
        config.optim.lr = ADAPTER_LR
    if form == "at_grpo_per_role":
        reasoning.per_role(config, SEATS)
    return config


def answers_of(config: ConfigDict) -> int:
    """Return the maximum number of completions in an episode."""
    seats = 2 if config.task.params.form == "team" else 1
    candidates = config.algo.group_size if config.algo.name == "at_grpo" else 1
    return config.task.params.turns * seats * candidates


def _algorithm(form: str) -> ConfigDict:
    if form == "at_grpo_published":
        return published.at_grpo(GROUP)
    make = algorithms.at_grpo if form.startswith("at_grpo") else algorithms.grpo
    return make(GROUP, minibatches=2)
