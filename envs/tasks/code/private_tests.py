"""The private tests of LiveCodeBench, read without unpickling.

The published field is JSON text that was pickled, compressed with zlib and encoded in base64. Unpickling can run
arbitrary code, so `pickled_text` interprets only the few opcodes of a pickled string and rejects everything else.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from typing import Any

LARGEST = 1 << 28
"""Maximum size in bytes after decompression."""

_TEXTS = {b"\x8c": 1, b"X": 4, b"\x8d": 8}  # SHORT_BINUNICODE, BINUNICODE, BINUNICODE8: size of the length field
_MEMO = {b"\x94": 0, b"q": 1, b"r": 4}  # MEMOIZE, BINPUT, LONG_BINPUT: size of the argument


def private_tests(field: str, where: str) -> list[dict[str, Any]]:
    """Return the tests in the field `private_test_cases`.

    Raises:
        ValueError: The field is neither JSON nor a pickled JSON string.
    """
    if field.lstrip()[:1] == "[":
        return _tests(field, where)
    try:
        packed = base64.b64decode(field, validate=True)
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(packed, LARGEST)
        if not unpacker.eof:
            raise ValueError(f"truncated, or more than {LARGEST} bytes after decompression")
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ValueError(f"{where}: private_test_cases is not base64 of zlib: {error}") from None
    try:
        return _tests(pickled_text(data), where)
    except ValueError as error:
        raise ValueError(f"{where}: private_test_cases: {error}") from None


def pickled_text(data: bytes) -> str:
    """Return the string in a pickle that contains exactly one string."""
    at = 0

    def take(n: int) -> bytes:
        nonlocal at
        chunk = data[at : at + n]
        if len(chunk) < n:
            raise ValueError("the pickle is truncated")
        at += n
        return chunk

    text: str | None = None
    while True:
        code = take(1)
        if code == b"\x80" and at == 1:  # PROTO
            if (protocol := take(1)[0]) > 5:
                raise ValueError(f"the pickle protocol is {protocol}, but must be <= 5")
        elif code == b"\x95" and text is None:  # FRAME
            take(8)
        elif code in _TEXTS and text is None:
            length = int.from_bytes(take(_TEXTS[code]), "little")
            try:
                text = take(length).decode("utf-8", "surrogatepass")
            except UnicodeDecodeError as error:
                raise ValueError(f"the pickled string is not UTF-8: {error}") from None
        elif code in _MEMO and text is not None:
            take(_MEMO[code])
        elif code == b"." and text is not None:  # STOP
            if at != len(data):
                raise ValueError(f"{len(data) - at} bytes follow the end of the pickle")
            return text
        else:
            raise ValueError(f"the pickle contains more than a string (opcode {code!r} at byte {at - 1})")


def _tests(text: str, where: str) -> list[dict[str, Any]]:
    try:
        tests = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON: {error}") from None
    if not isinstance(tests, list) or not all(isinstance(test, dict) for test in tests):
        raise ValueError(f"{where}: the tests are not a list of JSON objects")
    return tests
