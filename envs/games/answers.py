"""Which action a free answer names: the definition, on bytes.

An answer names the first name after its last mark, or, where no name follows a mark, the last name in it; where a mark
was asked for, none. Only the legal names are looked for.

- A mark is "answer", in small letters or capitals, then at most 20 ASCII characters without colon and newline, then a
  colon: `Answer:`, `**Final answer** (one cell):`.
- A name must stand alone: no ASCII letter or digit touches it. Where several names begin at one place, the longest
  counts. Names are found from the left, and do not overlap.
- Capitals are forgiven where no two names differ in them only.

Only ASCII matters, so bytes that are no UTF-8 change nothing, nor does the U+FFFD that a tokenizer decodes them to.
`parser.py` computes the same inside jit, on token ids.
"""

import functools
import re
from collections.abc import Sequence

MARK = b"answer"
MARK_GAP = 20
"""Characters between the word of a mark and its colon, at most."""

_MARK = re.compile(rb"%b[\x00-\x09\x0b-\x39\x3b-\x7f]{0,%d}:" % (MARK, MARK_GAP), re.IGNORECASE)


def check_names(names: Sequence[str]) -> None:
    """Refuses names that are empty, are not printable ASCII, or occur twice."""
    for name in names:
        if not name or not name.isascii() or not name.isprintable():
            raise ValueError(f"names must be printable ASCII and not empty, found {name!r}")
    if len(set(names)) != len(names):
        raise ValueError(f"names must be distinct, found {tuple(names)}")


def folds(names: Sequence[str]) -> bool:
    """Whether capitals are forgiven: no two names differ in them only."""
    return len({name.lower() for name in names}) == len(names)


def parse(
    names: Sequence[str], answer: str | bytes, legal: Sequence[bool] | None = None, marked: bool = False
) -> int | None:
    """The action that an answer names, among the legal ones if these are given; None if it names none.

    marked  only a name behind a mark counts
    """
    text = answer.encode("utf-8", "surrogatepass") if isinstance(answer, str) else bytes(answer)
    fold = folds(names)
    actions = {
        (name.lower() if fold else name).encode(): action
        for action, name in enumerate(names)
        if legal is None or legal[action]
    }
    if not actions:
        return None
    pattern = _name_pattern(tuple(actions), fold)
    marks = [mark.end() for mark in _MARK.finditer(text)]
    found = pattern.search(text, marks[-1]) if marks else None
    name = found[0] if found else None if marked else next(iter(reversed(pattern.findall(text))), None)
    return None if name is None else actions[name.lower() if fold else name]


@functools.lru_cache(maxsize=256)
def _name_pattern(names: tuple[bytes, ...], fold: bool) -> re.Pattern:
    """Finds any of the names where no letter or digit touches it, longer names first."""
    options = b"|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(rb"(?<![A-Za-z0-9])(?:%b)(?![A-Za-z0-9])" % options, re.IGNORECASE if fold else 0)
