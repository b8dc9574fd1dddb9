"""Parsing of answers: numbers, words, sets, tuples, intervals, unions, matrices and equations.

The structure is parsed here from the outside in. The LaTeX expressions inside are compared by value (`symbolic.py`).
"""

from __future__ import annotations

import dataclasses
import re

from envs.tasks.math import units
from envs.tasks.math.normalize import number_of

MAX_DEPTH = 24
"""Maximum nesting depth of brackets."""


class Unreadable(ValueError):
    """An answer that cannot be parsed; the message gives the reason."""


@dataclasses.dataclass(frozen=True)
class Scalar:
    """An expression with its scale and unit.

    Attributes:
        latex: The expression without percent sign, degree sign and unit.
        scale: "", "percent" or "degrees".
        unit: Name of the unit, "" for none, "?" for an unknown one.
    """

    latex: str
    scale: str = ""
    unit: str = ""


@dataclasses.dataclass(frozen=True)
class WordAnswer:
    """Words in lower case.

    `letters` are the sorted letters of a few that may be a product, such as ab.
    """

    text: str
    letters: str = ""


@dataclasses.dataclass(frozen=True)
class Listing:
    """Several values in any order: a set, or values separated by commas.

    `braces` marks a set in braces, which is not merged with other values.
    """

    items: tuple
    braces: bool = False


@dataclasses.dataclass(frozen=True)
class Ordered:
    """Values in brackets, in order: a tuple or an interval.

    `brackets` is the pair of brackets, such as "()" or "[)".
    """

    items: tuple
    brackets: str


@dataclasses.dataclass(frozen=True)
class Union:
    """A union of intervals and sets."""

    parts: tuple


@dataclasses.dataclass(frozen=True)
class Matrix:
    """Rows of values."""

    rows: tuple[tuple, ...]


@dataclasses.dataclass(frozen=True)
class Equation:
    """The two sides of an equation.

    For a chain a = b = c, these are the first and the last side. `claims` are the pairs of neighbouring sides that are
    numbers and that `=` says are equal.
    """

    left: str
    right: object
    claims: tuple[tuple[str, str], ...] = ()


_OPEN, _CLOSE = "([{", ")]}"
_JOIN = re.compile(r"\\text\{[\s,;]*(and|or)[\s,;]*\}|\b(and|or)\b(?![^{]*\})")
THOUSANDS = re.compile(r"[-+]?\s?\d{1,3}((,\d{3})+|( \d{3})+)(\.\d+)?")
_MATRIX = re.compile(r"\\begin\{([pbBvV]?matrix|array|smallmatrix)\}(?:\{[^{}]*\})?(.*)\\end\{\1\}", re.DOTALL)
_SCALED_MATRIX = re.compile(r"(.+?)\s*(?:\\cdot|\\times)?\s*(\\begin\{[pbB]matrix\}.*)", re.DOTALL)
_TO = re.compile(r"([\d.]+)\s*\\text\{\s*to\s*\}\s*([\d.]+)")
_TIME = re.compile(r"\d{1,2}:\d{2}.*")
_LARGE = re.compile(
    r"([-+]?\d[\d.,]*)\s*(?:\\text\{\s*)?(thousand|million|billion|trillion)\b\s*([a-zA-Z ]*)(?:\})?", re.IGNORECASE
)
_POWERS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_RELATION = re.compile(r"\\le\b|\\ge\b|\\ne\b|<=|>=|<|>")
_ABSOLUTE = re.compile(r"\|\s*([a-zA-Z])\s*\|")
_WITHOUT = re.compile(r"\\mathbb\s?\{?R\}?\s*(?:\\setminus|\\backslash|-)\s*\\\{([^{},]*)\\\}")
_LEADING = re.compile(
    r"^(?:\\text\{[^{}]*?(?:is|are|=|:)\s*\}|(?:the )?(?:final )?(?:answer|solution|value) is\b|\\approx\b"
    r"|\\therefore\b|\\text\{(?:the )?(?:answer|option|choice)[^{}]*\}|≈)\s*", re.IGNORECASE)  # fmt: skip
