"""Python values as JSON trees, the form in which results leave an untrusted process.

    None -> ["n"]   True -> ["b", 1]   12 -> ["i", "c"] (hexadecimal)   0.5 -> ["f", "0.5"]   "a" -> ["s", "a"]
    [1] -> ["l", [...]]   (1,) -> ["t", [...]]   {1} -> ["S", [...]]   {1: 2} -> ["d", [[key, value]]]
    Fraction(1, 2) -> ["q", "1", "2"] (hexadecimal)   Decimal("0.5") -> ["D", "0.5"]
    anything else -> ["o", name of its type]

A tree is compared and converted to source without building sets or dictionaries from it, so that keys chosen to collide
cause no slowdown.
"""

import base64
import contextlib
import decimal
import fractions

MAX_DEPTH = 100
MAX_NODES = 200_000
MAX_EXPONENT = 400
"""Largest exponent of ten and number of digits of a Decimal; its exact ratio would be too long otherwise."""


class NotAValue(ValueError):
    """An invalid tree: forged, truncated or too deep."""


def encode(value, depth: int = 0):
    """Return the tree of a value; subclasses are encoded as their base type."""
    if depth > MAX_DEPTH:
        return ["o", "a value nested too deeply"]
    kind = type(value)
    if value is None:
        return ["n"]
    if isinstance(value, bool):
        return ["b", int(value)]
    if isinstance(value, int):
        return ["i", format(int(value), "x")]
    if isinstance(value, float):
        return ["f", float.__repr__(value)]
    if isinstance(value, complex):
        return ["c", float.__repr__(value.real), float.__repr__(value.imag)]
    if isinstance(value, str):
        return ["s", str.__str__(value)]
    if isinstance(value, (bytes, bytearray)):
        return ["y", base64.b64encode(bytes(value)).decode()]
    for base, tag in ((list, "l"), (tuple, "t"), (set, "S"), (frozenset, "F")):
        if isinstance(value, base):
            return [tag, [encode(item, depth + 1) for item in base.__iter__(value)]]  # pyright: ignore[reportArgumentType]
    if isinstance(value, dict):
        return ["d", [[encode(key, depth + 1), encode(held, depth + 1)] for key, held in dict.items(value)]]
    if isinstance(value, decimal.Decimal):
        text = decimal.Decimal.__str__(value)
        return ["D", text] if _is_short(value) else ["o", "a Decimal too long to report"]
    if isinstance(value, fractions.Fraction):
        above, below = value.as_integer_ratio()
        return ["q", format(above, "x"), format(below, "x")]
    return ["o", getattr(kind, "__name__", "?")]


def _is_short(number: decimal.Decimal) -> bool:
    _, digits, exponent = number.as_tuple()
    return len(digits) <= MAX_EXPONENT and (isinstance(exponent, str) or abs(exponent) <= MAX_EXPONENT)


def _decimal(text) -> decimal.Decimal:
    number = decimal.Decimal(str(text)) if len(str(text)) < 3 * MAX_EXPONENT else None
    if number is None or not _is_short(number):
        raise NotAValue("a Decimal is too long")
    return number


class _Budget:
    def __init__(self):
        self.left = MAX_NODES

    def take(self, depth):
        self.left -= 1
        if self.left < 0 or depth > MAX_DEPTH + 1:
            raise NotAValue("the value is too large")


def canonical(tree) -> str | None:
    """Return a string that is equal for equal values, or None for NaN and objects.

    1, 1.0 and True are equal, and so are sets in any order.
    """
    try:
        return _canonical(tree, 0, _Budget())
    except _EqualsNothing:
        return None


class _EqualsNothing(Exception):
    pass


