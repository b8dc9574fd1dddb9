r"""Expressions by value: read with the LaTeX parser of math-verify, compared exactly or to 40 digits.

Two constants are equal if 40 digits agree, two formulas if they agree at four points; what has no value there
(undefined functions, unevaluated objects) is left to math-verify. Decimals are exact: 0.333 is not 1/3.

Everything that could take long is refused before it is computed: the parser builds powers and factorials without
evaluating them, so their size can be bounded first. Python's `eval` is out of reach: sympy's parser of strings, which
uses it, is replaced meanwhile by one that reads digits (`no_eval`).
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, cast

from envs.tasks.math.reading import Unreadable

MAX_LENGTH = 600
MAX_BITS = 40_000
MAX_ARGUMENT_BITS = 11
DIGITS = 50
POINTS = 4
TINY = 1e-45

_NUMBER = re.compile(r"\s*([-+]?)\s*(?:(\d+)(?:\.(\d*))?|\.(\d+))\s*")
_FRACTION = re.compile(r"\s*([-+]?)\s*(\d*)\s*\\frac\s*\{\s*([-+]?)(\d+)\s*\}\s*\{\s*([-+]?)(\d+)\s*\}\s*")
_SLASH = re.compile(r"\s*([-+]?)\s*(?:(\d+)\s+)?(\d+)\s*/\s*(\d+)\s*")
_REFUSED = re.compile(r"\\(?:sum|prod|int|oint|lim|limsup|liminf|partial|cdots|ldots|dots)(?![a-zA-Z])")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*\^\s*\\circ")
_REPEATING = re.compile(r"(\d+)\.(\d*)\\overline\s*\{?(\d+)\}?")
_COMPLEX = re.compile(r"(?<![a-zA-Z\\])i(?![a-zA-Z])|\\imath")


def warm_up() -> None:
    """Loads the libraries and the parser's tables, which takes a second or more."""
    import math_verify  # noqa: F401

    equal("x + 1", "1 + x")


def rational(latex: str) -> Fraction | None:
    """The value of a number, a fraction or a mixed number that is written in digits; None for other texts."""
    if len(latex) > MAX_LENGTH:
        return None
    if (found := _NUMBER.fullmatch(latex)) is not None:
        whole, after = found[2] or "0", found[3] or found[4] or ""
        value = Fraction(int(whole + after), 10 ** len(after))
    elif (found := _FRACTION.fullmatch(latex)) is not None:
        if not int(found[6]):
            return None
        value = Fraction(int(found[4]), int(found[6]))
        if found[2]:
            if found[3] or found[5]:
                return None
            value += int(found[2])
        value = -value if (found[3] == "-") != (found[5] == "-") else value
    elif (found := _SLASH.fullmatch(latex)) is not None and int(found[4]):
        value = int(found[2] or 0) + Fraction(int(found[3]), int(found[4]))
    else:
        return None
    return -value if found[1] == "-" else value


def equal(gold: str, answer: str, factor: str = "1") -> bool:
    r"""Whether two expressions have the same value, the second one multiplied by `factor`. Raises `Unreadable`."""
    one, other, by = rational(gold), rational(answer), rational(factor)
    if one is not None and other is not None and by is not None:
        return one == other * by
    _check_length(gold, answer)
    real = not (_COMPLEX.search(gold) or _COMPLEX.search(answer))
    with no_eval():
        a, b = parsed(gold, real), parsed(answer, real)
        return _same(a, b if factor == "1" else b * parsed(factor, real))


def near(gold: str, value: float, relative: float) -> bool:
    """Whether an expression comes to about a floating-point number. Raises `Unreadable`."""
    _check_length(gold)
    with no_eval():
        exact = _value(parsed(gold, True), {})
        return exact is not None and bool(exact.is_real) and math.isclose(float(exact), value, rel_tol=relative)


