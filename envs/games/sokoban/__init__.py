"""Sokoban: push every box onto a goal."""

from envs.games.entry import GameEntry
from envs.games.puzzle import LEVEL_PARAMS
from envs.games.roles import REWARD_PARAMS
from envs.games.sokoban import bots, draw, rules, text

GAME = GameEntry(
    rules=rules.Sokoban,
    text=text.text,
    draw=draw,
    medium=draw.picture,
    bots={"solver": lambda game: bots.SokobanSolver()},
    level_params=LEVEL_PARAMS | {"size", "boxes", "walls"},
    reward_params=REWARD_PARAMS
    | {"step_reward", "invalid_reward", "box_reward", "solved_reward", "deadlock_reward", "shaping_reward"},
)
