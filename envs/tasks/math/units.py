r"""Units after a number: `5\text{ cm}^2`, `18 dollars`, `60 mph`.

A unit in only one of two answers is ignored, because questions name the unit. Two different known units make two
answers different.
"""

from __future__ import annotations

import re

_KNOWN = {
    "percent": "percent pct percents percentage", "degrees": "degree degrees deg",
    "mm": "mm millimeter millimeters millimetre millimetres", "cm": "cm centimeter centimeters centimetre centimetres",
    "m": "m meter meters metre metres", "km": "km kilometer kilometers kilometre kilometres kms",
    "in": "in inch inches", "ft": "ft foot feet", "yd": "yd yard yards", "mi": "mi mile miles",
    "s": "s sec secs second seconds", "min": "min mins minute minutes", "h": "h hr hrs hour hours", "day": "day days",
    "week": "week weeks", "month": "month months", "year": "yr yrs year years", "g": "g gm gram grams",
    "kg": "kg kilogram kilograms kgs", "lb": "lb lbs pound pounds", "oz": "oz ounce ounces", "ton": "ton tons",
    "l": "l liter liters litre litres", "ml": "ml milliliter milliliters", "gal": "gal gallon gallons",
    "dollar": "dollar dollars usd", "cent": "cent cents", "mph": "mph", "km/h": "km/h kph kmh", "m/s": "m/s",
    "radian": "rad radian radians", "unit": "unit units",
}  # fmt: skip
NAMES = {word: name for name, words in _KNOWN.items() for word in words.split()}
_POWERS = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}

_CHANGES = frozenset((
    "or", "and", "not", "no", "more", "less", "least", "most", "than", "over", "under", "about", "up", "to", "is",
    "are", "was", "if", "of", "off", "wrong", "right", "false", "hundred", "thousand", "million", "billion", "trillion",
    "dozen", "half", "third", "quarter", "times", "squared", "cubed", "factorial", "halves", "thirds", "quarters",
    "fourths", "fifths", "sixths", "sevenths", "eighths", "ninths", "tenths", "hundredths", "thousandths", "tens",
    "hundreds", "thousands", "millions", "billions", "trillions", "dozens", "plus", "minus", "power", "root", "inverse",
    "tripled", "triple", "reversed", "hex", "hexadecimal", "octal", "binary", "cannot", "except", "without",
    "negative", "reciprocal", "repeating", "recurring", "modulo", "mod", "base", "twice", "double", "doubled",
))  # fmt: skip
"""Words that are not units: they change the number, or say that it is not the answer."""

_IN_TEXT = re.compile(r"^(.*\S)\s*\\text\{([^{}]*)\}\s*(?:\^\s*\{?([23])\}?)?\s*$", re.DOTALL)
_BARE = re.compile(r"^(.*[\d})%])(\s*)((?<![\\a-zA-Z])[a-zA-Z][a-zA-Z./ ]*)(?:\^\{?([23])\}?)?$", re.DOTALL)
_FUNCTION = re.compile(r"\\[a-zA-Z]+$")


def split_off(text: str) -> tuple[str, str]:
    """Split an expression from its unit.

    Returns:
        The expression, and its unit: "" if there is none, "?" for a word that is not a known unit.
    """
    if (match := _IN_TEXT.match(text)) is not None and re.search(r"[\d\\a-zA-Z]", match[1]):
        words = match[2].strip(" .~")
        if (
            re.search(r"[\d!?=<>+*]", words)
            or _changes(words)
            or re.search(r"[=<>+]\s*$|\\(?:cdot|times|text)\s*$", match[1])
        ):
            return text, ""
        return _again(match[1], _canonical(words, match[3]))
    if (match := _BARE.match(text)) is not None and not _FUNCTION.search(match[1]):
        words = match[3].strip(" .")
        if _changes(words):
            return text, ""
        last = words.split()[-1].lower() if words else ""
        known = last in NAMES and (len(last) > 1 or match[2])
        if known and (len(words.split()) == 1 or all(len(w) > 1 for w in words.split())):
            return _again(match[1], _canonical(words, match[4]))
        if match[2] and all(len(w) >= 2 for w in words.split()) and len(words) >= 3:
            return match[1], "?"
    return text, ""


def _changes(words: str) -> bool:
    words = re.sub(rf"\b({'|'.join(NAMES)})\s+(?:squared|cubed)\b", r"\1", words.lower())  # cm squared
    return not _CHANGES.isdisjoint(re.findall(r"[a-z]+", words.lower()))


def single_letter(text: str) -> str | None:
    """Return the number before a one-letter unit, as in 48m, or None.

    Only the other answer can tell whether the letter is a unit.
    """
    match = re.fullmatch(r"([-+]?[\d.,/]+)\s*[mshgl]", text)
    return match[1] if match else None


def differ(one: str, other: str) -> bool:
    """Check whether both units are known and different."""
    known = set(NAMES.values())
    base = [u.partition("^")[0] for u in (one, other)]
    return one != other and all(b in known and b != "unit" for b in base)


def _again(head: str, unit: str) -> tuple[str, str]:
    r"""Merge two units, as in `5 \text{ miles} \text{ per hour}`, into an unknown one."""
    shorter, inner = split_off(head)
    return (shorter, "?") if inner else (head, unit)


def _canonical(words: str, power: str | None) -> str:
    parts = words.lower().replace(".", " ").split()
    raised = f"^{power}" if power else ""
    while parts and parts[0] in _POWERS:
        raised = _POWERS[parts.pop(0)]
    if parts and parts[-1] == "squared":
        raised, parts = "^2", parts[:-1]
    if len(parts) != 1 or parts[0] not in NAMES:
        return "?"
    return NAMES[parts[0]] + raised
