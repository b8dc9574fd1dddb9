"""Connect four: rules, bots, symmetries, drawings and text."""

from envs.games.connect_four import bots, draw, rules, symmetry, text
from envs.games.entry import GameEntry

GAME = GameEntry(
    rules=rules.ConnectFour,
    text=text.text,
    draw=draw,
    medium=draw.picture,
    bots={"search": lambda game: bots.SearchBot()},
    symmetry=symmetry.ConnectFourSymmetry,
)
