"""Pursuit: two pursuers against one evader on a grid."""

from envs.games.entry import GameEntry
from envs.games.pursuit import bots, draw, rules, text

GAME = GameEntry(
    rules=rules.Pursuit,
    text=text.text,
    draw=draw,
    medium=draw.picture,
    bots={"solver": bots.SolverBot},
    reward_params=frozenset({"delay_cost", "lost_round_reward"}),
)
