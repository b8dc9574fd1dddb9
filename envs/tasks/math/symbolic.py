"""Comparison of expressions by value, parsed with the LaTeX parser of math-verify.

Two constants are equal if 40 digits agree, and two formulas if they agree at four points. Expressions without a value
there (undefined functions, unevaluated objects) are compared by math-verify. Decimals are exact: 0.333 is not 1/3.

Expensive expressions are rejected before they are computed: the parser builds powers and factorials without evaluating
them, so their size can be bounded first. Python's `eval` is never reached: sympy's string parser, which uses it, is
temporarily replaced by one that accepts only digits (`no_eval`).
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

_NUMBER = re.compile(r"\s*([-+]?)\s*(?:(\d+)(?:\.(\d*))?|\.(\d+))(?:[eE]([-+]?\d{1,3}))?\s*")
_FRACTION = re.compile(r"\s*([-+]?)\s*(\d*)\s*\\frac\s*\{\s*([-+]?)(\d+)\s*\}\s*\{\s*([-+]?)(\d+)\s*\}\s*")
_SLASH = re.compile(r"\s*([-+]?)\s*(?:(\d+)\s+)?(\d+)\s*/\s*(\d+)\s*")
_REFUSED = re.compile(r"\\(?:sum|prod|int|oint|lim|limsup|liminf|partial|cdots|ldots|dots)(?![a-zA-Z])")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*\^\s*\\circ")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\s*\{?(\d+)\}?")
_COMPLEX = re.compile(r"(?<![a-zA-Z\\])i(?![a-zA-Z])|\\imath")


def warm_up() -> None:
    """Load the libraries and the parser's tables, which takes a second or more."""
    import math_verify  # noqa: F401

    equal("x + 1", "1 + x")


def rational(latex: str) -> Fraction | None:
    """Return the value of a number, fraction or mixed number in digits, else None."""
    if len(latex) > MAX_LENGTH:
        return None
    if (match := _NUMBER.fullmatch(latex)) is not None:
        whole, after = match[2] or "0", match[3] or match[4] or ""
        value = Fraction(int(whole + after), 10 ** len(after)) * Fraction(10) ** int(match[5] or 0)
    elif (match := _FRACTION.fullmatch(latex)) is not None:
        if not int(match[6]):
            return None
        value = Fraction(int(match[4]), int(match[6]))
        if match[2]:
            if match[3] or match[5]:
                return None
            value += int(match[2])
        value = -value if (match[3] == "-") != (match[5] == "-") else value
    elif (match := _SLASH.fullmatch(latex)) is not None and int(match[4]):
        value = int(match[2] or 0) + Fraction(int(match[3]), int(match[4]))
    else:
        return None
    return -value if match[1] == "-" else value


def equal(gold: str, answer: str, factor: str = "1") -> bool:
    """Check whether two expressions are equal, with the second one multiplied by `factor`.

    Raises:
        Unreadable: An expression cannot be parsed or is too large.
    """
    one, other, by = rational(gold), rational(answer), rational(factor)
    if one is not None and other is not None and by is not None:
        return one == other * by
    _check_length(gold, answer)
    real = not (_COMPLEX.search(gold) or _COMPLEX.search(answer))
    with no_eval():
        a, b = parsed(gold, real), parsed(answer, real)
        return _same(a, b if factor == "1" else b * parsed(factor, real), real)


def near(gold: str, value: float, relative: float) -> bool:
    """Check whether an expression is close to a floating-point number.

    Raises:
        Unreadable: The expression cannot be parsed or is too large.
    """
    _check_length(gold)
    with no_eval():
        exact = _value(parsed(gold, True), {})
        return exact is not None and bool(exact.is_real) and math.isclose(float(exact), value, rel_tol=relative)


def proportional(gold: tuple[str, str], answer: tuple[str, str]) -> bool:
    """Check whether two equations, given by their sides, are equal up to a non-zero factor."""
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
    """Restrict strings passed to sympy to numbers in digits; others raise an error.

    Otherwise sympy evaluates strings with Python's `eval`, and the LaTeX parser passes it every number as a string.
    """
    import sympy.physics.units  # noqa: F401  imported first, because it parses strings when `simplify` imports it
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
    """Parse LaTeX into a sympy expression of bounded size; call it within `no_eval`.

    Raises:
        Unreadable: The expression cannot be parsed or is too large.
    """
    import sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, NormalizationConfig, latex2sympy, normalize_latex

    if (value := rational(latex)) is not None:
        return sympy.Rational(value.numerator, value.denominator)
    _check(latex)
    latex = _REPEATING.sub(_repeating, latex)
    latex = _DEGREES.sub(r"(\\frac{\1 \\pi}{180})", latex)
    latex = re.sub(r"\^\s*([-+]\s*\d+)", r"^{\1}", latex)
    spelling = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    try:
        expression = latex2sympy(
            normalize_latex(latex, config=spelling), is_real=real, convert_degrees=False, normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=False),
        )  # fmt: skip
        if not isinstance(expression, sympy.Expr):
            raise Unreadable(f"{type(expression).__name__} where an expression was expected")
        if not real:
            symbols = cast(set[Any], expression.free_symbols)
            expression = expression.xreplace({s: sympy.I for s in symbols if s.name == "i"})
        _bits(expression)
        if expression.has(sympy.nan, sympy.zoo):
            raise Unreadable("division by zero")
    except Unreadable:
        raise
    except RecursionError:
        raise Unreadable("nested too deeply") from None
    except Exception as error:  # the parser raises plain exceptions, and sympy raises many kinds
        raise Unreadable(f"not an expression ({type(error).__name__})") from None
    return expression


