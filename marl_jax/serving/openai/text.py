"""The text of an answer as a client sees it: whole, and while it is being written."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

from models.tokenizers import Tokenizer


def visible(tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str] = ()) -> str:
    """The text of some ids up to the first stop string, without control tokens."""
    return before_stop(tokenizer.decode(ids, skip_special=True), stops)


def before_stop(text: str, stops: Sequence[str]) -> str:
    """A text up to the first stop string."""
    if not stops:
        return text
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def tokens_within(tokenizer: Tokenizer, ids: Sequence[int], length: int) -> int:
    """How many of the ids it takes to write the first `length` characters of their text."""
    return bisect.bisect_left(range(len(ids)), length, key=lambda n: len(tokenizer.decode(ids[:n], skip_special=True)))


class TextStream:
    """Text that grows with the ids: what `add` and `end` return, joined, is the whole text, which is given to `end`.

    Held back until it is certain: bytes that are not a whole character yet, what may become a stop string, and what
    `held_from` (of a text so far, the place from which on it may change) says.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), held_from: Callable[[str], int] | None = None):
        self._tokenizer, self._stops, self._held_from = tokenizer, tuple(stops), held_from
        self.ids: list[int] = []
        self.shown = 0
        self._before, self._from, self._upto, self._known = "", 0, 0, 0  # see `_decoded`

    def add(self, ids: Sequence[int]) -> str:
        """What can be shown more, now that these ids have been written."""
        self.ids.extend(ids)
        text = before_stop(self._decoded(), self._stops)
        certain = len(text.rstrip("\ufffd"))
        for stop in self._stops:
            overlaps = (n for n in range(min(len(stop), certain), 0, -1) if text[:certain].endswith(stop[:n]))
            certain = min(certain, certain - next(overlaps, 0))
        if self._held_from is not None:
            certain = min(certain, self._held_from(text[:certain]))
        return self._show(text, certain)

    def _decoded(self) -> str:
        """The text of all ids, of which only the last ones are decoded.

        `_before` is the text of the ids up to `_upto`, which ends with a whole character. What follows is found by
        decoding from `_from` on, some ids earlier, whose text has `_known` characters: decoders treat the beginning of
        a text differently, SentencePiece's drop a space there.
        """
        decode = self._tokenizer.decode
        window = decode(self.ids[self._from :], skip_special=True)
        text = self._before + window[self._known :]
        if len(window) > self._known and not window.endswith("\ufffd"):
            last = decode(self.ids[-1:], skip_special=True)
            whole = bool(last) and "\ufffd" not in last  # then one id is enough
            self._before, self._from, self._upto = text, len(self.ids) - 1 if whole else self._upto, len(self.ids)
            self._known = len(last if whole else decode(self.ids[self._from :], skip_special=True))
        return text

    def end(self, text: str) -> str:
        """What is left to be shown of the whole text."""
        return self._show(text, len(text))

    def _show(self, text: str, upto: int) -> str:
        shown, self.shown = self.shown, max(self.shown, upto)
        return text[shown : self.shown]
