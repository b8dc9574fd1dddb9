"""Bugs of scripted context agents: small changes of a program's syntax tree.

Programs are parsed and written, never run. Every kind of change keeps the program valid Python; whether it breaks a
test is decided in the sandbox (`planting.py`).
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from envs.tasks.code.values import parse

_COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_BINARY = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
LARGEST = 10**6
"""Constants beyond this are not changed."""

Change = tuple[Any, str, int | None, Any]
"""(node, field, index in the field or None, new value)"""


def _operators(tree: ast.Module) -> Iterator[Change]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for i, op in enumerate(node.ops):
                yield node, "ops", i, _COMPARE[type(op)]()
        elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _BINARY:
            yield node, "op", None, _BINARY[type(node.op)]()
        elif isinstance(node, ast.BoolOp):
            yield node, "op", None, ast.Or() if isinstance(node.op, ast.And) else ast.And()


def _constants(tree: ast.Module) -> Iterator[Change]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield node, "value", None, not node.value
        elif isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) <= LARGEST:
            yield node, "value", None, node.value + 1
            yield node, "value", None, node.value - 1


def _conditions(tree: ast.Module) -> Iterator[Change]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield node, "test", None, ast.UnaryOp(ast.Not(), node.test)


def _names(tree: ast.Module) -> Iterator[Change]:
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        names = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
        names |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
                for other in sorted(names - {node.id}):
                    yield node, "id", None, other


def _statements(tree: ast.Module) -> Iterator[Change]:
    kept = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Pass)
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(function):
            for field in ("body", "orelse"):
                block = getattr(node, field, None)
                for i, statement in enumerate(block if isinstance(block, list) else ()):
                    text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
                    if not isinstance(statement, kept) and not text:
                        yield node, field, i, ast.Pass()


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of bug.

    Attributes:
        changes: Function that yields all changes of a tree.
        hint: Description for the learner.
        prompt: Instruction for a language model that plants such bugs.
    """

    changes: Callable[[ast.Module], Iterator[Change]]
    hint: str
    prompt: str


KINDS = {
    "operators": Kind(_operators, "an operator is wrong", "Replace one operator by another, such as < by <=."),
    "constants": Kind(_constants, "a number is wrong", "Change one number, so that the program is off by one."),
    "conditions": Kind(_conditions, "a condition is reversed", "Reverse the condition of one if or while."),
    "names": Kind(_names, "a variable is mistaken for another", "Replace one variable by another one."),
    "statements": Kind(_statements, "a statement is missing", "Remove one statement that is needed."),
}
"""Kinds of bugs, which are the strategies of the context agent."""


@functools.lru_cache(maxsize=1024)
def mutants(program: str, kind: str) -> tuple[str, ...]:
    """Return all programs with one bug of a kind, without repetitions.

    Comments and the layout of the program are lost. Returns no programs for text that is not Python.
    """
    try:
        tree = parse(program)
        original = ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    texts = [_changed(tree, change) for change in list(KINDS[kind].changes(tree))]
    return tuple(text for text in dict.fromkeys(texts) if text != original)


def _changed(tree: ast.Module, change: Change) -> str:
    """Return the program with a change, and undo it."""
    node, field, index, new = change
    if index is None:
        old = getattr(node, field)
        setattr(node, field, new)
        text = ast.unparse(tree)
        setattr(node, field, old)
        return text
    values = getattr(node, field)
    old, values[index] = values[index], new
    text = ast.unparse(tree)
    values[index] = old
    return text
