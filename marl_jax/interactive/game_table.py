"""Games in progress on the host, for the terminal and the web page."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.game import Game, State, check_action
from envs.games.text import Prompt
from marl_jax.rollouts.games import look
from marl_jax.rollouts.seated_team import SeatedTeam


@dataclasses.dataclass(frozen=True, eq=False)
class Taken:
    """One move.

    Attributes:
        seat: Seat that moved.
        action: Action of the move.
        reward: Reward of every seat for the move.
        before: State before the move.
        after: State after the move.
    """

    seat: int
    action: int
    reward: np.ndarray
    before: State
    after: State


class GameTable:
    """A game in progress with its prompts.

    Attributes:
        names: Names of the players by seat.
        state: Current state.
        moves: Moves so far.
        mover: Seat to move.
        legal: Legal actions of that seat, bool [A].
        done: Whether the game is over or `max_turns` is reached.
        total_reward: Sum of the rewards of each seat.
    """

    def __init__(self, game: Game, prompt: Prompt, names: Sequence[str], seed: int = 0):
        if len(names) != game.n_players:
            raise ValueError(f"{game.name} has {game.n_players} seats, but got {len(names)} names")
        self.game, self.prompt, self.names = game, prompt, tuple(names)
        self._key = jax.random.key(seed)
        self.state = _programs(game)[0](self._key)
        self.moves: list[Taken] = []
        self.total_reward = np.zeros(game.n_players)
        # In the context `history`: each seat's conversation up to its last completion, and the events since.
        self._said: dict[int, str] = {}
        self._pending: dict[int, str] = {}
        self._look()

    @property
    def turn_key(self) -> jax.Array:
        """Random key of this turn."""
        return jax.random.fold_in(self._key, len(self.moves))

    def take(self, action: int) -> Taken:
        """Play an action for the seat to move; raise ValueError if it is not legal."""
        action = check_action(self.game, self.state, action)
        before, seat = self.state, self.mover
        after, reward = _programs(self.game)[1](before, jnp.int32(action))
        rewards = np.asarray(jax.device_get(reward.team + reward.agent + reward.process))
        if self.prompt.context == "history":
            self._said[seat], self._pending[seat] = self.prompt_text(seat) + self.prompt.text.names[action], ""
            for other in self._said:
                self._pending[other] += self.prompt.event_text(before, action, after, other)
        self.moves.append(Taken(seat, action, rewards, before, after))
        self.state, self.total_reward = after, self.total_reward + rewards
        self._look()
        return self.moves[-1]

    def prompt_text(self, seat: int) -> str:
        """Return the full prompt that a model in a seat would read now."""
        if seat in self._said:
            return self._said[seat] + self.prompt.close_text + self._pending[seat] + self.prompt.ask_text(seat)
        return self.prompt.opening_text(self.state, seat)

    def seat_label(self, seat: int) -> str:
        """Return the name of a seat with its player."""
        roles = self.game.roles
        return f"{roles[seat] if roles else f'player {seat}'} ({self.names[seat]})"

    def describe(self, action: int) -> str:
        """Return the name of an action, with an explanation if the name alone is unclear."""
        name, meaning = self.prompt.text.names[action], self.game.action_texts[action]
        return name if name == meaning else f"{name} ({meaning})"

    def result(self) -> list[str]:
        """Return sentences that describe how the game ended."""
        if self.game.competitive:
            winners = np.flatnonzero(self.total_reward == self.total_reward.max())
            if len(winners) == self.game.n_players:
                return ["A draw."]
            return [" and ".join(map(self.seat_label, winners.tolist())) + (" wins." if len(winners) == 1 else " win.")]
        lines = []
        if self.game.solvable:
            lines.append("Solved." if bool(self.game.success(self.state)) else "Not solved.")
        if (score := self.game.score(self.state)) is not None:
            lines.append(f"Score: {int(score)}.")
        rewards = (f"{self.seat_label(seat)} {reward:.2f}" for seat, reward in enumerate(self.total_reward))
        return [*lines, "Reward: " + ", ".join(rewards)]

    def _look(self) -> None:
        mover, done, self.legal = jax.device_get(_programs(self.game)[2](self.state))
        self.mover, self.done = int(mover), bool(done) or len(self.moves) >= self.game.max_turns


@functools.lru_cache(maxsize=32)
def _programs(game: Game):
    """Compile reset, step, and (mover, done, legal) once for each game."""
    return (
        jax.jit(game.reset),
        jax.jit(game.step),
        jax.jit(lambda state: (game.player(state), game.done(state), game.legal(state))),
    )


class PolicySeat:
    """The policies of a team as a bot, with conversations as in training.

    Args:
        game: Game to play.
        seated: Team and its seating.
        weights: Weights prepared for sampling.
        temperature: Sampling temperature; 0 takes the most likely move.
    """

    def __init__(self, game: Game, seated: SeatedTeam, weights: dict, temperature: float = 0.0):
        self._game, self._seated, self._temperature = game, seated, temperature
        self._context = seated.context(game)
        self._weights, self._turn = weights, 0
        self._carry = self._context.begin(1, recording=False)
        self._act_program, self._observe_program = jax.jit(self._answer), jax.jit(self._observe)

    def act(self, state: State, key: jax.Array) -> jax.Array:
        """Return the policy's action: int32 []."""
        action, self._carry = self._act_program(self._weights, self._carry, state, key, self._turn)
        return action

    def observe(self, before: State, action: int, after: State) -> None:
        """Update the conversations with a move, including the policy's own."""
        self._carry = self._observe_program(self._carry, before, jnp.int32(action), after, self._turn)
        self._turn += 1

    def _answer(self, weights, carry, state, key, turn):
        team, seating = self._seated.team, self._seated.seating
        state, key = jax.tree.map(lambda x: x[None], (state, key))
        seat = jax.vmap(self._game.player)(state)
        seen = look(self._game, team, state, seat, self._seated.policy(seat, turn))
        read = self._context.read(carry, seen)
        decision, carry = self._context.act(
            weights, carry, read, key, legal=seen.legal, policy=seen.policy, temperature=self._temperature
        )
        # As in a match, a completion that names no legal action is replaced by a random legal action.
        action = team.playable(decision.action, seen.legal, key)
        carry, _ = self._context.say(carry, read, decision, seen.policy)
        return seating.bot_actions(state, seat, key, action)[0], carry

    def _observe(self, carry, before, action, after, turn):
        before, action, after = jax.tree.map(lambda x: x[None], (before, action, after))
        return self._context.observe(carry, before, action, after, jnp.full((1,), turn))
