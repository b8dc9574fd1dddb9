"""Hanabi: rules, bots, symmetries, drawings and text."""

from envs.games.entry import GameEntry
from envs.games.hanabi import bots, draw, picture, recorded, rules, symmetry, text

GAME = GameEntry(
    rules=rules.Hanabi,
    text=text.text,
    draw=draw,
    medium=picture.picture,
    bots={"convention": bots.ConventionBot},
    symmetry=symmetry.HanabiSymmetry,
    reward_params=frozenset({"consolation"}),
    read_moves=recorded.read,
)
