"""Warehouse: robots that fetch requested shelves and return them."""

from envs.games.entry import GameEntry
from envs.games.warehouse import bots, draw, rules, text

GAME = GameEntry(
    rules=rules.Warehouse,
    text=text.text,
    draw=draw,
    medium=draw.picture,
    bots={"planner": bots.PlannerBot},
    reward_params=frozenset({"reward_type", "pickup_reward"}),
)
