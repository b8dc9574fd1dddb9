"""Normalization of LaTeX as models write it.

Spacing commands are removed, and fractions, brackets and signs get one spelling.
"""

from __future__ import annotations

import re
import unicodedata

_FRACTIONS = {
    sign: rf"\frac{{{above}}}{{{below}}}"
    for sign in map(chr, (*range(0xBC, 0xBF), *range(0x2150, 0x215F)))
    for above, _, below in [unicodedata.normalize("NFKC", sign).partition("\u2044")]
}  # ½ and others
_SIGNS = str.maketrans(_FRACTIONS | {
    "\u2212": "-", "\u2013": "-", "\u2014": "-", "\uff0d": "-", "\u00d7": r"\times ", "\u00b7": r"\cdot ",
    "\u22c5": r"\cdot ", "\u00f7": "/", "\u2215": "/", "\u2044": "/", "\u00b0": r"^\circ ", "\u03c0": r"\pi ",
    "\u221e": r"\infty ", "\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne ", "\u222a": r"\cup ",
    "\u2208": r"\in ", "\u2205": r"\emptyset ", "\u00b1": r"\pm ", "\u221a": r"\sqrt ", "\u00a0": " ",
    "\u2009": " ", "\u202f": " ", "\u211d": r"\mathbb{R}", "\u2248": r"\approx ", "\uff0c": ",", "\uff08": "(",
    "\uff09": ")", "\u00b2": "^2", "\u00b3": "^3", "\u2019": "'", "\u20ac": r"\$", "\u00a3": r"\$",
    "\u27e8": r"\langle ", "\u27e9": r"\rangle ",
})  # fmt: skip

