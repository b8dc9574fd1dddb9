"""Agents that are other runs or models (`agents.ROLE`), as frozen policies.

    --config.agents.partner=runs/mine@best       the policy of a run
    --config.agents.partner=smollm2-135m         a registered model
    --config.agents.partner=models/mine          a Hugging Face folder or GGUF file

Each becomes a policy with a separate model and `frozen=True`, named after its role. A policy that loses its last seat
to such an override, or to a remote model, is removed.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from ml_collections import ConfigDict

from marl_jax.agents.seating import BOT
from marl_jax.schema import run_fields, saved
from marl_jax.schema.combinations import exists
from marl_jax.serving.remote import is_remote
from models import registry as models


def expand(config: ConfigDict, overridden: Container[str]) -> list[str]:
    """Add frozen policies for agents that are runs or models, and return warnings to log.

    Args:
        config: Config of a run, updated in place.
        overridden: Dotted names of the overridden fields.
    """
    warnings, given = [], False
    for agent, player in list(config.agents.items()):
        if not isinstance(player, str) or player.startswith(BOT) or player in config.policies:
            continue
        if is_remote(player):
            given = given or f"agents.{agent}" in overridden
            continue
        if (model := _model_of(player, config.model)) is None:
            continue  # reported with the other fields
        given = given or f"agents.{agent}" in overridden
        role, others = agent.partition("@")[0], [p for other, p in config.agents.items() if other != agent]
        name = f"{role}_frozen" if role == "all" or role in others else role
        with config.unlocked(), config.policies.ignore_type():
            config.policies[name] = ConfigDict({**run_fields.policy(), "frozen": True, "model": model})
            config.agents[agent] = name
        warnings.append(f"agents.{agent} is {player!r}, which plays as the frozen policy {name!r}")
    used = {*config.agents.values(), config.judge.name}
    for name in [name for name in config.policies if given and name not in used]:
        with config.unlocked():
            del config.policies[name]
        warnings.append(f"policies.{name} has no seat any more and was removed")
    return warnings


def _model_of(player: str, base: ConfigDict) -> ConfigDict | None:
    """Return the config of a frozen model, or None if there is none.

    Args:
        player: FOLDER, FOLDER@STEP, the name of a registered model, or a Hugging Face folder or GGUF file.
        base: Config of the run's model, whose precision is used.
    """
    place = player.partition("@")[0]
    if exists(place, "checkpoints"):
        there = saved.read(Path(place).expanduser())
        policy = next(iter(there.policies.values()))
        model = ConfigDict((policy.get("model") or there.model).to_dict())
        model.init_from = player
        return model
    model = ConfigDict(base.to_dict())
    model.update(dict(init_from="", weights=""))
    model.shape, model.lora.rank = ConfigDict(), 0
    if player.lower() in models.names() or player.lower() in models.ALIASES:
        model.name = player
    elif place.endswith(".gguf") and exists(place) or exists(place, "config.json"):
        model.update(dict(name="tiny", weights=player))
    else:
        return None
    return model
