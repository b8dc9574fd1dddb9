"""Reading, printing and comparing the values that programs return or print.

A value leaves the program's process as a tree (`envs.tasks.sandbox.inside.values`), and that process never holds an
expected value. Expected values are Python literals in text form, which `literal` reads without evaluating anything.
"""

from __future__ import annotations

import ast
import base64
import math
import operator
import threading
import warnings
from typing import Any, Literal, overload

from envs.tasks.sandbox.inside.values import NotAValue, canonical, check, encode

LONGEST = 100_000
"""Maximum length of a literal in characters."""

# ---------------------------------------------------------------------------------------------------- literals

_CONTAINERS = {"set": set, "frozenset": frozenset, "tuple": tuple, "list": list, "dict": dict}
_NAMES = {"inf": math.inf, "nan": math.nan}
_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


_parsing = threading.Lock()
"""CPython 3.11 may raise a SystemError if the garbage collector switches threads while a syntax tree is built."""


@overload
def parse(text: str, mode: Literal["exec"] = "exec") -> ast.Module: ...


@overload
def parse(text: str, mode: Literal["eval"]) -> ast.Expression: ...


def parse(text: str, mode: Literal["exec", "eval"] = "exec") -> ast.Module | ast.Expression:
    """Return the syntax tree of source code, without Python's syntax warnings."""
    with _parsing, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, mode="eval") if mode == "eval" else ast.parse(text, mode="exec")