_STEPS = tuple((re.compile(pattern), new) for pattern, new in (
    (r"(\\[a-zA-Z]+)(?=\d)", r"\1 "),  # \le2
    (r"\\(?:text)?color\s*\{[^{}]*\}|\\checkmark(?![a-zA-Z])", ""),
    (r"\\(?:[hv]?phantom|[hv]space)\*?\{[^{}]*\}|\\label\{[^{}]*\}", " "),  # 2\phantom{9}3 is not 23
    (r"(?<=\d)\s*(?:\{,\}|,?\\!,?(?:\\!)?|\\[, ]|~)\s*(?=\d{3}(?!\d))", ","),  # thousands: 1{,}000, 1\,000, 1,\!000
    (r"\\(?:left|right|[bB]igg?[lrm]?|middle)\b\s*\.?(?![a-zA-Z])", ""),
    (r"(?<!\\)\\[!,;:>]|\\(?:quad|qquad|thinspace|enspace|displaystyle|textstyle|limits|nolimits"
     r"|small|normalsize|large|Large|LARGE|huge|Huge)\b|(?<!\\)~", " "),
    (r"(?<!\\)\\(?=\s|$)", " "),
    (r"\{:\}|\\colon\b", ":"),
    (r"\\\$", "$"),
    (r"(?<!\\)\\[()\[\]]", ""),
    (r"(?<!\\)\$", " "),
    (r"(?<=\d)\{\.\}(?=\d)", "."),
    (r"(?<=[\d.])\s*\\(?:bar|dot)\b", r"\\overline"),
    (r"\\underline\b", ""),
    (r"\{([^{}]*)\\over\b([^{}]*)\}", r"\\frac{\1}{\2}"),
    (r"\{([^{}]*)\\choose\b([^{}]*)\}", r"\\binom{\1}{\2}"),
    (r"\\(?:[dtcs]|nice|flat)frac\b", r"\\frac"),
    (r"\\(?:leqslant|leq|leqq)\b", r"\\le "),
    (r"\\(?:geqslant|geq|geqq)\b", r"\\ge "),
    (r"\\neq\b|\\not\s*=", r"\\ne "),
    (r"\\log_\s*\{?\s*e\b\s*\}?", r"\\ln "),
    (r"\\lt\b", "<"),
    (r"\\gt\b", ">"),
    (r"\\(?:varnothing|O)\b|\\\{\s*\\\}", r"\\emptyset "),
    (r"\\(?:lbrace)\b", r"\\{"),
    (r"\\(?:rbrace)\b", r"\\}"),
    (r"\\lbrack\b", "["),
    (r"\\rbrack\b", "]"),
    (r"\\langle\b", "("),
    (r"\\rangle\b", ")"),
    (r"\\(?:lvert|rvert|vert)\b|\\mid\b(?=[^|]*\\mid)", "|"),
    (r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ\b|\\degree\b|\{\s*\}\^\\circ\b", r"^\\circ "),
    (r"\\(?:text|mbox|textrm|textup|textnormal|textsf|mathrm|mathsf|rm|textbf|mathbf|textit|mathit|bm|boldsymbol"
     r"|operatorname|emph|bf|hbox)\s*\{\s*((?:i|e|d|\d[\d.,]*))\s*\}", r"\1"),
    (r"\\(?:mbox|textrm|textup|textnormal|textsf|mathrm|mathsf|textbf|mathbf|textit|mathit|bm|boldsymbol|emph|hbox)\b"
     r"\s*(?=\{)", r"\\text"),
    (r"\\(?:rm|bf|it)\b", ""),
    (r"\\text\s+\{", r"\\text{"),
    (r"\\pmod\s*\{[^{}]*\}|(?<=\\equiv)([^=]*)\\b?mod\s*\d+", r"\1"),  # 18 \bmod 5 is 3
    (r"\{\s*(\d+)\s*\}\s*/\s*\{\s*(\d+)\s*\}", r"\1/\2"),
    (r"\\frac\s*(\d)\s*(\d)(?![\d}])", r"\\frac{\1}{\2}"),
    (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
    (r"\\sqrt\s*(\[\d+\])?\s*(\d+|[a-zA-Z])(?![\w{])", r"\\sqrt\1{\2}"),
    (r"_\s*(\d)(?=\s)", r"_{\1}"),
    (r"\\%|%", r"\\%"),
    (r"\s+", " "),
    (r"^(?:\\text\{)?\s*all reals?(?: numbers)?\s*\}?$", r"\\mathbb{R}"),
))  # fmt: skip

_AFTER_FRACTION = re.compile(r"(\\frac\{[^{}]*\})\s*(\d)")
_TRAILING = re.compile(r"(?:\s|\\\\)*[.;,:]?(?:\s|\\\\)*$")  # one mark only: 1, 2, 3, ... continues
_SPACES = re.compile(r"(?<![a-zA-Z0-9])\s+|\s+(?![a-zA-Z0-9])|(?<=\d)\s+(?=[a-zA-Z])|(?<=[a-zA-Z])\s+(?=\d)")


def clean(text: str) -> str:
    """Return an answer in normalized spelling."""
    text = text.translate(_SIGNS).strip().strip("*").strip()
    for pattern, new in _STEPS:
        text = pattern.sub(new, text)
    text = _AFTER_FRACTION.sub(r"\1{\2}", text)
    return _TRAILING.sub("", text).strip()


def squeezed(text: str) -> str:
    """Remove insignificant spaces from a normalized text.

    Spaces between two words or two numbers remain.
    """
    return _SPACES.sub("", text)


_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_NUMBERS = {w: i for i, w in enumerate(_ONES)} | {w: 20 + 10 * i for i, w in enumerate(_TENS)}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}


def number_of(words: str) -> int | None:
    """Return the number that English words name, or None.

    Examples are "twenty-five" and "two hundred and six".
    """
    parts = [w for w in re.split(r"[\s-]+", words.lower().strip()) if w]
    if not parts or len(parts) > 20 or parts[0] == "and":
        return None
    total = current = 0
    last = None  # size of the previous number; sizes decrease within a group
    for word in parts:
        if word == "and" and last:
            continue
        if word in _NUMBERS:
            value = _NUMBERS[word]
            size = 1 if value < 20 else 10
            if last is not None and (last <= size or (size == 1 and last == 10 and not 1 <= value <= 9)):
                return None
            current, last = current + value, size
        elif word == "hundred" and 0 < current < 100:
            current, last = 100 * current, 100
        elif word in _SCALES and word != "hundred" and current:
            total, current, last = total + current * _SCALES[word], 0, _SCALES[word]
        else:
            return None
    return total + current
