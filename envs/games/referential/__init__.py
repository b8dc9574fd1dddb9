"""The referential game: rules, text, optimal bot and drawings."""

from envs.games.entry import GameEntry

from . import bots, draw, rules, text

GAME = GameEntry(
    rules=rules.Referential,
    text=text.text,
    draw=draw,
    medium=draw.picture,
    bots={"optimal": bots.OptimalBot},
)
