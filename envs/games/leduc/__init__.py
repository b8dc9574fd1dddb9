"""Leduc poker: rules, text, equilibrium bot, symmetries and drawings."""

from envs.games.entry import GameEntry
from envs.games.exact import EquilibriumBot

from . import draw, rules, symmetry, text

GAME = GameEntry(
    rules=rules.Leduc,
    text=text.text,
    draw=draw,
    medium=draw.picture,
    bots={"equilibrium": EquilibriumBot},
    symmetry=symmetry.LeducSymmetry,
)
