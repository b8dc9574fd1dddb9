"""Checks that no token crosses the boundary between separately tokenized strings."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np

RENDERINGS = 32  # random complete texts compared at compile time, in addition to the check of every pair


class Tokenizer(Protocol):
    """The interface of tokenizers that templates need."""

    @property
    def pad_id(self) -> int | None:
        """Padding token, if there is one."""
        ...

    def encode(self, text: str) -> list[int]:
        """Tokenize text and the special tokens written in it, without adding any."""
        ...


class MergeError(ValueError):
    """Raised if a token spans two adjacent strings of a template."""


class Encoder:
    """Tokenization of strings at the start of a sequence or after other text.

    SentencePiece tokenizers prepend a space to a sequence. With these, a later piece is encoded after a newline, which
    merges with nothing, and the newline's tokens are cut off. Encoded and checked strings are cached, so templates with
    common pieces compile faster with a shared encoder than with the tokenizer.
    """

    ANCHOR = "\n"

    def __init__(self, tokenizer: Tokenizer):
        self.encode = tokenizer.encode
        self.pad_id = 0 if tokenizer.pad_id is None else tokenizer.pad_id
        self.anchor = list(self.encode(self.ANCHOR))
        self.adds_space = list(self.encode(self.ANCHOR + "x")) != self.anchor + list(self.encode("x"))
        self.known: dict[tuple[str, bool], list[int]] = {}
        self.checked: set[tuple[str, str, bool]] = set()  # pairs of neighbors that do not merge

    @classmethod
    def of(cls, tokenizer: "Tokenizer | Encoder") -> "Encoder":
        """Return an encoder for a tokenizer, or the encoder itself."""
        return tokenizer if isinstance(tokenizer, Encoder) else cls(tokenizer)

    def __call__(self, text: str, continues: bool) -> list[int]:
        """Tokenize a string; `continues` says that it follows other text."""
        key = (text, continues and self.adds_space)
        if key not in self.known:
            self.known[key] = self.fresh(text, continues)
        return self.known[key]

    def fresh(self, text: str, continues: bool) -> list[int]:
        """Tokenize a string without the cache."""
        if not text:
            return []
        if not (continues and self.adds_space):
            return list(self.encode(text))
        ids = list(self.encode(self.ANCHOR + text))
        if ids[: len(self.anchor)] != self.anchor:
            raise MergeError(f"template: the tokenizer merges a newline with the start of {shown(text)}")
        return ids[len(self.anchor) :]


class Part(NamedTuple):
    """A piece of a template.

    Attributes:
        variants: Strings of the piece.
        index: Index of its table, or None for fixed text.
        linked: See `Table.linked`.
        image: Whether the part is the place of a picture.
    """

    variants: tuple[str, ...]
    index: int | None = None
    linked: bool = False
    image: bool = False


def check_first(parts: list[Part], encode: Encoder, continues: bool) -> None:
    """Raise an error if a text can begin with an empty string, but must not.

    It must not if the tokenizer prepends a space to a sequence.
    """
    if encode.adds_space and not continues and parts and not all(parts[0].variants):
        raise ValueError(
            "template: this tokenizer prepends a space to a sequence, so the first piece must never be empty, but its "
            f"variants are {shown(parts[0].variants)}"
        )


def check_borders(parts: list[Part], encode: Encoder, continues: bool) -> None:
    """Raise an error if two strings that can be adjacent share a token.

    Checking pairs is sufficient for byte-pair merges. Consider the first merge that would cross a boundary of the full
    text. Until then every piece was merged as if alone, so the same two symbols meet, as the best pair, in the text of
    the two neighbors alone. Regular expressions that split the text first look one character past a match, and that
    character is part of the neighbor, too. If a variant is empty, the neighbors are the pieces around it.
    """
    # Strings, with whether they continue other text, that can precede a part, precede the first part of its chain of
    # linked tables, or be the part before it.
    before, outside, last = ({} for _ in range(3))
    for position, part in enumerate(parts):
        outside = outside if part.linked else before
        for left, left_continues in last if part.linked else before:
            for right in part.variants:
                if not right or (left, right, left_continues) in encode.checked:
                    continue
                separate = encode(left, left_continues) + encode(right, True)
                together = encode.fresh(left + right, left_continues)
                if together != separate:
                    raise MergeError(
                        f"template: {shown(left, end=True)} followed by {shown(right)} becomes tokens "
                        f"{together[-8:]} (last 8) together, but {separate[-8:]} separately; put the boundary where "
                        "the tokenizer always splits, e.g. before a space and a word, or around a digit"
                    )
                encode.checked.add((left, right, left_continues))
        last = dict.fromkeys((text, continues or position > 0) for text in part.variants if text)
        before = last if all(part.variants) else {**outside, **last}


def check_renderings(parts: list[Part], encode: Encoder, continues: bool) -> None:
    """Compare a few random complete texts with the tokens of their pieces."""
    rng = np.random.default_rng(0)
    for _ in range(RENDERINGS if any(part.index is not None for part in parts) else 1):
        strings: list[str] = []
        for part in parts:
            low, high = (bool(strings[-1]), len(part.variants) if strings[-1] else 1) if part.linked else (0, None)
            strings.append(part.variants[int(rng.integers(low, high or len(part.variants)))])
        separate = [t for i, text in enumerate(strings) for t in encode(text, continues or i > 0)]
        if encode.fresh("".join(strings), continues) != separate:
            raise MergeError(
                f"template: the tokens of the pieces differ from those of the full text {''.join(strings)!r}"
            )


def shown(text: str | Iterable[str], end: bool = False) -> str:
    """Shorten a string, or several, for an error message.

    Args:
        text: One string or several.
        end: Whether to keep the end of a long string rather than its start.
    """
    if not isinstance(text, str):
        texts = list(text)
        return ", ".join(map(shown, texts[:6])) + (", …" if len(texts) > 6 else "")
    if len(text) <= 60:
        return repr(text)
    return "…" + repr(text[-60:]) if end else repr(text[:60]) + "…"
