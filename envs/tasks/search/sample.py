"""A small built-in collection of passages with questions, for runs without data files.

The passages describe towns and people that do not exist, so that no model knows the answers. A seeded program writes
them; a third of the questions needs two passages.
"""

from __future__ import annotations

import random

PARTS = {"train": 60, "validation": 12, "test": 24}
"""Number of towns, and of mayors, by split; each town has three questions."""
_BEGIN = (
    "Bar",
    "Cor",
    "Del",
    "Fen",
    "Gal",
    "Hol",
    "Kel",
    "Lor",
    "Mar",
    "Nor",
    "Pel",
    "Ros",
    "Sel",
    "Tor",
    "Var",
    "Wen",
)
_END = ("aby", "brook", "dale", "field", "gate", "ham", "lund", "mere", "stead", "wick")
_FIRST = (
    "Ana",
    "Bela",
    "Cato",
    "Dora",
    "Emil",
    "Fina",
    "Goran",
    "Hedda",
    "Ivo",
    "Jana",
    "Karl",
    "Lida",
    "Milo",
    "Nora",
)
_LAST = ("Abel", "Brandt", "Cerny", "Dusek", "Eklund", "Falk", "Grau", "Hajek", "Iversen", "Jonas", "Kovac", "Linde")
_RIVERS = ("Arva", "Brin", "Cale", "Dorn", "Esk", "Fula", "Gren", "Harn")
_JOBS = ("baker", "doctor", "farmer", "painter", "sailor", "singer", "smith", "teacher", "weaver")
_GOODS = ("bells", "boats", "candles", "cheese", "clocks", "glass", "maps", "paper", "ropes", "salt", "violins", "wool")


def collection() -> tuple[list[dict], dict[str, list[dict]]]:
    """Return the passages {title, text}, and the questions {id, question, answers, support} by split."""
    rng, total = random.Random("search sample"), sum(PARTS.values())
    towns = rng.sample([begin + end for begin in _BEGIN for end in _END], total)
    people = rng.sample([f"{first} {last}" for first in _FIRST for last in _LAST], total)
    passages, questions = [], []
    for town, mayor in zip(towns, people, strict=True):
        river, goods, job, year = rng.choice(_RIVERS), rng.choice(_GOODS), rng.choice(_JOBS), rng.randint(1100, 1900)
        text = f"{town} is a town on the river {river}. It was founded in {year} and is known for its {goods}."
        passages += [
            {"title": town, "text": f"{text} Its mayor is {mayor}."},
            {"title": mayor, "text": f"{mayor} worked as a {job} before becoming a mayor."},
        ]
        questions += [[
            _question(f"{town}/year", f"When was {town} founded?", str(year), [town]),
            _question(f"{town}/river", f"On which river is {town}, a town known for {goods}?", river, [town]),
            _question(f"{town}/job", f"As what did the mayor of {town} work before?", job, [town, mayor]),
        ]]  # fmt: skip
    parts, start = {}, 0
    for part, number in PARTS.items():
        parts[part] = [row for rows in questions[start : start + number] for row in rows]
        start += number
    rng.shuffle(passages)
    return passages, parts


def _question(name: str, question: str, answer: str, support: list[str]) -> dict:
    return {"id": name, "question": question, "answers": [answer], "support": support}
