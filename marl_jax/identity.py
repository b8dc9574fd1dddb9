"""What a run is, as far as its checkpoints care: the part of a setup that one must agree with to be continued."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # whoever builds these may ask for their identity
    from marl_jax.setup import Setup
    from marl_jax.team import Mind


def identity(setup: Setup) -> dict:
    """What a checkpoint must agree with to be continued."""
    c = setup.config
    return {
        "models": {mind.name: model_identity(mind) for mind in setup.minds},
        "agents": c.agents.to_dict(),
        "env": c.env.to_dict(),
        "algorithm": c.algo.name,
        "critic": c.algo.critic,
        "games": c.rollout.games,
        "pool": c.opponents.pool_size,
        "curriculum": c.curriculum.to_dict() if c.curriculum.enabled else {},
        "seed": c.seed,
    }


def model_identity(mind: Mind) -> dict:
    """The part of a run's identity that one model has.

    Weights that are only read, as the base of adapters, are no part of a checkpoint. They go by the name of their
    folder or file, not by where it lies, so that a run can go on after they were moved.
    """
    return {
        "model": mind.config.name,
        "shape": mind.config.shape.to_dict(),
        "weights": "random" if mind.place is None else Path(mind.place).absolute().name,
        "lora": mind.config.lora.to_dict() if mind.config.lora.rank else {},
        "tokenizer": mind.tokenizer.fingerprint,
        "policies": list(mind.policies),
        "learns": any(mind.learns),
        "start": {} if mind.start is None else mind.start.identity,
    }
