"""A Jinja sandbox with limits, for templates of strangers: on the steps, on the size of every value, and on the time.

Jinja's own sandbox keeps a template away from Python's internals, but not from making strings of gigabytes, which
`"%9999999999d" % 1` does. Here everything that makes a value (operators, calls, filters, lists, blocks, output) is
measured, where possible before it is made, and charged to the budget of the rendering.
"""

from __future__ import annotations

import contextlib
import contextvars
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.visitor import NodeTransformer

LARGEST = 1 << 22  # characters of a text
MOST_ELEMENTS = 1 << 17  # of a list with all lists in it
LARGEST_NUMBER = 1 << 12  # bits
TOTAL = 1 << 26  # of all texts and lists that one rendering makes
STEPS = 1 << 20  # operations, calls and turns of loops
SECONDS = 5.0  # far more than any chat; for what is slow without being large
LONGEST_TEMPLATE = 1 << 16  # characters; what is compiled takes far more room than its text

FILTERS = (
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "format",
    "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject",
    "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "sort", "string", "sum", "title",
    "tojson", "trim", "unique", "upper", "wordcount",
)  # fmt: skip
"""The filters that templates have; Jinja's others pad, cut and mark up texts for pages."""

LOOKS_INSIDE = (
    "dictsort", "groupby", "map", "max", "min", "reject", "rejectattr", "select", "selectattr", "sort", "sum", "unique"
)  # fmt: skip
"""Filters that look at the texts in a list, or hand each element to another one."""

COMPARISONS = ("==", "!=", ">", ">=", "<", "<=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan",
               "lt", "ne")  # fmt: skip
"""The names of Jinja's tests that compare."""

REFUSED_METHODS = ("translate", "maketrans", "encode", "decode", "to_bytes", "from_bytes", "fromhex", "expandtabs")


class LimitError(jinja2.TemplateError):
    """A template asks for more than a chat needs."""


class _Budget:
    def __init__(self):
        self.steps, self.total, self.end = STEPS, TOTAL, time.monotonic() + SECONDS

    def step(self, n: int = 1) -> None:
        self.steps -= n
        if self.steps < 0:
            raise LimitError(f"the template takes more than {STEPS:,} steps")
        if (n > 1 or self.steps % 64 == 0) and time.monotonic() > self.end:
            raise LimitError(f"the template takes more than {SECONDS:g} seconds")

    def charge(self, size: int) -> None:
        if size > LARGEST:
            raise LimitError(f"the template makes a text of more than {LARGEST:,} characters")
        self.total -= size
        if self.total < 0:
            raise LimitError(f"the template makes values of more than {TOTAL:,} characters and elements together")


