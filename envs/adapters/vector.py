"""Many copies of a game as a Gymnasium vector environment with one jitted step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.adapters.gym import split_arguments
from envs.adapters.table import Episode, Table, View, gymnasium, seed_keys
from envs.games import view
from envs.games.game import Bot, Game, reset_done
from envs.games.registry import make

if gymnasium:
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
else:
    VectorEnv: Any = object

NEXT_STEP, SAME_STEP = "NextStep", "SameStep"


class GymVectorEnv(VectorEnv):
    """Copies of a game that one jitted program steps.

    Results are those of Gymnasium's `SyncVectorEnv` over `GymEnv`. Copy i starts with the seed `seed + i`. Ended games
    restart by themselves: with the autoreset mode `NextStep`, Gymnasium's default, at the next step, whose action
    is ignored and whose reward is 0; with `SameStep` at once, and the last observation is `infos["final_obs"]`.
    `Disabled` is not supported.

    Args:
        game: The game.
        num_envs: Number of copies.
        seat, others, observation, text, weights, illegal: As for `GymEnv`.
        autoreset_mode: "NextStep" or "SameStep", or the value of Gymnasium's enumeration.
    """

    def __init__(
        self,
        game: Game,
        num_envs: int = 1,
        *,
        seat: int = 0,
        others: Bot | str | None = None,
        observation: str = "numbers",
        text: str = "full",
        weights: Sequence[float] = (1.0, 1.0, 1.0),
        illegal: str = "raise",
        render_mode: str | None = "ansi",
        autoreset_mode: Any = NEXT_STEP,
    ):
        self.game, self.num_envs, self.render_mode = game, num_envs, render_mode
        self._table = Table(game, seat, others, observation, text, tuple(weights), illegal)
        mode = getattr(autoreset_mode, "value", autoreset_mode)
        if mode not in (NEXT_STEP, SAME_STEP):
            raise ValueError(f"autoreset_mode is {mode!r}, but must be one of: {NEXT_STEP}, {SAME_STEP}")
        self.metadata = {"render_modes": ["ansi"], "autoreset_mode": AutoresetMode(mode)}
        self.single_observation_space, self.single_action_space = self._table.spaces()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._same = mode == SAME_STEP
        self._episodes: Episode | None = None
        self._seen: View | None = None
        self._start = jax.jit(self._started)
        self._step = jax.jit(self._same_step if self._same else self._next_step, donate_argnums=0)

    # Pure functions of the batch

    def _started(self, keys: jax.Array) -> tuple[Episode, View]:
        episodes, _ = jax.vmap(self._table.follow)(jax.vmap(self._table.deal)(keys))
        return episodes, jax.vmap(self._table.look)(episodes)

    def _restarted(self, episodes: Episode, over: jax.Array) -> Episode:
        """Deal a new game in the rows that are over."""
        keys, deals = jnp.moveaxis(jax.vmap(jax.random.split)(episodes.key), 1, 0)
        states = reset_done(self.game, episodes.state, deals, ended=over)
        keys = jnp.where(over, keys, episodes.key)
        return Episode(states, keys, jnp.where(over, 0, episodes.turns), episodes.broken & ~over)

    def _next_step(self, episodes: Episode, actions: jax.Array):
        table = self._table
        over = jax.vmap(table.over)(episodes)
        episodes, rewards = jax.vmap(table.move)(episodes, actions)
        episodes, more = jax.vmap(table.follow)(self._restarted(episodes, over))
        rewards = jnp.where(over[:, None], 0, rewards + more)
        return episodes, jax.vmap(table.look)(episodes), rewards, None

    def _same_step(self, episodes: Episode, actions: jax.Array):
        table = self._table
        episodes, rewards = jax.vmap(table.move)(episodes, actions)
        episodes, more = jax.vmap(table.follow)(episodes)
        last = jax.vmap(table.look)(episodes)
        episodes, _ = jax.vmap(table.follow)(self._restarted(episodes, last.terminated | last.truncated))
        return episodes, jax.vmap(table.look)(episodes), rewards + more, last

    # Gymnasium's interface

    def reset(self, *, seed: int | Sequence[int] | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Start a new game in every copy."""
        if options and "reset_mask" in options:
            raise ValueError("options has reset_mask, but ended games restart by themselves")
        if seed is None and self._episodes is not None:
            keys = self._episodes.key
        else:
            first = int(self.np_random.integers(2**31)) if seed is None else seed
            seeds = [first + i for i in range(self.num_envs)] if isinstance(first, int) else list(first)
            if len(seeds) != self.num_envs:
                raise ValueError(f"seed has {len(seeds)} entries, but must have {self.num_envs}, one per copy")
            keys = seed_keys(seeds)
        self._episodes, seen = self._start(keys)
        seen = self._seen = jax.device_get(seen)
        return self._shown(seen), self._infos(np.zeros((self.num_envs, self.game.n_players), np.float32))

    def step(self, actions: Sequence[int | str] | np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict]:
        """Play an action in every copy, or restart it.

        Args:
            actions: Numbers of the actions, or texts that name them: [num_envs].
        """
        if self._episodes is None or self._seen is None:
            raise RuntimeError(f"{self.game.name}: call reset before step")
        before = self._seen
        numbers = self._numbers(actions)
        self._episodes, seen, rewards, last = self._step(self._episodes, numbers)
        seen, rewards, last = jax.device_get((seen, rewards, last))
        self._seen, ended = seen, seen if last is None else last
        over = ended.terminated | ended.truncated
        infos = self._infos(rewards if last is None else np.where(over[:, None], 0, rewards))
        if last is not None and over.any():
            infos |= self._final(last, rewards, over)
        own = np.take_along_axis(rewards, before.player[:, None], axis=1)[:, 0]
        return self._shown(seen), own.astype(np.float64), ended.terminated, ended.truncated, infos

    def render(self) -> tuple[str, ...]:
        """Return the boards as texts."""
        assert self._episodes is not None and self._seen is not None
        states = jax.device_get(self._episodes.state)
        rows = (jax.tree.map(lambda leaf, i=i: leaf[i], states) for i in range(self.num_envs))
        return tuple(view.board(self.game, row, int(i)) for row, i in zip(rows, self._seen.player, strict=True))

    def _numbers(self, actions: Any) -> np.ndarray:
        """Return actions as int32 [num_envs]; those of ended games are not read."""
        assert self._seen is not None
        masks, over = self._seen.action_mask, self._seen.terminated | self._seen.truncated
        if len(actions) != self.num_envs:
            raise ValueError(f"there are {len(actions)} actions, but must be {self.num_envs}, one per copy")
        if isinstance(actions, np.ndarray) and actions.dtype != object:
            numbers = actions.astype(np.int32)
            if self._table.illegal == "end":
                return numbers
            inside = (numbers >= 0) & (numbers < self.game.n_actions)
            legal = masks[np.arange(self.num_envs), np.where(inside, numbers, 0)].astype(bool) & inside
            if (legal | over).all():
                return numbers
        rows = zip(actions, masks, over, strict=True)
        return np.array([0 if ended else self._table.number(a, mask) for a, mask, ended in rows], np.int32)

    def _shown(self, seen: View) -> dict[str, Any]:
        shown: Any = seen.observation
        if self._table.observation == "text":
            shown = tuple(map(self._table.shown, seen.observation, seen.action_mask, seen.player))
        return {"observation": shown, "action_mask": seen.action_mask}

    def _infos(self, rewards: np.ndarray) -> dict[str, Any]:
        assert self._seen is not None
        everywhere = np.ones(self.num_envs, bool)
        return {"player": self._seen.player, "_player": everywhere, "rewards": rewards, "_rewards": everywhere}

    def _final(self, last: View, rewards: np.ndarray, over: np.ndarray) -> dict[str, Any]:
        """Return the last observations of the games that ended at this step."""
        observations = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(over):
            shown = self._table.shown(last.observation[i], last.action_mask[i], int(last.player[i]))
            observations[i] = {"observation": shown, "action_mask": last.action_mask[i]}
        info = {"player": np.where(over, last.player, 0), "rewards": np.where(over[:, None], rewards, 0)}
        info |= {f"_{name}": over for name in info}
        return {"final_obs": observations, "_final_obs": over, "final_info": info, "_final_info": over}


def make_vector_env(game: str, **arguments: Any) -> GymVectorEnv:
    """Build a `GymVectorEnv` by name; unknown arguments are parameters of the game."""
    own, params = split_arguments(GymVectorEnv, arguments)
    return GymVectorEnv(make(game, **params), **own)
