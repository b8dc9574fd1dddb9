r"""The verifier of final answers: `verify(gold, text)`.

The rules (docs/math.md): the last `\boxed{}` is the answer, and text after it is ignored. Boxes that differ give no
answer, and neither does a text without a box. Values are compared exactly, sets in any order and tuples in order. Units
and percent signs may be omitted. `verify` runs in a worker process through `ask.verify`, which enforces the time limit.
"""

from __future__ import annotations

import functools
import re
import sys

from envs.tasks.math import symbolic
from envs.tasks.math.extract import NoAnswer, answers
from envs.tasks.math.normalize import clean, squeezed
from envs.tasks.math.reading import (
    THOUSANDS,
    Equation,
    Listing,
    Matrix,
    Ordered,
    Scalar,
    Union,
    Unreadable,
    WordAnswer,
    choice_letter,
    chosen_letter,
    is_name,
    is_number,
    is_unsolved,
    read,
)
from envs.tasks.math.units import differ, single_letter
from envs.tasks.replies import Verdict

LIMIT = 5.0
"""Time limit of one call in seconds."""
MAX_ANSWER = 2000
"""Maximum length of an answer in characters; longer ones are not read."""
MAX_ITEMS = 64

if getattr(sys.modules["__main__"].__spec__, "name", "") == "envs.tasks.worker":
    symbolic.warm_up()  # on import, so that it does not count as a call's time


def verify(gold: str, text: str, form: str = "boxed") -> Verdict:
    """Return the verdict on any text.

    Raises:
        ValueError: The gold answer is empty.
    """
    if not isinstance(gold, str) or not gold.strip():
        raise ValueError(f"gold is {gold!r}, but must be a non-empty string")
    try:
        contents = answers(text, form)
    except NoAnswer as error:
        return Verdict(right=False, answer=None, reason=str(error))
    last = contents[-1]
    if len(last) > MAX_ANSWER:
        return Verdict(right=False, answer=None, reason=f"an answer of {len(last)} characters")
    if any(not same(last, other) for other in contents[:-1]):
        return Verdict(right=False, answer=None, reason="boxes that differ")
    right, reason = compare(gold, last)
    return Verdict(right=right, answer=last.strip(), reason=reason)


def same(one: str, other: str) -> bool:
    """Check whether two answers are equal; unreadable ones equal only themselves."""
    return len(one) <= MAX_ANSWER >= len(other) and compare(one, other)[0]


@functools.lru_cache(4096)  # samples of a question mostly have the same few answers
def ballot(answer: str) -> str:
    """Return an answer in one spelling for voting, with numbers by their value."""
    text = clean(answer)
    value = symbolic.rational(text.replace(",", "") if "," in text and " " not in text else text)
    return squeezed(text) if value is None else str(value)


def compare(gold: str, answer: str) -> tuple[bool, str]:
    """Return whether an answer equals the gold answer, and why."""
    gold, answer = _with_currency(gold), _with_currency(answer)
    if not answer:
        return False, "empty"
    if squeezed(gold) == squeezed(answer):
        return True, "same text"
    if (choice := choice_letter(gold)) is not None:
        return chosen_letter(answer) == choice, "letter"
    try:
        expected = read(gold)
    except Unreadable as error:
        return False, f"the gold answer: {error}"
    try:
        if _equal(expected, _hinted(read(answer), expected)):
            return True, "equal"
        # 1,200 may be one number or two. If the gold answer is a list, so is the answer.
        if isinstance(expected, Listing) and "," in answer and " " not in answer:
            return _equal(expected, read(answer.replace(",", ", "))), "list"
        if (exact := _before_rounding(answer)) is not None:
            return _equal(expected, read(exact)), "rounded"
        return False, "different"
    except Unreadable as error:
        return False, str(error)


_DOLLARS = re.compile(r"\s*\\\$\s*[\d.,{}!\\\s]*\d\s*")


def _with_currency(answer: str) -> str:
    r"""Normalize an answer and turn a dollar sign into a unit.

    Normalization removes \$, but 18 cents are not \$18.
    """
    text = clean(answer)
    if not _DOLLARS.fullmatch(answer):
        return text
    return (text.replace(",", "") if THOUSANDS.fullmatch(text) else text) + r"\text{ dollars}"


# ---------------------------------------------------------------------------------------------------- by structure


def _hinted(value, expected):
    """Read a letter as a unit, as in 48m, if a number is expected.

    Otherwise m is a variable.
    """
    if isinstance(value, Scalar) and isinstance(expected, Scalar) and symbolic.rational(expected.latex) is not None:
        number = single_letter(value.latex)
        return Scalar(number, value.scale, "?") if number is not None else value
    return value


