"""JSON schemas of Python functions, and checks of arguments against schemas."""

from __future__ import annotations

import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable
from typing import Any

_TYPES: dict[Any, dict[str, Any]] = {
    int: {"type": "integer"}, float: {"type": "number"}, str: {"type": "string"}, bool: {"type": "boolean"},
    list: {"type": "array"}, dict: {"type": "object"}, type(None): {"type": "null"}, Any: {},
}  # fmt: skip
_SECTIONS = re.compile(r"\n\s*(Args|Arguments|Returns|Raises|Yields|Examples?|Note|Notes):[^\S\n]*\n")
_ARGUMENT = re.compile(r"(\*{0,2}\w+)(?:\s*\([^)]*\))?:\s*(.*)", re.DOTALL)


# -------------------------------------------------------------------------------------------------- of Python functions


def schema_of(function: Callable) -> dict[str, Any]:
    """Return the schema of a function with type hints and a docstring in Google style.

    Like that of `transformers.utils.get_json_schema`, except that optional values have the type "null" too.
    """
    name = function.__name__
    about, arguments = _docstring(inspect.getdoc(function) or "")
    if not about:
        raise ValueError(f"the docstring of the tool {name} is '', but must describe it for the model")
    hints = typing.get_type_hints(function)
    properties, required = {}, []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(f"the parameter {parameter.name} of the tool {name} must be a named one")
        if parameter.name not in hints or parameter.name not in arguments:
            missing = "type hint" if parameter.name not in hints else "description under Args in the docstring"
            raise ValueError(f"the parameter {parameter.name} of the tool {name} must have a {missing}")
        schema = _schema_of_type(hints[parameter.name], f"{name}({parameter.name})")
        properties[parameter.name] = schema | {"description": arguments[parameter.name]}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the description and the descriptions of the arguments."""
    about, *sections = _SECTIONS.split("\n" + text)
    arguments = {}
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        if title in ("Args", "Arguments"):
            body = inspect.cleandoc("\n" + body)
            for entry in re.split(r"\n(?=\S)", body):
                if match := _ARGUMENT.match(entry):
                    arguments[match[1]] = " ".join(match[2].split())
    return about.strip(), arguments


def _schema_of_type(hint: Any, place: str) -> dict[str, Any]:
    """Return the schema of a type hint."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in _TYPES:
        return dict(_TYPES[hint])
    if origin is list and len(args) == 1:
        return {"type": "array", "items": _schema_of_type(args[0], place)}
    if origin is dict and len(args) == 2 and args[0] is str:
        return {"type": "object", "additionalProperties": _schema_of_type(args[1], place)}
    if origin is typing.Literal:
        kinds = list(dict.fromkeys(_TYPES[type(value)]["type"] for value in args))
        return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(args)}
    if origin in (typing.Union, types.UnionType):
        members = [_schema_of_type(arg, place) for arg in args]
        if all(set(member) == {"type"} and isinstance(member["type"], str) for member in members):
            return {"type": [member["type"] for member in members]}
        return {"anyOf": members}
    raise ValueError(
        f"the type of {place} is {hint!r}, but must be int, float, str, bool, list, dict, Literal or a union"
    )


# ------------------------------------------------------------------------------------------------------------- checking

ANNOTATIONS = frozenset(
    (
        "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "example",
        "format", "nullable", "deprecated", "readOnly", "writeOnly", "contentMediaType", "contentEncoding",
    )
)  # fmt: skip
"""Keywords of a schema that do not restrict values."""


def problem(schema: Any, value: Any, place: str, root: Any = None) -> str | None:
    """Return why a JSON value does not match a schema (draft 2020-12), or None.

    Args:
        schema: The schema; see `check` for its keywords.
        value: The value.
        place: Name of the value in the message.
        root: Schema that references point into.
    """
    root = schema if root is None else root
    if isinstance(schema, bool):
        return None if schema else f"{place} is {_shown(value)}, but must not be given"
    for keyword, rule in schema.items():
        if keyword in _CHECKS and (mismatch := _CHECKS[keyword](rule, value, place, root, schema)) is not None:
            return mismatch
    return None


def check(schema: Any, tool: str) -> None:
    """Raise a ValueError if a schema has a keyword that `problem` does not know."""
    if isinstance(schema, list):
        for one in schema:
            check(one, tool)
    if not isinstance(schema, dict):
        return
    if unknown := sorted(set(schema) - set(_CHECKS) - ANNOTATIONS):
        raise ValueError(
            f"the schema of the tool {tool} has {unknown[0]!r}, but must have only keywords that are checked"
        )
    for keyword in ("properties", "$defs", "definitions"):
        for one in schema.get(keyword, {}).values():
            check(one, tool)
    for keyword in ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf", "not"):
        check(schema.get(keyword), tool)
    if not _is_reference(schema.get("$ref", "#")):
        raise ValueError(f"the schema of the tool {tool} has the $ref {schema['$ref']!r}, but must refer to its $defs")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_KINDS: dict[str, Callable[[Any], bool]] = {
    "integer": lambda v: _is_number(v) and (isinstance(v, int) or v.is_integer()),
    "number": _is_number,
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
    "null": lambda v: v is None,
}


