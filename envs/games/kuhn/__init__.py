"""Kuhn poker: rules, text, equilibrium bot and drawings."""

from envs.games.entry import GameEntry
from envs.games.exact import EquilibriumBot

from . import draw, rules, text

GAME = GameEntry(rules=rules.Kuhn, text=text.text, draw=draw, medium=draw.picture, bots={"equilibrium": EquilibriumBot})
