"""Tokens as short strings of codes that keep only the bytes relevant to parsing.

A token of a large vocabulary may have 128 bytes, but hardly any of them can be part of a name or of the mark "answer:"
(see `answers.py`), whatever the adjacent tokens are. Relevant bytes are kept. A run of other bytes becomes one code
with all the properties that the definition depends on:

    0..127     this byte
    128..255   128 + 4 size + 2 ends + starts: a run of irrelevant bytes. `starts` and `ends`: its first and last byte
               are letters or digits, so that no name can end before or start after it. `size` is its length, at most
               21, which is too long for a mark; 0 if no mark can span it, because of a newline, a byte that is not
               ASCII, or a colon that ends no mark
"""

import string
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from envs.games.answers import MARK, MARK_GAP, folds

ALNUM = frozenset((string.ascii_letters + string.digits).encode())
RUN = 128
"""First code that is not a byte: a run that separates everything. It also pads the end of a text."""
COLON = ord(":")


class TokenBytes(Protocol):
    """Bytes of a vocabulary: token i is `store[starts[i] : starts[i + 1]]`."""

    @property
    def store(self) -> np.ndarray:
        """Bytes of all tokens, concatenated."""
        ...

    @property
    def starts(self) -> np.ndarray:
        """Offset of each token in `store`, followed by the total length."""
        ...

    @property
    def strips_space(self) -> bool:
        """Whether decoding drops a space at the beginning of a text."""
        ...


def token_codes(names: Sequence[str], vocabulary: TokenBytes) -> tuple[np.ndarray, np.ndarray]:
    """Compute the codes of every token.

    Returns:
        Codes uint8 [V, K], padded with `RUN`, and their number uint8 [V].
    """
    fold = folds(names)
    wanted = _Pieces([(name.lower() if fold else name).encode() for name in names], alone=True)
    mark = _Pieces([MARK], alone=False)
    data, starts = vocabulary.store.tobytes(), vocabulary.starts.tolist()
    coded = []
    for start, stop in zip(starts[:-1], starts[1:], strict=True):
        token = data[start:stop]
        lower = token.lower()
        live = bytearray(len(token))
        for pieces, text in ((wanted, lower if fold else token), (mark, lower)):
            for low, high in pieces.spans(text):
                live[low:high] = b"\1" * (high - low)
        for place in _mark_ends(lower):
            live[place] = 1
        coded.append(_code(token, live))
    lengths = np.array([len(codes) for codes in coded], np.int32)
    width = max(int(lengths.max()), 1)
    if width > 255:
        raise ValueError(f"a token has {width} codes, but must have at most 255")
    table = np.frombuffer(b"".join(codes.ljust(width, bytes([RUN])) for codes in coded), np.uint8)
    return table.reshape(-1, width), lengths.astype(np.uint8)


class _Pieces:
    """The parts of some words that a token can contain."""

    def __init__(self, words: Sequence[bytes], alone: bool):
        """Index the parts of the words.

        Args:
            words: The words.
            alone: Whether a word must not touch a letter or digit.
        """
        self.alone = alone
        self.words = frozenset(words)
        self.sizes = sorted(set(map(len, words)))
        self.beginnings = frozenset(word[:i] for word in words for i in range(1, len(word)))
        self.ends = frozenset(word[i:] for word in words for i in range(1, len(word)))
        self.middles = frozenset(
            word[i:j] for word in words for i in range(1, len(word)) for j in range(i + 1, len(word))
        )

    def spans(self, token: bytes) -> Iterator[tuple[int, int]]:
        """Yield every (start, stop) in the token that contains a word.

        At the edges of the token, part of a word is enough.
        """
        size, longest = len(token), self.sizes[-1]
        if token in self.middles:
            yield 0, size
        for stop in range(1, min(size, longest - 1) + 1):
            if token[:stop] in self.ends and self._free(token, stop):
                yield 0, stop
        for start in range(size):
            if not self._free(token, start - 1):
                continue
            for length in self.sizes:
                if token[start : start + length] in self.words and self._free(token, start + length):
                    yield start, min(start + length, size)
            if size - start < longest and token[start:] in self.beginnings:
                yield start, size

    def _free(self, token: bytes, place: int) -> bool:
        """Return whether a word may touch the byte at this position.

        The position may be outside of the token.
        """
        return not self.alone or not 0 <= place < len(token) or token[place] not in ALNUM


def _mark_ends(lower: bytes) -> Iterator[int]:
    """Yield the positions of the colons in a token that may end a mark.

    Other colons only separate.
    """
    if COLON not in lower:
        return
    begun, last = True, 0  # a mark may have begun in an earlier token
    for place, byte in enumerate(lower):
        if byte == COLON:
            if begun or MARK in lower[last:place]:
                yield place
            begun, last = False, place + 1
        elif _separates(byte):
            begun, last = False, place + 1


def _separates(byte: int) -> bool:
    """Return whether no mark can span this byte."""
    return byte >= 128 or byte in b":\n"


def _code(token: bytes, live: bytearray) -> bytes:
    codes, place = bytearray(), 0
    while place < len(token):
        if live[place]:
            codes.append(token[place])
            place += 1
            continue
        stop = live.find(1, place)
        run = token[place : stop if stop >= 0 else len(token)]
        size = 0 if any(map(_separates, run)) else min(len(run), MARK_GAP + 1)
        codes.append(RUN + 4 * size + 2 * (run[-1] in ALNUM) + (run[0] in ALNUM))
        place += len(run)
    return bytes(codes)
