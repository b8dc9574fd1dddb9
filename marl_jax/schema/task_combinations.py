"""Checks of field combinations for runs with a host task.

They run after every field and name has been checked on its own and the task has accepted its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

from ml_collections import ConfigDict

from envs.tasks import make_task
from envs.tasks.judges import CRITERIA
from envs.tasks.scorer_client import ScorerClient
from envs.tasks.task import Task
from marl_jax.agents.seating import BOT
from marl_jax.algorithms import ALGORITHMS
from marl_jax.schema import combinations
from marl_jax.serving.remote import RemoteError, RemoteModel, is_endpoint, is_remote

RULE = "rule"  # value of `judge.name`


def make(c: ConfigDict) -> Task:
    """Build the task of a config.

    Raises:
        ValueError: If the task does not accept its parameters.
    """
    return make_task(c.task.name, **c.task.params.to_dict())


def _seats(c: ConfigDict) -> Iterator[str]:
    yield from combinations.seats(c, make(c).roles, c.task.name)
    for agent, player in c.agents.items():
        if player.startswith(BOT):
            yield f"config.agents.{agent} is {player!r}, but must be a policy: tasks have no bots"


def _remote_agents(c: ConfigDict) -> Iterator[str]:
    task = make(c)
    for agent, player in c.agents.items():
        if not is_remote(player):
            continue
        try:
            RemoteModel.parse(player)
        except RemoteError as error:
            yield f"config.agents.{agent}: {error}"
        if task.serves:
            yield (
                f"config.agents.{agent} is {player!r}, but must be a policy with task.name {c.task.name!r}, whose "
                "episodes are programs that call their models themselves"
            )


def _judge(c: ConfigDict) -> Iterator[str]:
    j = c.judge
    if not j.name:
        return
    if j.criterion not in CRITERIA:
        yield f"config.judge.criterion is {j.criterion!r}, but must be one of: {', '.join(CRITERIA)}"
    if not j.weight:
        yield "config.judge.weight is 0, but must be positive with a judge"
    contests = make(c).contests
    if not contests:
        missing = " without task.params.completion" if c.task.name == "dataset" else ""
        yield f"config.judge.name is {j.name!r}, but must be '' with task.name {c.task.name!r}{missing}"
    elif j.against not in contests:
        accepted = ", ".join(contests)
        yield f"config.judge.against is {j.against!r}, but must be one of, with task.name {c.task.name!r}: {accepted}"
    if is_endpoint(j.name):
        try:
            RemoteModel.parse(j.name)
        except RemoteError as error:
            yield f"config.judge.name: {error}"
    elif is_remote(j.name):
        try:
            ScorerClient(j.name)
        except ValueError as error:
            yield f"config.judge.name: {error}"
    elif j.name != RULE and not (j.name in c.policies and c.policies[j.name].frozen):
        frozen = [name for name, policy in c.policies.items() if policy.frozen]
        yield (
            f"config.judge.name is {j.name!r}, but must be 'rule', the URL of a reward server, URL#MODEL or a frozen "
            f"policy: {', '.join(frozen) or 'none'}"
        )


def _games_only(c: ConfigDict) -> Iterator[str]:
    if c.curriculum.enabled:
        yield f"config.curriculum.enabled is True with task.name {c.task.name!r}, but must be False except for puzzles"
    if c.level_replay.method:
        yield f"config.level_replay.method is {c.level_replay.method!r}, but must be '' for tasks"
    if c.opponents.self_play_frac < 1 or c.opponents.bots or c.opponents.pool_size:
        yield f"config.opponents is set with task.name {c.task.name!r}, but must have its defaults: only games use it"
    if c.population.method:
        yield f"config.population.method is {c.population.method!r}, but must be '' for tasks"


def _length(c: ConfigDict) -> Iterator[str]:
    if c.task.max_new_tokens >= c.task.max_length:
        yield (
            f"config.task.max_new_tokens is {c.task.max_new_tokens}, but must be less than task.max_length "
            f"({c.task.max_length}) to leave room for a prompt"
        )
    if c.sampling.page_size & (c.sampling.page_size - 1):
        yield f"config.sampling.page_size is {c.sampling.page_size}, but must be one of: 8, 16, 32, 64"


def _evaluation(c: ConfigDict) -> Iterator[str]:
    if not all(map(is_remote, c.eval.opponents)) or c.eval.swap_roles:
        yield (
            f"config.eval has opponents {c.eval.opponents!r} and swap_roles {c.eval.swap_roles} with task.name "
            f"{c.task.name!r}, but must have remote models (http://HOST:PORT/v1#MODEL) or (), and swap_roles False"
        )
    if c.eval.best_of > 1:
        yield f"config.eval.best_of is {c.eval.best_of} with task.name {c.task.name!r}, but must be 1 for tasks"
    if c.eval.samples > 1 and c.eval.temperature == 0:
        yield (
            f"config.eval.samples is {c.eval.samples} with eval.temperature 0, but greedy samples are all equal. Set "
            "eval.samples to 1 or eval.temperature above 0."
        )
    if c.eval.test != "never" and not c.eval.every:
        yield (
            f"config.eval.test is {c.eval.test!r} with eval.every 0, but it needs evaluations during training. Set "
            "eval.every."
        )


def _best(c: ConfigDict) -> Iterator[str]:
    best_metric = c.checkpoint.best_metric
    if not best_metric:
        return
    opponent, _, metric = best_metric.partition("/")
    metric = metric.removesuffix("_low").removesuffix("_high")
    learns_pairs = opponent == "pairs" and c.algo.get("data", "")
    if rows := ("pairs",) if learns_pairs else ALGORITHMS.get(c.algo.name).verifies:
        if opponent not in rows or metric not in ("accuracy", "auc", "auc_by_question"):
            accepted = " or ".join(f"{row}/METRIC" for row in rows)
            yield (
                f"config.checkpoint.best_metric is {best_metric!r} with algo.name {c.algo.name!r}, but must be "
                f"{accepted}, where METRIC is one of: accuracy, auc, auc_by_question, or one of them with _low or _high"
            )
    elif opponent != "self" or metric not in ("success", "reward"):
        yield (
            f"config.checkpoint.best_metric is {best_metric!r} with task.name {c.task.name!r}, but must be "
            "self/success or self/reward, or one of them with _low or _high"
        )
    if not c.eval.every:
        yield f"config.checkpoint.best_metric is {best_metric!r}, but must be '' with eval.every 0"


COMBINATIONS = (_seats, _remote_agents, _judge, _games_only, _length, _evaluation, _best)

ONLY_LEARNING = (_best,)
"""Checks that apply only when training."""
