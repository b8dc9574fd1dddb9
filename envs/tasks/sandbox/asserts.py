"""Tests such as `assert f(1) == 2` with verdicts that the program cannot forge.

A test is split by its syntax. The call into the program, `f(1)`, is evaluated in a process that has loaded the program
and does not know the expected value. Its value is returned as data. The rest of the test is evaluated elsewhere: a
literal is compared in this process, and anything else is evaluated in a clean sandbox process that never loads the
program.

    assert f(1) == 2                    f(1) in the program's process, compared with 2 here
    assert abs(f(1) - 0.5) < 1e-6       f(1) in the program's process, abs(VALUE - 0.5) < 1e-6 in a clean process
    assert all(f(x) for x in xs)        cannot be split: runs in the program's process, `protected=False`

In the first two forms, a program gains nothing by printing a verdict, exiting early, replacing builtins, returning
objects that equal everything, or searching memory or frames for the expected value. In the third form, a test passes
only if it runs to its end and then reads a nonce from a descriptor. That stops accidental passes, but a program that
looks for the test can fake it.
"""

from __future__ import annotations

import ast
import builtins
import copy
import dataclasses
import re
import sys

from envs.tasks.sandbox.inside import values
from envs.tasks.sandbox.results import CallResult, Limits, TestResult

MAX_TEST = 50_000  # maximum length in characters of a test that is split
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr, ast.Await, ast.Yield)
_TOP_LEVEL = re.compile(r"^(?:async +def|def|class) +(\w+)|^(\w+) *(?::[^=\n]*)?=[^=]|^(?:import|from) +.*", re.M)
_CLASS = re.compile(r"^class +(\w+)", re.M)
# Conversions that may run in the program's process, because they reveal nothing about the expected value.
_CONVERSIONS = {"list", "tuple", "set", "frozenset", "sorted", "dict", "str", "next"}


@dataclasses.dataclass(frozen=True)
class Split:
    """A test split into calls for the program's process and the rest of the assertion.

    Attributes:
        calls: Expressions to evaluate in the program's process.
        rest: The assertion as an expression over VALUE0, VALUE1, …
        modules: Standard library modules that `rest` uses.
        expected: If not None, the literal that the only value must equal.
        whole: Fallback if the value of a call cannot be reported: the same call with its conversion, such as
            `list(f(1))`.
    """

    calls: tuple[str, ...]
    rest: str
    modules: tuple[str, ...] = ()
    expected: str | None = None
    whole: Split | None = None


def split(test: str, program: str = "", setup: str = "") -> Split | None:
    """Split a test, or return None if it must run in the program's process."""
    if len(test) > MAX_TEST:
        return None
    try:
        body = ast.parse(test).body
        if len(body) != 1 or not isinstance(body[0], ast.Assert):
            return None
        return _split(body[0].test, _Names(body[0].test, program, setup))
    except _UNREADABLE:
        return None


class _Names:
    """The names in a test that belong to the program."""

    def __init__(self, test, program, setup):
        neutral = set(dir(builtins)) | _defined(setup)
        used = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
        modules = {
            node.value.id for node in ast.walk(test)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        } & sys.stdlib_module_names  # fmt: skip
        self.modules = tuple(sorted(modules - _defined(setup)))
        self.program = used - neutral - modules
        if not self.program:  # the function under test may have the name of a builtin
            self.program = used & _defined(program)
        self.classes = set(_CLASS.findall(program))


def _defined(source):
    return {name for pair in _TOP_LEVEL.findall(source) for name in pair if name}


def _split(test, names):
    chains = _chains(test, names)
    if chains is None:
        return None
    rest = _Replace(chains).visit(ast.fix_missing_locations(test))
    calls = tuple(ast.unparse(chain) for chain in chains)
    expected = whole = None
    if len(chains) == 1 and isinstance(rest, ast.Compare) and len(rest.ops) == 1 and isinstance(rest.ops[0], ast.Eq):
        left, right = rest.left, rest.comparators[0]
        side, other = (left, right) if _has_value(left) else (right, left)
        if not _has_value(other):
            if _is_value(side) and _is_literal(other):
                expected = ast.unparse(other)
            elif not _is_value(side) and _is_conversion(side):
                converted = ast.unparse(_Insert(chains[0]).visit(copy.deepcopy(side)))
                whole = Split((converted,), f"VALUE0 == ({ast.unparse(other)})", names.modules)
    return Split(calls, ast.unparse(rest), names.modules, expected, whole)


def _chains(test, names):
    """Return the calls into the program; None if one uses a test's variable."""
    parents = {child: node for node in ast.walk(test) for child in ast.iter_child_nodes(node)}
    tops, covered = [], set()
    for node in ast.walk(test):
        if not isinstance(node, ast.Name) or node.id not in names.program or node in covered:
            continue
        top = _top(node, parents, node.id in names.classes)
        above = top
        while above in parents:
            above = parents[above]
            if isinstance(above, _SCOPES):
                return None
        tops.append(top)
        covered.update(ast.walk(top))
    return [chain for chain in tops if not any(chain is not other and chain in ast.walk(other) for other in tops)]


def _top(node: ast.AST, parents: dict[ast.AST, ast.AST], is_class: bool) -> ast.AST:
    """Return the outermost call to evaluate in the program's process.

    That is `f(x)` for `f(x).strip()`, but all of `Solution().f(x)`, because the object itself cannot be reported.
    """
    top = last_call = node
    while isinstance(above := parents.get(top), ast.Call | ast.Attribute):
        if isinstance(above, ast.Call) and above.func is not top:
            break
        top = above
        if isinstance(top, ast.Call):
            last_call = top
            if not is_class:
                break
    return last_call


