"""What the fuzzers share: how many rounds, and damage to bytes.

By themselves the fuzzers take seconds; `make soak` sets MARL_JAX_SOAK and they take minutes, from another seed each
time it is set to another number.
"""

import copy
import json
import os
import random
from collections.abc import Callable

import pytest

SOAK = int(os.environ.get("MARL_JAX_SOAK", "0"))


SHARDS = 8 if SOAK else 1
"""The parts into which a long fuzzer is cut, so that several processes can share it."""
sharded = pytest.mark.parametrize("shard", range(SHARDS))


def rounds(short: int, long: int, shard: int) -> range:
    """The seeds of the rounds of one shard of a fuzzer."""
    first = SOAK * 1_000_000
    return range(first + shard, first + long, SHARDS) if SOAK else range(short)


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


ODD = (
    None, True, False, 0, -1, 3, 2**31, 2**63, 10**7, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x",
    "3", "{{ x }}", "\x00", "\ud800", "a" * 5000, [], [3], ["x", None], {}, {"a": 1}, {"content": 3},
)  # fmt: skip


def damage_json(rng: random.Random, content: bytes) -> bytes:
    """A JSON text with some of its values replaced by odd ones, removed or renamed."""
    value = json.loads(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        here, parent, key = value, None, None
        while isinstance(here, dict | list) and here and rng.random() < 0.85:
            keys = list(here) if isinstance(here, dict) else range(len(here))
            parent, key = here, rng.choice(keys)
            here = here[key]
        if parent is None:
            return json.dumps(rng.choice(ODD)).encode()
        way = rng.random()
        if way < 0.7:
            parent[key] = copy.deepcopy(rng.choice(ODD))
        elif way < 0.85:
            del parent[key]
        elif isinstance(parent, dict):
            parent[rng.choice(("x", "", "999999999"))] = parent.pop(key)
    return json.dumps(value).encode()


def mutate(rng: random.Random, name: str, content: bytes) -> bytes:
    """A file with some damage that fits its kind."""
    if name.endswith(".json") and rng.random() < 0.8:
        return damage_json(rng, content)
    if name.endswith(".safetensors") and rng.random() < 0.7:
        length = int.from_bytes(content[:8], "little")
        header = damage_json(rng, content[8 : 8 + length])
        return len(header).to_bytes(8, "little") + header + content[8 + length :]
    if name.endswith(".gguf") and rng.random() < 0.8:  # in the header, where there is most to break
        return damage(rng, content[:2000]) + content[2000:]
    return damage(rng, content)