def proportional(gold: tuple[str, str], answer: tuple[str, str]) -> bool:
    """Whether two equations, each given by its sides, are the same up to a factor other than zero."""
    _check_length(*gold, *answer)
    real = not any(_COMPLEX.search(side) for side in (*gold, *answer))
    with no_eval():
        a, b = (parsed(left, real) - parsed(right, real) for left, right in (gold, answer))
        names = _names(a, b)
        ratios = []
        for point in _points(names):
            x, y = _value(a, point), _value(b, point)
            if x is None or y is None or abs(x) < 1e-20 or abs(y) < 1e-20:
                return False
            ratios.append(x / y)
        return bool(names) and all(_close(ratios[0], r) for r in ratios[1:])


@contextlib.contextmanager
def no_eval():
    """Within it a string that sympy is given is a number in digits or an error.

    Outside it sympy evaluates strings with Python's `eval`, and the LaTeX parser hands it every number as a string.
    """
    import sympy.physics.units  # noqa: F401  `simplify` imports it, and it parses strings of its own meanwhile
    from sympy.parsing import sympy_parser

    before, sympy_parser.parse_expr = sympy_parser.parse_expr, _only_a_number
    try:
        yield
    finally:
        sympy_parser.parse_expr = before


def _only_a_number(text: str, *_, **__):
    from sympy import Rational

    value = rational(text) if _NUMBER.fullmatch(text) else None
    if value is None:
        raise Unreadable("a string that is no number")
    return Rational(value.numerator, value.denominator)


@functools.lru_cache(maxsize=256)
def parsed(latex: str, real: bool) -> Any:
    """A sympy object of bounded size; call it within `no_eval`. Raises `Unreadable`."""
    import sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, NormalizationConfig, latex2sympy, normalize_latex

    _check(latex)
    latex = _REPEATING.sub(_repeating, latex)
    latex = _DEGREES.sub(r"(\\frac{\1 \\pi}{180})", latex)
    latex = re.sub(r"\^\s*([-+]\s*\d+)", r"^{\1}", latex)
    spelling = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    try:
        found = latex2sympy(
            normalize_latex(latex, config=spelling), is_real=real, convert_degrees=False, normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=False),
        )  # fmt: skip
        if not isinstance(found, sympy.Expr):
            raise Unreadable(f"{type(found).__name__} where an expression was expected")
        if not real:
            symbols = cast(set[Any], found.free_symbols)
            found = found.xreplace({s: sympy.I for s in symbols if s.name == "i"})
        _bits(found)
        if found.has(sympy.nan, sympy.zoo):
            raise Unreadable("division by zero")
    except Unreadable:
        raise
    except RecursionError:
        raise Unreadable("nested too deeply") from None
    except Exception as error:  # the parser raises plain exceptions and whatever sympy raises
        raise Unreadable(f"not an expression ({type(error).__name__})") from None
    return found


# ---------------------------------------------------------------------------------------------------- limits


def _check_length(*texts: str) -> None:
    if any(len(text) > MAX_LENGTH for text in texts):
        raise Unreadable("too long")


def _check(latex: str) -> None:
    """What the parser would evaluate at once, or would read in a way that nobody means."""
    if (command := _REFUSED.search(latex)) is not None:
        raise Unreadable(f"{command.group()} in an answer")
    if re.search(r"\d\s+[\d.]", latex) or re.search(r"\d,\d", latex):
        raise Unreadable("numbers side by side")
    if re.search(r"\\[dt]?binom|\\choose|\\gcd|\\lcm|\\operatorname|\\mod", latex):
        largest = max((int(n) for n in re.findall(r"\d+", latex)), default=0)
        if largest > 2**MAX_ARGUMENT_BITS or r"\operatorname" in latex:
            raise Unreadable("a function of large numbers")
    if re.search(r"__|[;@#`\x00]|\\(?:text|mbox)\b", latex):
        raise Unreadable("signs that are in no expression")


