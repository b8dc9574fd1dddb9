"""Plan-Path: find the shortest path through a grid with walls."""

from envs.games.entry import GameEntry
from envs.games.plan_path import bots, draw, rules, text
from envs.games.puzzle import LEVEL_PARAMS
from envs.games.roles import REWARD_PARAMS

GAME = GameEntry(
    rules=rules.PlanPath,
    text=text.text,
    draw=draw,
    medium=draw.picture,
    bots={"solver": lambda game: bots.PlanPathSolver()},
    level_params=LEVEL_PARAMS | {"size", "walls", "divided"},
    reward_params=REWARD_PARAMS | {"step_reward", "invalid_reward", "shaping_reward", "goal_reward", "shortest_reward"},
)
