"""The action that a free-text completion names: the definition, on bytes.

A completion names the first name after its last mark, or, if no name follows a mark, its last name. If a mark is
required, a completion without a name after it names no action. Only legal names are considered.

- A mark is "answer" in any case, then at most 20 ASCII characters other than a colon or newline, then a colon:
  `Answer:`, `**Final answer** (one cell):`.
- A name must not touch an ASCII letter or digit. If several names start at the same position, the longest one counts.
  Names are matched from the left and do not overlap.
- Case is ignored unless two names differ only in case.

Only ASCII matters, so invalid UTF-8 bytes, or the U+FFFD that a tokenizer decodes them to, change nothing. `parser.py`
computes the same inside jit, on token ids.
"""

import functools
import re
from collections.abc import Sequence

MARK = b"answer"
MARK_GAP = 20
"""Maximum number of characters between the word and the colon of a mark."""

_MARK = re.compile(rb"%b[\x00-\x09\x0b-\x39\x3b-\x7f]{0,%d}:" % (MARK, MARK_GAP), re.IGNORECASE)


def check_names(names: Sequence[str]) -> None:
    """Raise a ValueError for names that are empty, duplicate or not printable ASCII."""
    for name in names:
        if not name or not name.isascii() or not name.isprintable():
            raise ValueError(f"name is {name!r}, but must be nonempty printable ASCII")
    if len(set(names)) != len(names):
        raise ValueError(f"names are {tuple(names)}, but must be distinct")


def folds(names: Sequence[str]) -> bool:
    """Return whether case is ignored: no two names differ only in case."""
    return len({name.lower() for name in names}) == len(names)


def parse(
    names: Sequence[str], answer: str | bytes, legal: Sequence[bool] | None = None, marked: bool = False
) -> int | None:
    """Return the action that a completion names, or None.

    Args:
        names: Names of the actions.
        answer: Text of the completion.
        legal: Mask of legal actions; by default all are legal.
        marked: Whether only a name after a mark counts.
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
    match = pattern.search(text, marks[-1]) if marks else None
    name = match[0] if match else None if marked else next(iter(reversed(pattern.findall(text))), None)
    return None if name is None else actions[name.lower() if fold else name]


@functools.lru_cache(maxsize=256)
def _name_pattern(names: tuple[bytes, ...], fold: bool) -> re.Pattern:
    """Return a pattern that matches any delimited name, longer names first."""
    options = b"|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(rb"(?<![A-Za-z0-9])(?:%b)(?![A-Za-z0-9])" % options, re.IGNORECASE if fold else 0)
