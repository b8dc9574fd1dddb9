"""The private tests of LiveCodeBench, without unpickling.

The published field is base64 of zlib of a pickle of one text, which is JSON. A pickle is a program, so it is not run:
`pickled_text` reads the few operations that a pickled text consists of and refuses everything else.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from typing import Any

LARGEST = 1 << 28
"""Bytes after decompression; more is refused."""

_TEXTS = {b"\x8c": 1, b"X": 4, b"\x8d": 8}  # SHORT_BINUNICODE, BINUNICODE, BINUNICODE8: bytes of the length
_MEMO = {b"\x94": 0, b"q": 1, b"r": 4}  # MEMOIZE, BINPUT, LONG_BINPUT: bytes of the argument


def private_tests(field: str, where: str) -> list[dict[str, Any]]:
    """The tests in the field `private_test_cases`; a ValueError for anything but JSON or a pickled JSON text."""
    if field.lstrip()[:1] == "[":
        return _tests(field, where)
    try:
        packed = base64.b64decode(field, validate=True)
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(packed, LARGEST)
        if not unpacker.eof:
            raise ValueError(f"cut short, or more than {LARGEST} bytes after decompression")
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ValueError(f"{where}: private_test_cases is not base64 of zlib: {error}") from None
    try:
        return _tests(pickled_text(data), where)
    except ValueError as error:
        raise ValueError(f"{where}: private_test_cases: {error}") from None


def pickled_text(data: bytes) -> str:
    """The text of a pickle that holds one text and nothing else."""
    at = 0

    def take(n: int) -> bytes:
        nonlocal at
        found = data[at : at + n]
        if len(found) < n:
            raise ValueError("the pickle is cut short")
        at += n
        return found

    text: str | None = None
    while True:
        code = take(1)
        if code == b"\x80" and at == 1:  # PROTO
            if (protocol := take(1)[0]) > 5:
                raise ValueError(f"pickle protocol {protocol}; expected 5 at most")
        elif code == b"\x95" and text is None:  # FRAME
            take(8)
        elif code in _TEXTS and text is None:
            length = int.from_bytes(take(_TEXTS[code]), "little")
            try:
                text = take(length).decode("utf-8", "surrogatepass")
            except UnicodeDecodeError as error:
                raise ValueError(f"the pickled text is not UTF-8: {error}") from None
        elif code in _MEMO and text is not None:
            take(_MEMO[code])
        elif code == b"." and text is not None:  # STOP
            if at != len(data):
                raise ValueError(f"{len(data) - at} bytes behind the end of the pickle")
            return text
        else:
            raise ValueError(f"the pickle holds more than a text (operation {code!r} at byte {at - 1}); it is not run")


def _tests(text: str, where: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON: {error}") from None
    if not isinstance(found, list) or not all(isinstance(test, dict) for test in found):
        raise ValueError(f"{where}: expected a list of tests")
    return found
