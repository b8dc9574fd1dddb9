"""Settings that the workers of a server receive when they start."""

from __future__ import annotations

import dataclasses

from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.serving.http.guard import Limits
from marl_jax.serving.http.keys import Keys
from marl_jax.serving.workers.forward import Address


@dataclasses.dataclass(frozen=True)
class Spec:
    """Settings of all workers of a server.

    Attributes:
        models: (name, speaker, vocabulary size) of each model. The number of a sampler replaces the speaker's sampler.
        keys: Keys of the server.
        limits: Limits on requests.
        traces: Path of the file that sessions are recorded in, or None.
        session_idle: Seconds after which an unused session is ended; None never ends one.
        created: Time at which the server was started.
        routes: Paths and methods that the process with the models answers, at `main`.
        open_paths: Paths that need no key.
        main: Address of the process with the models.
        addresses: Addresses of the workers.
        reloads: Whether weights can be reloaded.
        controls: Whether samplers can be paused.
        drain_seconds: Time that requests in progress have to finish.
        log_level: Log level of the workers.
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
