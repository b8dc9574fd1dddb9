r"""Programs as answers: those of a model, GSM8K's own calculations as reference programs, and TinyGSM's rows.

A program gives its number by a function without arguments, `solution` or TinyGSM's `simple_math_problem`, whose result
counts; without such a function, what it prints last counts. It runs in the sandbox and nowhere else.

GSM8K's solutions hold their calculations as `<<48/2=24>>`. Each becomes a step of a program:

    def solution():
        step_1 = 48 / 2
        step_2 = 48 + step_1
        return step_2

A number that an earlier step came to is replaced by that step, the last one if there are several. Expressions are read
here, by exact fractions; nothing of a data set is evaluated.
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
"""Functions whose result is a program's answer."""
KINDS = ("agrees", "no calculation", "an earlier step", "another unit", "a step is missing")
"""How a solution's calculations and its answer go together, see `kind`."""
MAX_EXPRESSION = 200
"""Characters of a calculation; a longer one is not read."""

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
    """A solution without calculations, or with one that cannot be read; the message says which."""


# -------------------------------------------------------------------------------------------------- a model's programs


def program_in(text: str) -> str | None:
    """The last Python block of a reply, behind its thinking; None without one."""
    try:
        return tool.program_of(after_thinking(text))
    except NoAnswer:
        return None


def to_run(program: str) -> str:
    """The program, and behind it the call of its function, if it has one."""
    return program + _CALL


# ------------------------------------------------------------------------------------------------- reference programs


def calculations(solution: str) -> list[tuple[str, Fraction]]:
    """The expressions of a solution of GSM8K and what it says they come to."""
    found = []
    for text in _CALCULATION.findall(solution):
        expression, equals, result = text.partition("=")
        try:
            if not equals:
                raise ValueError("no '='")
            found.append((expression, _value(_tokens(result))))
        except (ValueError, ZeroDivisionError) as error:
            raise NoProgram(f"<<{text}>>: {error}") from None
    return found


def reference_program(solution: str) -> str:
    """A program of the calculations in a solution of GSM8K; raises `NoProgram`."""
    lines, _ = _steps(solution)
    return "\n".join(["def solution():", *(f"    step_{i} = {line}" for i, line in enumerate(lines, 1)),
                      f"    return step_{len(lines)}"])  # fmt: skip


def kind(solution: str, answer: str) -> str:
    """One of KINDS, by exact fractions.

    agrees             the last calculation comes to the answer
    no calculation     there is none to make a program of
    an earlier step    an earlier one comes to the answer: the last compares or checks
    another unit       the last one comes to a hundredth or a hundred times the answer: dollars and cents, percent
    a step is missing  none does: the solution continues with a calculation that is not marked
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
    """The right-hand sides of the program's lines, and what they come to."""
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
    """Numbers, signs and brackets."""
    text, found, at = expression.strip(), [], 0
    if len(text) > MAX_EXPRESSION:
        raise ValueError(f"the expression has {len(text)} characters, but must have at most {MAX_EXPRESSION}")
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"{text[at:]!r} is no number, sign or bracket")
        found.append(match[1])
        at = match.end()
    return found


def _written(tokens: Sequence[str], names: dict[Fraction, str]) -> str:
    """An expression in Python: numbers that have a name by it, spaces around binary signs."""
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
    """What an expression comes to: sums of products of numbers, brackets and signs in front."""
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
            raise ValueError("it ends too early")
        token = left.pop(0)
        if _is_number(token):
            return Fraction(token)
        if token in ("+", "-"):
            return factor() if token == "+" else -factor()
        if token != "(":
            raise ValueError(f"{token!r} stands where a number is expected")
        value = total()
        if not left or left.pop(0) != ")":
            raise ValueError("a bracket is not closed")
        return value

    value = total()
    if left:
        raise ValueError(f"{left[0]!r} is left over")
    return Fraction(value)


# ------------------------------------------------------------------------------------------------------------ TinyGSM


def tiny_gsm(path: str | Path) -> Dataset:
    """Rows {id, question, program} of a JSONL file in TinyGSM's form: a question, and code with its function.

    There is no answer in it: that is what the program returns, see `scripts/tiny_gsm.py`.
    """
    rows = from_jsonl(path)
    check_fields(rows, required=("question", "code"), filled=("question", "code"))
    made = []
    for i, row in enumerate(rows):
        for name in ("question", "code"):
            if not isinstance(row[name], str):
                raise DataError(f"{rows.where(i)}: the field {name!r} is {row[name]!r:.80}; expected a text")
        made.append({"id": f"tiny_gsm/{i}", "question": row["question"], "program": row["code"]})
    return from_list(made, str(path))


def is_decimal(text: str) -> bool:
    """Whether a text is one finite number in digits."""
    return re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text) is not None
