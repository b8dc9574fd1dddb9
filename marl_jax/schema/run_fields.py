"""Config fields of a run with their defaults, rules and help texts.

    config.<group>.<field>      GROUPS
    config.<field>              RUN
    config.algo.<field>         fields of the algorithm named by `algo.name` (`marl_jax/algorithms`)
    config.policies.<name>.…    POLICY, and MODEL for a policy with a separate model

A run has one environment: either `env.name` names a game or `task.name` names a task, and the other is "". Names of
games, tasks, models, algorithms and bots are plain strings here because the registries import JAX and this module
does not. `validate.py` looks them up. The groups are in `environment_fields.py`, `training_fields.py`,
`evaluation_fields.py` and `serving_fields.py`.
"""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from marl_jax import fields
from marl_jax.fields import OPEN, SEED, TEXT, TEXTS, Field, choice, integer
from marl_jax.schema.conditions import CONDITIONS
from marl_jax.schema.environment_fields import (
    CURRICULUM,
    ENV,
    JUDGE,
    LEVEL_REPLAY,
    OPPONENTS,
    POPULATION,
    REWARD,
    TASK,
)  # fmt: skip
from marl_jax.schema.evaluation_fields import CHECKPOINT, EVAL, LOG, PLAY, SEARCH
from marl_jax.schema.serving_fields import REMOTE, SAMPLING, SERVE
from marl_jax.schema.training_fields import DISTRIBUTED, LORA, MESH, MODEL, OPTIM, POLICY, ROLLOUT

RUN = {
    "name": Field("", TEXT, "Name of the experiment; '' uses the name of its file"),
    "seed": Field(0, SEED, "Random seed"),
    "steps": Field(200, integer(1), "Number of training steps"),
    "stop_when": Field(
        "",
        CONDITIONS,
        "Conditions on training metrics that end the run once they hold for three consecutive updates, e.g. "
        "'success>=0.99'",
    ),
    "alarm": Field(
        "warn",
        choice("off", "warn", "rollback", "stop"),
        "Reaction to a training collapse or stall; rollback: return to the last good checkpoint at half the learning "
        "rate, at most twice",
    ),
    "first_stage": Field(
        {}, OPEN, "Config changes for a first training stage that the run starts from; {}: no first stage"
    ),
    "plugins": Field(
        (), TEXTS, "Modules to import first; they may register games, tasks, algorithms, bots or model families"
    ),
}

AGENTS = Field(
    {"all": "main"},
    OPEN,
    "Player of each seat ('seat_0'), role or 'all': a policy, 'bot:NAME', a remote model (URL#MODEL; tasks only), or a "
    "frozen run folder or registered model",
)
ALGO_NAME = Field("ppo", TEXT, "Name of the algorithm, which determines the other fields of algo")

GROUPS = {
    "env": ENV, "task": TASK, "model": MODEL, "model.lora": LORA, "rollout": ROLLOUT, "sampling": SAMPLING,
    "optim": OPTIM, "opponents": OPPONENTS, "population": POPULATION, "reward": REWARD, "curriculum": CURRICULUM,
    "level_replay": LEVEL_REPLAY, "eval": EVAL, "search": SEARCH, "play": PLAY, "remote": REMOTE, "judge": JUDGE,
    "serve": SERVE, "checkpoint": CHECKPOINT, "mesh": MESH, "distributed": DISTRIBUTED, "log": LOG,
}  # fmt: skip

FIELDS: dict[str, Field] = {
    **RUN,
    "agents": AGENTS,
    "algo.name": ALGO_NAME,
    **{f"policies.*.{name}": field for name, field in POLICY.items()},
    **{f"{group}.{name}": field for group, members in GROUPS.items() for name, field in members.items()},
}
"""Every field by its dotted name; `*` matches any policy name."""

OPEN_GROUPS = tuple(f"{name}." for name, field in FIELDS.items() if field.rule is OPEN)
"""Prefixes of fields that are not listed in `FIELDS`, such as game parameters."""


def group(name: str, /, **changes: Any) -> ConfigDict:
    """Return a group with its defaults, including nested groups."""
    members = fields.defaults(fields.with_defaults(GROUPS[name], **changes))
    inner = {other.rpartition(".")[2]: group(other) for other in GROUPS if other.rpartition(".")[0] == name}
    return ConfigDict(members | inner)


def policy() -> ConfigDict:
    """Return the default config of a policy.

    With `model` {} the policy is an adapter on the run's model, or a copy of it. Otherwise it has a separate model.
    """
    return ConfigDict({"model": {}, **fields.defaults(POLICY)})


def defaults() -> ConfigDict:
    """Return the default config of a run; `algo` has only its name."""
    outer = {name: group(name) for name in GROUPS if "." not in name}
    names = dict(agents=AGENTS.default, policies=dict(main=policy()), algo=dict(name=ALGO_NAME.default))
    return ConfigDict(fields.defaults(RUN) | names | outer)


def field_name(name: str) -> str:
    """Return the key of `FIELDS` for a dotted name.

    Policy names become `*`, and the fields of a policy's model are those of `model`.
    """
    parts = name.split(".")
    if parts[0] == "policies" and parts[2:3] == ["model"] and len(parts) > 3:
        return ".".join(parts[2:])
    return ".".join(["policies", "*", *parts[2:]]) if parts[0] == "policies" and len(parts) > 2 else name