class _Replace(ast.NodeTransformer):
    def __init__(self, chains):
        self.index = {chain: index for index, chain in enumerate(chains)}

    def visit(self, node):
        if node in self.index:
            return ast.Name(f"VALUE{self.index[node]}", ast.Load())
        return super().visit(node)


class _Insert(ast.NodeTransformer):
    def __init__(self, chain):
        self.chain = chain

    def visit_Name(self, node):
        return self.chain if node.id == "VALUE0" else node


def _is_value(node):
    return isinstance(node, ast.Name) and node.id == "VALUE0"


def _has_value(node):
    return any(_is_value(inner) for inner in ast.walk(node))


def _is_literal(node):
    try:
        ast.literal_eval(node)
    except (*_UNREADABLE, TypeError):
        return False
    return True


def _is_conversion(node):
    """Check for `list(VALUE0)`, `sorted(list(VALUE0))` and similar expressions."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CONVERSIONS:
        if len(node.args) != 1 or node.keywords:
            return False
        node = node.args[0]
    return _is_value(node)


def run(evaluate, program: str, tests: list[str], setup: str, limits: Limits) -> list[TestResult]:
    """Return the verdicts of all tests.

    Args:
        evaluate: `Sandbox.evaluate`.
        program: Source of the program.
        tests: Assertions.
        setup: Code that runs after the program and before the tests.
        limits: Limits of each step.
    """
    loaded = f"{program}\n{setup}\n" if setup else program
    parts = [split(test, program, setup) for test in tests]
    verdicts = _take_apart(evaluate, loaded, setup, parts, limits)
    again = [index for index, part in enumerate(parts) if part and part.whole and _is_unreportable(verdicts[index])]
    if again:
        second = [part.whole if part and index in again else None for index, part in enumerate(parts)]
        for index, verdict in enumerate(_take_apart(evaluate, loaded, setup, second, limits)):
            verdicts[index] = verdict or verdicts[index]
    inside = [index for index, verdict in enumerate(verdicts) if verdict is None]
    answers = evaluate(loaded, [{"kind": "test", "source": tests[index]} for index in inside], limits)
    for index, answer in zip(inside, answers, strict=True):
        verdicts[index] = TestResult(answer.status == "ok", answer.error, protected=False)
    return [verdict for verdict in verdicts if verdict is not None]


_UNREPORTABLE = "cannot be compared"


def _is_unreportable(verdict):
    return verdict is not None and not verdict.passed and _UNREPORTABLE in verdict.reason


def _take_apart(evaluate, loaded, setup, parts, limits) -> list[TestResult | None]:
    """Return the verdicts of the tests that can be split, and None for the others."""
    verdicts: list[TestResult | None] = [None] * len(parts)
    calls = [(index, call) for index, part in enumerate(parts) if part for call in part.calls]
    answers: dict[int, list[CallResult]] = {}
    reported = evaluate(loaded, [{"kind": "value", "source": call} for _, call in calls], limits)
    for (index, _), answer in zip(calls, reported, strict=True):
        answers.setdefault(index, []).append(answer)
    clean = []
    for index, part in enumerate(parts):
        if part is None:
            continue
        given = answers.get(index, [])
        failed = next((answer for answer in given if answer.status != "ok"), None)
        if failed:
            verdicts[index] = TestResult(False, failed.error or failed.status)
            continue
        try:
            for answer in given:
                values.check(answer.value)
            if part.expected is not None:
                verdicts[index] = _compare(given[0].value, ast.literal_eval(part.expected))
            else:
                clean.append((index, _expression(part, given)))
        except values.NotAValue as why:
            verdicts[index] = TestResult(False, str(why))
    _decide(evaluate, setup, parts, clean, limits, verdicts)
    return verdicts


def _compare(value, expected):
    answer = CallResult("ok", value)
    return TestResult(True) if answer.equals(expected) else TestResult(False, f"returned {answer.show()[:200]}")


def _expression(part, given):
    names = ", ".join(f"VALUE{index}" for index in range(len(given)))
    sources = ", ".join(values.source(answer.value) for answer in given)
    return f"bool((lambda {names}: {part.rest})({sources}))"


def _decide(evaluate, setup, parts, clean, limits, verdicts):
    """Evaluate the rest of the tests in a process without the program.

    Tests that need the program for their setup remain without a verdict.
    """
    modules = sorted({module for index, _ in clean for module in parts[index].modules})
    start = "".join(f"import {module}\n" for module in modules) + setup
    items = [{"kind": "value", "source": source} for _, source in clean]
    for (index, _), answer in zip(clean, evaluate(start, items, limits), strict=True):
        if answer.status == "ok":
            passed = answer.value == ["b", 1]
            verdicts[index] = TestResult(passed, "" if passed else "the assertion is false")
        elif not answer.error.startswith("the program failed to load"):  # a setup that fails to load needs the program
            verdicts[index] = TestResult(False, answer.error)


def statements(check: str, entry_point: str) -> list[str]:
    """Return the tests of a HumanEval-style function `check(candidate)`.

    Returns:
        One assertion about `entry_point` per test, or the whole function as one test if it contains other statements.
    """
    as_one = [f"{check}\ncheck({entry_point})"]
    try:
        functions = [node for node in ast.parse(check).body if isinstance(node, ast.FunctionDef)]
        if len(functions) != 1 or functions[0].name != "check" or len(functions[0].args.args) != 1:
            return as_one
        candidate = functions[0].args.args[0].arg
        tests = []
        for node in functions[0].body:
            if isinstance(node, ast.Assert):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Name) and inner.id == candidate:
                        inner.id = entry_point
                tests.append(ast.unparse(ast.Assert(node.test, None)))
            elif not isinstance(node, ast.Pass) and not (
                isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            ):
                return as_one
        return tests or as_one
    except _UNREADABLE:
        return as_one
