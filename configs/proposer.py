"""Proposer and solver with published problems, a frozen or a learning proposer.

Every form that learns has room for the same number of completions per step. An episode with a proposer has GROUP
proposals and SOLVERS predictions for each of them, one with a published problem GROUP predictions. Invalid proposals
leave some of the room unused, so comparisons need equal generated tokens (`metrics.jsonl` counts them).
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import algorithms, defaults, reasoning, variants

GROUP = SOLVERS = 4
ROOM, SMALL_ROOM = 640, 40
"""Number of completions per step of a pretrained model, and of the embedded one."""
ADAPTER_LR = 1e-4
SEATS = ("solver", "proposer")
FORMS = ("prompt", "fixed", "frozen_proposer", "shared", "per_role")
UNTRAINED = ("prompt",)
DEFAULT = "shared"


def proposer(form: str | None) -> ConfigDict:
    """Configure the task in one of FORMS.

    A form is written FORM, MODEL or FORM+MODEL:

    - `prompt`: No training, for `--mode=eval`.
    - `fixed`: A solver that is trained on published problems.
    - `frozen_proposer`: A solver, and a proposer that stays as it is.
    - `shared`: One policy for both roles (the default).
    - `per_role`: An adapter for each role, or a copy of the embedded model.

    Args:
        form: The form.
    """
    form, model = variants.split_form(form, FORMS, DEFAULT)
    config = defaults.get_config()
    config.algo = algorithms.at_grpo(GROUP, minibatches=2)
    config.steps = 60
    config.optim.update(dict(lr=1e-3, schedule="constant"))
    config.eval.update(dict(every=20, games=512))
    config.checkpoint.update(dict(every=20, best_metric="self/success"))
    config = variants.choose(config, model)
    config.algo.entropy_coef = 0.0
    config.optim.warmup = 0 if model is None else 2
    proposes = form not in ("fixed", "prompt")
    params = dict(problems="proposed" if proposes else "published", solvers=SOLVERS, no_signal=0.0)
    datasets = dict(dataset="mbpp", test_dataset="cruxeval_output")
    if model is None:
        # Sized for two CPU cores and a model without pretraining, whose tokens are bytes.
        datasets = dict(dataset="sample", test_dataset="sample")
        config.task.update(dict(max_new_tokens=4, max_num_seqs=16, max_length=2048, time_limit=120.0))
        config.eval.games = 16
    else:
        config.task.update(dict(max_new_tokens=400, max_num_seqs=512, max_length=2048, time_limit=600.0))
        config.algo.update(dict(grad_accum_steps=8, kl_coef=0.01))
    defaults.use_task(config, "propose", **datasets, **params)
    room = SMALL_ROOM if model is None else ROOM
    config.task.n_episodes = room // completions_of(config)
    if config.model.lora.rank:
        config.optim.lr = ADAPTER_LR
    if form in ("frozen_proposer", "per_role"):
        reasoning.per_role(config, SEATS)
        config.policies.proposer.frozen = form == "frozen_proposer"
    return config


def completions_of(config: ConfigDict) -> int:
    """Return the maximum number of completions in an episode of training."""
    group = config.algo.group_size
    return group * (1 + config.task.params.solvers) if config.task.params.problems == "proposed" else group
