"""Text of a completion as a client sees it, complete or while it is generated."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

from models.tokenizers import Tokenizer


def visible(tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str] = ()) -> str:
    """Return the text of token ids up to the first stop string, without control tokens."""
    return before_stop(tokenizer.decode(ids, skip_special=True), stops)


def before_stop(text: str, stops: Sequence[str]) -> str:
    """Return a text up to the first stop string."""
    if not stops:
        return text
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def tokens_within(tokenizer: Tokenizer, ids: Sequence[int], length: int) -> int:
    """Return the number of ids that cover the first `length` characters of their text."""
    return bisect.bisect_left(range(len(ids)), length, key=lambda n: len(tokenizer.decode(ids[:n], skip_special=True)))


class TextStream:
    """Text that grows with the token ids.

    The results of `add` and `end` together are the text that is passed to `end`. Text is held back until it is certain:
    incomplete characters, possible beginnings of a stop string, and everything from the index that `held_from` returns.

    Args:
        tokenizer: Tokenizer of the ids.
        stops: Stop strings.
        held_from: Maps the text so far to the index from which it may still change.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), held_from: Callable[[str], int] | None = None):
        self._tokenizer, self._stops, self._held_from = tokenizer, tuple(stops), held_from
        self.ids: list[int] = []
        self.shown = 0
        self._before, self._from, self._upto, self._known = "", 0, 0, 0  # see `_decoded`

    def add(self, ids: Sequence[int]) -> str:
        """Add token ids and return the text that can be shown now."""
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
        """Return the text of all ids by decoding only the last ones.

        `_before` is the text of the ids up to `_upto`, which ends with a complete character. The text after it is found
        by decoding from `_from`, a few ids earlier, because decoders treat the beginning of a text differently:
        SentencePiece drops a space there. The ids from `_from` to `_upto` have `_known` characters.
        """
        decode = self._tokenizer.decode
        window = decode(self.ids[self._from :], skip_special=True)
        text = self._before + window[self._known :]
        if len(window) > self._known and not window.endswith("\ufffd"):
            last = decode(self.ids[-1:], skip_special=True)
            whole = bool(last) and "\ufffd" not in last  # then one id of context is enough
            self._before, self._from, self._upto = text, len(self.ids) - 1 if whole else self._upto, len(self.ids)
            self._known = len(last if whole else decode(self.ids[self._from :], skip_special=True))
        return text

    def end(self, text: str) -> str:
        """Return the rest of the final text."""
        return self._show(text, len(text))

    def _show(self, text: str, upto: int) -> str:
        shown, self.shown = self.shown, max(self.shown, upto)
        return text[shown : self.shown]