def literal(text: str | ast.expr) -> Any:
    """Return the value of a literal without evaluating anything.

    In addition to Python's literals, this reads `set()`, calls of `frozenset`, `tuple`, `list`, `dict` and `set` on a
    literal, `float("inf")`, the names inf and nan, and sums, differences, products and quotients of numbers.

    Raises:
        ValueError: The text is not a literal.
    """
    try:
        if isinstance(text, str):
            if len(text) > LONGEST:
                raise ValueError(f"the literal has {len(text)} characters, but must have at most {LONGEST}")
            text = parse(text.strip(), mode="eval").body
        return _value(text)
    except (SyntaxError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ValueError(f"not a literal: {type(error).__name__}: {error}") from None


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and node.value is not Ellipsis:
        return node.value
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
        return kind([_value(item) for item in node.elts])
    if isinstance(node, ast.Dict):
        keys = [key for key in node.keys if key is not None]
        if len(keys) == len(node.values):
            return {_value(key): _value(value) for key, value in zip(keys, node.values, strict=True)}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        number = _number(node.operand)
        return number if isinstance(node.op, ast.UAdd) else -number
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](_number(node.left), _number(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords and len(node.args) <= 1:
        given = [_value(item) for item in node.args]
        if node.func.id in _CONTAINERS:
            return _CONTAINERS[node.func.id](*given)
        if node.func.id == "float" and given and isinstance(given[0], str):
            return float(given[0])
    raise ValueError(f"not a literal: {type(node).__name__}")


def _number(node: ast.expr) -> Any:
    value = _value(node)
    if isinstance(value, bool) or not isinstance(value, int | float | complex):
        raise ValueError(f"not a number: {value!r:.80}")
    return value


# ---------------------------------------------------------------------------------------------------- comparison

Tree = list


def same(expected: Any, tree: Tree, close: tuple[float, float] | None = None, plain: bool = False) -> bool:
    """Check whether a tree represents a value equal to the expected one by Python's rules.

    Args:
        expected: Expected value.
        tree: Tree of the actual value.
        close: (relative, absolute) tolerance for numbers if one of them is no integer, also within lists, tuples and
            the values of dicts.
        plain: Whether lists equal tuples, as in data that was stored as JSON.
    """
    return same_trees(encode(expected), tree, close, plain)


def same_trees(one: Tree, other: Tree, close: tuple[float, float] | None = None, plain: bool = False) -> bool:
    """Compare two trees, see `same`."""
    try:
        check(other)
        if plain:
            one, other = _as_lists(one), _as_lists(other)
        return _close(one, other, close) if close else _equal(one, other)
    except (NotAValue, RecursionError):
        return False


def _equal(one: Tree, other: Tree) -> bool:
    text = canonical(one)
    return text is not None and text == canonical(other)


def _as_lists(tree: Tree) -> Tree:
    if tree[0] in ("l", "t"):
        return ["l", [_as_lists(item) for item in tree[1]]]
    if tree[0] == "d":
        return ["d", [[key, _as_lists(value)] for key, value in tree[1]]]
    return tree


def _close(one: Tree, other: Tree, close: tuple[float, float]) -> bool:
    if {one[0], other[0]} <= set("bifqD") and {one[0], other[0]} & set("fqD"):
        try:
            return math.isclose(_real(one), _real(other), rel_tol=close[0], abs_tol=close[1])
        except OverflowError:  # the integer exceeds the range of floats
            return False
    if one[0] == other[0] and one[0] in ("l", "t"):
        return len(one[1]) == len(other[1]) and all(_close(a, b, close) for a, b in zip(one[1], other[1], strict=True))
    if one[0] == other[0] == "d":
        left, right = ({canonical(key): value for key, value in tree[1]} for tree in (one, other))
        return left.keys() == right.keys() and all(_close(left[key], right[key], close) for key in left)
    return _equal(one, other)


def _real(tree: Tree) -> float:
    if tree[0] in ("f", "D"):
        return float(tree[1])
    numbers = [int(str(part), 16) for part in tree[1:]]
    return numbers[0] / numbers[1] if tree[0] == "q" else float(numbers[0])


def shown(tree: Tree, longest: int = 200) -> str:
    """Format a tree as Python source, cut to a maximum length."""
    try:
        check(tree)
        text = _written(tree, [longest])
    except (ValueError, RecursionError):
        return "something that is no value"
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _written(tree: Tree, left: list[int]) -> str:
    """Format a tree; `left` counts the remaining characters, so that long values stop early."""
    tag, *content = tree
    if left[0] <= 0:
        return "…"
    if tag in "ltSd":
        items = []
        for item in content[0]:
            items.append(": ".join(_written(x, left) for x in item) if tag == "d" else _written(item, left))
            if left[0] <= 0:
                break
        inside = ", ".join(items)
        if tag == "t":
            return f"({inside}{',' if len(content[0]) == 1 else ''})"
        return f"[{inside}]" if tag == "l" else "set()" if tag == "S" and not items else f"{{{inside}}}"
    text = _scalar(tag, content, left[0])
    left[0] -= len(text) + 2
    return text


def _scalar(tag: str, content: list, longest: int) -> str:
    if tag == "i":
        return str(int(content[0], 16)) if len(content[0]) < 1000 else "a very large number"
    if tag == "s":
        return repr(content[0][: longest + 1])
    if tag == "y":
        return repr(base64.b64decode(content[0])[: longest + 1])
    if tag == "c":
        return str(complex(float(content[0]), float(content[1])))
    if tag == "q" and len(content[0]) + len(content[1]) < longest:
        return f"Fraction({int(content[0], 16)}, {int(content[1], 16)})"
    if tag == "D":
        return f"Decimal({content[0]!r:.500})"
    if tag == "n":
        return "None"
    return str(bool(content[0])) if tag == "b" else str(content[0]) if tag == "f" else f"<{str(content[0])[:60]}>"


NUMBERS = 1e-6
"""Tolerance for decimal numbers in printed output, relative above 1 and absolute below."""


def same_output(expected: str, actual: str) -> bool:
    """Check whether a printed output matches the expected one.

    Lines are compared in order. Trailing whitespace, trailing empty lines and the amount of space between words do not
    matter. Words must be identical, or both must be numbers that differ by at most `NUMBERS` if the expected one has a
    decimal point or an exponent.
    """
    expected_lines, actual_lines = (text.rstrip().split("\n") for text in (expected, actual))
    return len(expected_lines) == len(actual_lines) and all(
        _same_line(a, b) for a, b in zip(expected_lines, actual_lines, strict=True)
    )


def _same_line(expected: str, actual: str) -> bool:
    expected_words, actual_words = expected.split(), actual.split()
    return len(expected_words) == len(actual_words) and all(
        _same_word(a, b) for a, b in zip(expected_words, actual_words, strict=True)
    )


def _same_word(expected: str, actual: str) -> bool:
    if expected == actual:
        return True
    if len(expected) > 400 or len(actual) > 400 or not any(c in expected for c in ".eE"):
        return False
    try:
        a, b = float(expected), float(actual)
    except ValueError:
        return False
    return math.isfinite(a) and math.isfinite(b) and abs(a - b) <= NUMBERS * max(1.0, abs(a))