_MEMBER = re.compile(r"^[a-zA-Z](?:_\{?\w+\}?)?\s*\\in\b\s*(?!\\mathbb)")
_CONDITION = re.compile(r",\s*(?:\\text\{[^{}]*\}\s*)?[a-z]\s*\\in\s*\\mathbb\{?[A-Z]\}?.*$")
_VARIABLE = re.compile(r"[a-zA-Z](?:_\{?\w+\}?)?(?:\([a-z]\))?|\\[a-z]+")
_LETTERS = re.compile(r"\\text\{\s*([A-Z](?:\s*,\s*[A-Z])+)\s*\}")
_BASE = re.compile(r"(\d+)_\{?(\d+)\}?")
_EVERY_REAL = re.compile(r"(?:[a-z]\s*\\in\s*)?\\mathbb\s?\{?R\}?")


def read(text: str, depth: int = 0):
    """Parse a normalized answer.

    Raises:
        Unreadable: The answer cannot be parsed.
    """
    text = _unbraced(text.strip())
    if depth > MAX_DEPTH:
        raise Unreadable("nested too deeply")
    if not text:
        raise Unreadable("empty")
    if depth == 0 and _depth(text) > MAX_DEPTH:
        raise Unreadable("nested too deeply")
    if THOUSANDS.fullmatch(text):
        return Scalar(text.replace(",", "").replace(" ", ""))
    if (shorter := _LEADING.sub("", text)) and shorter != text:
        return read(shorter, depth + 1)
    text = _CONDITION.sub("", text)
    if _EVERY_REAL.fullmatch(text):
        return _interval(r"-\infty", r"\infty", "()")
    if (without := _WITHOUT.fullmatch(text)) is not None:
        return _all_but(without[1])
    if (member := _MEMBER.match(text)) is not None:
        return read(text[member.end() :], depth + 1)
    if (value := _number_in_words(text)) is not None:
        return Scalar(str(value))
    if (letters := _LETTERS.fullmatch(text)) is not None:
        return read(letters[1], depth + 1)
    joined = _JOIN.sub(" ; ", text) if not _whole_text(text) else text
    for separator in (";", ","):
        parts = [p for p in split(joined, separator) if p.strip()]
        if len(parts) > 1 and not _MATRIX.fullmatch(text):
            return _listing([read(p, depth + 1) for p in parts])
    text = joined.replace(" ; ", " ").strip()
    if len(parts := split(text, r"\cup")) > 1:
        return Union(tuple(read(p, depth + 1) for p in parts))
    if (matrix := _MATRIX.fullmatch(text)) is not None:
        rows = [r for r in re.split(r"\\\\(?:\s*\[[^\]]*\])?", matrix[2]) if r.strip()]
        return Matrix(tuple(tuple(read(cell, depth + 1) for cell in row.split("&")) for row in rows))
    if (scaled := _SCALED_MATRIX.fullmatch(text)) is not None and _MATRIX.fullmatch(scaled[2]):
        return _times(scaled[1], read(scaled[2], depth + 1))
    if (ratio := _TO.fullmatch(text)) is not None:
        return read(f"{ratio[1]}:{ratio[2]}", depth + 1)
    if len(parts := split(text, ":")) > 2 and all(p.strip() for p in parts):
        return Ordered(tuple(read(p, depth + 1) for p in parts), "::")  # 1:2:3; 1:2 is a quotient
    if (inside := _inside(text)) is not None and inside[0] == r"\{":
        return _bracketed(*inside, depth)
    if (relation := _inequality(text)) is not None:
        return relation
    if (equation := _equation(text, depth)) is not None:
        return equation
    if (inside := _inside(text)) is not None:
        return _bracketed(*inside, depth)
    if text.count(r"\pm") in (1, 2):
        return Listing(tuple(dict.fromkeys(read(p, depth + 1) for p in _both_signs(text))))
    return _leaf(text)


