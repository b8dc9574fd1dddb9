"""Sudoku: fill the grid so that no row, column or box repeats a digit."""

from envs.games.entry import GameEntry
from envs.games.puzzle import LEVEL_PARAMS
from envs.games.roles import REWARD_PARAMS
from envs.games.sudoku import bots, draw, rules, text

GAME = GameEntry(
    rules=rules.Sudoku,
    text=text.text,
    draw=draw,
    medium=draw.picture,
    bots={"solver": lambda game: bots.SudokuSolver()},
    level_params=LEVEL_PARAMS | {"size", "empties"},
    reward_params=REWARD_PARAMS | {"cell_reward", "contradiction_reward", "solved_reward"},
)