# ---------------------------------------------------------------------------------------------------- limits


def _check_length(*texts: str) -> None:
    if any(len(text) > MAX_LENGTH for text in texts):
        raise Unreadable("too long")


def _check(latex: str) -> None:
    """Reject LaTeX that the parser would evaluate immediately or misread."""
    if (command := _REFUSED.search(latex)) is not None:
        raise Unreadable(f"{command.group()} in an answer")
    if re.search(r"\d\s+[\d.]|\d,\d", latex):
        raise Unreadable("numbers side by side")
    if re.search(r"""[\d})]\s*(?:['"]|\^\s*\{?\s*\\prime)""", latex):
        raise Unreadable("a prime after a number")
    if re.search(r"\\[dt]?binom|\\choose|\\gcd|\\lcm|\\operatorname|\\mod", latex):
        largest = max((int(n) for n in re.findall(r"\d+", latex)), default=0)
        if largest > 2**MAX_ARGUMENT_BITS or r"\operatorname" in latex:
            raise Unreadable("a function of large numbers")
    if re.search(r"__|[;@#`\x00]|\\(?:text|mbox)\b", latex):
        raise Unreadable("signs that are in no expression")


def _bits(e) -> float:
    """Return a bound for log2 |e| and log2 |1 / e|, with symbols near one.

    Raises:
        Unreadable: The bound exceeds the limits.
    """
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


def _repeating(match: re.Match) -> str:
    whole, before, period = match.groups()
    top = int(whole + before + period) - int(whole + before or 0)
    return rf"\frac{{{top}}}{{{(10 ** len(period) - 1) * 10 ** len(before)}}}"


# ---------------------------------------------------------------------------------------------------- values


def _same(a, b, real: bool) -> bool:
    from sympy import oo

    infinite = [x if x in (oo, -oo) else None for x in (a, b)]
    if infinite != [None, None]:
        return a == b
    names = _names(a, b)
    if None not in (exact := (_exact(a), _exact(b))):
        return exact[0] == exact[1]  # 2^1000 - 1 and 2^1000 agree in 300 digits
    decided = False
    for point in _points(names):
        x, y = _value(a, point, real), _value(b, point, real)
        if x is None or y is None:
            continue
        if not _close(x, y):
            if 0 in (x, y) and max(abs(x), abs(y)) < TINY:
                continue  # zero, or terms that cancel out
            return False
        decided = decided or max(abs(x), abs(y)) > 1e-20 or x == y == 0
    return bool(decided) or _by_math_verify(a, b)


def _exact(e):
    """Return the exact value of an expression of rational numbers, else None.

    The expression may consist of sums, products, integer powers, factorials and binomials.
    """
    from sympy import Rational, binomial, factorial, preorder_traversal

    for part in cast(Iterator[Any], preorder_traversal(e)):
        if part.is_Pow and not part.exp.doit().is_Integer:
            return None
        if not (part.is_Add or part.is_Mul or part.is_Pow or isinstance(part, Rational | factorial | binomial)):
            return None
    value = e.doit()
    return value if value.is_Rational else None


def _by_math_verify(a, b) -> bool:
    """Compare two expressions with math-verify, the gold one first.

    Its time limits use signals and are disabled; the caller enforces a time limit.
    """
    import logging

    import math_verify

    logging.getLogger("math_verify.grader").setLevel(logging.ERROR)  # it warns that its time limits are disabled
    return bool(math_verify.verify(a, b, float_rounding=15, strict=True, timeout_seconds=None))


def _names(*expressions) -> list:
    return sorted(set().union(*(e.free_symbols for e in expressions)), key=lambda s: s.name)


def _points(names: list) -> list[dict]:
    """Return values for the symbols, the same in every call.

    They are positive at three points and negative at one.
    """
    from sympy import Rational

    if not names:
        return [{}]
    rng = random.Random(16)
    signs = (1, 1, 1, -1)[:POINTS]
    return [{s: sign * Rational(rng.randrange(300, 2900), 1009) for s in names} for sign in signs]


def _is_odd_root(e) -> bool:
    """Check for a root like the third one of a negative number."""
    return e.is_Pow and e.exp.is_Rational and e.exp.q % 2 == 1 and e.exp.q > 1 and e.base.is_negative is True


def _value(e, point: dict, real: bool = False):
    """Return the numeric value of an expression at a point, or None.

    With `real`, odd roots of negative numbers are real.
    """
    from sympy import nan, zoo

    try:
        value = e.subs(point) if point else e
        if real:
            value = value.replace(_is_odd_root, lambda root: (-1) ** root.exp.p * (-root.base) ** root.exp)
        value = value.evalf(DIGITS, maxn=400)
    except (ArithmeticError, ValueError, TypeError, AttributeError, NotImplementedError, RecursionError):
        return None
    if value in (nan, zoo) or not value.is_number or not value.is_finite:
        return None
    return value if value.is_comparable or value.as_real_imag()[0].is_comparable else None


def _close(x, y) -> bool:
    largest = max(abs(x), abs(y))
    return bool(largest == 0) or bool(abs(x - y) * 10**40 <= largest)
