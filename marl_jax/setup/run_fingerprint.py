"""Settings that must match before a run can use a checkpoint.

To resume, all of `run_fingerprint` must match. To play or evaluate, models, rules and prompts must match (`check_run`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.games.entry import GAMES
from marl_jax.errors import RunError
from marl_jax.serving.remote import is_remote

if TYPE_CHECKING:  # these modules import this one
    from marl_jax.agents.team import Backbone
    from marl_jax.setup import Setup


def run_fingerprint(setup: Setup) -> dict:
    """Return the settings that must match to resume from a checkpoint."""
    c = setup.config
    return {
        "models": {backbone.name: model_fingerprint(backbone) for backbone in setup.backbones},
        "agents": {agent: _without_address(player) for agent, player in c.agents.items()},
        **setup.environment(),
        "algorithm": c.algo.name,
        "critic": setup.algo.critic,
        "seed": c.seed,
        **({"magnet": True} if setup.algo.magnet_coef else {}),
    }


def _without_address(player: str) -> str:
    """Return a player without the address of its server, which may change."""
    return f"#{player.partition('#')[2]}" if is_remote(player) else player


def model_fingerprint(backbone: Backbone) -> dict:
    """Return the settings of a model that must match to resume from a checkpoint.

    Frozen weights, such as the base of adapters, are not part of a checkpoint. They are identified by the name of their
    folder or file without its path, so that a run can be resumed after they were moved.
    """
    return {
        "model": backbone.config.name,
        "shape": backbone.config.shape.to_dict(),
        "weights": "random" if backbone.place is None else Path(backbone.place).absolute().name,
        "lora": backbone.config.lora.to_dict() if backbone.config.lora.rank else {},
        "tokenizer": backbone.tokenizer.fingerprint,
        "policies": list(backbone.policies),
        "learns": any(backbone.learns),
        "init_from": {} if backbone.source is None else backbone.source.identity,
    }


def check_run(run: Mapping[str, Any], setup: Setup, folder: Path) -> None:
    """Check that a checkpoint has the same models, rules and prompts as a setup.

    Levels and rewards may differ: a policy can be evaluated on other levels, and rewards change neither the rules nor
    the prompts.

    Args:
        run: Fingerprint in the checkpoint.
        setup: Parts of the present run.
        folder: Folder of the checkpoint, for the message.

    Raises:
        RunError: If they differ.
    """

    def differences(there: Mapping, here: Mapping, name: str):
        here = json.loads(json.dumps(here))
        for key in (key for key in here if key in there and there[key] != here[key]):
            yield f"{name}.{key} is {there[key]!r} there and {here[key]!r} here"

    def of_rules(params: Mapping) -> dict:
        entry = GAMES.get(setup.config.env.name)
        free = entry.level_params | entry.reward_params
        return {name: value for name, value in params.items() if name not in free}

    problems, backbones = [], {backbone.name: backbone for backbone in setup.backbones}
    models = run.get("models", backbones)
    if set(models) != set(backbones):
        problems.append(f"models are {', '.join(models)} there and {', '.join(backbones)} here")
    for name in (name for name in models if name in backbones and "models" in run):
        here = model_fingerprint(backbones[name])
        if here["learns"] and not here["lora"]:  # the checkpoint has all weights
            del here["weights"], here["init_from"]
        elif here["weights"] == "random" and not here["init_from"]:  # initialized from the seed
            problems += differences(run, {"seed": setup.config.seed}, "config")
        problems += differences(models[name], here, f"models.{name}")
    for group in ("env", "task") if "env" in run or "task" in run else ():
        there = {"name": run.get(group, {}).get("name", "")}
        problems += differences(there, {"name": setup.config[group].name}, group)
    env = run.get("env")
    if env and env["name"] == setup.config.env.name:
        there, here = env, setup.config.env.to_dict()
        problems += differences(
            there, {name: here[name] for name in ("text", "reasoning", "style", "context", "message_tokens")}, "env"
        )
        there, here = of_rules(there["params"]), of_rules(here["params"])
        every = dict.fromkeys([*there, *here])
        problems += differences({**every, **there}, {**every, **here}, "env.params")
    if problems:
        raise RunError(f"the checkpoint in {folder} is from another run: {'; '.join(problems)}")
