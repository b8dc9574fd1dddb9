"""Python's search for garbage in cycles, made rare while episodes are played or many clients are answered.

Hundreds of them make objects all the time, and every 700 new ones set off a search that holds up all threads, the
sampler's too. It finds little: most objects are freed by their reference counts.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
from collections.abc import Iterator

NEW_OBJECTS = 100_000
"""Between two searches."""

_lock = threading.Lock()
_before: list[tuple[int, int, int]] = []  # thresholds outside of all scopes, once for each scope that is open


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """A search for every `NEW_OBJECTS` in its scope. What is there when it is first entered is never searched again.

    Scopes may overlap, in one thread or several; the thresholds are as before when the last one ends.
    """
    _freeze_what_is_there()
    with _lock:
        _before.append(_before[0] if _before else gc.get_threshold())
        gc.set_threshold(NEW_OBJECTS, *_before[0][1:])
    try:
        yield
    finally:
        with _lock:
            before = _before.pop()
            if not _before:
                gc.set_threshold(*before)


@functools.cache
def _freeze_what_is_there() -> None:
    """Modules, compiled programs and the like, which live as long as the run."""
    gc.collect()
    gc.freeze()
