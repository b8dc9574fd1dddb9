"""What the workers of a server are given when they start."""

from __future__ import annotations

import dataclasses

from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.serving.http.guard import Limits
from marl_jax.serving.http.keys import Keys
from marl_jax.serving.workers.forward import Address


@dataclasses.dataclass(frozen=True)
class Spec:
    """What all workers of a server are given.

    models     name, speaker with the number of its sampler, and V
    traces     the file that sessions are written to, or None
    routes     paths and methods that the process with the models answers, at `main`
    addresses  of the workers
    reloads    whether weights can be read again, and `controls` whether samplers can be paused
    """

    models: tuple[tuple[str, Speaker, int], ...]
    keys: Keys
    limits: Limits
    traces: str | None
    session_idle: float | None
    created: int
    routes: tuple[tuple[str, tuple[str, ...]], ...]
    open_paths: tuple[str, ...]
    main: Address
    addresses: tuple[Address, ...]
    reloads: bool
    controls: bool
    drain_seconds: float
    log_level: int
