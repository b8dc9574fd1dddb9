"""Several processes as one run, through `jax.distributed`."""

from __future__ import annotations

import jax
from ml_collections import ConfigDict

from marl_jax.errors import RunError


def join(config: ConfigDict) -> int:
    """Meets the other processes and answers with the number of this one.

    Without an address, TPU pods and SLURM tell it themselves. A process that is not heard of for `timeout` seconds
    ends the others, with a message, rather than leaving them waiting.
    """
    given = {}
    if config.coordinator:
        given = dict(
            coordinator_address=config.coordinator, num_processes=config.processes, process_id=config.index
        )
    try:
        jax.distributed.initialize(
            **given, initialization_timeout=config.timeout, heartbeat_timeout_seconds=config.timeout
        )
    except (ValueError, RuntimeError) as error:
        where = config.coordinator or "the address that the machine gives"
        raise RunError(f"config.distributed: could not join the other processes at {where}: {error}") from error
    return jax.process_index()
