"""Less frequent cyclic garbage collection during rollouts and while serving many clients.

Hundreds of concurrent episodes create objects all the time. By default, every 700 new objects trigger a collection,
which blocks all threads, including the sampler. It frees little, because most objects are freed by reference counting.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
from collections.abc import Iterator

NEW_OBJECTS = 100_000
"""Number of new objects that triggers a collection."""

_lock = threading.Lock()
_before: list[tuple[int, int, int]] = []  # thresholds outside of all scopes, one entry per open scope


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Collect cyclic garbage only after every `NEW_OBJECTS` new objects.

    Objects that exist when a scope is first entered are never collected. Scopes may overlap, in one thread or several.
    The thresholds are restored when the last one ends.
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
    """Exclude existing objects, such as modules and compiled programs, from collection."""
    gc.collect()
    gc.freeze()
