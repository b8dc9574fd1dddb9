"""Lookup: a sound names the row of a table whose value is the answer."""

from envs.games.entry import GameEntry

from . import bots, draw, rules, text

GAME = GameEntry(
    rules=rules.Lookup, text=text.text, draw=draw, medium=draw.medium, bots={"optimal": lambda game: bots.OptimalBot()}
)
