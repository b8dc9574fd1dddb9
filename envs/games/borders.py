"""Borders between strings that are tokenised apart: the check that no token crosses one."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np

RENDERINGS = 32  # whole random texts compared at compile time, on top of the check of every pair


class Tokenizer(Protocol):
    """What a template needs of a tokenizer: `encode` parses special tokens written in the text and adds nothing."""

    @property
    def pad_id(self) -> int | None: ...
    def encode(self, text: str) -> list[int]: ...


class MergeError(ValueError):
    """Two neighbouring strings of a template share a token, so they cannot be tokenised apart."""


class Encoder:
    """Tokens of a string that stands at the start of a sequence, or after other text.

    SentencePiece tokenizers put a space in front of a sequence, so there a later piece is encoded behind a newline,
    which merges with nothing, and the newline's tokens are cut off. What was encoded and checked is remembered, so
    templates with pieces in common compile faster with one encoder than with the tokenizer.
    """

    ANCHOR = "\n"

    def __init__(self, tokenizer: Tokenizer):
        self.encode = tokenizer.encode
        self.pad_id = 0 if tokenizer.pad_id is None else tokenizer.pad_id
        self.anchor = list(self.encode(self.ANCHOR))
        self.adds_space = list(self.encode(self.ANCHOR + "x")) != self.anchor + list(self.encode("x"))
        self.known: dict[tuple[str, bool], list[int]] = {}
        self.checked: set[tuple[str, str, bool]] = set()  # pairs of neighbours that do not merge

    @classmethod
    def of(cls, tokenizer: "Tokenizer | Encoder") -> "Encoder":
        """The encoder itself, or one for a tokenizer."""
        return tokenizer if isinstance(tokenizer, Encoder) else cls(tokenizer)

    def __call__(self, text: str, continues: bool) -> list[int]:
        key = (text, continues and self.adds_space)
        if key not in self.known:
            self.known[key] = self.fresh(text, continues)
        return self.known[key]

    def fresh(self, text: str, continues: bool) -> list[int]:
        """The tokens, not remembered."""
        if not text:
            return []
        if not (continues and self.adds_space):
            return list(self.encode(text))
        ids = list(self.encode(self.ANCHOR + text))
        if ids[: len(self.anchor)] != self.anchor:
            raise MergeError(f"template: the tokenizer merges a newline with the start of {shown(text)}")
        return ids[len(self.anchor) :]


class Part(NamedTuple):
    """A piece: its variants, the number of its table (None: fixed text) and whether that is linked."""

    variants: tuple[str, ...]
    index: int | None = None
    linked: bool = False


def check_first(parts: list[Part], encode: Encoder, continues: bool) -> None:
    """Refuse a text that may begin with nothing where the tokenizer adds a space in front of it."""
    if encode.adds_space and not continues and parts and not all(parts[0].variants):
        raise ValueError(
            "template: this tokenizer puts a space in front of a sequence, so the first piece must never be empty; "
            f"found the variants {shown(parts[0].variants)}"
        )


def check_borders(parts: list[Part], encode: Encoder, continues: bool) -> None:
    """Refuse if any two strings that can stand next to each other tokenise differently together than apart.

    Checking pairs is enough for byte-pair merges: look at the first merge that would cross a border of the whole text.
    Until then every piece was merged as if alone, so the same two symbols meet, as the best pair, in the text of the
    two neighbours alone. Regular expressions that split the text first look one character past a match, and that
    character lies in the neighbour too. Where a variant is empty the neighbours are the pieces around it.
    """
    # (string, whether it continues other text) that may stand just before a part, before the first part of the chain
    # of linked tables that it belongs to, and in the part before it
    before, outside, last = ({} for _ in range(3))
    for position, part in enumerate(parts):
        outside = outside if part.linked else before
        for left, left_continues in last if part.linked else before:
            for right in part.variants:
                if not right or (left, right, left_continues) in encode.checked:
                    continue
                apart = encode(left, left_continues) + encode(right, True)
                together = encode.fresh(left + right, left_continues)
                if together != apart:
                    raise MergeError(
                        f"template: {shown(left, end=True)} followed by {shown(right)} becomes tokens "
                        f"{together[-8:]} (last 8) together but {apart[-8:]} apart; put the border where the "
                        "tokenizer splits anyway, e.g. before a space and a word, or around a digit"
                    )
                encode.checked.add((left, right, left_continues))
        last = dict.fromkeys((text, continues or position > 0) for text in part.variants if text)
        before = last if all(part.variants) else {**outside, **last}


def check_renderings(parts: list[Part], encode: Encoder, continues: bool) -> None:
    """Compare a few whole texts, drawn at random, with the tokens of their pieces."""
    rng = np.random.default_rng(0)
    for _ in range(RENDERINGS if any(part.index is not None for part in parts) else 1):
        strings: list[str] = []
        for part in parts:
            low, high = (bool(strings[-1]), len(part.variants) if strings[-1] else 1) if part.linked else (0, None)
            strings.append(part.variants[int(rng.integers(low, high or len(part.variants)))])
        apart = [t for i, text in enumerate(strings) for t in encode(text, continues or i > 0)]
        if encode.fresh("".join(strings), continues) != apart:
            raise MergeError(f"template: the tokens of the pieces are not those of the whole text {''.join(strings)!r}")


def shown(text: str | Iterable[str], end: bool = False) -> str:
    """A string, or several, short enough for an error message; `end` keeps the end rather than the start."""
    if not isinstance(text, str):
        texts = list(text)
        return ", ".join(map(shown, texts[:6])) + (", …" if len(texts) > 6 else "")
    if len(text) <= 60:
        return repr(text)
    return "…" + repr(text[-60:]) if end else repr(text[:60]) + "…"
