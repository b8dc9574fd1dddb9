"""What the fuzzers share: how many rounds, and damage to bytes.

By themselves the fuzzers take seconds; `make soak` sets MARL_JAX_SOAK and they take minutes, from another seed each
time it is set to another number.
"""

import os
import random
from collections.abc import Callable

SOAK = int(os.environ.get("MARL_JAX_SOAK", "0"))


def rounds(short: int, long: int) -> range:
    """The seeds of the rounds of one fuzzer."""
    return range(SOAK * 1_000_000, SOAK * 1_000_000 + long) if SOAK else range(short)


JSON = (b"", b"[]", b"null", b"{}", b"3", b'"text"', b"[" * 100_000, b"\xff\xfe\x00", b"NaN", b'{"metric": []}')


def damage(rng: random.Random, content: bytes) -> bytes:
    """The content cut, changed, lengthened, swapped or replaced."""
    if not content:
        return rng.choice(JSON[1:])
    at = rng.randrange(len(content))
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: content[:at],
        lambda: content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :],
        lambda: content[:at] + rng.randbytes(min(16, len(content) - at)) + content[at + 16 :],
        lambda: content[:at] + content[at:] * 2,
        lambda: content[at:] + content[:at],
        lambda: content[:at] + b"\x00" * 8 + content[at + 8 :],
        lambda: content[:at] + b"\xff" * 8 + content[at + 8 :],
        lambda: rng.choice(JSON),
    )
    while (changed := rng.choice(ways)()) == content:
        at = rng.randrange(len(content))
    return changed
