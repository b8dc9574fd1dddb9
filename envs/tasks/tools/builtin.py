"""Built-in tools of the `tools` task: a calculator and a table."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from envs.tasks.tools.functions import tool
from envs.tasks.tools.tools import ToolError

MAX_EXPRESSION = 500
MAX_BITS = 4096
"""Maximum number of bits of a number, so that no calculation takes long."""
_BINARY: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b), ast.Mod: operator.mod,
}  # fmt: skip


@tool
def calculator(expression: str) -> str:
    """Compute the exact value of an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % ** and parentheses, for example (48213 * 977) // 12.
    """
    if len(expression) > MAX_EXPRESSION:
        raise ToolError(f"the expression has {len(expression)} characters, but must have at most {MAX_EXPRESSION}")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ToolError(f"{expression!r} is not an arithmetic expression") from None
    return str(value.numerator) if value.denominator == 1 else f"{value.numerator}/{value.denominator}"


def _value(node: ast.expr) -> Fraction:
    """Return the value of an expression, which is never evaluated as Python."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _small(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _BINARY:
            return _small(_BINARY[type(node.op)](left, right))
    raise ToolError("only numbers, + - * / // % ** and parentheses are possible")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.denominator != 1 or abs(exponent) * bits > MAX_BITS:
        raise ToolError("the exponent must be an integer, and the power must not be too large")
    return base ** int(exponent)


def _small(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ToolError(f"the numbers must have at most {MAX_BITS} bits")
    return value


def lookup_in(table: Mapping[str, Mapping[str, Any]]) -> Callable:
    """Return the tool `lookup` for a table {row: {column: value}}."""

    @tool
    def lookup(town: str, column: str) -> str:
        """Look up a number in the table of towns.

        Args:
            town: Name of the town.
            column: Name of the column.
        """
        row = table.get(town.strip().title())
        if row is None:
            raise ToolError(f"the table has no town {town!r}")
        if column.strip().lower() not in row:
            raise ToolError(f"the table has no column {column!r}; the columns are: {', '.join(row)}")
        return str(row[column.strip().lower()])

    return lookup
