"""Language tasks in the forms that a table compares: one agent or several roles.

They are not trained, or trained with GRPO or AT-GRPO. Every form that learns has room for the same number of
completions per step (`room`): GRPO plays GROUP episodes of an example, AT-GRPO one episode with GROUP candidates per
turn, and episodes with more completions are fewer. Episodes that end early leave some of the room unused; a run counts
what it used (`completions` in metrics.jsonl).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from configs import defaults, tasks, variants

GROUP = tasks.GROUP
FORMS = (
    "single", "single_grpo", "roles_prompt", "roles_grpo", "at_grpo_shared", "at_grpo_per_role", "at_grpo_separate",
)  # fmt: skip
UNTRAINED = ("single", "roles_prompt")
DEFAULT = "at_grpo_shared"
ADAPTER_LR, SEPARATE_LR = 1e-4, 1e-5


def reasoning(
    task: str,
    form: str | None,
    *,
    seats: Sequence[str],
    params: Mapping[str, Any],
    single: Mapping[str, Any],
    roles: Mapping[str, Any],
    answers: tuple[int, int],
    small: Mapping[str, Any],
    room: int = 512,
    max_new_tokens: int = 512,
    max_length: int = 4096,
) -> ConfigDict:
    """Configure a task in one of FORMS.

    A form is written FORM, MODEL or FORM+MODEL:

    - `single`, `roles_prompt`: No training, for `--mode=eval`: one agent, or roles by their prompts.
    - `single_grpo`, `roles_grpo`: Groups of complete episodes.
    - `at_grpo_shared`: Groups of candidates for one prompt, with one policy for all roles (the default).
    - `at_grpo_per_role`: The same with an adapter for each role, or a copy of the embedded model.
    - `at_grpo_separate`: The same with a model for each role, all of whose weights are trained.

    Args:
        task: Name of the task.
        form: The form.
        seats: Names of the roles.
        params: Parameters of the task.
        single: Parameters for one agent.
        roles: Parameters for several roles.
        answers: Maximum number of completions in an episode of one agent, and of the roles.
        small: Parameters for the embedded model, with which everything is small.
        room: Number of completions per step.
        max_new_tokens: Maximum number of tokens in a completion.
        max_length: Maximum number of tokens in a conversation.
    """
    form, model = variants.split_form(form, FORMS, DEFAULT)
    config = defaults.get_config()
    config.algo = tasks.ALGORITHMS["at_grpo" if form.startswith("at_grpo") else "grpo"]()
    config.steps = 100
    config.optim.update(dict(lr=1e-3, schedule="constant", warmup=5))
    config.eval.update(dict(every=25, games=512))
    config.checkpoint.update(dict(every=25, best_metric="self/success"))
    config = variants.choose(config, model)
    config.algo.entropy_coef = 0.0
    is_single = form in ("single", "single_grpo")
    chosen = dict(params) | dict(single if is_single else roles) | (dict(small) if model is None else {})
    defaults.use_task(config, task, **chosen)
    config.task.update(dict(max_new_tokens=max_new_tokens, max_num_seqs=256, max_length=max_length, time_limit=600.0))
    if model is None:
        # Sized for two CPU cores and a model without pretraining.
        room = 16 * max(answers)
        config.task.update(dict(max_new_tokens=4, max_num_seqs=16, max_length=2048, time_limit=120.0))
        config.eval.games = 16
    # AT-GRPO samples GROUP completions per prompt, GRPO plays each example GROUP times.
    candidates = GROUP if config.algo.name == "at_grpo" else 1
    config.task.n_episodes = room // (answers[0 if is_single else 1] * candidates)
    if form in ("at_grpo_per_role", "at_grpo_separate"):
        per_role(config, seats, adapters=form == "at_grpo_per_role")
    return config


def per_role(config: ConfigDict, seats: Sequence[str], adapters: bool = True) -> None:
    """Give each role its own policy: an adapter on one base, or a copy.

    The embedded model is copied, because it starts from random weights.
    """
    config.agents = ConfigDict({seat: seat for seat in seats})
    config.policies = ConfigDict({seat: defaults.policy() for seat in seats})
    if config.model.lora.rank and not adapters:
        config.model.lora.rank, config.model.param_dtype, config.optim.lr = 0, "float32", SEPARATE_LR
    elif config.model.name != "tiny" and not config.model.lora.rank and adapters:
        config.model.lora.rank = 32
        config.optim.lr = max(config.optim.lr, ADAPTER_LR)


def answers_of(config: Mapping[str, Any], answers: tuple[int, int], single: bool) -> int:
    """Return the maximum number of completions in training."""
    candidates = config["algo"]["group_size"] if config["algo"]["name"] == "at_grpo" else 1
    return config["steps"] * config["task"]["n_episodes"] * answers[0 if single else 1] * candidates