def _equal(one: Any, other: Any) -> bool:
    """Compare JSON values, in which true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return one == other


def _type(rule, value, place, root, schema):
    kinds = [rule] if isinstance(rule, str) else rule
    if not any(_KINDS[kind](value) for kind in kinds):
        return f"{place} is {_shown(value)}, but must be of type {' or '.join(kinds)}"


def _enum(rule, value, place, root, schema):
    if not any(_equal(value, one) for one in rule):
        return f"{place} is {_shown(value)}, but must be one of: {', '.join(map(_shown, rule))}"


def _const(rule, value, place, root, schema):
    return _enum([rule], value, place, root, schema)


def _required(rule, value, place, root, schema):
    if isinstance(value, dict) and (missing := [name for name in rule if name not in value]):
        return f"{place}.{missing[0]} is missing"


def _properties(rule, value, place, root, schema):
    for name, one in rule.items() if isinstance(value, dict) else ():
        if name in value and (mismatch := problem(one, value[name], f"{place}.{name}", root)) is not None:
            return mismatch


def _additional(rule, value, place, root, schema):
    known = schema.get("properties", {})
    for name in [name for name in value if name not in known] if isinstance(value, dict) else ():
        if rule is False:
            return f"{place}.{name} is not a parameter; the parameters are: {', '.join(known) or 'none'}"
        if (mismatch := problem(rule, value[name], f"{place}.{name}", root)) is not None:
            return mismatch


def _items(rule, value, place, root, schema):
    first = len(schema.get("prefixItems", ()))
    for i, item in enumerate(value[first:], first) if isinstance(value, list) else ():
        if (mismatch := problem(rule, item, f"{place}[{i}]", root)) is not None:
            return mismatch


def _prefix_items(rule, value, place, root, schema):
    for i, (one, item) in enumerate(zip(rule, value, strict=False)) if isinstance(value, list) else ():
        if (mismatch := problem(one, item, f"{place}[{i}]", root)) is not None:
            return mismatch


def _unique(rule, value, place, root, schema):
    if rule and isinstance(value, list) and any(_equal(a, b) for i, a in enumerate(value) for b in value[:i]):
        return f"{place} has equal items, but they must differ"


def _bound(kind: Callable[[Any], bool], fits: Callable[[Any, Any], bool], words: str) -> Callable:
    def check_bound(rule, value, place, root, schema):
        if kind(value) and not fits(value, rule):
            return f"{place} is {_shown(value)}, but must {words} {rule}"

    return check_bound


def _is_multiple(value: Any, rule: Any) -> bool:
    if isinstance(value, int) and isinstance(rule, int):
        return value % rule == 0
    quotient = value / rule
    return math.isfinite(quotient) and quotient == int(quotient)


def _pattern(rule, value, place, root, schema):
    if isinstance(value, str) and re.search(rule, value) is None:
        return f"{place} is {_shown(value)}, but must match {rule}"


def _any_of(rule, value, place, root, schema):
    mismatch = [problem(one, value, place, root) for one in rule]
    return None if None in mismatch else " or ".join(str(one) for one in mismatch)


def _one_of(rule, value, place, root, schema):
    matches = sum(problem(one, value, place, root) is None for one in rule)
    return None if matches == 1 else f"{place} is {_shown(value)}, but must match exactly one of {len(rule)} schemas"


def _all_of(rule, value, place, root, schema):
    return next((mismatch for one in rule if (mismatch := problem(one, value, place, root)) is not None), None)


def _not(rule, value, place, root, schema):
    return f"{place} is {_shown(value)}, which is not possible" if problem(rule, value, place, root) is None else None


def _is_reference(reference: Any) -> bool:
    return isinstance(reference, str) and re.fullmatch(r"#|#/(\$defs|definitions)/[^/~%]+", reference) is not None


def _ref(rule, value, place, root, schema):
    target = root
    for key in rule.split("/")[1:]:
        target = target[key]
    return problem(target, value, place, root)


_CHECKS: dict[str, Callable[..., str | None]] = {
    "type": _type, "enum": _enum, "const": _const, "required": _required, "properties": _properties,
    "additionalProperties": _additional, "items": _items, "prefixItems": _prefix_items, "uniqueItems": _unique,
    "pattern": _pattern, "anyOf": _any_of, "oneOf": _one_of, "allOf": _all_of, "not": _not, "$ref": _ref,
    "minimum": _bound(_is_number, lambda v, r: v >= r, "be >="),
    "maximum": _bound(_is_number, lambda v, r: v <= r, "be <="),
    "exclusiveMinimum": _bound(_is_number, lambda v, r: v > r, "be >"),
    "exclusiveMaximum": _bound(_is_number, lambda v, r: v < r, "be <"),
    "multipleOf": _bound(_is_number, _is_multiple, "be a multiple of"),
    "minLength": _bound(_KINDS["string"], lambda v, r: len(v) >= r, "have a length >="),
    "maxLength": _bound(_KINDS["string"], lambda v, r: len(v) <= r, "have a length <="),
    "minItems": _bound(_KINDS["array"], lambda v, r: len(v) >= r, "have a length >="),
    "maxItems": _bound(_KINDS["array"], lambda v, r: len(v) <= r, "have a length <="),
    "minProperties": _bound(_KINDS["object"], lambda v, r: len(v) >= r, "have a number of entries >="),
    "maxProperties": _bound(_KINDS["object"], lambda v, r: len(v) <= r, "have a number of entries <="),
}  # fmt: skip


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]}…"
