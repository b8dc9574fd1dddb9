"""A Jinja sandbox that limits the steps, value sizes and time of untrusted templates.

Jinja's own sandbox protects Python's internals, but does not prevent strings of gigabytes, such as
`"%9999999999d" % 1`. Here everything that creates a value (operators, calls, filters, lists, blocks, output) is
measured, if possible before the value is created, and charged to the budget of the rendering.
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

LARGEST = 1 << 22  # characters per text
MOST_ELEMENTS = 1 << 17  # elements per list, nested ones included
LARGEST_NUMBER = 1 << 12  # bits per integer
TOTAL = 1 << 26  # characters and elements of all values of one rendering
STEPS = 1 << 20  # operations, calls and iterations
SECONDS = 5.0  # of CPU time, far more than any chat needs; for templates that are slow without large values
LONGEST_TEMPLATE = 1 << 16  # characters; a compiled template is far larger than its source

FILTERS = (
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "format",
    "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject",
    "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "sort", "string", "sum", "title",
    "tojson", "trim", "unique", "upper", "wordcount",
)  # fmt: skip
"""The filters that templates may use; Jinja's others format texts for web pages."""

LOOKS_INSIDE = (
    "dictsort", "groupby", "map", "max", "min", "reject", "rejectattr", "select", "selectattr", "sort", "sum", "unique"
)  # fmt: skip
"""Filters that read the texts of a list, or apply another filter to each element."""

COMPARISONS = ("==", "!=", ">", ">=", "<", "<=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan",
               "lt", "ne")  # fmt: skip
"""Names of the Jinja tests that compare values."""

REFUSED_METHODS = ("translate", "maketrans", "encode", "decode", "to_bytes", "from_bytes", "fromhex", "expandtabs")


class LimitError(jinja2.TemplateError):
    """A template that exceeds a limit."""


class _Budget:
    """The steps, memory and time that remain for a rendering."""

    def __init__(self):
        self.steps, self.total, self.end = STEPS, TOTAL, time.thread_time() + SECONDS

    def step(self, n: int = 1) -> None:
        """Take n steps."""
        self.steps -= n
        if self.steps < 0:
            raise LimitError(f"the template takes more than {STEPS:,} steps")
        if (n > 1 or self.steps % 64 == 0) and time.thread_time() > self.end:
            raise LimitError(f"the template takes more than {SECONDS:g} seconds of CPU time")

    def charge(self, size: int) -> None:
        """Charge for a value of `size` characters or elements."""
        if size > LARGEST:
            raise LimitError(f"the template creates a text of more than {LARGEST:,} characters")
        self.total -= size
        if self.total < 0:
            raise LimitError(f"the template creates values of more than {TOTAL:,} characters and elements together")


