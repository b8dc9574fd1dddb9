r"""Extraction of the final answer: the last `\boxed{}`, or a line such as `#### 5`.

Text is scanned once from left to right, so that a megabyte takes a fraction of a second.
"""

from __future__ import annotations

import re

FORMS = ("boxed", "final")
MAX_NESTED, LONGEST_NESTED = 24, 10_000
"""Maximum number of boxes inside each other, and the length in characters above which none is opened."""
MAX_BOXES = 8
"""Maximum number of boxes with different contents; a text with more has no answer."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_FINAL = re.compile(r"(?:####|final answer\s*(?:is|:)|\banswer is)\s*:?[^\S\n]*(?P<answer>[^\n]*)", re.IGNORECASE)


class NoAnswer(ValueError):
    """A text without an answer in the required form; the message gives the reason."""


def answers(text: str, form: str = "boxed") -> list[str]:
    """Return the distinct answers of a text, the last one last.

    There are several if there are several boxes. Text before `</think>` is ignored, and a text with unfinished thinking
    has no answer.

    Args:
        text: Text of a completion.
        form: "boxed" to accept only boxes. "final" to accept also, if there is no box, the text after `####` or "the
            answer is" in the last line of this form.

    Raises:
        NoAnswer: There is no answer.
    """
    if form not in FORMS:
        raise ValueError(f"form is {form!r}, but must be one of: {', '.join(FORMS)}")
    text = after_thinking(text)
    contents = boxes(text)
    if not contents and form == "final" and (lines := [m["answer"].strip() for m in _FINAL.finditer(text)]):
        contents = [lines[-1].rstrip(".").strip("*").strip()]
    if not contents:
        raise NoAnswer("no box" if form == "boxed" else "no box and no final answer")
    if not contents[-1].strip():
        raise NoAnswer("empty box")
    different = list(dict.fromkeys(reversed(contents)))[::-1]
    if len(different) > MAX_BOXES:
        raise NoAnswer(f"{len(different)} boxes that differ")
    return different


def after_thinking(text: str) -> str:
    """Return the text after `</think>`, or all of it if there is no thinking.

    Raises:
        NoAnswer: The thinking does not end.
    """
    _, closed, after = text.rpartition("</think>")
    if not closed and "<think>" in text:
        raise NoAnswer("unfinished thinking")
    return after


def boxes(text: str) -> list[str]:
    r"""Return the contents of the outermost boxes in order, ignoring unclosed boxes.

    As in TeX, `\boxed 5` contains one character.
    """
    return [_unboxed(content) for content in _contents(text)]


def _contents(text: str) -> list[str]:
    starts = list(_BOX.finditer(text))
    if not starts:
        return []
    closed = _closing(text)
    contents, end = [], 0
    for start in starts:
        at = start.end()
        if start.start() < end or at >= len(text):
            continue  # inside the previous box, or nothing follows
        if text[at] != "{":
            if start.group().endswith((" ", "\t")):
                contents.append(text[at])
            continue
        if (end_of_box := closed.get(at)) is not None:
            contents.append(text[at + 1 : end_of_box])
            end = end_of_box
    return contents


def _closing(text: str) -> dict[int, int]:
    """Map the position of each closed brace to the position of its closing brace."""
    stack, closed = [], {}
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            stack.append(match.start())
        elif match.group() == "}" and stack:
            closed[stack.pop()] = match.start()
    return closed


def _unboxed(content: str) -> str:
    """Return the content of boxes inside each other."""
    for _ in range(MAX_NESTED):
        inner = _contents(content) if len(content) <= LONGEST_NESTED and _BOX.match(content.strip()) else []
        if len(inner) != 1:
            break
        content = inner[0]
    return content
