"""A game as a PettingZoo environment in which every seat is an agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.adapters.table import Episode, Table, View, seed_keys
from envs.games import view
from envs.games.game import Game

try:
    import pettingzoo
except ImportError:
    pettingzoo = None

_Base: Any = pettingzoo.AECEnv if pettingzoo else object


class PettingZooEnv(_Base):
    """A game as a PettingZoo AEC environment.

    The agents player_0, player_1, … move in the order of the game. Arguments and observations are those of `GymEnv`.
    """

    def __init__(
        self,
        game: Game,
        *,
        observation: str = "numbers",
        text: str = "full",
        weights: Sequence[float] = (1.0, 1.0, 1.0),
        illegal: str = "raise",
        render_mode: str | None = "ansi",
    ):
        if pettingzoo is None:
            raise ImportError("PettingZooEnv needs the package pettingzoo: pip install pettingzoo")
        super().__init__()
        self.game, self.render_mode = game, render_mode
        self.metadata = {"name": f"{game.name}_v0", "render_modes": ["ansi"], "is_parallelizable": False}
        self.possible_agents = [f"player_{i}" for i in range(game.n_players)]
        self._seat = {agent: i for i, agent in enumerate(self.possible_agents)}
        self._table = table = Table(game, 0, None, observation, text, tuple(weights), illegal)
        spaces = {agent: table.spaces() for agent in self.possible_agents}
        self.observation_spaces = {agent: space[0] for agent, space in spaces.items()}
        self.action_spaces = {agent: space[1] for agent, space in spaces.items()}
        self._deal, self._move, self._look = jax.jit(table.deal), jax.jit(table.move), jax.jit(table.look)
        self._numbers = jax.jit(table.texts.indices)
        self._episode: Episode | None = None

    def observation_space(self, agent: str):
        """Return the observation space of `agent`."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str):
        """Return the action space of `agent`."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        """Start a new game; without a seed, it follows from the earlier ones."""
        if seed is None and self._episode is not None:
            key = self._episode.key
        else:
            key = seed_keys([int(np.random.default_rng().integers(2**31)) if seed is None else seed])[0]
        self._see(self._deal(key))
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = self.possible_agents[int(self._view.player)]

    def observe(self, agent: str) -> dict[str, Any]:
        """Return the current observation of `agent`; its mask is empty unless it is its turn."""
        assert self._episode is not None
        seat = self._seat[agent]
        numbers = np.asarray(self._numbers(self._episode.state, jnp.int32(seat)), np.int32)
        mask = self._view.action_mask * np.int8(seat == self._view.player)
        return {"observation": self._table.shown(numbers, mask, seat), "action_mask": mask}

    def step(self, action: int | str | None) -> None:
        """Play an action of `agent_selection`, or None if its game is over."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        number = self._table.number(action, self._view.action_mask)
        self._cumulative_rewards[agent] = 0.0
        episode, rewards = self._move(self._episode, jnp.int32(number))
        self._see(episode)
        rewards = np.asarray(rewards)
        self.rewards = {name: float(rewards[self._seat[name]]) for name in self.agents}
        self.terminations = dict.fromkeys(self.agents, bool(self._view.terminated))
        self.truncations = dict.fromkeys(self.agents, bool(self._view.truncated))
        self.agent_selection = self.possible_agents[int(self._view.player)]
        self._accumulate_rewards()

    def render(self) -> str:
        """Return the complete board as text."""
        assert self._episode is not None
        return view.board(self.game, self._episode.state)

    def close(self) -> None:
        """Do nothing; the environment holds no resources."""

    def _see(self, episode: Episode) -> None:
        self._episode = episode
        self._view: View = jax.device_get(self._look(episode))
