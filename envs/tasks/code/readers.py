"""Readers of MBPP, HumanEval, CRUXEval and QuixBugs, which convert published records to rows.

A reader takes records, one dict per line of a file, and yields rows (`envs.tasks.code.rows`). An invalid record raises
a ValueError that names it. Code in datasets is only parsed here; it runs only in the sandbox.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Any

from envs.tasks.code.asserts import to_test
from envs.tasks.code.rows import Row, make_row
from envs.tasks.code.values import literal, parse

MBPP_PARTS = {"prompt": range(1, 11), "test": range(11, 511), "validation": range(511, 601), "train": range(601, 975)}
"""The published split by id; ids 1 to 10 are few-shot examples and belong to no split of the task."""


def field(record: dict, name: str, where: str, kind: type | tuple = str) -> Any:
    """Return a field of a record after checking its type."""
    value = record.get(name)
    if not isinstance(value, kind):
        expected = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
        actual = "missing" if name not in record else f"{value!r:.80}"
        raise ValueError(f"{where}: {name} is {actual}, but must be of type {expected}")
    return value


def tidy(code: str) -> str:
    """Normalize the line endings of code."""
    return code.replace("\r\n", "\n").replace("\r", "\n")


def parsed(code: str, where: str) -> ast.Module:
    """Return the syntax tree of published code."""
    try:
        return parse(tidy(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where}: not Python: {error}") from None


def signature(code: ast.Module, name: str) -> str:
    """Return the `def` line of a function, or "" if it is not defined."""
    for node in code.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            return f"def {name}({ast.unparse(node.args)}){returns}:"
    return ""


# ---------------------------------------------------------------------------------------------------- MBPP


def mbpp(records: Iterable[dict]) -> Iterator[Row]:
    """Yield the rows of MBPP or sanitized MBPP.

    The starter is the signature of the solution, because the question does not name the function.
    """
    for record in records:
        id = field(record, "task_id", "mbpp", int)
        where = f"mbpp {id}"
        part = mbpp_part(id, where)
        question = field(record, "text" if "text" in record else "prompt", where)
        code = parsed(field(record, "code", where), where)
        statements = [parsed(text, where).body for text in field(record, "test_list", where, list)]
        functions = [node.name for node in code.body if isinstance(node, ast.FunctionDef)]
        entry = _tested(statements, functions)
        if entry is None:
            raise ValueError(f"{where}: the tests call none of its functions: {', '.join(functions) or '(none)'}")
        yield make_row(
            "mbpp", id, question, [test for body in statements for node in body if (test := to_test(node, entry))],
            part=part, entry_point=entry, starter=signature(code, entry),
            setup=tidy("\n".join([*record.get("test_imports", ()), record.get("test_setup_code", "")])).strip(),
            solution=tidy(record["code"]),
        )  # fmt: skip


def mbpp_part(id: int, where: str) -> str:
    """Return the split of a published id."""
    for part, ids in MBPP_PARTS.items():
        if id in ids:
            return part
    raise ValueError(f"{where}: the published ids are 1 to 974")


def _tested(statements: list[list[ast.stmt]], functions: list[str]) -> str | None:
    """Return the function that the tests call, the last one defined if there are several."""
    names = {n.id for body in statements for node in body for n in ast.walk(node) if isinstance(n, ast.Name)}
    return next((name for name in reversed(functions) if name in names), None)


def mbpp_plus(records: Iterable[dict]) -> Iterator[Row]:
    """Yield the rows of MBPP+ (EvalPlus), which adds many inputs.

    The expected value for an added input is the solution's return value. The published inputs do not distinguish lists
    from tuples, so arguments get the types that the problem's published assertions use at the same positions.
    """
    for record in records:
        name = field(record, "task_id", "mbpp+")
        where = f"mbpp+ {name}"
        number = name.removeprefix("Mbpp/")
        if not number.isdigit():
            raise ValueError(f"{where}: task_id is {name!r}, but must be Mbpp/NUMBER")
        part = mbpp_part(int(number), where)
        entry = field(record, "entry_point", where)
        code = parsed(field(record, "canonical_solution", where), where)
        statements = parsed(field(record, "assertion", where), where).body
        shapes = _argument_shapes(statements, entry)
        close = float(field(record, "atol", where, (int, float)))
        tests = [test for node in statements if not isinstance(node, ast.Import) and (test := to_test(node, entry))]
        for given in field(record, "plus_input", where, (list, dict)):  # {} if there are none
            if len(given) == len(shapes):
                given = [_retyped(value, shape) for value, shape in zip(given, shapes, strict=True)]
            call = f"{entry}({', '.join(map(repr, given))})"
            tests.append({"call": call} | ({"close": [0.0, close]} if close else {}))
        question = field(record, "prompt", where).strip().strip('"').strip()
        yield make_row(
            "mbpp_plus", number, question.split("\nassert ")[0].strip(), tests, part=part, entry_point=entry,
            starter=signature(code, entry), solution=tidy(record["canonical_solution"]), setup="import math",
        )  # fmt: skip


def _argument_shapes(statements: list[ast.stmt], entry: str) -> list[Any]:
    """Return the arguments of the first call in the assertions that has only literal arguments."""
    for node in (n for statement in statements for n in ast.walk(statement)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == entry:
            try:
                return [literal(argument) for argument in node.args]
            except ValueError:
                continue
    return []


def _retyped(value: Any, shape: Any) -> Any:
    """Convert lists in a value to the tuples and sets of the shape.

    An item beyond the end of the shape is converted like the shape's last item.
    """
    if not isinstance(value, list) or not isinstance(shape, list | tuple | set):
        return value
    shapes = list(shape)
    items = [_retyped(v, shapes[min(i, len(shapes) - 1)]) if shapes else v for i, v in enumerate(value)]
    try:
        return type(shape)(items)
    except TypeError:  # a set cannot contain a list
        return items


# ---------------------------------------------------------------------------------------------------- HumanEval


def humaneval(records: Iterable[dict]) -> Iterator[Row]:
    """Yield the rows of HumanEval.

    The question is the function's signature with its docstring. Helper functions in the prompt become the prelude.
    """
    for record in records:
        name = field(record, "task_id", "humaneval")
        where = f"humaneval {name}"
        entry = field(record, "entry_point", where)
        prompt = tidy(field(record, "prompt", where))
        tree = parsed(prompt + "\n    pass\n", where)
        helpers = [node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name == entry)]
        yield make_row(
            "humaneval", name.removeprefix("HumanEval/"), prompt.strip(), _humaneval_tests(record, entry, where),
            entry_point=entry, starter=signature(tree, entry),
            prelude="\n\n".join(ast.unparse(node) for node in helpers), setup="import math",
            solution=prompt + tidy(field(record, "canonical_solution", where)),
        )  # fmt: skip


def _humaneval_tests(record: dict, entry: str, where: str) -> list[dict]:
    text = tidy(field(record, "test", where))
    check = [node for node in parsed(text, where).body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    if not check:
        raise ValueError(f"{where}: test does not define the function check")
    tests = []
    for statement in check[0].body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id == "candidate":
                node.id = entry
        tests.append(to_test(statement, entry))
    tests = [test for test in tests if test]
    # Later statements depend on loops and assignments, so with any of these the published function is one check.
    apart = all("call" in test or test["check"].startswith("assert ") for test in tests)
    return tests if apart else [{"check": f"{text}\ncheck({entry})"}]


# ---------------------------------------------------------------------------------------------------- CRUXEval


def cruxeval(records: Iterable[dict], predict: str = "output") -> Iterator[Row]:
    """Yield the rows of CRUXEval.

    Args:
        records: Published records.
        predict: "output" to ask for the return value of a function for an input, "input" to ask for an input that
            produces a return value.
    """
    for record in records:
        id = field(record, "id", "cruxeval")
        where = f"cruxeval {id}"
        code, given, output = (tidy(field(record, name, where)) for name in ("code", "input", "output"))
        call = f"f({given})"
        assertion = f"assert {call} == ??" if predict == "output" else f"assert f(??) == {output}"
        yield make_row(
            f"cruxeval_{predict}", id, f"```python\n{code}\n```\n\n{assertion}", [{"call": call, "expect": output}],
            entry_point="f", solution=code, predict=predict,
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- QuixBugs

_DOC = re.compile(r'"""(.*?)"""', re.DOTALL)
_OWN_IMPORT = re.compile(r"(correct_python_programs|python_programs|node|load_testdata|pytest)(\.|$)")


def quixbugs(records: Iterable[dict]) -> Iterator[Row]:
    """Yield the rows of QuixBugs: programs with one defect to repair."""
    for record in records:
        name = field(record, "name", "quixbugs")
        where = f"quixbugs {name}"
        buggy, solution = (tidy(field(record, which, where)) for which in ("buggy", "correct"))
        cases = record.get("json_tests")
        prelude = ""
        if cases:
            tests = [_quixbugs_test(name, case, record.get("pytest", ""), where) for case in cases]
        else:
            tests = _quixbugs_checks(field(record, "pytest", where), where)
            prelude = tidy(record.get("node_py") or "")
        doc = _DOC.findall(buggy)
        code = _DOC.sub("", buggy).strip()
        question = f"This program has one defect. Repair it.\n\n{doc[-1].strip() if doc else name}\n\n"
        yield make_row(
            "quixbugs", name, f"{question}```python\n{code}\n```", tests, entry_point=name,
            starter=signature(parsed(buggy, where), name), prelude=prelude, solution=_DOC.sub("", solution),
        )  # fmt: skip


def _quixbugs_test(name: str, case: Any, pytest: str, where: str) -> dict:
    if not isinstance(case, list) or len(case) != 2:
        raise ValueError(f"{where}: json_tests contains {case!r:.80}, but each test must be [arguments, value]")
    given, value = case
    given = given if isinstance(given, list) else [given]
    call = f"{name}({', '.join(map(repr, given))})"
    if f"list({name}(" in pytest:
        call = f"list({call})"
    test = {"call": call, "expect": repr(value), "plain": True}
    return test | ({"close": [0.0, float(given[-1])]} if "approx" in pytest else {})


def _quixbugs_checks(text: str, where: str) -> list[dict]:
    """Convert each test function of a pytest file into a check.

    Imports from the QuixBugs repository are removed.
    """
    tree = parsed(text, where)
    kept = [node for node in tree.body if not _imports_own(node)]
    names = [node.name for node in kept if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]
    code = "\n\n".join(ast.unparse(node) for node in kept if not isinstance(node, ast.If))
    return [{"check": f"{code}\n\n{name}()"} for name in names]


def _imports_own(node: ast.stmt) -> bool:
    names = [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None) or ""]
    return isinstance(node, ast.Import | ast.ImportFrom) and any(_OWN_IMPORT.match(name) for name in names)
