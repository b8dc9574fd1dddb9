"""Conditions between the fields of any run; those of an algorithm stand beside it (`marl_jax/algorithms/checks.py`).

Called once every field by itself is right and every name is known.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from marl_jax.agents.seating import BOT, seat_names
from marl_jax.errors import did_you_mean, nearest
from marl_jax.fields import STEP
from marl_jax.schema import batches
from marl_jax.schema.run_fields import LORA_TARGETS
from models import registry as models
from models.config import ModelConfig
from models.families import FAMILIES


def _batch(c: ConfigDict) -> Iterator[str]:
    rows, parts = batches.rows(c), batches.parts(c)
    if rows is not None and rows % parts:
        kind, each = batches.rows_per_game(c)
        near = " or ".join(map(str, nearest(c.rollout.num_envs, batches.games_step(c))))
        yield (
            f"config.rollout.num_envs is {c.rollout.num_envs}: x {each} {kind} they make {rows} rows, not a "
            "multiple of "
            f"algo.minibatches x algo.grad_accum_steps = {parts}; nearest rollout.num_envs: {near}"
        )
    if c.optim.warmup >= c.steps:
        yield f"config.optim.warmup is {c.optim.warmup} with steps {c.steps}; accepted: less than the steps"


def _roles(c: ConfigDict) -> Iterator[str]:
    for agent, player in c.agents.items():
        if not player.startswith(BOT) and player not in c.policies:
            known = ", ".join(c.policies) or "none"
            yield (
                f"config.agents.{agent} is {player!r}, a policy that is not in config.policies ({known}); accepted: "
                "one of them, or bot:NAME"
            )
    used = set(c.agents.values())
    for name in c.policies:
        if name not in used:
            yield f"config.policies.{name} is used by no agent; give it a seat in config.agents or leave it out"
    if c.policies and all(policy.frozen for policy in c.policies.values()):
        yield "config.policies: all are frozen, so nothing would learn; accepted: at least one with frozen False"


def _models(c: ConfigDict) -> dict[str, ConfigDict]:
    own = {f"policies.{name}.model": policy.model for name, policy in c.policies.items() if policy.model}
    return {"model": c.model, **own}


def _model(c: ConfigDict) -> Iterator[str]:
    for field, model in _models(c).items():
        yield from _one_model(field, model)


def _warm_start(c: ConfigDict) -> Iterator[str]:
    for field, model in _models(c).items():
        if model.init_from and not exists(model.init_from.partition("@")[0], "config.json"):
            yield (
                f"config.{field}.init_from is {model.init_from!r}, where no run is, or none any more; accepted: '', or "
                "the folder of a run, with @STEP or not"
            )


def _one_model(field: str, model: ConfigDict) -> Iterator[str]:
    lora = model.lora
    if lora.rank and not lora.targets:
        yield f"config.{field}.lora.targets is empty with rank {lora.rank}; accepted: some of {LORA_TARGETS}"
    family = model.shape.get("family", models.get(model.name).config.family)
    projections = FAMILIES.get(family).lora_targets if family in FAMILIES else lora.targets  # its name comes below
    for target in (target for target in lora.targets if lora.rank and target not in projections):
        whose = f"{model.name} of the family {family}"
        yield f"config.{field}.lora.targets has {target!r}, which {whose} does not have; leave it out"
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
        yield f"config.{field}.init_from is {model.init_from!r} with the step {step!r}; accepted: {STEP.accepted}"
    place = model.weights
    if place not in ("", "random") and not exists(place):
        accepted = "'', 'random', a folder, a GGUF file"
        yield f"config.{field}.weights is {place!r}, which does not exist; accepted: {accepted}"


def exists(*parts: str) -> bool:
    """Whether there is such a path; a text that can be no path names nothing."""
    try:
        return Path(*parts).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long, with a null byte, or of an unknown user
        return False


def _machines(c: ConfigDict) -> Iterator[str]:
    if sum(num_shards == -1 for num_shards in c.mesh.values()) > 1:
        yield f"config.mesh has more than one -1 ({dict(c.mesh)}); accepted: one axis that takes the devices left"
    if c.mesh.sampling == "tensor" and c.mesh.tensor == 1:
        yield "config.mesh.sampling is 'tensor' with mesh.tensor 1, which splits nothing; accepted: same, replicated"
    d = c.distributed
    if not d.enabled and (d.coordinator or d.processes or d.index >= 0):
        yield "config.distributed has an address or a number, and enabled is False; accepted: enabled True"
    if d.coordinator and not 0 <= d.index < d.processes:
        yield f"config.distributed.index is {d.index}; accepted: from 0 to processes - 1, {d.processes - 1}"


def _packages(c: ConfigDict) -> Iterator[str]:
    if c.log.wandb and importlib.util.find_spec("wandb") is None:
        yield "config.log.wandb is True, but the package wandb is not installed; accepted: False, or pip install wandb"


def _weights(c: ConfigDict) -> Iterator[str]:
    if c.reward.team == c.reward.agent == c.reward.process == 0:
        yield "config.reward: all three weights are 0, so nothing would be learnt; accepted: at least one other than 0"


def _ports(c: ConfigDict) -> Iterator[str]:
    port, workers = c.serve.port, c.serve.workers
    if port and port + workers > 65535:
        yield (
            f"config.serve.port is {port} with serve.workers {workers}, whose own ports follow it; accepted: at most "
            f"{65535 - workers}, or 0"
        )


def seats(c: ConfigDict, named: Sequence[str], environment: str) -> Iterator[str]:
    """Problems of `config.agents` in a environment whose seats have these names, in order."""
    known = {f"seat_{i}" for i in range(len(named))} | set(named)
    for agent in c.agents:
        who, at, turn = agent.partition("@")
        if who != "all" and who not in known:
            yield f"config.agents.{agent} is no seat of {environment}; accepted: all, {', '.join(sorted(known))}"
        if at and not (turn.isascii() and turn.isdecimal()):
            yield f"config.agents.{agent} has the turn {turn!r}; accepted: a whole number from 0 up, e.g. {who}@1"
            return
    rows = seat_names(c.agents, named)
    free = [role for role, names in zip(named, rows, strict=True) if not names[0]]
    if free:
        yield f"config.agents has no policy for {', '.join(free)}; accepted: every seat, or 'all'"
    used = {agent.partition("@")[0] for agent in c.agents}
    for i, (role, names) in enumerate(zip(named, rows, strict=True)):
        if role != f"seat_{i}" and {role, f"seat_{i}"} <= used:
            yield f"config.agents has {role} and seat_{i}, which are the same seat; accepted: one of them"
        if len(set(names)) > 1 and any(name.startswith(BOT) for name in names):
            yield f"config.agents has {', '.join(names)} for {role}, turn by turn; accepted: policies, or one bot"


COMBINATIONS = (_batch, _roles, _model, _warm_start, _machines, _packages, _weights, _ports)

ONLY_AT_START = (_warm_start,)
"""Conditions of runs that begin to learn: later all that is needed may be in a checkpoint of the run itself."""
