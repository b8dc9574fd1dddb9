"""Games and tasks with the interfaces of other libraries.

    gymnasium.make("envs.adapters:marl_jax/TicTacToe-v0", others="minimax")           # one caller
    gymnasium.make_vec("envs.adapters:marl_jax/ConnectFour-v0", num_envs=1024)        # one jitted step for all copies
    envs.adapters.zoo.PettingZooEnv(make("hanabi", players=3))                        # every seat an agent, AEC
    envs.adapters.tasks.TaskEnv(make_task("arithmetic"))                              # reset and step for a host task

Importing this package registers the ids below with Gymnasium if it is installed. It does not import JAX.
"""

from __future__ import annotations

import importlib.util
from typing import Any

IDS: dict[str, dict[str, Any]] = {
    "TicTacToe": dict(game="tic_tac_toe"),
    "ConnectFour": dict(game="connect_four"),
    "Hanabi": dict(game="hanabi"),
    "HanabiSmall": dict(game="hanabi", preset="small"),
    "Kuhn": dict(game="kuhn"),
    "Leduc": dict(game="leduc"),
    "Lookup": dict(game="lookup"),
    "TwoStep": dict(game="matrix"),
    "PlanPath": dict(game="plan_path"),
    "Pursuit": dict(game="pursuit"),
    "Referential": dict(game="referential"),
    "Sokoban": dict(game="sokoban"),
    "Sudoku": dict(game="sudoku"),
    "Warehouse": dict(game="warehouse"),
}
"""Name in the id `marl_jax/NAME-v0` → game and its parameters."""


def register(name: str, game: str, **params: Any) -> str:
    """Register a game with Gymnasium as `marl_jax/NAME-v0` and return the id.

    Args:
        name: Name in the id.
        game: Name of the game.
        **params: Defaults of its parameters and of the arguments of `GymEnv`.
    """
    import gymnasium

    place = f"marl_jax/{name}-v0"
    if place not in gymnasium.registry:
        gymnasium.register(
            place,
            entry_point="envs.adapters.gym:make_env",
            vector_entry_point="envs.adapters.vector:make_vector_env",
            kwargs=dict(game=game, **params),
        )
    return place


if importlib.util.find_spec("gymnasium"):
    for _name, _params in IDS.items():
        register(_name, **_params)
