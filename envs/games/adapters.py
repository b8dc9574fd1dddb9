"""Gymnasium and PettingZoo environments of the games.

    env = GymEnv(make("sudoku"))                                   # one player
    env = GymEnv(make("tic_tac_toe"), seat=0, others=MinimaxBot()) # one seat, a bot in the others
    env = PettingZooEnv(make("hanabi", players=3))                 # every seat an agent, AEC

An observation is a dict with `action_mask`, int8 [A], and `observation`, either numbers or text. Numbers are the
indices of the game's text (int32 [tables], see `envs/games/text.py`), which contain exactly the information available
to the seat. The reward is the sum of team, agent and process reward, weighted by `weights`. Both libraries are
optional; each class requires its library.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import text as texts
from envs.games import view
from envs.games.game import Bot, Game, Reward, State, check_action, check_choice, check_range
from envs.games.registry import make_text
from envs.games.template import Table

try:
    import gymnasium
except ImportError:
    gymnasium = None
try:
    import pettingzoo
except ImportError:
    pettingzoo = None

_GymBase: Any = gymnasium.Env if gymnasium else object
_AECBase: Any = pettingzoo.AECEnv if pettingzoo else object

OBSERVATIONS = ("numbers", "text")
CHARACTERS = "".join(map(chr, [10, *range(32, 127)]))


@dataclasses.dataclass(frozen=True, eq=False)
class _Table:
    """A game on the host: jitted functions, with observations and rewards in NumPy."""

    game: Game
    text: texts.Text
    observation: str
    weights: Sequence[float]

    def __post_init__(self):
        check_choice(self.game.name, "observation", self.observation, OBSERVATIONS)
        if len(self.weights) != 3:
            raise ValueError(f"weights is {self.weights!r}, but must be three numbers: for team, agent and process")

    @functools.cached_property
    def reset(self):
        """Jitted `Game.reset`."""
        return jax.jit(self.game.reset)

    @functools.cached_property
    def step(self):
        """Jitted `Game.step`."""
        return jax.jit(self.game.step)

    @functools.cached_property
    def _look(self):
        def look(state: State, player: jax.Array):
            return (
                self.game.player(state),
                self.game.done(state),
                self.game.legal(state),
                self.text.indices(state, player),
            )

        return jax.jit(look)

    def look(self, state: State, player: int) -> tuple[int, bool, np.ndarray, np.ndarray]:
        """Return the player to move, done, the legal mask, and the observation indices of `player`."""
        mover, done, legal, numbers = jax.device_get(self._look(state, jnp.int32(player)))
        return int(mover), bool(done), legal, numbers

    def observe(self, state: State, player: int) -> dict[str, Any]:
        """Return the observation of `player`.

        The mask is empty unless it is the player's turn.
        """
        mover, done, legal, numbers = self.look(state, player)
        mask = (legal & (player == mover) & (not done)).astype(np.int8)
        seen = numbers.astype(np.int32) if self.observation == "numbers" else self.text.observation.text(numbers)
        return {"observation": seen, "action_mask": mask}

    def weighted_reward(self, reward: Reward) -> np.ndarray:
        """Return each seat's weighted reward: float [P]."""
        team, agent, process = self.weights
        earned: Any = jax.device_get(reward)
        return team * earned.team + agent * earned.agent + process * earned.process

    def out_of_time(self, state: State, turns: int) -> bool:
        """Return whether a puzzle ended because its turns ran out."""
        return turns >= self.game.max_turns and self.game.solvable and not bool(self.game.success(state))

    def spaces(self) -> tuple[Any, Any]:
        """Return the Gymnasium spaces of observations and actions."""
        assert gymnasium is not None  # checked when an environment is built
        tables = self.text.observation.tables
        if self.observation == "numbers":
            most = np.array([len(table.variants) - 1 for table in tables], np.int32)
            seen = gymnasium.spaces.Box(np.zeros_like(most), most, dtype=np.int32)
        else:
            longest = sum(
                max(map(len, p.variants if isinstance(p, Table) else (p.text,))) for p in self.text.observation.pieces
            )
            seen = gymnasium.spaces.Text(longest, min_length=0, charset=CHARACTERS)
        mask = gymnasium.spaces.Box(0, 1, (self.game.n_actions,), np.int8)
        return gymnasium.spaces.Dict({"observation": seen, "action_mask": mask}), gymnasium.spaces.Discrete(
            self.game.n_actions
        )


def _key(seed: int | None, rng: np.random.Generator) -> tuple[jax.Array, np.random.Generator]:
    """Draw a JAX key from a generator, which `seed` restarts."""
    rng = rng if seed is None else np.random.default_rng(seed)
    return jax.random.key(int(rng.integers(2**31))), rng


