"""Checks of proposed problems, which run in processes of `ask.verify`.

A proposal is a function f in a block labelled python and its arguments in a block labelled input. It is accepted if
both can be read, the program imports only modules in ALLOWED, and two runs in the sandbox return the same short
literal. Otherwise it has one of REASONS. The interpreter of the sandbox has a fixed hash seed, so the order of a set of
strings counts as determined.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from envs.tasks.code.extract import blocks, read_program
from envs.tasks.code.values import literal, parse, same, same_trees
from envs.tasks.sandbox import CallResult, Limits, same_sandbox

NAME = "f"
LONGEST_PROGRAM, LONGEST_INPUT, LONGEST_OUTPUT = 2000, 300, 300
"""Maximum number of characters."""
ALLOWED = {
    "abc", "bisect", "collections", "copy", "dataclasses", "decimal", "enum", "fractions", "functools", "heapq",
    "itertools", "json", "math", "operator", "re", "statistics", "string", "textwrap", "typing",
}  # fmt: skip
CHANGING = {"datetime", "os", "random", "secrets", "socket", "sys", "tempfile", "threading", "time", "urllib", "uuid"}
FORBIDDEN = {
    "__import__", "breakpoint", "compile", "eval", "exec", "globals", "id", "input", "locals", "open", "vars",
}  # fmt: skip
REASONS = {
    "no_program": "There is no block labelled python.",
    "no_input": "There is no block labelled input, or it is empty.",
    "too_long": f"The program must have at most {LONGEST_PROGRAM} characters and the input {LONGEST_INPUT}.",
    "syntax": "The program is not valid Python.",
    "no_function": f"The program does not define a function {NAME} at its top level.",
    "input_not_literal": f"The input is not a list of literal arguments of {NAME}.",
    "forbidden": "The program imports a module, or uses a builtin function, that is not allowed.",
    "not_deterministic": "The program uses time, randomness or its surroundings, or two runs differ.",
    "error": "The program raises an exception.",
    "limit": "The program exceeds its time or memory, or prints too much.",
    "refused": "The sandbox did not run the program.",
    "no_output": f"{NAME} returns None, so there is nothing to predict.",
    "huge_output": f"The returned value has more than {LONGEST_OUTPUT} characters.",
    "output_not_literal": "The returned value has no literal.",
}
"""Reasons for which a proposal is invalid, in the order in which they are checked."""


class Invalid(ValueError):
    """A proposal that cannot become a problem; the message is one of REASONS."""


def read_proposal(text: str) -> tuple[str, str, ast.Module]:
    """Return the program, the call and the syntax tree of a proposal without running anything.

    Raises:
        Invalid: The proposal has one of the first REASONS.
    """
    extracted = read_program(text)
    if extracted.text is None:
        raise Invalid(extracted.problem if extracted.problem == "too_long" else "no_program")
    inputs = [block.text.strip() for block in blocks(text) if block.label == "input"]
    if not inputs or not inputs[-1]:
        raise Invalid("no_input")
    program = extracted.text.strip() + "\n"
    if len(program) > LONGEST_PROGRAM or len(inputs[-1]) > LONGEST_INPUT:
        raise Invalid("too_long")
    tree = _parsed(program)
    if not any(isinstance(node, ast.FunctionDef) and node.name == NAME for node in tree.body):
        raise Invalid("no_function")
    call = _call(inputs[-1])
    _check_names(tree)
    return program, call, tree


def _parsed(program: str) -> ast.Module:
    try:
        program.encode("utf-8")
        return parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Invalid("syntax") from None


def _call(arguments: str) -> str:
    """Return the call with these arguments, which may already be a call."""
    text = arguments if arguments.startswith(f"{NAME}(") else f"{NAME}({arguments})"
    try:
        text.encode("utf-8")
        call = parse(text, "eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != NAME:
            raise Invalid("input_not_literal")
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        if not values:
            raise Invalid("no_input")
        for value in values:
            literal(value)
        if any(keyword.arg is None for keyword in call.keywords):
            raise Invalid("input_not_literal")
        return ast.unparse(call)
    except Invalid:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Invalid("input_not_literal") from None


def _check_names(tree: ast.Module) -> None:
    modules, names = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add("" if node.level else (node.module or "").partition(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names.add(node.func.id)
    if modules & CHANGING:
        raise Invalid("not_deterministic")
    if modules - ALLOWED or names & FORBIDDEN:
        raise Invalid("forbidden")


def checked(sandbox: Mapping, text: str, seconds: float) -> dict[str, Any]:
    """Check a proposal and return its problem, a JSON value.

    Args:
        sandbox: Settings of the sandbox.
        text: Completion of the proposer.
        seconds: CPU time limit of each of the two runs.

    Returns:
        {"problem": reason, "detail"} for an invalid proposal, otherwise {"problem": "", "program", "call", "expect"}
        and the measures of `measured`.
    """
    try:
        program, call, tree = read_proposal(text)
        expect = _expected(sandbox, program, call, seconds)
    except Invalid as invalid:
        reason, _, detail = str(invalid).partition(": ")
        return {"problem": reason, "detail": detail}
    return {"problem": "", "program": program, "call": call, "expect": expect, **measured(tree)}


def _expected(settings: Mapping, program: str, call: str, seconds: float) -> str:
    """Return the literal that both runs return."""
    sandbox, limits = same_sandbox(settings), Limits(wall=3 * seconds + 2, cpu=seconds)
    results: list[CallResult] = []
    for _ in range(2):
        [result] = sandbox.run_calls_sync(program, [call], limits=limits)
        if result.status != "ok":
            # SIGXCPU ends a program at its CPU limit.
            reason = "limit" if "exited with -24 " in result.error else result.status
            raise Invalid(f"{reason}: {result.error[:200]}")
        results.append(result)
    first, second = (result.value for result in results)
    if not same_trees(first, first):  # an object, or NaN
        raise Invalid("output_not_literal")
    if not same_trees(first, second):
        raise Invalid("not_deterministic")
    text = results[0].show()
    if text == "None":
        raise Invalid("no_output")
    if len(text) > LONGEST_OUTPUT:
        raise Invalid("huge_output")
    try:
        if same(literal(text), first):
            return text
    except ValueError:
        pass
    raise Invalid("output_not_literal")


# ---------------------------------------------------------------------------------------------------------- diversity

OPERATORS = (
    ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.Subscript, ast.For, ast.While, ast.If, ast.IfExp,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda, ast.Try,
)  # fmt: skip


def measured(tree: ast.Module) -> dict[str, Any]:
    """Measure a program for `distinct` and for metrics.

    Returns:
        {"form", "lines", "operators"}: The program without comments, docstrings, layout and names of variables; its
        number of lines; and the sorted kinds of operators and control flow it uses, such as "Add" and "For".
    """
    kinds = set()
    for node in ast.walk(tree):
        if isinstance(node, OPERATORS):
            operators = [getattr(node, "op", None), *getattr(node, "ops", ())]
            kinds |= {type(one).__name__ for one in operators if one is not None} or {type(node).__name__}
        elif isinstance(node, ast.Call):
            function = node.func
            kinds.add(f"{function.attr if isinstance(function, ast.Attribute) else getattr(function, 'id', '')}()")
    lines = len(ast.unparse(tree).splitlines())
    return {"form": _Renamed().form(tree), "lines": lines, "operators": sorted(kinds - {"()", f"{NAME}()"})}


class _Renamed(ast.NodeTransformer):
    """Numbers the names that a program assigns, in the order of their first use."""

    def __init__(self):
        self.names: dict[str, str] = {}

    def form(self, tree: ast.Module) -> str:
        """Return the source of a copy of the tree with numbered names and without docstrings."""
        tree = parse(ast.unparse(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.names.setdefault(node.name, f"n{len(self.names)}")
                if ast.get_docstring(node) is not None:
                    node.body = node.body[1:] or [ast.Pass()]
            elif isinstance(node, ast.arg):
                self.names.setdefault(node.arg, f"n{len(self.names)}")
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.names.setdefault(node.id, f"n{len(self.names)}")
        return ast.unparse(self.visit(tree))

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self.names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self.names[node.arg]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self.names[node.name]
        return self.generic_visit(node)