_budget: contextvars.ContextVar[_Budget] = contextvars.ContextVar("budget")


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Return a context in which a template can be rendered."""
    token = _budget.set(_Budget())
    try:
        yield
    finally:
        _budget.reset(token)


# ------------------------------------------------------------------------------------------------------- measures


def _elements(value: Any) -> int:
    """Count the elements of a value, nested ones included, up to MOST_ELEMENTS."""
    count, waiting = 0, [value]
    while waiting:
        x = waiting.pop()
        if isinstance(x, list | tuple | set | frozenset):
            count, _ = count + len(x), waiting.extend(x)
        elif isinstance(x, dict):
            count, _ = count + 2 * len(x), waiting.extend([*x, *x.values()])
        elif isinstance(x, jinja2.utils.Namespace):
            waiting.append(x._Namespace__attrs)
            count += 1
        if count > MOST_ELEMENTS:
            break
    return count


def _text(value: Any) -> int:
    """Return an upper bound for the length of `str(value)`, counting up to LARGEST."""
    if isinstance(value, str):
        return len(value)
    count, waiting = 0, [value]
    while waiting and count <= LARGEST:
        x = waiting.pop()
        if isinstance(x, str):
            count += len(x) + 2
        elif isinstance(x, int):
            count += x.bit_length() // 3 + 2
        elif isinstance(x, list | tuple | set | frozenset):
            count, _ = count + 2 + len(x), waiting.extend(x)
        elif isinstance(x, dict):
            count, _ = count + 2 + 4 * len(x), waiting.extend([*x, *x.values()])
        elif isinstance(x, jinja2.utils.Namespace):
            waiting.append(x._Namespace__attrs)
            count += 16
        else:
            count += 16
    return count


def _made(value: Any) -> Any:
    """Charge a value to the budget and return it."""
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
    """Charge for a list of `count` elements."""
    if count > MOST_ELEMENTS:
        raise LimitError(f"the template creates a list of more than {MOST_ELEMENTS:,} elements")
    _budget.get().charge(count)
    _budget.get().step(count // 16)


def _look(*values: Any, times: int = 1) -> None:
    """Charge for reading every character of values.

    A list may contain one long text many times.
    """
    size = times * sum(map(_text, values))
    if size > LARGEST:
        raise LimitError(f"the template reads more than {LARGEST:,} characters at once")
    _budget.get().step(1 + size // 64)


def _check_number(bits: int) -> None:
    """Raise LimitError if an integer has too many bits."""
    if bits > LARGEST_NUMBER:
        raise LimitError(f"the template creates a number of more than {LARGEST_NUMBER:,} bits")


def _check_format(text: str, arguments: Iterable[Any]) -> None:
    """Raise LimitError for a format that could produce a very long text.

    That is one with wide fields, or with more fields than its longest value allows.
    """
    if re.search(r"\d{5}|\*|\{[^{}]*:[^{}]*\{", text):
        raise LimitError("the template formats with a very wide field, or with a computed width")
    fields = text.count("%") + text.count("{")
    _budget.get().charge(len(text) + fields * (10_000 + max((_text(x) for x in arguments), default=0)))


# -------------------------------------------------------------------------------------------------------- operators


def _check_operator(operator: str, left: Any, right: Any) -> None:
    """Charge for an operator before it is applied."""
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
    """Charge for a method before it is called."""
    charge, given = _budget.get().charge, (*args, *kwargs.values())
    if name in REFUSED_METHODS:
        raise LimitError(f"the template calls {name}, which templates may not use")
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
        charge(len(owner))  # most methods return one or several texts of about this length
    elif name == "strftime" and (len(str(given)) > 300 or re.search(r"%[^a-zA-Z%]", str(given))):
        raise LimitError("the template formats a date with a very long format")


def _check_replace(text: str, old: Any = "", new: Any = "", *_: Any) -> None:
    """Charge for replacing a part of a text."""
    _budget.get().charge(len(text) + (text.count(str(old)) if old else len(text) + 1) * _text(new))


def _check_join(values: Any, between: Any = "") -> None:
    """Charge for joining values."""
    if isinstance(values, list | tuple | dict | str | range):
        _budget.get().charge(_text(list(values)) + len(values) * _text(between))
    else:
        raise LimitError("the template joins a value that is neither a list nor a text; insert `| list` before `join`")


# ---------------------------------------------------------------------------------------------------------- filters


def _check_filter(name: str, args: tuple, kwargs: dict) -> None:
    """Charge for a filter before it is applied."""
    budget, value, given = _budget.get(), args[0], (*args[1:], *kwargs.values())
    if hasattr(value, "__len__"):
        budget.step(1 + len(value) // 16)
    if name in LOOKS_INSIDE:
        _look(value)
        _look(*given, times=len(value) if hasattr(value, "__len__") else 1)
    if name == "sum" and not isinstance(kwargs.get("start", args[2] if len(args) > 2 else 0), int | float):
        raise LimitError("the template sums values that are not numbers")
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
            raise LimitError("the template formats JSON with more than 32 characters of indent and separators")
        budget.charge(_text(value) + _elements(value) * width * 8)


def _guarded(name: str, function: Callable) -> Callable:
    """Return a filter that is charged to the budget."""
    wants = jinja2.utils._PassArg.from_obj(function)

    @jinja2.pass_context
    def call(context, *args, **kwargs):
        if name in ("join", *LOOKS_INSIDE) and args and isinstance(args[0], Iterator):
            args = (_made(list(args[0])), *args[1:])  # the result of a `map` or `select` before it
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
    """Count a step of a loop."""
    _budget.get().step()
    return value


@jinja2.pass_context
def _literal(context, value):
    """Charge for a literal."""
    return _made(value)


@jinja2.pass_context
def _compared(context, value):
    """Charge for an operand of a comparison."""
    _look(value)
    return value


@jinja2.pass_context
def _concat(context, values):
    """Join the operands of `~`."""
    _budget.get().charge(sum(map(_text, values)))
    return "".join(map(str, values))


@jinja2.pass_context
def _finalize(context, value):
    """Charge for an output."""
    _budget.get().step()
    if not isinstance(value, str):
        _budget.get().charge(_text(value))
    return value


# ------------------------------------------------------------------------------------------------------ environment


class LimitedSandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, with templates that render only within `limits()`."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, **options):
        super().__init__(optimized=False, finalize=_finalize, **options)  # no constant folding while compiling
        self.filters = {name: _guarded(name, self.filters[name]) for name in FILTERS}
        self.filters |= {"_tick": _tick, "_literal": _literal, "_concat": _concat, "_compared": _compared}

    def set_filter(self, name: str, function: Callable) -> None:
        """Replace one of Jinja's filters."""
        self.filters[name] = _guarded(name, function)

    def call_binop(self, context, operator, left, right):
        """Apply a binary operator within the limits."""
        if operator == "+" and type(left) is type(right) is str:  # the most common operation
            budget = _budget.get()
            budget.step()
            budget.charge(len(left) + len(right))
            return left + right
        _check_operator(operator, left, right)
        return _made(super().call_binop(context, operator, left, right))

    def call(self, context, function, *args, **kwargs):
        """Call a function within the limits."""
        _budget.get().step()
        method = getattr(function, "__wrapped__", function)
        if (owner := getattr(method, "__self__", None)) is not None:
            _check_method(getattr(method, "__name__", ""), owner, args, kwargs)
        return _made(super().call(context, function, *args, **kwargs))

    def concat(self, pieces: Iterable[str]) -> str:
        """Join the output of a block, a macro or the template."""
        budget, text, length = _budget.get(), [], 0
        for piece in pieces:
            text.append(piece)
            length += len(piece)
            if length > LARGEST:
                budget.charge(length)
        budget.charge(length)
        return "".join(text)

    def _parse(self, source, name, filename):
        """Parse a template and insert the measurements."""
        if len(source) > LONGEST_TEMPLATE:
            raise LimitError(f"the template has {len(source):,} characters, but must have at most {LONGEST_TEMPLATE:,}")
        return _instrumented(super()._parse(source, name, filename))


def _instrumented(tree: nodes.Node) -> nodes.Node:
    """Insert measurements into a template.

    Every iteration of a loop counts a step. Compared values are measured, and so are new lists, slices and joined
    texts.
    """
    for node in list(tree.find_all(nodes.For)):
        node.body.insert(0, nodes.ExprStmt(_filter("_tick", nodes.Const(0), node.lineno), lineno=node.lineno))
    return _Measured().visit(tree)


class _Measured(NodeTransformer):
    """A transformer that wraps expressions in measuring filters."""

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
    """Return a node that applies a filter to an expression."""
    return nodes.Filter(value, name, [], [], None, None, lineno=lineno)