_budget: contextvars.ContextVar[_Budget] = contextvars.ContextVar("budget")


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Within it, a template may be rendered."""
    token = _budget.set(_Budget())
    try:
        yield
    finally:
        _budget.reset(token)


# ------------------------------------------------------------------------------------------------------- measures


def _elements(value: Any) -> int:
    """What a value holds: its elements with all that are in them; counting ends at MOST_ELEMENTS."""
    found, waiting = 0, [value]
    while waiting:
        x = waiting.pop()
        if isinstance(x, list | tuple | set | frozenset):
            found, _ = found + len(x), waiting.extend(x)
        elif isinstance(x, dict):
            found, _ = found + 2 * len(x), waiting.extend([*x, *x.values()])
        elif isinstance(x, jinja2.utils.Namespace):
            waiting.append(x._Namespace__attrs)
            found += 1
        if found > MOST_ELEMENTS:
            break
    return found


def _text(value: Any) -> int:
    """At least the characters of `str(value)`; counting ends at LARGEST."""
    if isinstance(value, str):
        return len(value)
    found, waiting = 0, [value]
    while waiting and found <= LARGEST:
        x = waiting.pop()
        if isinstance(x, str):
            found += len(x) + 2
        elif isinstance(x, int):
            found += x.bit_length() // 3 + 2
        elif isinstance(x, list | tuple | set | frozenset):
            found, _ = found + 2 + len(x), waiting.extend(x)
        elif isinstance(x, dict):
            found, _ = found + 2 + 4 * len(x), waiting.extend([*x, *x.values()])
        elif isinstance(x, jinja2.utils.Namespace):
            waiting.append(x._Namespace__attrs)
            found += 16
        else:
            found += 16
    return found


def _made(value: Any) -> Any:
    """The value, charged to the budget."""
    budget = _budget.get()
    budget.step()
    if isinstance(value, str | bytes):
        budget.charge(len(value))
    elif isinstance(value, bool | float) or value is None:
        pass
    elif isinstance(value, int):
        _check_number(value.bit_length())
    elif isinstance(value, list | tuple | set | frozenset | dict):
        _check_elements(_elements(value))
    return value


def _check_elements(count: int) -> None:
    if count > MOST_ELEMENTS:
        raise LimitError(f"the template makes a list of more than {MOST_ELEMENTS:,} elements")
    _budget.get().charge(count)
    _budget.get().step(count // 16)


def _look(*values: Any, times: int = 1) -> None:
    """Charges for reading every character of values: a list may hold one long text many times."""
    size = times * sum(map(_text, values))
    if size > LARGEST:
        raise LimitError(f"the template looks at more than {LARGEST:,} characters at once")
    _budget.get().step(1 + size // 64)


def _check_number(bits: int) -> None:
    if bits > LARGEST_NUMBER:
        raise LimitError(f"the template makes a number of more than {LARGEST_NUMBER:,} bits")


def _check_format(text: str, arguments: Iterable[Any]) -> None:
    """Refuses a format that could blow up: wide fields, or more fields than its longest value leaves room for."""
    if re.search(r"\d{5}|\*|\{[^{}]*:[^{}]*\{", text):
        raise LimitError("the template formats with a very wide field, or one whose width is computed")
    fields = text.count("%") + text.count("{")
    _budget.get().charge(len(text) + fields * (10_000 + max((_text(x) for x in arguments), default=0)))


# -------------------------------------------------------------------------------------------------------- operators


def _check_operator(operator: str, left: Any, right: Any) -> None:
    charge = _budget.get().charge
    if operator == "%" and isinstance(left, str):
        _check_format(left, right if isinstance(right, tuple) else [right])
    elif operator == "*":
        for x, times in ((left, right), (right, left)):
            if isinstance(times, int) and hasattr(x, "__len__"):
                size = max(len(x), 1) * max(times, 0)
                charge(size) if isinstance(x, str) else _check_elements(size)
        if isinstance(left, int) and isinstance(right, int):
            _check_number(left.bit_length() + right.bit_length() - 1)
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_number(left.bit_length() * abs(right))
    elif operator == "+" and isinstance(left, str) and isinstance(right, str):
        charge(len(left) + len(right))


def _check_method(name: str, owner: Any, args: tuple, kwargs: dict) -> None:
    charge, given = _budget.get().charge, (*args, *kwargs.values())
    if name in REFUSED_METHODS:
        raise LimitError(f"the template calls {name}, which is not for templates")
    if name in ("format", "format_map") and isinstance(owner, str):
        values = [y for x in given for y in (x.values() if isinstance(x, dict) else [x])]
        _check_format(owner, values)
    elif name in ("ljust", "rjust", "center", "zfill"):
        charge(max((x for x in given if isinstance(x, int)), default=0))
    elif name == "replace" and isinstance(owner, str):
        _check_replace(owner, *args[:2])
    elif name == "join" and args and isinstance(owner, str):
        _check_join(args[0], owner)
    elif isinstance(owner, list | tuple) and name in ("count", "index"):
        _look(owner, *args)
    elif isinstance(owner, str):
        charge(len(owner))  # most of them make a text, or several, of about this length
    elif name == "strftime" and (len(str(given)) > 300 or re.search(r"%[^a-zA-Z%]", str(given))):
        raise LimitError("the template asks for a date in a very long format")


def _check_replace(text: str, old: Any = "", new: Any = "", *_: Any) -> None:
    _budget.get().charge(len(text) + (text.count(str(old)) if old else len(text) + 1) * _text(new))


def _check_join(values: Any, between: Any = "") -> None:
    if isinstance(values, list | tuple | dict | str | range):
        _budget.get().charge(_text(list(values)) + len(values) * _text(between))
    else:
        raise LimitError("the template joins what is neither a list nor a text; a `| list` in between makes it one")


# ---------------------------------------------------------------------------------------------------------- filters


def _check_filter(name: str, args: tuple, kwargs: dict) -> None:
    budget, value, given = _budget.get(), args[0], (*args[1:], *kwargs.values())
    if hasattr(value, "__len__"):
        budget.step(1 + len(value) // 16)
    if name in LOOKS_INSIDE:
        _look(value)
        _look(*given, times=len(value) if hasattr(value, "__len__") else 1)
    if name == "sum" and not isinstance(kwargs.get("start", args[2] if len(args) > 2 else 0), int | float):
        raise LimitError("the template adds up what are not numbers")
    if name == "format":
        _check_format(str(value), given)
    elif name == "replace":
        _check_replace(str(value), *given[:2])
    elif name == "indent":
        width = next((x for x in given if isinstance(x, int | str) and not isinstance(x, bool)), 4)
        width = width if isinstance(width, int) else len(width)
        budget.charge(len(str(value)) + (1 + len(str(value).splitlines())) * max(width, 0))
    elif name == "round" and any(isinstance(x, int) and abs(x) > 32 for x in given):
        raise LimitError("the template rounds to more than 32 places")
    elif name in ("string", "e", "escape", "lower", "upper", "title", "capitalize", "trim", "wordcount"):
        budget.charge(_text(value))
    elif name == "tojson":
        names = ("ensure_ascii", "indent", "separators", "sort_keys")
        options = dict(zip(names, args[1:], strict=False)) | kwargs
        indent = options.get("indent") or 0
        width = (indent if isinstance(indent, int) else _text(indent)) + _text(options.get("separators") or ())
        if width > 32:
            raise LimitError("the template asks for JSON with more than 32 places between its parts")
        budget.charge(_text(value) + _elements(value) * width * 8)


def _guarded(name: str, function: Callable) -> Callable:
    wants = jinja2.utils._PassArg.from_obj(function)

    @jinja2.pass_context
    def call(context, *args, **kwargs):
        if name in ("join", *LOOKS_INSIDE) and args and isinstance(args[0], Iterator):
            args = (_made(list(args[0])), *args[1:])  # what a `map` or `select` before it gives
        if name == "join":
            _check_join(args[0], *args[1:2], *([kwargs["d"]] if "d" in kwargs else []))
        _check_filter(name, args, kwargs)
        passed: dict[Any, tuple[Any, ...]] = {
            jinja2.utils._PassArg.context: (context,),
            jinja2.utils._PassArg.eval_context: (context.eval_ctx,),
            jinja2.utils._PassArg.environment: (context.environment,),
        }
        return _made(function(*passed.get(wants, ()), *args, **kwargs))

    return call


@jinja2.pass_context
def _tick(context, value):
    _budget.get().step()
    return value


@jinja2.pass_context
def _literal(context, value):
    return _made(value)


@jinja2.pass_context
def _compared(context, value):
    _look(value)
    return value


@jinja2.pass_context
def _concat(context, values):
    _budget.get().charge(sum(map(_text, values)))
    return "".join(map(str, values))


@jinja2.pass_context
def _finalize(context, value):
    _budget.get().step()
    if not isinstance(value, str):
        _budget.get().charge(_text(value))
    return value


# ------------------------------------------------------------------------------------------------------ environment


class LimitedSandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, whose templates render within `limits()` only."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, **options):
        super().__init__(optimized=False, finalize=_finalize, **options)  # nothing is computed while compiling
        self.filters = {name: _guarded(name, self.filters[name]) for name in FILTERS}
        self.filters |= {"_tick": _tick, "_literal": _literal, "_concat": _concat, "_compared": _compared}

    def set_filter(self, name: str, function: Callable) -> None:
        """Puts a filter in the place of Jinja's."""
        self.filters[name] = _guarded(name, function)

    def call_binop(self, context, operator, left, right):
        if operator == "+" and type(left) is type(right) is str:  # most of what templates do
            budget = _budget.get()
            budget.step()
            budget.charge(len(left) + len(right))
            return left + right
        _check_operator(operator, left, right)
        return _made(super().call_binop(context, operator, left, right))

    def call(self, context, function, *args, **kwargs):
        _budget.get().step()
        method = getattr(function, "__wrapped__", function)
        if (owner := getattr(method, "__self__", None)) is not None:
            _check_method(getattr(method, "__name__", ""), owner, args, kwargs)
        return _made(super().call(context, function, *args, **kwargs))

    def concat(self, pieces: Iterable[str]) -> str:
        """The text of a block, a macro or the whole template."""
        budget, found, length = _budget.get(), [], 0
        for piece in pieces:
            found.append(piece)
            length += len(piece)
            if length > LARGEST:
                budget.charge(length)
        budget.charge(length)
        return "".join(found)

    def _parse(self, source, name, filename):
        if len(source) > LONGEST_TEMPLATE:
            raise LimitError(f"the template has {len(source):,} characters, but must be up to {LONGEST_TEMPLATE:,}")
        return _instrumented(super()._parse(source, name, filename))


