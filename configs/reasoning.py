"""Language tasks in the forms that a table compares: one agent or roles, by prompts alone, with GRPO or with AT-GRPO.

Every form that learns has room for the same number of answers a step (`room`): GRPO plays GROUP episodes of an example,
AT-GRPO one episode with GROUP candidates for every answer, and episodes that take more answers are fewer. Episodes that
end early leave some of the room unused; a run counts what it used (`answers` in metrics.jsonl).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from configs import defaults, tasks, variants

GROUP = tasks.GROUP
FORMS = ("single", "single_grpo", "roles_prompt", "roles_grpo", "at_grpo_shared", "at_grpo_per_role")
UNTRAINED = ("single", "roles_prompt")
DEFAULT = "at_grpo_shared"
ADAPTER_LR = 1e-4


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
    """A task in one of FORMS, written FORM, MODEL or FORM+MODEL.

    single, roles_prompt   not trained, for `--mode=eval`: one agent, or roles by their prompts
    single_grpo, roles_grpo   whole episodes in groups
    at_grpo_shared         candidates of one prompt in groups; one policy for all roles (the default)
    at_grpo_per_role       … a policy for each role: an adapter each, of the embedded model a copy each

    seats    names of the roles
    params   of the task; `single` and `roles` are those that make it one agent or roles
    answers  answers of an episode at most: of one agent, of the roles
    small    params for the embedded model, with which everything is small
    room     answers of a step
    """
    form, model = parts(form)
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
        # Two CPU cores and a model that has never read a word.
        room = 16 * max(answers)
        config.task.update(dict(max_new_tokens=4, max_num_seqs=16, max_length=2048, time_limit=120.0))
        config.eval.games = 16
    # AT-GRPO answers each prompt GROUP times, GRPO plays each example GROUP times.
    candidates = GROUP if config.algo.name == "at_grpo" else 1
    config.task.n_episodes = room // (answers[0 if is_single else 1] * candidates)
    if form == "at_grpo_per_role":
        per_role(config, seats)
    return config


def per_role(config: ConfigDict, seats: Sequence[str]) -> None:
    """A policy for each role: an adapter on one base, or of the embedded model, which starts from noise, a copy."""
    config.agents = ConfigDict({seat: seat for seat in seats})
    config.policies = ConfigDict({seat: defaults.policy() for seat in seats})
    if config.model.name != "tiny" and not config.model.lora.rank:
        config.model.lora.rank = 32
        config.optim.lr = max(config.optim.lr, ADAPTER_LR)


def answers_of(config: Mapping[str, Any], answers: tuple[int, int], single: bool) -> int:
    """For how many answers a run has room in training."""
    candidates = config["algo"]["group_size"] if config["algo"]["name"] == "at_grpo" else 1
    return config["steps"] * config["task"]["n_episodes"] * answers[0 if single else 1] * candidates


def parts(form: str | None) -> tuple[str, str | None]:
    """The form and the model; None is the embedded one. A model alone has the default form."""
    form, _, model = (form or DEFAULT).partition("+")
    if form in variants.VARIANTS and not model:
        form, model = DEFAULT, form
    if form not in FORMS:
        raise ValueError(f"form {form!r} is unknown; accepted: {', '.join(FORMS)}, MODEL or FORM+MODEL")
    return form, None if model in ("", "tiny") else model
