"""Conversion of published assertions into calls with expected values.

A converted test runs only the call in the program's process. The value is compared outside of it.
"""

from __future__ import annotations

import ast
from typing import Any

from envs.tasks.code.values import literal


def to_test(statement: ast.stmt, entry_point: str) -> dict | None:
    """Convert an assertion into a test, or return None if it tests nothing.

        assert f(1) == 2                       {"call": "f(1)", "expect": "2"}
        assert sorted(f(1)) == [2]             {"call": "sorted(f(1))", "expect": "[2]"}
        assert f(1)   /   assert not f(1)      {"call": "bool(f(1))", "expect": "True" / "False"}
        assert abs(f(1) - 0.5) < 1e-6          {"call": "f(1)", "expect": "0.5", "close": [0, 1e-6]}
        assert math.isclose(f(1), 0.5)         {"call": "f(1)", "expect": "0.5", "close": [1e-9, 0]}

    Any other statement becomes a check that runs in the program's process: {"check": "assert …"}. The result is None
    for an assertion that always holds and for an expression without effect, such as a docstring.
    """
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Name | ast.Constant):
        return None
    if isinstance(statement, ast.Assert):
        if isinstance(statement.test, ast.Constant) and statement.test.value:
            return None
        test = _call(statement.test, entry_point)
        if test is not None:
            return test
    return {"check": ast.unparse(statement)}


def _call(test: ast.expr, entry: str) -> dict | None:
    negated = False
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, negated = test.operand, not negated
    if isinstance(test, ast.Compare):
        return None if negated or len(test.ops) != 1 else _comparison(test, entry)
    if isinstance(test, ast.Call) and ast.unparse(test.func) in ("math.isclose", "isclose") and not negated:
        return _isclose(test, entry)
    if _calls(test, entry) and not _compares(test):
        return {"call": f"bool({ast.unparse(test)})", "expect": str(not negated)}
    return None


def _comparison(test: ast.Compare, entry: str) -> dict | None:
    operator, left, right = test.ops[0], test.left, test.comparators[0]
    if isinstance(operator, ast.Eq | ast.Is):
        return _equal(left, right, entry) or _equal(right, left, entry)
    if isinstance(operator, ast.Lt | ast.LtE) and isinstance(left, ast.Call) and ast.unparse(left.func) == "abs":
        gap = left.args[0]
        if isinstance(gap, ast.BinOp) and isinstance(gap.op, ast.Sub):
            tolerance = _literal(right)
            for call, value in ((gap.left, gap.right), (gap.right, gap.left)):
                converted = _equal(call, value, entry)
                if converted and isinstance(tolerance, float):
                    return converted | {"close": [0.0, tolerance]}
    return None


def _isclose(test: ast.Call, entry: str) -> dict | None:
    tolerances = {"rel_tol": 1e-9, "abs_tol": 0.0}
    for keyword in test.keywords:
        value = _literal(keyword.value)
        if keyword.arg not in tolerances or not isinstance(value, int | float):
            return None
        tolerances[keyword.arg] = float(value)
    if len(test.args) != 2:
        return None
    left, right = test.args
    converted = _equal(left, right, entry) or _equal(right, left, entry)
    return converted and converted | {"close": [tolerances["rel_tol"], tolerances["abs_tol"]]}


def _equal(call: ast.expr, value: ast.expr, entry: str) -> dict | None:
    """Return the test that an expression with a call of the function equals a literal."""
    if not _calls(call, entry) or _compares(call) or _calls(value, entry):
        return None
    try:
        literal(value)
    except ValueError:
        return None
    return {"call": ast.unparse(call), "expect": ast.unparse(value)}


def _literal(node: ast.expr) -> Any:
    try:
        return literal(node)
    except ValueError:
        return None


def _calls(node: ast.expr, entry: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == entry for n in ast.walk(node))


def _compares(node: ast.expr) -> bool:
    return any(isinstance(n, ast.Compare | ast.BoolOp) for n in ast.walk(node))