def _equal(gold, answer) -> bool:
    """Check whether two parsed answers (`reading.py`) are equal."""
    gold, answer = _single(gold), _single(answer)
    if isinstance(answer, Equation) and not all(_holds(*claim) for claim in answer.claims):
        return False  # 6 = 5
    gold, answer = _right_side(gold), _right_side(answer)
    if isinstance(gold, Ordered) and isinstance(answer, Listing):
        answer = _point(answer) or answer
    elif isinstance(gold, Listing) and isinstance(answer, Ordered):
        gold = _point(gold) or gold
    if isinstance(gold, Equation) or isinstance(answer, Equation):
        return _equations(gold, answer)
    if isinstance(gold, Scalar) and isinstance(answer, Scalar):
        return _scalars(gold, answer)
    if isinstance(gold, WordAnswer) and isinstance(answer, Scalar) and gold.letters:
        return _scalars(Scalar(r" \cdot ".join(gold.letters)), answer)  # b \cdot a is ab
    if isinstance(gold, Scalar) and isinstance(answer, WordAnswer) and answer.letters:
        return _scalars(gold, Scalar(r" \cdot ".join(answer.letters)))
    if type(gold) is not type(answer):
        return False
    if isinstance(gold, WordAnswer) and isinstance(answer, WordAnswer):
        return gold.text == answer.text or bool(gold.letters) and gold.letters == answer.letters  # ab is ba
    if isinstance(gold, Listing) and isinstance(answer, Listing):
        return _unordered(gold.items, answer.items)
    if isinstance(gold, Union) and isinstance(answer, Union):
        return _unordered(gold.parts, answer.parts)
    if isinstance(gold, Ordered) and isinstance(answer, Ordered):
        return gold.brackets.rstrip("?") == answer.brackets.rstrip("?") and _in_order(gold.items, answer.items)
    if isinstance(gold, Matrix) and isinstance(answer, Matrix):
        return len(gold.rows) == len(answer.rows) and all(map(_in_order, gold.rows, answer.rows))
    raise TypeError(f"no rule for {type(gold).__name__}")


def _single(value):
    if isinstance(value, Listing) and len(value.items) == 1:
        return value.items[0]
    if isinstance(value, Union) and len(value.parts) == 1:
        return value.parts[0]
    return value


def _right_side(value):
    """Return 5 for 2 + 3 = 5."""
    return value.right if isinstance(value, Equation) and is_number(value.left) else value


def _before_rounding(answer: str) -> str | None:
    r"""Return the part before a rounded value, or None.

    For x = \frac{5}{3} \approx 1.67, it is x = \frac{5}{3}.
    """
    exact, _, rounded = answer.rpartition(r"\approx")
    value = exact.rpartition("=")[2]
    return exact.strip() if is_number(value) and is_number(rounded) and _holds(value, rounded, whole=True) else None


def _holds(left: str, right: str, whole: bool = False) -> bool:
    """Check an equation of numbers.

    A decimal on the right may be rounded; with `whole`, an integer too.
    """
    try:
        if symbolic.equal(left, right):
            return True
        digits = re.fullmatch(r"[-+]?\d*\.(\d{1,15})|[-+]?\d+", right.strip())
        return (
            digits is not None
            and (whole or digits[1] is not None)
            and symbolic.near(left, float(right), 0.5 * 10.0 ** -len(digits[1] or "") / abs(float(right)))
        )
    except (Unreadable, ZeroDivisionError):
        return False


def _point(values: Listing) -> Ordered | None:
    """Return (3, 4) for x = 3, y = 4, and None for other values."""
    equations = [item for item in values.items if isinstance(item, Equation) and re.fullmatch("[a-zA-Z]", item.left)]
    names = sorted({equation.left for equation in equations})
    if len(names) < 2 or len(names) != len(values.items):
        return None
    right = {equation.left: equation.right for equation in equations}
    return Ordered(tuple(right[name] for name in names), "()")


def _in_order(gold: tuple, answer: tuple) -> bool:
    return len(gold) == len(answer) and all(map(_equal, gold, answer))


def _unordered(gold: tuple, answer: tuple) -> bool:
    if len(gold) != len(answer) or len(gold) > MAX_ITEMS:
        return False
    left = list(answer)
    for item in gold:
        alike = [i for i, other in enumerate(left) if isinstance(other, Listing) == isinstance(item, Listing)]
        match = next((i for i in alike if _equal(item, left[i])), None)  # {1}, {2} is not {1, 2}
        if match is None:
            return False
        del left[match]
    return True


def _equations(gold, answer) -> bool:
    """Compare equations, or an equation with a value.

    x = 5 and m + n = 5 equal 5, but 2x = 5 does not. Two equations are equal if their sides are, or if one is a
    multiple of the other.
    """
    if isinstance(gold, Equation) and isinstance(answer, Equation):
        if squeezed(gold.left) == squeezed(answer.left):
            return _equal(gold.right, answer.right)
        if isinstance(gold.right, Scalar) and isinstance(answer.right, Scalar):
            return symbolic.proportional((gold.left, gold.right.latex), (answer.left, answer.right.latex))
        return False
    if isinstance(gold, Equation):
        return is_name(gold.left) and _equal(gold.right, answer)
    return not is_unsolved(answer.left) and _equal(gold, answer.right)


def _scalars(gold: Scalar, answer: Scalar) -> bool:
    """Compare expressions by value.

    If only one of them has a percent or degree sign, it may mean the same number or the scaled one.
    """
    if differ(gold.unit, answer.unit):
        return False
    if gold.scale == answer.scale:
        return symbolic.equal(gold.latex, answer.latex)
    scales = {gold.scale, answer.scale} - {""}
    if len(scales) > 1 or any(one.scale and other.unit for one, other in ((gold, answer), (answer, gold))):
        return False  # degrees are not percent, and neither is 45 mph
    scale = scales.pop()
    if symbolic.equal(gold.latex, answer.latex):
        value = symbolic.rational(gold.latex)
        return scale == "degrees" or value is None or abs(value) >= 1  # 0.5 is not 0.5 %
    meaning = r"\frac{1}{100}" if scale == "percent" else r"\frac{\pi}{180}"
    if answer.scale:
        return symbolic.equal(gold.latex, answer.latex, meaning)
    return symbolic.equal(answer.latex, gold.latex, meaning)
