"""The order of the examples of an epoch, one number at a time.

An epoch is a permutation of 0 … n − 1. Write a number as a pair (l, r), l < a and r < b, where a · b is just over n.
A round adds to one of the two a hash of the other, which can be undone, so all rounds together are a permutation of the
pairs. Where it leaves the first n numbers, it is applied again until it is back among them (cycle walking), which keeps
it a permutation of these.
"""

from __future__ import annotations

import hashlib
import math

ROUNDS = 6


def order(seed: int, epoch: int, index: int, size: int) -> int:
    """The number of the example that comes at `index` of an epoch; a permutation of 0 … size − 1 for every epoch."""
    if not 0 <= index < size:
        raise ValueError(f"index is {index}; accepted: 0 to {size - 1}")
    b = math.isqrt(size - 1) + 1
    a = -(-size // b)
    key = hashlib.blake2b(repr((seed, epoch, size)).encode(), digest_size=16).digest()
    found = _shuffle(key, index, a, b)
    while found >= size:
        found = _shuffle(key, found, a, b)
    return found


def _shuffle(key: bytes, number: int, a: int, b: int) -> int:
    left, right = divmod(number, b)
    for turn in range(0, ROUNDS, 2):
        left = (left + _hash(key, turn, right)) % a
        right = (right + _hash(key, turn + 1, left)) % b
    return left * b + right


def _hash(key: bytes, turn: int, value: int) -> int:
    data = turn.to_bytes(1, "little") + value.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(data, key=key, digest_size=8).digest(), "little")