def _canonical(tree, depth, budget):
    budget.take(depth)
    tag, *rest = _parts(tree)
    if tag in "bifcqD":
        return _number(tag, rest)
    if tag == "n":
        return "n"
    if tag == "s":
        return "s" + repr(str(rest[0]))
    if tag == "y":
        return "y" + repr(base64.b64decode(rest[0], validate=True))
    if tag in "lt":
        return tag + "[" + ",".join(_canonical(item, depth + 1, budget) for item in rest[0]) + "]"
    if tag in "SF":
        return "S{" + ",".join(sorted({_canonical(item, depth + 1, budget) for item in rest[0]})) + "}"
    if tag == "d":
        pairs = (_pair(pair) for pair in rest[0])
        return "d{" + ",".join(sorted(":".join(_canonical(x, depth + 1, budget) for x in pair) for pair in pairs)) + "}"
    raise _EqualsNothing  # an object: no literal equals it


def _number(tag, rest):
    if tag == "c":
        real, imaginary = (_number("f", [text]) for text in rest)
        return real if imaginary == "i0/1" else f"c({real},{imaginary})"
    if tag in "fD":
        value = float(rest[0]) if tag == "f" else _decimal(rest[0])
        if value != value:
            raise _EqualsNothing
        if value in (float("inf"), float("-inf")):
            return f"f{float(value)}"
        above, below = value.as_integer_ratio()
    elif tag == "q":
        exact = fractions.Fraction(int(rest[0], 16), int(rest[1], 16))
        above, below = exact.numerator, exact.denominator
    else:
        above, below = int(rest[0]) if tag == "b" else int(rest[0], 16), 1
    return f"i{above:x}/{below:x}"


def source(tree) -> str:
    """Return Python source of a value for evaluation in a clean process.

    Raises:
        NotAValue: The tree contains an object.
    """
    return _source(tree, 0, _Budget())


def _source(tree, depth, budget):
    budget.take(depth)
    tag, *rest = _parts(tree)
    if tag == "n":
        return "None"
    if tag == "b":
        return str(bool(rest[0]))
    if tag == "i":
        number = int(rest[0], 16)
        text = str(number) if abs(number) < 1 << 1000 else f"{number:#x}"  # long decimals are slow
        return text if number >= 0 else f"({text})"
    if tag == "f":
        number = float(rest[0])
        return repr(number) if 0 <= number < float("inf") else f"float({str(number)!r})"
    if tag == "c":
        return "complex({}, {})".format(*(_source(["f", text], depth + 1, budget) for text in rest))
    if tag == "q":
        return f"__import__('fractions').Fraction({int(rest[0], 16):#x}, {int(rest[1], 16):#x})"
    if tag == "D":
        return f"__import__('decimal').Decimal({str(_decimal(rest[0]))!r})"
    if tag == "s":
        return repr(str(rest[0]))
    if tag == "y":
        return repr(base64.b64decode(rest[0]))
    if tag in "ltSF":
        items = "".join(_source(item, depth + 1, budget) + "," for item in rest[0])
        return {"l": f"[{items}]", "t": f"({items})", "S": f"set([{items}])", "F": f"frozenset([{items}])"}[tag]
    if tag == "d":
        pairs = (_pair(pair) for pair in rest[0])
        return "{" + ",".join(":".join(_source(x, depth + 1, budget) for x in pair) for pair in pairs) + "}"
    raise NotAValue(f"a value of type {rest[0] if rest else '?'} cannot be compared")


def check(tree) -> None:
    """Raise NotAValue unless `encode` could have produced this tree."""
    try:
        canonical(tree)
        with contextlib.suppress(NotAValue):  # objects have no source, but are reported as such
            source(tree)
    except NotAValue:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError, ArithmeticError) as why:
        raise NotAValue(f"not a value: {why}") from None


def _parts(tree):
    sizes = {"n": 0, "c": 2, "q": 2}
    if (
        not isinstance(tree, list)
        or not tree
        or not isinstance(tree[0], str)
        or tree[0] not in tuple("nbifcqDsyltSFdo")
    ):
        raise NotAValue("not a value")
    if len(tree) != 1 + sizes.get(tree[0], 1):
        raise NotAValue("not a value")
    return tree


def _pair(pair):
    if not isinstance(pair, list) or len(pair) != 2:
        raise NotAValue("not a pair")
    return pair
