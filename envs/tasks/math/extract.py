r"""Where the answer stands in a text: the last `\boxed{}`, or the line of a form that a dataset asks for.

A text is read once from left to right, so that a megabyte of it takes a fraction of a second.
"""

from __future__ import annotations

import re

FORMS = ("boxed", "final")
MAX_BOXES = 8
"""Boxes with different contents that are compared with each other; a text with more has no answer."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_FINAL = re.compile(r"(?:####|final answer\s*(?:is|:)|\banswer is)\s*:?[^\S\n]*(?P<answer>[^\n]*)", re.IGNORECASE)


class NoAnswer(ValueError):
    """The text has no answer in the form that was asked for; the message says why."""


def answers(text: str, form: str = "boxed") -> list[str]:
    """The answers of a text, the last one last; several if there are several boxes. Raises `NoAnswer`.

    Text before `</think>` is no answer, and neither is thinking that does not end.

    form  "boxed": only a box is an answer. "final": without a box, also what follows `####` or "the answer is" in the
          last such line.
    """
    if form not in FORMS:
        raise ValueError(f"form is {form!r}, but must be one of: {', '.join(FORMS)}")
    text = after_thinking(text)
    found = boxes(text)
    if not found and form == "final" and (lines := [m["answer"].strip() for m in _FINAL.finditer(text)]):
        found = [lines[-1].rstrip(".").strip("*").strip()]
    if not found:
        raise NoAnswer("no box" if form == "boxed" else "no box and no final answer")
    if not found[-1].strip():
        raise NoAnswer("empty box")
    different = list(dict.fromkeys(reversed(found)))[::-1]
    if len(different) > MAX_BOXES:
        raise NoAnswer(f"{len(different)} boxes that differ")
    return different


def after_thinking(text: str) -> str:
    """What stands behind `</think>`, or the whole text; raises `NoAnswer` where thinking does not end."""
    _, closed, after = text.rpartition("</think>")
    if not closed and "<think>" in text:
        raise NoAnswer("unfinished thinking")
    return after


def boxes(text: str) -> list[str]:
    r"""The contents of the outermost boxes in their order; a box that is never closed is none.

    `\boxed 5`, as TeX reads it, holds one character.
    """
    starts = list(_BOX.finditer(text))
    if not starts:
        return []
    closed = _closing(text)
    found, end = [], 0
    for start in starts:
        at = start.end()
        if start.start() < end or at >= len(text):
            continue  # within the box before; nothing behind it
        if text[at] != "{":
            if start.group().endswith((" ", "\t")):
                found.append(text[at])
            continue
        if (end_of_box := closed.get(at)) is not None:
            found.append(text[at + 1 : end_of_box])
            end = end_of_box
    return [_unboxed(content) for content in found]


def _closing(text: str) -> dict[int, int]:
    """Position of each brace that is closed -> position of the brace that closes it."""
    stack, closed = [], {}
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            stack.append(match.start())
        elif match.group() == "}" and stack:
            closed[stack.pop()] = match.start()
    return closed


def _unboxed(content: str) -> str:
    inner = boxes(content)
    return inner[0] if len(inner) == 1 and _BOX.match(content.strip()) else content
