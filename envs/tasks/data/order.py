"""Order of the examples in an epoch, computed index by index.

An epoch is a pseudo-random permutation of 0 … n − 1. A number is written as a pair (l, r), l < a and r < b, where a · b
is just over n. Each round adds a hash of one member to the other. A round is invertible, so all rounds together are a
permutation of the pairs. If the result is not among the first n numbers, the permutation is applied again until it is
(cycle walking), which gives a permutation of these numbers.
"""

from __future__ import annotations

import hashlib
import math

ROUNDS = 6


def order(seed: int, epoch: int, index: int, size: int) -> int:
    """Return the example at position `index` of an epoch.

    Every epoch is a permutation of 0 … size − 1.
    """
    if not 0 <= index < size:
        raise ValueError(f"index is {index}, but must be 0 to {size - 1}")
    b = math.isqrt(size - 1) + 1
    a = -(-size // b)
    key = hashlib.blake2b(repr((seed, epoch, size)).encode(), digest_size=16).digest()
    example = _shuffle(key, index, a, b)
    while example >= size:
        example = _shuffle(key, example, a, b)
    return example


def _shuffle(key: bytes, number: int, a: int, b: int) -> int:
    left, right = divmod(number, b)
    for turn in range(0, ROUNDS, 2):
        left = (left + _hash(key, turn, right)) % a
        right = (right + _hash(key, turn + 1, left)) % b
    return left * b + right


def _hash(key: bytes, turn: int, value: int) -> int:
    data = turn.to_bytes(1, "little") + value.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(data, key=key, digest_size=8).digest(), "little")
