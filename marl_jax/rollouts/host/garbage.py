"""Python's search for garbage in cycles, made rare while episodes are played.

Hundreds of episodes make objects all the time, and every 700 new ones set off a search that holds up all threads, the
sampler's too. It finds little: most objects are freed by their reference counts.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator

NEW_OBJECTS = 100_000
"""Between two searches."""


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """A search for every `NEW_OBJECTS` in its scope. What is there when it is first entered is never searched again."""
    _freeze_what_is_there()
    before = gc.get_threshold()
    gc.set_threshold(NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@functools.cache
def _freeze_what_is_there() -> None:
    """Modules, compiled programs and the like, which live as long as the run."""
    gc.collect()
    gc.freeze()
