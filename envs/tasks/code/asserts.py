"""Published assertions as calls with expected values, so that they can be compared outside the program's process."""

from __future__ import annotations

import ast
from typing import Any

from envs.tasks.code.values import literal


def to_test(statement: ast.stmt, entry_point: str) -> dict | None:
    """One assertion as a test; None for one that always holds, and for what is no assertion and does nothing.

        assert f(1) == 2                       {"call": "f(1)", "expect": "2"}
        assert sorted(f(1)) == [2]             {"call": "sorted(f(1))", "expect": "[2]"}
        assert f(1)   /   assert not f(1)      {"call": "bool(f(1))", "expect": "True" / "False"}
        assert abs(f(1) - 0.5) < 1e-6          {"call": "f(1)", "expect": "0.5", "close": [0, 1e-6]}
        assert math.isclose(f(1), 0.5)         {"call": "f(1)", "expect": "0.5", "close": [1e-9, 0]}

    Whatever else it says is a check in the process: {"check": "assert …"}.
    """
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Name | ast.Constant):
        return None
    if isinstance(statement, ast.Assert):
        if isinstance(statement.test, ast.Constant) and statement.test.value:
            return None
        found = _call(statement.test, entry_point)
        if found is not None:
            return found
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
                found = _equal(call, value, entry)
                if found and isinstance(tolerance, float):
                    return found | {"close": [0.0, tolerance]}
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
    found = _equal(left, right, entry) or _equal(right, left, entry)
    return found and found | {"close": [tolerances["rel_tol"], tolerances["abs_tol"]]}


def _equal(call: ast.expr, value: ast.expr, entry: str) -> dict | None:
    """The test that an expression with a call of the function has a literal value."""
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
