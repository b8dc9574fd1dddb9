r"""Reading an answer from a reply and comparing it with the known one.

The comparisons, which run in another process, are:

- exact: The same text, up to case, spaces and a full stop at the end.
- one_of: Exactly one text of a list.
- contains: The known text occurs as complete words in the answer. This is lenient: a reply that lists everything is
  right.
- number: The same number: 1,234.50 is 1234.5, 3/4 is 0.75.
- choice: The letter or the text of the right option.
- math: Equal expressions, according to `envs.tasks.math`.

With the format "boxed", the answer is the content of the last \boxed{}, and different boxes count as no answer. With
"text", it is the complete reply.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from envs.tasks.math.extract import NoAnswer, answers
from envs.tasks.replies import Verdict

COMPARISONS = ("exact", "one_of", "contains", "number", "choice", "math")
FORMATS = ("boxed", "text")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_NUMBER = re.compile(
    r"(?P<sign>[-+]?)\s*\$?\s*(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{0,100})"
    r"(?:\.(?P<part>[0-9]{0,100}))?(?:/(?P<below>[0-9]{1,100}))?"
)
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{(?P<inner>[^{}]*)\}")
_LETTER = re.compile(r"\(?(?P<letter>[A-Za-z])(?:\)|\.|:|\)\.)?(?P<rest>\s.*)?", re.DOTALL)


def grade(comparison: str, form: str, text: str, answer: Any, options: Sequence[str] = ()) -> Verdict:
    """Return the verdict on a reply.

    The answer of the verdict is in the form that is used for voting, or None if there is none.
    """
    if comparison == "math":
        return _by_math(text, answer, form)
    given, why = read(text, form)
    if given is None:
        return {"right": False, "answer": None, "reason": why}
    if comparison == "number":
        number = to_number(given)
        if number is None:
            return {"right": False, "answer": None, "reason": f"{given[:80]!r} is no number"}
        return _verdict(number == to_number(answer), str(number))
    if comparison == "choice":
        letter = to_letter(given, options)
        if letter is None:
            return {"right": False, "answer": None, "reason": f"{given[:80]!r} is none of the options"}
        return _verdict(letter == to_letter(answer, options), letter)
    plain = normalize(given)
    if comparison == "contains":
        words = normalize(answer)
        return _verdict(re.search(rf"(?<!\w){re.escape(words)}(?!\w)", plain) is not None, plain)
    known = answer if comparison == "one_of" else [answer]
    return _verdict(plain in map(normalize, known), plain)


def check_answer(comparison: str, answer: Any, options: Sequence[str] = ()) -> str | None:
    """Return why no reply could match a known answer, or None if it is valid."""
    if comparison == "number" and to_number(answer) is None:
        return f"the answer {answer!r} is not a number"
    if comparison == "choice":
        if not 2 <= len(options) <= len(LETTERS) or not all(isinstance(o, str) and o.strip() for o in options):
            return f"the options are {list(options)!r}, but must be 2 to {len(LETTERS)} strings"
        if to_letter(answer, options) is None:
            return f"the answer {answer!r} is none of the options {list(options)!r}"
    if comparison == "one_of" and not (isinstance(answer, list) and answer and all(isinstance(a, str) for a in answer)):
        return f"the answer {answer!r} is not a list of strings"
    if comparison in ("exact", "contains", "math") and not isinstance(answer, str | int | float):
        return f"the answer {answer!r} is not a string or number"
    if comparison in ("exact", "contains") and not normalize(answer):
        return f"the answer {answer!r} is empty"
    return None


def read(text: str, form: str) -> tuple[str | None, str]:
    """Return the answer of a reply and "", or None and the reason.

    Thinking, up to `</think>`, is not part of the answer.
    """
    if form == "text":
        _, closed, text = text.rpartition("</think>")
        if "<think>" in text and not closed:
            return None, "unfinished thinking"
        return (text.strip(), "") if text.strip() else (None, "the reply is empty")
    try:
        boxes = list(map(unwrapped, answers(text)))
    except NoAnswer as error:
        return None, str(error)
    if len(set(map(normalize, boxes))) > 1:
        return None, "boxes that differ"
    return (boxes[-1], "") if boxes[-1] else (None, "empty box")


def unwrapped(text: str) -> str:
    r"""Strip \text{} and similar commands, dollar signs and spaces."""
    text = text.strip()
    if match := _WRAPPED.fullmatch(text):
        text = match["inner"].strip()
    return text.strip("$").strip() if len(text) > 1 and text[0] == text[-1] == "$" else text


def normalize(value: Any) -> str:
    """Normalize case, spaces and a full stop at the end."""
    text = unicodedata.normalize("NFKC", str(value)).casefold()
    return " ".join(text.split()).removesuffix(".").rstrip()


def to_number(value: Any) -> Fraction | None:
    """Parse an integer, a decimal or a fraction exactly; None for anything else."""
    text = str(value).strip().replace("\u2212", "-").replace("\\$", "$").replace("\\!", "").replace("\\,", ",")
    text = text.replace("{,}", ",").removesuffix(".")
    match = _NUMBER.fullmatch(text)
    if match is None or not (match["whole"] or match["part"]):
        return None
    if match["below"] is not None and (match["part"] is not None or int(match["below"]) == 0):
        return None
    whole = match["whole"].replace(",", "") or "0"
    number = Fraction(f"{whole}.{match['part'] or '0'}") / int(match["below"] or 1)
    return -number if match["sign"] == "-" else number


def to_letter(value: Any, options: Sequence[str]) -> str | None:
    """Return the letter of an option, or None.

    The option is given by its letter ("C", "(c)", "C."), by its text, or by both ("C. gold").
    """
    text = normalize(unwrapped(str(value)))
    texts = [normalize(option) for option in options]
    if texts.count(text) == 1 and len(text) > 1:
        return LETTERS[texts.index(text)]
    match = _LETTER.fullmatch(unwrapped(str(value)))
    if match is not None and (at := LETTERS.index(match["letter"].upper())) < len(options):
        rest = normalize(match["rest"] or "")
        return LETTERS[at] if rest in ("", texts[at]) else None
    return LETTERS[texts.index(text)] if texts.count(text) == 1 else None


def _verdict(right: bool, answer: str) -> Verdict:
    return {"right": bool(right), "answer": answer[:200], "reason": "" if right else "another answer"}


def _by_math(text: str, answer: Any, form: str) -> Verdict:
    from envs.tasks.math.verifier import verify  # imports a computer algebra system

    verdict = verify(str(answer), text if form == "boxed" else rf"\boxed{{{text}}}")
    return {**verdict, "reason": "" if verdict["right"] else verdict["reason"]}