def _instrumented(tree: nodes.Node) -> nodes.Node:
    """The template with a step counted in every turn of a loop; what is compared is measured, and lists, parts of texts
    and joined texts when they are made."""
    for node in list(tree.find_all(nodes.For)):
        node.body.insert(0, nodes.ExprStmt(_filter("_tick", nodes.Const(0), node.lineno), lineno=node.lineno))
    return _Measured().visit(tree)


class _Measured(NodeTransformer):
    def visit_Concat(self, node):
        self.generic_visit(node)
        return _filter("_concat", nodes.List(node.nodes, lineno=node.lineno), node.lineno)

    def visit_List(self, node):
        self.generic_visit(node)
        return _filter("_literal", node, node.lineno)

    visit_Dict = visit_List

    def visit_Getitem(self, node):
        self.generic_visit(node)
        return _filter("_literal", node, node.lineno) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node):
        self.generic_visit(node)
        for side in (node, *node.ops):
            side.expr = _filter("_compared", side.expr, node.lineno)
        return node

    def visit_Test(self, node):
        self.generic_visit(node)
        if node.name in COMPARISONS:
            node.node = _filter("_compared", node.node, node.lineno)
            node.args = [_filter("_compared", x, node.lineno) for x in node.args]
        return node

    def visit_Tuple(self, node):
        self.generic_visit(node)
        return node if node.ctx == "store" else _filter("_literal", node, node.lineno)


def _filter(name: str, value: nodes.Expr, lineno: int) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=lineno)