# ---------------------------------------------------------------------------------------------------- structure


def _depth(text: str) -> int:
    deepest = depth = 0
    for char in text:
        if char in _OPEN:
            depth += 1
            deepest = max(deepest, depth)
        elif char in _CLOSE:
            depth -= 1
    return deepest


def split(text: str, separator: str) -> list[str]:
    """Split a text at separators that are outside brackets."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        if depth == 0 and text.startswith(separator, at):
            parts.append(text[start:at])
            at += len(separator)
            start = at
            continue
        depth += (text[at] in _OPEN) - (text[at] in _CLOSE)
        depth = max(depth, 0)
        at += 1
    parts.append(text[start:])
    return parts


def _times(factor: str, matrix: Matrix) -> Matrix:
    """Multiply every entry of a matrix."""
    if not all(isinstance(cell, Scalar) for row in matrix.rows for cell in row):
        raise Unreadable("a factor of a matrix that has no numbers")
    return Matrix(tuple(tuple(Scalar(rf"({factor}) \cdot ({cell.latex})") for cell in row) for row in matrix.rows))


def _listing(items: list) -> object:
    """Combine listed values; alternatives that are intervals become a union."""
    if all(isinstance(item, Ordered) and item.brackets.endswith("?") for item in items):
        return Union(tuple(items))
    flat = []
    for item in items:
        flat += item.items if isinstance(item, Listing) and not item.braces else [item]
    return Listing(tuple(flat))


def _inside(text: str) -> tuple[str, str, str] | None:
    """Return the opening bracket, content and closing bracket if a pair encloses the text."""
    for left, right in (("(", ")"), ("(", "]"), ("[", ")"), ("[", "]"), (r"\{", r"\}")):
        if text.startswith(left) and text.endswith(right) and len(text) > len(left) + len(right):
            content = text[len(left) : -len(right)]
            depth = 0
            for char in content:
                depth += (char in _OPEN) - (char in _CLOSE)
                if depth < 0:
                    break
            if depth == 0:
                return left, content, right
    return None


def _bracketed(left: str, content: str, right: str, depth: int):
    if left == r"\{":
        for bar in (r"\mid", "|", ":"):
            if len(parts := split(content, bar)) == 2 and not re.search(r"\d", parts[0]):
                return read(parts[1], depth + 1)  # {x | x > 3}
        inner = read(content, depth + 1)
        return Listing(inner.items if isinstance(inner, Listing) and not inner.braces else (inner,), braces=True)
    parts = [p for p in split(content, ",") if p.strip()]
    if len(parts) == 1:
        return read(content, depth + 1)
    return Ordered(tuple(read(p, depth + 1) for p in parts), left + right)


def _interval(low: str, high: str, brackets: str) -> Ordered:
    return Ordered((_leaf(low), _leaf(high)), brackets)


def _all_but(value: str) -> Union:
    """Return all real numbers except one."""
    return Union((_interval(r"-\infty", value, "()"), _interval(value, r"\infty", "()")))


def _unbraced(text: str) -> str:
    """Remove braces that only group the whole text."""
    while text.startswith("{") and text.endswith("}") and len(split(text[1:-1], "}")) == 1:
        text = text[1:-1].strip()
    return text


def _inequality(text: str) -> Ordered | Union | None:
    """Convert an inequality in one variable to intervals; return None for other texts."""
    signs = [s.group() for s in _RELATION.finditer(text)]
    sides = [s.strip() for s in _RELATION.split(text)]
    if not signs or len(signs) > 2 or not all(sides):
        return None
    if r"\ne" in signs:
        value, name = sorted(sides, key=lambda side: _VARIABLE.fullmatch(side) is not None)
        return _all_but(value) if len(signs) == 1 and _VARIABLE.fullmatch(name) else None
    strict = [s in "<>" for s in signs]
    less = [s in (r"\le", "<", "<=") for s in signs]
    if len(signs) == 2:
        if less[0] != less[1] or not _VARIABLE.fullmatch(sides[1]):
            return None
        low, high = (0, 2) if less[0] else (2, 0)
        open_low, open_high = (strict[0], strict[1]) if less[0] else (strict[1], strict[0])
        return _marked(sides[low], sides[high], open_low, open_high)
    if any(pattern.fullmatch(sides[1]) and not pattern.fullmatch(sides[0]) for pattern in (_VARIABLE, _ABSOLUTE)):
        sides, less = sides[::-1], [not less[0]]
    if _ABSOLUTE.fullmatch(sides[0]):
        size, outside = sides[1], ")" if strict[0] else "]"
        if less[0]:
            return _marked(f"-({size})", size, strict[0], strict[0])
        below, above = "(" + outside, outside.translate({ord(")"): "(", ord("]"): "["}) + ")"
        return Union((_interval(r"-\infty", f"-({size})", below), _interval(size, r"\infty", above)))
    if not _VARIABLE.fullmatch(sides[0]):
        return None
    return (_marked(r"-\infty", sides[1], True, strict[0]) if less[0]
            else _marked(sides[1], r"\infty", strict[0], True))  # fmt: skip


def _marked(low: str, high: str, open_low: bool, open_high: bool) -> Ordered:
    """Return the interval of an inequality.

    Its brackets are marked with "?", so that several of them become a union.
    """
    return _interval(low, high, ("(" if open_low else "[") + (")" if open_high else "]") + "?")


_EQUALS = re.compile(r"(?<![<>!\\])=|\\approx\b|\\equiv\b")


def _equation(text: str, depth: int):
    sides = [s.strip() for s in _EQUALS.split(text)]
    if len(sides) < 2 or not all(sides) or r"\begin" in sides[0]:
        return None
    signs = _EQUALS.findall(text)
    pairs = zip(signs, sides, sides[1:], strict=False)
    claims = tuple((a, b) for sign, a, b in pairs if sign == "=" and is_number(a) and is_number(b))
    without_letters = len(sides) == 2 and re.search(r"[a-zA-Z]", _TEXT.sub("", sides[1])) is None
    if without_letters and not is_name(sides[0]) and re.search(r"(?<!\\)\b[a-zA-Z]\b|\d[a-z]", sides[0]):
        return Equation(sides[0], Scalar(sides[1]))  # x - 3z = 0
    return Equation(sides[0], read(sides[-1], depth + 1), claims)


def _both_signs(text: str) -> list[str]:
    texts = [text]
    for _ in range(text.count(r"\pm")):
        texts = [t.replace(r"\pm", sign, 1) for t in texts for sign in ("+", "-")]
    return [t.strip().removeprefix("+") for t in texts]


# ---------------------------------------------------------------------------------------------------- leaves


def _whole_text(text: str) -> bool:
    return _TEXT.fullmatch(text) is not None


def _number_in_words(text: str) -> int | None:
    words = _TEXT.sub(r"\1", text)
    return number_of(words) if re.fullmatch(r"[a-zA-Z\s-]+", words) else None


def _leaf(text: str) -> Scalar | WordAnswer:
    """Parse an expression with its unit, or words."""
    text = text.strip()
    plain = _TEXT.sub(r"\1", text).strip()
    if _TIME.fullmatch(plain):
        return WordAnswer(re.sub(r"\s*([ap])\.?\s*m\.?$", r" \1m", " ".join(plain.lower().split())))
    if _TEXT.search(text) is not None and not _TEXT.sub("", text).strip(" .,()"):
        inner = plain.strip("() .")
        if re.fullmatch(r"[-+]?[\d.,/]+", inner):
            return Scalar(inner.replace(",", ""))
        return WordAnswer(" ".join(plain.lower().split()).strip(" ."))
    if (base := _BASE.fullmatch(text)) is not None:
        return WordAnswer(f"{base[1].lstrip('0') or '0'} base {base[2]}")
    if re.fullmatch(r"[a-zA-Z]{2,}(?:(?:[\s']+|-(?=[a-zA-Z]{2}))[a-zA-Z0-9]+)*", plain):
        product = "".join(sorted(text)) if re.fullmatch(r"[a-zA-Z]{2,4}", text) else ""
        if product and text not in (text.lower(), text.upper(), text.capitalize()):
            return WordAnswer(text, product)  # aB is not ab
        return WordAnswer(" ".join(plain.lower().split()), product)
    if (large := _LARGE.fullmatch(text)) is not None:
        number = _measured(f"{large[1].replace(',', '')} {large[3]}".strip())
        return dataclasses.replace(number, latex=rf"{number.latex} \cdot 10^{{{_POWERS[large[2].lower()]}}}")
    return _measured(text)


def _measured(text: str) -> Scalar:
    """Split a percent sign, degree sign or unit off an expression."""
    head, unit = units.split_off(text)
    if unit in ("percent", "degrees"):
        return Scalar(head, unit)
    for sign, scale in ((r"\%", "percent"), (r"^\circ", "degrees")):
        if head.rstrip().endswith(sign):
            bare = head.rstrip().removesuffix(sign).rstrip()
            if bare and not re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", bare):
                return Scalar(bare, scale, unit)
    return Scalar(head, "", unit)


_NAME = re.compile(
    r"(?:[a-zA-Z]|\\[a-zA-Z]+)(?:_\{?\w+\}?)?'?(?:\([a-zA-Z](?:,\s?[a-zA-Z])*\))?|\([a-zA-Z](?:\s?,\s?[a-zA-Z])+\)"
    r"|\\text\{[^{}]*\}|\\angle\s?[A-Z]+"
)


_COMMANDS = re.compile(r"\\(?:frac|sqrt|cdot|times)(?![a-zA-Z])")


_EXPRESSION = re.compile(r"(?![a-zA-Z]\()[^_\\]*\d[^_\\]*")


def is_name(left: str) -> bool:
    """Check whether a left side is only a name: x, f(x), (x, y)."""
    return _NAME.fullmatch(left) is not None


def is_number(side: str) -> bool:
    """Check for a side without variables or words, such as 2 + 3."""
    return re.search(r"[a-zA-Z]", _COMMANDS.sub("", side)) is None


def is_unsolved(left: str) -> bool:
    """Check for an expression in one variable, such as 2x or x^2 + 1.

    The equation would have to be solved for the variable.
    """
    bare = _COMMANDS.sub("", left)
    return len(set(re.findall(r"[a-zA-Z]", bare))) == 1 and _EXPRESSION.fullmatch(bare) is not None


_LETTER_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")


_GOLD = re.compile(r"\(?([A-Z])\)?")


_CHOSEN = (
    re.compile(r"(?:(?:option|choice|answer)\s*:?\s*)?\(?([A-Z])\)?\s*[.:]?", re.IGNORECASE),
    re.compile(r"\(([A-Z])\)\s*[^A-Z(]*"),
    re.compile(r"([A-Z])\s*[).:]\s*[^A-Z(]*"),
)


def choice_letter(gold: str) -> str | None:
    """Return the letter if a normalized gold answer is a single letter, else None."""
    match = _GOLD.fullmatch(_LETTER_TEXT.sub(r"\1", gold).strip())
    return match[1] if match else None


def chosen_letter(answer: str) -> str | None:
    """Return the letter that a normalized answer chooses, or None."""
    plain = _LETTER_TEXT.sub(r"\1", answer).strip()
    for pattern in _CHOSEN:
        if (match := pattern.fullmatch(plain)) is not None and match[1].isupper():
            return match[1]
    return None
