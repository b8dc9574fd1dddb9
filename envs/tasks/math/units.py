r"""Units behind a number: `5\text{ cm}^2`, `18 dollars`, `60 mph`.

A unit in one answer alone is ignored, as the questions name it. Two known units that differ make two answers differ.
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
    "dozen", "half", "third", "quarter", "times",
))  # fmt: skip
"""Words that are no unit: they say another number, or that this one is not the answer."""

_IN_TEXT = re.compile(r"^(.*\S)\s*\\text\{([^{}]*)\}\s*(?:\^\s*\{?([23])\}?)?\s*$", re.DOTALL)
_BARE = re.compile(r"^(.*[\d})%])(\s*)((?<![\\a-zA-Z])[a-zA-Z][a-zA-Z./ ]*)(?:\^\{?([23])\}?)?$", re.DOTALL)
_FUNCTION = re.compile(r"\\[a-zA-Z]+$")


def split_off(text: str) -> tuple[str, str]:
    """The expression and its unit; the unit is "" where there is none, and "?" for a word that is no known unit."""
    if (found := _IN_TEXT.match(text)) is not None and re.search(r"[\d\\a-zA-Z]", found[1]):
        words = found[2].strip(" .~")
        if re.search(r"\d", words) or _changes(words) or re.search(r"[=<>+]\s*$|\\(?:cdot|times|text)\s*$", found[1]):
            return text, ""
        return _again(found[1], _canonical(words, found[3]))
    if (found := _BARE.match(text)) is not None and not _FUNCTION.search(found[1]):
        words = found[3].strip(" .")
        if _changes(words):
            return text, ""
        last = words.split()[-1].lower() if words else ""
        known = last in NAMES and (len(last) > 1 or found[2])
        if known and (len(words.split()) == 1 or all(len(w) > 1 for w in words.split())):
            return _again(found[1], _canonical(words, found[4]))
        if found[2] and all(len(w) >= 2 for w in words.split()) and len(words) >= 3:
            return found[1], "?"
    return text, ""


def _changes(words: str) -> bool:
    return not _CHANGES.isdisjoint(re.findall(r"[a-z]+", words.lower()))


def single_letter(text: str) -> str | None:
    """The number in front of a unit of one letter without a space, such as 48m: only the other answer can tell."""
    found = re.fullmatch(r"([-+]?[\d.,/]+)\s*[mshgl]", text)
    return found[1] if found else None


def differ(one: str, other: str) -> bool:
    """Whether both are known units and not the same."""
    known = set(NAMES.values())
    base = [u.partition("^")[0] for u in (one, other)]
    return one != other and all(b in known and b != "unit" for b in base)


def _again(head: str, unit: str) -> tuple[str, str]:
    """`5 \text{ miles} \text{ per hour}` has two."""
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
