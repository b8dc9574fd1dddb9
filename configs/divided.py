"""Tasks with divided information, for a team or for one agent.

Every form that learns has room for the same number of completions per step. GRPO plays GROUP episodes of an example.
AT-GRPO plays one episode with GROUP candidates per message, each of which is followed by GROUP candidates per answer
(`envs/tasks/exchange.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from configs import algorithms, defaults, reasoning, variants

GROUP = 4
ROOM, SMALL_ROOM = 480, 80
"""Maximum number of completions per step of a pretrained model, and of the embedded one."""
TEMPERATURE = 0.6
"""Sampling temperature of pretrained models in training. At 1 few of their programs run, so most rewards are equal."""
ADAPTER_LR = 2e-4
TEAM, SEAT, ALL = "team", "seat", "all"
FORMS = {
    "prompt": TEAM, "seat": SEAT, "all": ALL, "seat_grpo": SEAT, "all_grpo": ALL, "at_grpo_shared": TEAM,
    "at_grpo_per_role": TEAM,
}  # fmt: skip
"""Forms of the experiments, with who answers."""
UNTRAINED = ("prompt", "seat", "all")
DEFAULT = "at_grpo_shared"


def divided(
    task: str, form: str | None, *, seats: Sequence[str], completions: tuple[int, int], views: Mapping[str, str],
    params: Mapping[str, Any], small: Mapping[str, Any], max_length: int, max_new_tokens: int,
) -> ConfigDict:  # fmt: skip
    """Configure a task in one of FORMS.

    A form is written FORM, MODEL or FORM+MODEL:

    - `prompt`, `seat`, `all`: No training, for `--mode=eval`: the team, one agent with one seat's view, or with all.
    - `seat_grpo`, `all_grpo`: One agent with one seat's view or with all, groups of complete episodes.
    - `at_grpo_shared`: The team with one policy for all seats (the default).
    - `at_grpo_per_role`: The team with an adapter for each seat, or a copy of the embedded model.

    Args:
        task: Name of the task.
        form: The form.
        seats: Names of the seats of a team.
        completions: Number of seats that write a message, and of seats that answer.
        views: The task's own names of TEAM, SEAT and ALL.
        params: Parameters of the task.
        small: Parameters for the embedded model.
        max_length: Maximum number of tokens in a conversation of a pretrained model.
        max_new_tokens: Maximum number of tokens in a completion of a pretrained model.
    """
    form, model = variants.split_form(form, FORMS, DEFAULT)
    config = defaults.get_config()
    config.algo = (algorithms.at_grpo if FORMS[form] == TEAM else algorithms.grpo)(GROUP, minibatches=2)
    config.steps = 40
    config.optim.update(dict(lr=1e-3, schedule="constant"))
    config.eval.update(dict(every=20, games=512))
    config.checkpoint.update(dict(every=20, best_metric="self/success"))
    config = variants.choose(config, model)
    config.algo.entropy_coef = 0.0
    config.optim.warmup = 0 if model is None else 2
    chosen = dict(params) | (dict(small) if model is None else {}) | dict(form=views[FORMS[form]])
    defaults.use_task(config, task, **chosen)
    if model is None:
        # Sized for two CPU cores and a model without pretraining, whose tokens are bytes.
        config.task.update(dict(max_new_tokens=4, max_num_seqs=16, max_length=2048, time_limit=120.0))
        config.eval.games = 16
    else:
        config.task.update(dict(max_num_seqs=512, max_length=max_length, time_limit=600.0))
        config.task.max_new_tokens = max_new_tokens
        config.algo.update(dict(grad_accum_steps=8, tis_clip=0.0))
        config.rollout.temperature = TEMPERATURE
        if config.algo.name == "grpo":
            config.algo.pack = 4
    room = SMALL_ROOM if model is None else ROOM
    config.task.n_episodes = room // completions_of(config, completions)
    if config.model.lora.rank:
        config.optim.lr = ADAPTER_LR
    if form == "at_grpo_per_role":
        reasoning.per_role(config, seats)
    return config


def completions_of(config: ConfigDict, completions: tuple[int, int]) -> int:
    """Return the number of completions in an episode with one turn of messages."""
    if config.algo.name != "at_grpo":
        return 1
    group, (speakers, answering) = config.algo.group_size, completions
    return group * speakers + group * group * answering
