"""A game as a Gymnasium environment with one caller."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.adapters.table import Episode, Table, View, gymnasium, seed_keys
from envs.games import view
from envs.games.game import Bot, Game
from envs.games.registry import make

_Base: Any = gymnasium.Env if gymnasium else object


class GymEnv(_Base):
    """A game as a Gymnasium environment.

    With a bot in `others`, the caller plays one seat and the bot plays the rest. Otherwise the caller plays every seat
    in turn and gets the reward of the seat that moved; `info["rewards"]` has those of all seats.

    An observation is a dict with `action_mask`, int8 [A], and `observation`. Numbers are the indices of the game's text
    (int32 [tables], see `envs/games/text.py`), which contain exactly the information available to the seat. A text has
    the rules, the role, the position, the question and the legal actions.

    Args:
        game: The game.
        seat: Seat of the caller, if there is a bot.
        others: Bot for the other seats, or its name.
        observation: "numbers" or "text".
        text: Style of the text, as `env.text` in a config.
        weights: Weights of team, agent and process reward.
        illegal: "raise" raises a ValueError; "end" ends the game with a reward of -1.
        render_mode: "ansi", the board as text.
    """

    metadata = {"render_modes": ["ansi"]}

    def __init__(
        self,
        game: Game,
        *,
        seat: int = 0,
        others: Bot | str | None = None,
        observation: str = "numbers",
        text: str = "full",
        weights: Sequence[float] = (1.0, 1.0, 1.0),
        illegal: str = "raise",
        render_mode: str | None = "ansi",
    ):
        self.game, self.render_mode = game, render_mode
        self._table = Table(game, seat, others, observation, text, tuple(weights), illegal)
        self.observation_space, self.action_space = self._table.spaces()
        self._episode: Episode | None = None
        self._mask = np.zeros(game.n_actions, np.int8)
        self._start, self._step = jax.jit(self._started), jax.jit(self._stepped)

    def _started(self, key: jax.Array) -> tuple[Episode, View]:
        episode, _ = self._table.follow(self._table.deal(key))
        return episode, self._table.look(episode)

    def _stepped(self, episode: Episode, action: jax.Array) -> tuple[Episode, View, jax.Array]:
        episode, rewards = self._table.move(episode, action)
        episode, more = self._table.follow(episode)
        return episode, self._table.look(episode), rewards + more

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Start a new game and return the first observation.

        Without a seed, the game follows from the earlier ones.
        """
        super().reset(seed=seed)
        if seed is None and self._episode is not None:
            key = self._episode.key
        else:
            key = seed_keys([int(self.np_random.integers(2**31)) if seed is None else seed])[0]
        self._episode, seen = self._start(key)
        return self._seen(jax.device_get(seen), np.zeros(self.game.n_players, np.float32))

    def step(self, action: int | str) -> tuple[dict, float, bool, bool, dict]:
        """Play an action of the seat to move, and the moves of `others` that follow.

        Args:
            action: Number of the action, or a text that names it.
        """
        if self._episode is None:
            raise RuntimeError(f"{self.game.name}: call reset before step")
        mover = self._player
        number = self._table.number(action, self._mask)
        self._episode, seen, rewards = self._step(self._episode, jnp.int32(number))
        seen, rewards = jax.device_get((seen, rewards))
        observation, info = self._seen(seen, rewards)
        return observation, float(rewards[mover]), bool(seen.terminated), bool(seen.truncated), info

    def render(self) -> str:
        """Return the board as text."""
        assert self._episode is not None
        return view.board(self.game, self._episode.state, self._player)

    def _seen(self, seen: View, rewards: np.ndarray) -> tuple[dict, dict]:
        self._mask, self._player = seen.action_mask, int(seen.player)
        shown = self._table.shown(seen.observation, seen.action_mask, self._player)
        return {"observation": shown, "action_mask": self._mask.copy()}, {"player": self._player, "rewards": rewards}


def make_env(game: str, **arguments: Any) -> GymEnv:
    """Build a `GymEnv` by name; unknown arguments are parameters of the game."""
    own, params = split_arguments(GymEnv, arguments)
    return GymEnv(make(game, **params), **own)


def split_arguments(cls: type, arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split keyword arguments into those of an environment and the parameters of its game."""
    names = inspect.signature(cls).parameters
    own = {name: value for name, value in arguments.items() if name in names}
    return own, {name: value for name, value in arguments.items() if name not in own}
