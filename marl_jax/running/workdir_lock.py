"""One run in a folder at a time: a second start would drop the rows and saves of the first."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

import jax

from marl_jax.errors import RunError


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
