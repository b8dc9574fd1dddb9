"""Checks of field combinations that apply to every run.

They run after every field and name has been checked on its own. Checks of an algorithm are in
`marl_jax/algorithms/*_config.py`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from marl_jax.agents.seating import BOT, seat_names
from marl_jax.errors import nearest
from marl_jax.fields import STEP
from marl_jax.schema import batches
from marl_jax.schema.training_fields import LORA_TARGETS
from marl_jax.serving.remote import is_remote
from models import registry as models
from models.config import ModelConfig
from models.families import FAMILIES
from registries import did_you_mean


def _batch(c: ConfigDict) -> Iterator[str]:
    rows, parts = batches.rows(c), batches.parts(c)
    if rows is not None and rows % parts:
        kind, each = batches.rows_per_game(c)
        near = " or ".join(map(str, nearest(c.rollout.num_envs, batches.games_step(c))))
        yield (
            f"config.rollout.num_envs is {c.rollout.num_envs}, which with {each} {kind} each gives {rows} rows, but "
            f"rows must be a multiple of algo.minibatches x algo.grad_accum_steps = {parts}; try {near}"
        )
    if c.optim.warmup >= c.steps:
        yield f"config.optim.warmup is {c.optim.warmup} with steps {c.steps}, but must be less than steps"


def _roles(c: ConfigDict) -> Iterator[str]:
    for agent, player in c.agents.items():
        if not player.startswith(BOT) and player not in c.policies and not is_remote(player):
            known = ", ".join(c.policies) or "none"
            yield (
                f"config.agents.{agent} is {player!r}, but must be bot:NAME or one of the policies in config.policies: "
                f"{known}; or a run folder, a registered model or, for tasks, a remote model (URL#MODEL)"
            )
    used = {*c.agents.values(), c.judge.name}
    for name in c.policies:
        if name not in used:
            yield f"config.policies.{name} is not used by any agent; assign it a seat in config.agents or remove it"
    if c.policies and all(policy.frozen for policy in c.policies.values()):
        yield "config.policies are all frozen, but at least one must have frozen False"


def models_of(c: ConfigDict) -> dict[str, ConfigDict]:
    """Return the configs of all models by field."""
    own = {f"policies.{name}.model": policy.model for name, policy in c.policies.items() if policy.model}
    return {"model": c.model, **own}


def _model(c: ConfigDict) -> Iterator[str]:
    for field, model in models_of(c).items():
        yield from _one_model(field, model)


def _warm_start(c: ConfigDict) -> Iterator[str]:
    for field, model in models_of(c).items():
        if model.init_from and not exists(model.init_from.partition("@")[0], "config.json"):
            yield (
                f"config.{field}.init_from is {model.init_from!r}, but must be '' or the folder of an existing run, "
                "optionally with @STEP"
            )


def _members(c: ConfigDict) -> Iterator[str]:
    for name in c.opponents.members:
        folder, _, step = name.partition("@")
        if not exists(folder, "config.json") or (step and not STEP.holds(step)):
            yield (
                f"config.opponents.members has {name!r}, but must have folders of existing runs, optionally with @STEP"
            )


def _one_model(field: str, model: ConfigDict) -> Iterator[str]:
    lora = model.lora
    if lora.rank and not lora.targets:
        yield (
            f"config.{field}.lora.targets is empty with rank {lora.rank}, but must have at least one of: "
            f"{', '.join(LORA_TARGETS)}"
        )
    family = model.shape.get("family", models.get(model.name).config.family)
    # An unknown family is reported below.
    projections = FAMILIES.get(family).lora_targets if family in FAMILIES else lora.targets
    for target in (target for target in lora.targets if lora.rank and target not in projections):
        yield f"config.{field}.lora.targets has {target!r}, but {model.name} (family {family}) has no such projection"
    known = [part.name for part in dataclasses.fields(ModelConfig)]
    for part in model.shape:
        if part not in known:
            yield f"config.{field}.shape.{part} is not a field of a model{did_you_mean(part, known)}"
    if set(model.shape) <= set(known):
        try:
            dataclasses.replace(models.get(model.name).config, **model.shape.to_dict())
        except (TypeError, ValueError) as error:
            yield f"config.{field}.shape: {error}"
    step = model.init_from.partition("@")[2]
    if "@" in model.init_from and not STEP.holds(step):
        yield f"config.{field}.init_from is {model.init_from!r}, but its step must be {STEP.accepted}"
    place = model.weights
    if place not in ("", "random") and not exists(place):
        yield f"config.{field}.weights is {place!r}, but must be '', 'random', or an existing folder or GGUF file"


def exists(*parts: str) -> bool:
    """Return whether a path exists; invalid paths do not."""
    try:
        return Path(*parts).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long, null byte, or unknown user
        return False


def _machines(c: ConfigDict) -> Iterator[str]:
    if sum(num_shards == -1 for num_shards in c.mesh.values()) > 1:
        yield f"config.mesh is {dict(c.mesh)}, but must have at most one -1, the axis that uses the remaining devices"
    if c.mesh.sampling == "tensor" and c.mesh.tensor == 1:
        yield "config.mesh.sampling is 'tensor' with mesh.tensor 1, but must be one of: same, replicated"
    d = c.distributed
    if not d.enabled and (d.coordinator or d.processes or d.index >= 0):
        yield "config.distributed.enabled is False, but must be True if coordinator, processes or index is set"
    if d.coordinator and not 0 <= d.index < d.processes:
        yield f"config.distributed.index is {d.index}, but must be from 0 to processes - 1 = {d.processes - 1}"


def _packages(c: ConfigDict) -> Iterator[str]:
    if c.log.wandb and importlib.util.find_spec("wandb") is None:
        yield "config.log.wandb is True, but wandb is not installed; run pip install wandb or set it to False"


def _weights(c: ConfigDict) -> Iterator[str]:
    if c.reward.team == c.reward.agent == c.reward.process == 0:
        yield "config.reward has weight 0 for team, agent and process, but at least one must be nonzero"


def _remote(c: ConfigDict) -> Iterator[str]:
    r = c.remote
    if r.max_cost and not (r.price_in or r.price_out):
        yield f"config.remote.max_cost is {r.max_cost:g}, but price_in and price_out are 0; set at least one of them"


def _ports(c: ConfigDict) -> Iterator[str]:
    port, workers = c.serve.port, c.serve.workers
    if port and port + workers > 65535:
        yield (
            f"config.serve.port is {port} with serve.workers {workers}, which use the ports after it, but must be 0 or "
            f"at most {65535 - workers}"
        )


def seats(c: ConfigDict, named: Sequence[str], environment: str) -> Iterator[str]:
    """Yield the problems of `config.agents` in an environment with the given seat names, in order."""
    known = {f"seat_{i}" for i in range(len(named))} | set(named)
    for agent in c.agents:
        who, at, turn = agent.partition("@")
        if who != "all" and who not in known:
            yield f"config.agents.{agent} is not a seat of {environment}; choose from: all, {', '.join(sorted(known))}"
        if at and not (turn.isascii() and turn.isdecimal()):
            yield f"config.agents.{agent} has turn {turn!r}, but must have an integer >= 0, e.g. {who}@1"
            return
    rows = seat_names(c.agents, named)
    free = [role for role, names in zip(named, rows, strict=True) if not names[0]]
    if free:
        yield f"config.agents has no policy for {', '.join(free)}, but must name every seat or 'all'"
    used = {agent.partition("@")[0] for agent in c.agents}
    for i, (role, names) in enumerate(zip(named, rows, strict=True)):
        if role != f"seat_{i}" and {role, f"seat_{i}"} <= used:
            yield f"config.agents has {role} and seat_{i}, which are the same seat; remove one of them"
        if len(set(names)) > 1 and any(name.startswith(BOT) or is_remote(name) for name in names):
            yield (
                f"config.agents has {', '.join(names)} as turns of {role}, but must have policies only, one bot or one "
                "remote model"
            )


COMBINATIONS = (
    _batch, _roles, _model, _warm_start, _members, _machines, _packages, _weights, _remote, _ports,
)  # fmt: skip

ONLY_AT_START = (_warm_start, _members)
"""Checks that apply only before a run starts; afterwards its own checkpoints have everything it needs."""
