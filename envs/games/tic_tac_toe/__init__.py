"""Tic-tac-toe: rules, bots, symmetries, drawings and text."""

from envs.games.entry import GameEntry
from envs.games.tic_tac_toe import bots, draw, rules, symmetry, text

GAME = GameEntry(
    rules=rules.TicTacToe,
    text=text.text,
    draw=draw,
    medium=draw.picture,
    bots={"minimax": lambda game: bots.MinimaxBot()},
    symmetry=symmetry.TicTacToeSymmetry,
)
