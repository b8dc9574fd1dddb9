"""Programs as answers: programs of a model, reference programs for GSM8K, and TinyGSM.

The answer of a program is the return value of a function without arguments named `solution` or, as in TinyGSM,
`simple_math_problem`. Without such a function, it is the last printed line. Programs run only in the sandbox.

GSM8K's solutions mark their calculations as `<<48/2=24>>`. Each becomes a step of a program:

    def solution():
        step_1 = 48 / 2
        step_2 = 48 + step_1
        return step_2

A number that equals the result of an earlier step is replaced by that step, the last one if there are several.
Expressions are evaluated here with exact fractions; Python never evaluates text from a dataset.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from envs.tasks.data import DataError, Dataset, check_fields, from_jsonl, from_list
from envs.tasks.math import tool
from envs.tasks.math.extract import NoAnswer, after_thinking

FUNCTIONS = ("solution", "simple_math_problem")
"""Functions that return a program's answer."""
KINDS = ("agrees", "no calculation", "an earlier step", "another unit", "a step is missing")
"""Relations between a solution's calculations and its answer; see `kind`."""
MAX_EXPRESSION = 200
"""Maximum length of a calculation in characters."""

_CALCULATION = re.compile(r"<<([^<>]*)>>")
_TOKEN = re.compile(r"\s*(\d+\.?\d*|\.\d+|//|[-+*/()])", re.ASCII)
_PRODUCTS = {"*": operator.mul, "/": operator.truediv, "//": operator.floordiv}
_SIGNS = ("+", "-", *_PRODUCTS)
_CALL = f"""

for _name in {FUNCTIONS!r}:
    if callable(globals().get(_name)):
        print(globals()[_name]())
        break
"""


class NoProgram(ValueError):
    """A solution without calculations, or with an unreadable one; the message says which."""


# -------------------------------------------------------------------------------------------------- a model's programs


def program_in(text: str) -> str | None:
    """Return the last Python block of a completion after its thinking, or None."""
    try:
        return tool.program_of(after_thinking(text))
    except NoAnswer:
        return None


def to_run(program: str) -> str:
    """Return the program followed by a call of its answer function, if it defines one."""
    return program + _CALL


# ------------------------------------------------------------------------------------------------- reference programs


def calculations(solution: str) -> list[tuple[str, Fraction]]:
    """Return the expressions in a GSM8K solution with their stated results."""
    pairs = []
    for text in _CALCULATION.findall(solution):
        expression, equals, result = text.partition("=")
        try:
            if not equals:
                raise ValueError("no '='")
            pairs.append((expression, _value(_tokens(result))))
        except (ValueError, ZeroDivisionError) as error:
            raise NoProgram(f"<<{text}>>: {error}") from None
    return pairs


def reference_program(solution: str) -> str:
    """Return a program made of the calculations in a GSM8K solution.

    Raises:
        NoProgram: The solution has no calculations, or an unreadable one.
    """
    lines, _ = _steps(solution)
    return "\n".join(["def solution():", *(f"    step_{i} = {line}" for i, line in enumerate(lines, 1)),
                      f"    return step_{len(lines)}"])  # fmt: skip


def kind(solution: str, answer: str) -> str:
    """Classify how a solution's calculations relate to its answer, using exact fractions.

    Returns:
        One of `KINDS`:
        "agrees": the last calculation gives the answer.
        "no calculation": there is no calculation to build a program from.
        "an earlier step": an earlier calculation gives the answer, and the last one compares or checks.
        "another unit": the last result is a hundredth or a hundred times the answer (dollars and cents, percent).
        "a step is missing": no calculation gives the answer, because a later one is not marked.
    """
    if not _CALCULATION.search(solution):
        return "no calculation"
    _, values = _steps(solution)
    gold = _value(_tokens(answer.replace(",", "")))
    if values[-1] == gold:
        return "agrees"
    if gold in values[:-1]:
        return "an earlier step"
    return "another unit" if gold in (100 * values[-1], values[-1] / 100) else "a step is missing"


def _steps(solution: str) -> tuple[list[str], list[Fraction]]:
    """Return the right-hand sides of the program's lines and their values."""
    lines: list[str] = []
    values: list[Fraction] = []
    for expression, _ in calculations(solution):
        try:
            tokens = _tokens(expression)
            value = _value(tokens)
        except ValueError as error:
            raise NoProgram(f"<<{expression}=…>>: {error}") from None
        except ZeroDivisionError:
            raise NoProgram(f"<<{expression}=…>>: division by zero") from None
        names = {v: f"step_{i}" for i, v in enumerate(values, 1)}
        lines.append(_written(tokens, names))
        values.append(value)
    if not lines:
        raise NoProgram("no calculation")
    return lines, values


def _tokens(expression: str) -> list[str]:
    """Split an expression into numbers, operators and brackets."""
    text, tokens, at = expression.strip(), [], 0
    if len(text) > MAX_EXPRESSION:
        raise ValueError(f"the expression has {len(text)} characters, but must have at most {MAX_EXPRESSION}")
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"{text[at:]!r} is not a number, an operator or a bracket")
        tokens.append(match[1])
        at = match.end()
    return tokens


def _written(tokens: Sequence[str], names: dict[Fraction, str]) -> str:
    """Format an expression as Python.

    Numbers that have a name are replaced by it, and binary operators are surrounded by spaces.
    """
    text, before = "", "("
    for token in tokens:
        if _is_number(token):
            text += names.get(Fraction(token)) or re.sub(r"^0+(?=[0-9])", "", token)
        else:
            text += f" {token} " if token in _SIGNS and (_is_number(before) or before == ")") else token
        before = token
    return text


def _is_number(token: str) -> bool:
    return token not in (*_SIGNS, "(", ")")


def _value(tokens: Sequence[str]) -> Fraction:
    """Evaluate an expression of sums, products, brackets and leading signs."""
    left = list(tokens)

    def total():
        value = product()
        while left and left[0] in ("+", "-"):
            value = value + product() if left.pop(0) == "+" else value - product()
        return value

    def product():
        value = factor()
        while left and left[0] in _PRODUCTS:
            value = _PRODUCTS[left.pop(0)](value, factor())
        return value

    def factor():
        if not left:
            raise ValueError("the expression ends too early")
        token = left.pop(0)
        if _is_number(token):
            return Fraction(token)
        if token in ("+", "-"):
            return factor() if token == "+" else -factor()
        if token != "(":
            raise ValueError(f"{token!r} is not a number")
        value = total()
        if not left or left.pop(0) != ")":
            raise ValueError("a bracket is not closed")
        return value

    value = total()
    if left:
        raise ValueError(f"{left[0]!r} follows the end of the expression")
    return Fraction(value)


# ------------------------------------------------------------------------------------------------------------ TinyGSM


def tiny_gsm(path: str | Path) -> Dataset:
    """Read a JSONL file in TinyGSM's format as rows {id, question, program}.

    The file contains no answers; `scripts/tiny_gsm.py` gets them by running the programs.
    """
    rows = from_jsonl(path)
    check_fields(rows, required=("question", "code"), filled=("question", "code"))
    made = []
    for i, row in enumerate(rows):
        for name in ("question", "code"):
            if not isinstance(row[name], str):
                raise DataError(f"{rows.where(i)}: the field {name!r} is {row[name]!r:.80}, but must be a string")
        made.append({"id": f"tiny_gsm/{i}", "question": row["question"], "program": row["code"]})
    return from_list(made, str(path))


def is_decimal(text: str) -> bool:
    """Check whether a text is one finite decimal number."""
    return re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text) is not None
