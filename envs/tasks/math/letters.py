r"""Multiple choice: the letter of an answer, as in `C`, `(C)`, `\text{(C)}` or `\textbf{(C) }12`."""

from __future__ import annotations

import re

_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
_GOLD = re.compile(r"\(?([A-Z])\)?")
_CHOSEN = (
    re.compile(r"(?:(?:option|choice|answer)\s*:?\s*)?\(?([A-Z])\)?\s*[.:]?", re.IGNORECASE),
    re.compile(r"\(([A-Z])\)\s*[^A-Z(]*"),
    re.compile(r"([A-Z])\s*[).:]\s*[^A-Z(]*"),
)


def choice(gold: str) -> str | None:
    """The letter that a cleaned gold answer is, or None."""
    found = _GOLD.fullmatch(_TEXT.sub(r"\1", gold).strip())
    return found[1] if found else None


def chosen(answer: str) -> str | None:
    """The letter that a cleaned answer chooses, or None."""
    plain = _TEXT.sub(r"\1", answer).strip()
    for pattern in _CHOSEN:
        if (found := pattern.fullmatch(plain)) is not None and found[1].isupper():
            return found[1]
    return None
