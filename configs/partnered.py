"""Tasks with context agents: a learner with a judge only, or with partners that change.

Every form that learns has room for the same number of the learner's completions per step, so that single-agent and
multi-agent training are compared at equal samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from configs import algorithms, defaults, reasoning, variants

GROUP = 4
STEPS = 60
ROOM, SMALL_ROOM = 768, 48
"""Number of the learner's completions per step of a pretrained model, and of the embedded one."""
FORMS = ("prompt", "single", "multi_fixed", "multi_pool", "multi_switch", "multi_learning")
UNTRAINED = ("prompt",)
DEFAULT = "multi_switch"


def partnered(
    task: str, form: str | None, *, partners: Sequence[str], single: Mapping[str, Any], learning: Mapping[str, Any],
    seats: Sequence[str], completions: tuple[int, int], params: Mapping[str, Any], small: Mapping[str, Any],
    max_new_tokens: int, max_length: int, small_tokens: int = 4,
) -> ConfigDict:  # fmt: skip
    """Configure a task in one of FORMS.

    A form is written FORM, MODEL or FORM+MODEL:

    - `prompt`: No training, for `--mode=eval`.
    - `single`: The learner and a judge, without context agents.
    - `multi_fixed`: A context agent with the first strategy.
    - `multi_pool`: A context agent whose strategy is drawn for every example.
    - `multi_switch`: A context agent that changes its strategy twice during the run (the default).
    - `multi_learning`: A context agent that is a second policy and learns too.

    Args:
        task: Name of the task.
        form: The form.
        partners: Strategies of the context agent, in the order of the switches.
        single: Parameters of the task for the learner and a judge.
        learning: Parameters of the task for a context agent that learns.
        seats: Names of the seats, the learner first.
        completions: Maximum number of the learner's completions in an episode, alone and with context agents.
        params: Parameters of the task.
        small: Parameters for the embedded model.
        max_new_tokens: Maximum number of tokens in a completion of a pretrained model.
        max_length: Maximum number of tokens in a conversation of a pretrained model.
        small_tokens: Maximum number of tokens in a completion of the embedded model.
    """
    form, model = variants.split_form(form, FORMS, DEFAULT)
    config = defaults.get_config()
    config.algo = algorithms.grpo(GROUP, minibatches=2)
    config.steps = STEPS
    config.optim.update(dict(lr=1e-3, schedule="constant"))
    config.eval.update(dict(every=20, games=512))
    config.checkpoint.update(dict(every=20, best_metric="self/success"))
    config = variants.choose(config, model)
    config.algo.entropy_coef = 0.0
    config.optim.warmup = 0 if model is None else 2
    chosen = {
        "prompt": dict(partners=partners[:1]),
        "single": dict(single),
        "multi_fixed": dict(partners=partners[:1]),
        "multi_pool": dict(partners=partners, schedule="pool"),
        "multi_switch": dict(partners=partners, schedule="switch", switch_at=(STEPS // 3, 2 * STEPS // 3)),
        "multi_learning": dict(partners=partners[:1], **learning),
    }[form]
    defaults.use_task(config, task, **dict(params) | (dict(small) if model is None else {}) | chosen)
    if model is None:
        # Sized for two CPU cores and a model without pretraining, whose tokens are bytes.
        config.task.update(dict(max_new_tokens=small_tokens, max_num_seqs=16, max_length=2048, time_limit=120.0))
        config.eval.games = 16
    else:
        config.task.update(
            dict(max_new_tokens=max_new_tokens, max_num_seqs=512, max_length=max_length, time_limit=600.0)
        )
        config.algo.update(dict(grad_accum_steps=8, kl_coef=0.01, pack=4))
    config.task.n_episodes = (SMALL_ROOM if model is None else ROOM) // completions[form != "single"]
    if form == "multi_learning":
        config.algo.pack = 0  # one policy only
        reasoning.per_role(config, seats)
    return config