class GymEnv(_GymBase):
    """A game as a Gymnasium environment.

    With a bot in `others`, the caller plays one seat and the bot plays the rest. Otherwise the caller plays every seat
    in turn and gets the reward of the seat that moved.
    """

    metadata = {"render_modes": ["ansi"]}

    def __init__(
        self,
        game: Game,
        *,
        seat: int = 0,
        others: Bot | None = None,
        observation: str = "numbers",
        text: str = "full",
        weights: Sequence[float] = (1.0, 1.0, 1.0),
    ):
        if gymnasium is None:
            raise ImportError("GymEnv needs the package gymnasium: pip install gymnasium")
        check_range(game.name, "seat", seat, 0, game.n_players - 1)
        self.game, self.seat, self.others = game, seat, others
        self.render_mode = "ansi"
        self._table = _Table(game, make_text(game, text), observation, weights)
        self.observation_space, self.action_space = self._table.spaces()
        self._act = jax.jit(others.act) if others else None
        self._rng = np.random.default_rng()
        self._state, self._turns = None, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Start a new game and return the first observation."""
        super().reset(seed=seed)
        key, self._rng = _key(seed, self._rng)
        self._state, self._turns = self._table.reset(key), 0
        self._let_others_move()
        return self._seen()

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        """Play an action of the seat to move, and the moves of `others` that follow."""
        if self._state is None:
            raise RuntimeError(f"{self.game.name}: call reset before step")
        mover = self._mover
        earned = self._advance(check_action(self.game, self._state, action))
        earned += self._let_others_move()
        done = bool(self.game.done(self._state))
        truncated = done and self._table.out_of_time(self._state, self._turns)
        return self._seen()[0], float(earned[mover]), done and not truncated, truncated, self._seen()[1]

    def render(self) -> str:
        """Return the board as text."""
        return view.board(self.game, self._state, self._mover)

    @property
    def _mover(self) -> int:
        return self.seat if self.others else int(self.game.player(self._state))

    def _seen(self) -> tuple[dict, dict]:
        return self._table.observe(self._state, self._mover), {"player": self._mover}

    def _advance(self, action: int) -> np.ndarray:
        self._state, reward = self._table.step(self._state, jnp.int32(action))
        self._turns += 1
        return self._table.weighted_reward(reward)

    def _let_others_move(self) -> np.ndarray:
        earned = np.zeros(self.game.n_players)
        while self.others:
            mover, done, *_ = self._table.look(self._state, self.seat)
            if done or mover == self.seat:
                break
            assert self._act is not None
            key, self._rng = _key(None, self._rng)
            earned += self._advance(int(self._act(self._state, key)))
        return earned


class PettingZooEnv(_AECBase):
    """A game as a PettingZoo AEC environment.

    The agents player_0, player_1, … move in the order of the game.
    """

    def __init__(
        self,
        game: Game,
        *,
        observation: str = "numbers",
        text: str = "full",
        weights: Sequence[float] = (1.0, 1.0, 1.0),
    ):
        if pettingzoo is None or gymnasium is None:
            raise ImportError(
                "PettingZooEnv needs the packages pettingzoo and gymnasium: pip install pettingzoo gymnasium"
            )
        super().__init__()
        self.game = game
        self.metadata = {"name": f"{game.name}_v0", "render_modes": ["ansi"], "is_parallelizable": False}
        self.render_mode = "ansi"
        self.possible_agents = [f"player_{i}" for i in range(game.n_players)]
        self._seat = {agent: i for i, agent in enumerate(self.possible_agents)}
        self._table = _Table(game, make_text(game, text), observation, weights)
        spaces = {agent: self._table.spaces() for agent in self.possible_agents}
        self.observation_spaces = {agent: space[0] for agent, space in spaces.items()}
        self.action_spaces = {agent: space[1] for agent, space in spaces.items()}
        self._rng = np.random.default_rng()
        self._state, self._turns = None, 0

    def observation_space(self, agent: str):
        """Return the observation space of `agent`."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str):
        """Return the action space of `agent`."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        """Start a new game."""
        key, self._rng = _key(seed, self._rng)
        self._state, self._turns = self._table.reset(key), 0
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = self.possible_agents[int(self.game.player(self._state))]

    def observe(self, agent: str) -> dict[str, Any]:
        """Return the current observation of `agent`."""
        return self._table.observe(self._state, self._seat[agent])

    def step(self, action: int | None) -> None:
        """Play an action of `agent_selection`, or None if its game is over."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        number = check_action(self.game, self._state, action)
        self._cumulative_rewards[agent] = 0.0
        self._state, reward = self._table.step(self._state, jnp.int32(number))
        self._turns += 1
        earned = self._table.weighted_reward(reward)
        self.rewards = {name: float(earned[self._seat[name]]) for name in self.agents}
        mover, done, *_ = self._table.look(self._state, 0)
        late = done and self._table.out_of_time(self._state, self._turns)
        self.terminations = dict.fromkeys(self.agents, done and not late)
        self.truncations = dict.fromkeys(self.agents, late)
        self.agent_selection = self.possible_agents[mover]
        self._accumulate_rewards()

    def render(self) -> str:
        """Return the complete board as text."""
        return view.board(self.game, self._state)

    def close(self) -> None:
        """Do nothing; the environment holds no resources."""
