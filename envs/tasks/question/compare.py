r"""How an answer is read in a reply and compared with the known one; called in another process.

    exact     the same text, apart from case, spaces and a full stop at the end
    one_of    exactly one of a list
    contains  the known text occurs as whole words in the answer: lenient, a reply that lists everything is right
    number    the same number: 1,234.50 is 1234.5, 3/4 is 0.75
    choice    the letter or the text of the right option
    math      equal expressions, by `envs.tasks.math`

The answer is what stands in the last \boxed{}, and boxes that differ are no answer; or it is the whole reply.
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
    """The verdict on a reply; its answer in the form in which it is voted on, None if there is none."""
    if comparison == "math":
        return _by_math(text, answer, form)
    found, why = read(text, form)
    if found is None:
        return {"right": False, "answer": None, "reason": why}
    if comparison == "number":
        number = to_number(found)
        if number is None:
            return {"right": False, "answer": None, "reason": f"{found[:80]!r} is no number"}
        return _verdict(number == to_number(answer), str(number))
    if comparison == "choice":
        letter = to_letter(found, options)
        if letter is None:
            return {"right": False, "answer": None, "reason": f"{found[:80]!r} is none of the options"}
        return _verdict(letter == to_letter(answer, options), letter)
    plain = normalize(found)
    if comparison == "contains":
        words = normalize(answer)
        return _verdict(re.search(rf"(?<!\w){re.escape(words)}(?!\w)", plain) is not None, plain)
    known = answer if comparison == "one_of" else [answer]
    return _verdict(plain in map(normalize, known), plain)


def check_answer(comparison: str, answer: Any, options: Sequence[str] = ()) -> str | None:
    """What is wrong with a known answer, or None; a right reply could not be recognised."""
    if comparison == "number" and to_number(answer) is None:
        return f"the answer {answer!r} is no number"
    if comparison == "choice":
        if not 2 <= len(options) <= len(LETTERS) or not all(isinstance(o, str) and o.strip() for o in options):
            return f"the options are {list(options)!r}; expected 2 to {len(LETTERS)} texts"
        if to_letter(answer, options) is None:
            return f"the answer {answer!r} is none of the options {list(options)!r}"
    if comparison == "one_of" and not (isinstance(answer, list) and answer and all(isinstance(a, str) for a in answer)):
        return f"the answer {answer!r} is no list of texts"
    if comparison in ("exact", "contains", "math") and not isinstance(answer, str | int | float):
        return f"the answer {answer!r} is no text"
    if comparison in ("exact", "contains") and not normalize(answer):
        return f"the answer {answer!r} is empty"
    return None


def read(text: str, form: str) -> tuple[str | None, str]:
    """(the answer of a reply, "") or (None, why there is none). Thinking, up to `</think>`, is no answer."""
    if form == "text":
        _, closed, text = text.rpartition("</think>")
        if "<think>" in text and not closed:
            return None, "unfinished thinking"
        return (text.strip(), "") if text.strip() else (None, "the reply is empty")
    try:
        found = list(map(unwrapped, answers(text)))
    except NoAnswer as error:
        return None, str(error)
    if len(set(map(normalize, found))) > 1:
        return None, "boxes that differ"
    return (found[-1], "") if found[-1] else (None, "empty box")


def unwrapped(text: str) -> str:
    r"""Without \text{} and the like around it, dollar signs and spaces."""
    text = text.strip()
    if match := _WRAPPED.fullmatch(text):
        text = match["inner"].strip()
    return text.strip("$").strip() if len(text) > 1 and text[0] == text[-1] == "$" else text


def normalize(value: Any) -> str:
    """A text without regard to case, spaces and a full stop at its end."""
    text = unicodedata.normalize("NFKC", str(value)).casefold()
    return " ".join(text.split()).removesuffix(".").rstrip()


def to_number(value: Any) -> Fraction | None:
    """An integer, a decimal or a fraction, exactly; None for anything else."""
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
    """The letter of an option, given by letter ("C", "(c)", "C."), by its text, or by both ("C. gold")."""
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
    from envs.tasks.math.verifier import verify  # which brings a computer algebra system along

    found = verify(str(answer), text if form == "boxed" else rf"\boxed{{{text}}}")
    return {**found, "reason": "" if found["right"] else found["reason"]}
