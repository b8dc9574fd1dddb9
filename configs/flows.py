"""Workflows on questions: searched by edits, or written by a designer that is trained."""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import algorithms, defaults, reasoning, variants

GROUP = EXECUTIONS = 4
SEARCH_FORMS = ("arithmetic", "gsm8k")
DESIGN_FORMS = ("prompt", "fixed", "shared", "per_role")
UNTRAINED = ("prompt",)
SEATS = ("designer", "executor")
BLOCK = 10
"""Number of steps for which one role is trained before the other."""
ADAPTER_LR = 1e-4
TEMPERATURE = 0.7


def workflow(form: str | None) -> ConfigDict:
    """Configure the task `workflow` on a dataset, for `--mode=search` and for training.

    A form is written DATASET, MODEL or DATASET+MODEL, where DATASET is one of SEARCH_FORMS.
    """
    dataset, model = variants.split_form(form, SEARCH_FORMS, "arithmetic")
    config = _base(model)
    defaults.use_task(config, "workflow", dataset=dataset)
    config.search.update(dict(rounds=10, examples=128))
    config.eval.update(dict(temperature=TEMPERATURE, games=512))
    config.task.n_episodes = 64
    if model is None:
        config.search.update(dict(rounds=4, examples=8))
        config.eval.games = 16
        config.task.n_episodes = 8
    return config


def design(form: str | None) -> ConfigDict:
    """Configure designer and executor in one of DESIGN_FORMS.

    A form is written FORM, MODEL or FORM+MODEL:

    - `prompt`: No training, for `--mode=eval`.
    - `fixed`: An executor of the workflow with one step.
    - `shared`: One policy for both roles, trained in turn.
    - `per_role`: An adapter for each role, or a copy of the embedded model, trained in turn (the default).

    Args:
        form: The form.
    """
    form, model = variants.split_form(form, DESIGN_FORMS, "per_role")
    config = _base(model)
    dataset = "arithmetic" if model is None else "gsm8k"
    if form == "fixed":
        defaults.use_task(config, "workflow", dataset=dataset)
    else:
        defaults.use_task(config, "design", dataset=dataset, executions=EXECUTIONS)
    config.eval.update(dict(every=20, games=16 if model is None else 64))
    # An episode has GROUP designs, and at least GROUP completions for each question of each design.
    config.task.n_episodes = (2 if model is None else 8) * (GROUP * EXECUTIONS if form == "fixed" else 1)
    if form in ("shared", "per_role"):
        config.algo.seat_block = BLOCK
    if form == "per_role":
        reasoning.per_role(config, SEATS)
    return config


def _base(model: str | None) -> ConfigDict:
    config = defaults.get_config()
    config.algo = algorithms.at_grpo(GROUP, minibatches=2)
    config.steps = 60
    config.optim.update(dict(lr=1e-3, schedule="constant"))
    config.checkpoint.update(dict(every=20, best_metric="self/success"))
    config = variants.choose(config, model)
    config.algo.entropy_coef = 0.0
    config.optim.warmup = 0 if model is None else 2
    if model is None:
        # Sized for two CPU cores and a model without pretraining, whose tokens are bytes.
        config.task.update(dict(max_new_tokens=4, max_num_seqs=16, max_length=4096, time_limit=120.0))
    else:
        config.task.update(dict(max_new_tokens=400, max_num_seqs=512, max_length=4096, time_limit=600.0))
        config.algo.update(dict(grad_accum_steps=8, kl_coef=0.01))
    if config.model.lora.rank:
        config.optim.lr = ADAPTER_LR
    return config
