"""Several processes as one run, through `jax.distributed`: they meet, agree on what to do, and notice a lost one.

All processes carry out the same programs in the same order; whatever a process decides by itself (a signal that it
got, a file that it read) must be agreed on first. Without other processes everything here answers at once.
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

from marl_jax.errors import RunError

LOST = re.compile(r"gloo|nccl|connection (closed|reset)|heartbeat|coordination|unavailable|peer", re.IGNORECASE)
"""What errors of the runtime say when another process does not answer any more."""

AGAIN = "start the same command on all machines again: the run continues from its newest checkpoint"

# Says its argument when the process that holds the other end of the pipe ends without a word.
_WITNESS = "import sys\nif not sys.stdin.read(): sys.stderr.write(sys.argv[1])"


class LostProcess(RunError):
    """Another process of the run does not answer any more."""


def join(config: ConfigDict) -> int:
    """Meets the other processes and answers with the number of this one.

    Without an address, TPU pods and SLURM tell it themselves. A process that is not heard of for `timeout` seconds
    ends the others, with a message, rather than leaving them waiting.
    """
    given = {}
    if config.coordinator:
        given = dict(coordinator_address=config.coordinator, num_processes=config.processes, process_id=config.index)
    where = config.coordinator or "the address that the machine gives"
    # JAX ends a process that waits in vain from a thread of its own, with pages of its own.
    witness = _start_witness(
        f"launch.py: config.distributed: the other processes could not be met at {where} within {config.timeout} s "
        "(the lines above are JAX's); start all of them, with one address and numbers from 0 to processes - 1\n"
    )
    # SIGTERM belongs to `signals.GracefulStop`, and what follows from it is agreed on by `anyone`.
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
    """Raises `RunError` unless all processes have the same config, code and JAX; all must ask, before the first step.

    Which process it is, and where a machine keeps its weights, may differ.
    """
    if jax.process_count() == 1:
        return
    plain = dict(_flat(json.loads(json.dumps(config.to_dict(), default=str))))
    own = {"distributed.index", "distributed.coordinator", *(name for name in plain if name.endswith("model.weights"))}
    mine = {f"config.{name}": value for name, value in plain.items() if name not in own}
    mine |= {"the code": _code(), "jax": jax.__version__, "python": ".".join(map(str, sys.version_info[:2]))}
    everyone = gather(mine)
    for index, other in enumerate(everyone[1:], 1):
        names = sorted(name for name in {*everyone[0], *other} if everyone[0].get(name) != other.get(name))
        if names:
            found = "; ".join(f"{n} is {everyone[0].get(n)!r} there and {other.get(n)!r} here" for n in names[:5])
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise RunError(f"process {index} is of another run than process 0: {found}{more}; start the same command")


def _flat(tree: dict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _code() -> str:
    """A hash of the source files of the project."""
    root, digest = Path(__file__).resolve().parents[2], hashlib.sha256()
    for folder in ("configs", "envs", "marl_jax", "models"):
        for file in sorted((root / folder).rglob("*.py")):
            digest.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def anyone(flag: bool) -> bool:
    """Whether the flag is set in any process; all must ask."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def gather(value: Any) -> list[Any]:
    """A JSON value of every process, in their order; all must ask."""
    if jax.process_count() == 1:
        return [value]
    mine = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(mine.size))
    padded = multihost_utils.process_allgather(np.pad(mine, (0, int(sizes.max()) - mine.size)))
    return [json.loads(row[:size].tobytes()) for row, size in zip(padded, sizes, strict=True)]


def first(text: str | None) -> str | None:
    """The text of the first process that has one, None if none has; all must ask."""
    return next((found for found in gather(text) if found), None)


def meet(place: str) -> None:
    """Waits until every process is here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(place)


@contextlib.contextmanager
def report_lost_process() -> Iterator[None]:
    """Turns the errors that a lost process causes in this one into `LostProcess`; others pass."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1 or not LOST.search(str(error)):
            raise
        reason = str(error).splitlines()[0][:300]
        raise LostProcess(f"another process of the run is lost ({reason}); {AGAIN}") from error


def leave(status: int) -> None:
    """Ends this process at once: a lost process will never come to the orderly end for which JAX would wait."""
    sys.stderr.flush()
    sys.stdout.flush()
    stop_watchdog()
    os._exit(status)


@functools.cache
def _witness() -> subprocess.Popen:
    """A tiny process that says what happened if this one is ended from outside.

    When another process is lost, JAX may end this one from a thread of its own, where nothing can be said but its own
    pages of details.
    """
    message = (
        f"launch.py: process {jax.process_index()} of {jax.process_count()} has ended: it was killed, or another "
        f"process was lost and JAX ended this one (its lines are above); {AGAIN}\n"
    )
    atexit.register(stop_watchdog)
    return _start_witness(message)


def stop_watchdog() -> None:
    """Tells the witness that all has been said."""
    _end_witness(_witness())


def _start_witness(message: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-S", "-c", _WITNESS, message], stdin=subprocess.PIPE, start_new_session=True
    )


def _end_witness(witness: subprocess.Popen) -> None:
    witness.communicate(b"an orderly end")


@contextlib.contextmanager
def workdir_lock(workdir: Path) -> Iterator[None]:
    """Holds the folder for this run; refuses one that another process holds. It is free again when that has ended."""
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
