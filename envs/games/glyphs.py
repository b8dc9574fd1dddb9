"""Bitmaps of the characters in pictures of games: 5 columns, 7 rows."""

import numpy as np

WIDTH, HEIGHT = 5, 7

_ROWS = {
    "0": "0E 11 13 15 19 11 0E", "1": "04 0C 04 04 04 04 0E", "2": "0E 11 01 02 04 08 1F", "3": "1F 02 04 02 01 11 0E",
    "4": "02 06 0A 12 1F 02 02", "5": "1F 10 1E 01 01 11 0E", "6": "06 08 10 1E 11 11 0E", "7": "1F 01 02 04 08 08 08",
    "8": "0E 11 11 0E 11 11 0E", "9": "0E 11 11 0F 01 02 0C", "A": "0E 11 11 1F 11 11 11", "B": "1E 11 11 1E 11 11 1E",
    "C": "0E 11 10 10 10 11 0E", "D": "1E 11 11 11 11 11 1E", "E": "1F 10 10 1E 10 10 1F", "F": "1F 10 10 1E 10 10 10",
    "G": "0E 11 10 17 11 11 0F", "H": "11 11 11 1F 11 11 11", "I": "0E 04 04 04 04 04 0E", "J": "07 02 02 02 02 12 0C",
    "K": "11 12 14 18 14 12 11", "L": "10 10 10 10 10 10 1F", "M": "11 1B 15 15 11 11 11", "N": "11 11 19 15 13 11 11",
    "O": "0E 11 11 11 11 11 0E", "P": "1E 11 11 1E 10 10 10", "Q": "0E 11 11 11 15 12 0D", "R": "1E 11 11 1E 14 12 11",
    "S": "0F 10 10 0E 01 01 1E", "T": "1F 04 04 04 04 04 04", "U": "11 11 11 11 11 11 0E", "V": "11 11 11 11 11 0A 04",
    "W": "11 11 11 15 15 1B 11", "X": "11 11 0A 04 0A 11 11", "Y": "11 11 0A 04 04 04 04", "Z": "1F 01 02 04 08 10 1F",
    "#": "0A 0A 1F 0A 1F 0A 0A", ".": "00 00 00 00 00 0C 0C", "?": "0E 11 01 02 04 00 04", "*": "00 04 15 0E 15 04 00",
    "+": "00 04 04 1F 04 04 00", "-": "00 00 00 1F 00 00 00", "&": "0C 12 14 08 15 12 0D", "!": "04 04 04 04 00 00 04",
    "^": "04 0E 15 04 04 04 00", ">": "00 04 02 1F 02 04 00", "v": "00 04 04 04 15 0E 04", "<": "00 04 08 1F 08 04 00",
    "_": "00 00 00 00 00 00 1F", "x": "00 00 11 0A 04 0A 11", "u": "00 00 11 11 11 13 0D", "r": "00 00 16 19 10 10 10",
    "d": "01 01 0D 13 11 11 0F", "l": "0C 04 04 04 04 04 0E", " ": "00 00 00 00 00 00 00",
}  # fmt: skip
CHARACTERS = frozenset(_ROWS)


def bitmap(sign: str) -> np.ndarray:
    """Return the bitmap of lines of characters, bool [rows, columns], one empty pixel between characters."""
    lines = sign.split("\n")
    unknown = sorted(set(sign) - CHARACTERS - {"\n"})
    if unknown:
        raise ValueError(f"sign is {sign!r}, but the font has no {', '.join(map(repr, unknown))}")
    width, height = max(map(len, lines)) * (WIDTH + 1) - 1, len(lines) * (HEIGHT + 1) - 1
    bits = np.zeros((height, width), bool)
    for row, line in enumerate(lines):
        for column, character in enumerate(line):
            rows = np.array([int(hexadecimal, 16) for hexadecimal in _ROWS[character].split()])
            top, left = row * (HEIGHT + 1), column * (WIDTH + 1)
            bits[top : top + HEIGHT, left : left + WIDTH] = rows[:, None] >> np.arange(WIDTH)[::-1] & 1
    return bits