def _bits(e) -> float:
    """A bound for log2 |e| and log2 |1 / e|, with symbols near one. Raises `Unreadable` where it is out of reach."""
    import sympy

    if e.is_Integer:
        size = max(1, int(e).bit_length())
    elif e.is_Rational:
        size = max(int(e.p).bit_length(), int(e.q).bit_length())
    elif e.is_Float:
        size = abs(math.log2(abs(float(e)))) + 1 if float(e) not in (0.0, math.inf, -math.inf) else 1
    elif not e.args:
        size = 2
    elif isinstance(e, sympy.Integral | sympy.Sum | sympy.Product | sympy.Limit | sympy.Derivative):
        raise Unreadable(f"{type(e).__name__} in an answer")
    elif e.is_Pow or isinstance(e, sympy.exp):
        base, exponent = (e.base, e.exp) if e.is_Pow else (sympy.E, e.args[0])
        power = _bits(exponent)
        if power > 15:
            raise Unreadable("a power out of reach")
        size = _bits(base) * 2**power
    elif isinstance(e, sympy.factorial | sympy.gamma | sympy.binomial):
        if any(_bits(a) > MAX_ARGUMENT_BITS for a in e.args):
            raise Unreadable("a factorial out of reach")
        size = 2**MAX_ARGUMENT_BITS
    elif e.is_Mul:
        size = sum(_bits(a) for a in e.args)
    else:
        size = max(_bits(a) for a in e.args) + len(e.args)
    if size > MAX_BITS:
        raise Unreadable("a number out of reach")
    return size


def _repeating(found: re.Match) -> str:
    whole, before, period = found.groups()
    top = int(whole + before + period) - int(whole + before)
    return rf"\frac{{{top}}}{{{(10 ** len(period) - 1) * 10 ** len(before)}}}"


# ---------------------------------------------------------------------------------------------------- values


def _same(a, b) -> bool:
    from sympy import oo

    infinite = [x if x in (oo, -oo) else None for x in (a, b)]
    if infinite != [None, None]:
        return a == b
    names = _names(a, b)
    if None not in (exact := (_exact(a), _exact(b))):
        return exact[0] == exact[1]  # 2^1000 - 1 agrees with 2^1000 in 300 digits
    decided = False
    for point in _points(names):
        x, y = _value(a, point), _value(b, point)
        if x is None or y is None:
            continue
        if not _close(x, y):
            if 0 in (x, y) and max(abs(x), abs(y)) < TINY:
                continue  # zero, or terms that cancel
            return False
        decided = decided or max(abs(x), abs(y)) > 1e-20 or x == y == 0
    return decided or _by_math_verify(a, b)


def _exact(e):
    """The rational number that sums, products, whole powers and factorials of rational numbers come to, else None."""
    from sympy import Rational, binomial, factorial, preorder_traversal

    for part in cast(Iterator[Any], preorder_traversal(e)):
        if part.is_Pow and not part.exp.doit().is_Integer:
            return None
        if not (part.is_Add or part.is_Mul or part.is_Pow or isinstance(part, Rational | factorial | binomial)):
            return None
    value = e.doit()
    return value if value.is_Rational else None


def _by_math_verify(a, b) -> bool:
    """The judgement of math-verify, gold first. Its own time limits work with signals; ours is outside."""
    import logging

    import math_verify

    logging.getLogger("math_verify.grader").setLevel(logging.ERROR)  # it warns that its time limits are off
    return bool(math_verify.verify(a, b, float_rounding=15, strict=True, timeout_seconds=None))


def _names(*expressions) -> list:
    return sorted(set().union(*(e.free_symbols for e in expressions)), key=lambda s: s.name)


def _points(names: list) -> list[dict]:
    """Values for the symbols, the same in every call: at three points positive ones, at one point negative ones."""
    from sympy import Rational

    if not names:
        return [{}]
    rng = random.Random(16)
    signs = (1, 1, 1, -1)[:POINTS]
    return [{s: sign * Rational(rng.randrange(300, 2900), 1009) for s in names} for sign in signs]


def _value(e, point: dict):
    """The number an expression comes to at a point, or None."""
    from sympy import nan, zoo

    try:
        value = e.subs(point).evalf(DIGITS, maxn=400) if point else e.evalf(DIGITS, maxn=400)
    except (ArithmeticError, ValueError, TypeError, AttributeError, NotImplementedError, RecursionError):
        return None
    if value in (nan, zoo) or not value.is_number or not value.is_finite:
        return None
    return value if value.is_comparable or value.as_real_imag()[0].is_comparable else None


def _close(x, y) -> bool:
    largest = max(abs(x), abs(y))
    return bool(largest == 0) or bool(abs(x - y) * 10**40 <= largest)
