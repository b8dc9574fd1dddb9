"""Coordination of several processes as one run, with `jax.distributed`.

All processes run the same programs in the same order. Anything that one process decides on its own, such as after a
signal or by reading a file, must be agreed on first. With a single process, all functions return at once.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from marl_jax.errors import LostProcess, RunError

LOST = re.compile(r"gloo|nccl|connection (closed|reset)|heartbeat|coordination|unavailable|peer", re.IGNORECASE)
"""Pattern of runtime errors that are caused by the loss of another process."""

AGAIN = "start the same command on all machines again to resume from the newest checkpoint"

# Prints its argument if the process at the other end of the pipe ends without writing to it.
_WITNESS = "import sys\nif not sys.stdin.read(): sys.stderr.write(sys.argv[1])"


def join(config: ConfigDict) -> int:
    """Join the other processes and return the index of this one.

    Without an address, the cluster environment (TPU pod or SLURM) provides it. If a process does not respond for
    `timeout` seconds, the others end with a message instead of waiting.
    """
    given = {}
    if config.coordinator:
        given = dict(coordinator_address=config.coordinator, num_processes=config.processes, process_id=config.index)
    where = config.coordinator or "the address from the cluster environment"
    # On a timeout, JAX ends the process from another thread with a long dump.
    witness = _start_witness(
        f"marl_jax: config.distributed: the other processes did not connect to {where} within {config.timeout} s "
        "(the lines above are from JAX); start all of them with the same address and indices from 0 to processes - 1\n"
    )
    # `signals.GracefulStop` handles SIGTERM, and processes agree on it with `anyone`.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            **given,
            initialization_timeout=config.timeout,
            heartbeat_timeout_seconds=config.timeout,
            shutdown_timeout_seconds=config.timeout,
        )
    except (ValueError, RuntimeError) as error:
        _end_witness(witness)
        raise RunError(f"config.distributed: could not join the other processes at {where}: {error}") from error
    _end_witness(witness)
    _witness()
    return jax.process_index()


def check_same(config: ConfigDict) -> None:
    """Check that all processes have the same config, code and versions.

    All processes must call it before the first step. The index of the process and the location of weights may differ.

    Raises:
        RunError: Something differs.
    """
    if jax.process_count() == 1:
        return
    plain = dict(_flat(json.loads(json.dumps(config.to_dict(), default=str))))
    own = {"distributed.index", "distributed.coordinator", *(name for name in plain if name.endswith("model.weights"))}
    own_values = {f"config.{name}": value for name, value in plain.items() if name not in own}
    own_values |= {"the code": _code(), "jax": jax.__version__, "python": ".".join(map(str, sys.version_info[:2]))}
    everyone = gather(own_values)
    for index, other in enumerate(everyone[1:], 1):
        names = sorted(name for name in {*everyone[0], *other} if everyone[0].get(name) != other.get(name))
        if names:
            differences = "; ".join(f"{n} is {everyone[0].get(n)!r} there and {other.get(n)!r} here" for n in names[:5])
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise RunError(
                f"process {index} differs from process 0: {differences}{more}; start the same command everywhere"
            )


def _flat(tree: dict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _code() -> str:
    """Return a hash of the source files of the project."""
    root, digest = Path(__file__).resolve().parents[2], hashlib.sha256()
    for folder in ("configs", "envs", "marl_jax", "models"):
        for file in sorted((root / folder).rglob("*.py")):
            digest.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def anyone(flag: bool) -> bool:
    """Return whether the flag is set in any process; all processes must call it."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def gather(value: Any) -> list[Any]:
    """Return the JSON values of all processes in order; all processes must call it."""
    if jax.process_count() == 1:
        return [value]
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(data.size))
    padded = multihost_utils.process_allgather(np.pad(data, (0, int(sizes.max()) - data.size)))
    return [json.loads(row[:size].tobytes()) for row, size in zip(padded, sizes, strict=True)]


def first(text: str | None) -> str | None:
    """Return the text of the first process that has one; all processes must call it."""
    return next((value for value in gather(text) if value), None)


def meet(place: str) -> None:
    """Wait until every process reaches this point."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(place)


@contextlib.contextmanager
def report_lost_process() -> Iterator[None]:
    """Convert errors caused by a lost process to `LostProcess`."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1 or not LOST.search(str(error)):
            raise
        reason = str(error).splitlines()[0][:300]
        raise LostProcess(f"another process of the run is lost ({reason}); {AGAIN}") from error


def leave(status: int) -> None:
    """End this process immediately.

    An orderly shutdown of JAX would wait for the lost process.
    """
    sys.stderr.flush()
    sys.stdout.flush()
    stop_watchdog()
    os._exit(status)


@functools.cache
def _witness() -> subprocess.Popen:
    """Start a small process that prints a message if this one is killed.

    When another process is lost, JAX may end this one from another thread, where no Python code can run.
    """
    message = (
        f"marl_jax: process {jax.process_index()} of {jax.process_count()} has ended: it was killed, or another "
        f"process was lost and JAX ended this one (see the lines above); {AGAIN}\n"
    )
    atexit.register(stop_watchdog)
    return _start_witness(message)


def stop_watchdog() -> None:
    """Tell the witness that this process ends normally."""
    _end_witness(_witness())


def _start_witness(message: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-S", "-c", _WITNESS, message], stdin=subprocess.PIPE, start_new_session=True
    )


def _end_witness(witness: subprocess.Popen) -> None:
    witness.communicate(b"an orderly end")


@contextlib.contextmanager
def workdir_lock(workdir: Path) -> Iterator[None]:
    """Lock the folder for this run, or raise an error if another process uses it."""
    if jax.process_index() != 0:
        yield
        return
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{workdir} is in use by another process; choose another --workdir") from None
        except OSError:
            pass  # a file system without locks
        yield
