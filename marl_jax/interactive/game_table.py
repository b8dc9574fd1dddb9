"""A game under way on the host, one move at a time, for people: at the terminal (`play.py`) and on the page."""

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
    """One move: who, what, what every seat was paid for it, and the positions around it."""

    seat: int
    action: int
    reward: np.ndarray
    before: State
    after: State


class GameTable:
    """The position, whose turn it is, and what each seat would have read so far.

    names         who sits in each seat
    mover, legal  the seat that moves now, and bool[A] what it may do
    done          whether the game is over, also after `max_turns`
    paid          what each seat has earned
    """

    def __init__(self, game: Game, prompt: Prompt, names: Sequence[str], seed: int = 0):
        if len(names) != game.n_players:
            raise ValueError(f"{game.name} has {game.n_players} seats, found {len(names)} to fill them")
        self.game, self.prompt, self.names = game, prompt, tuple(names)
        self._key = jax.random.key(seed)
        self.state = _programs(game)[0](self._key)
        self.moves: list[Taken] = []
        self.paid = np.zeros(game.n_players)
        # Where the context is `history`, each seat's conversation up to its last answer, and the events since.
        self._said: dict[int, str] = {}
        self._pending: dict[int, str] = {}
        self._look()

    @property
    def turn_key(self) -> jax.Array:
        """The key for what is drawn at this turn."""
        return jax.random.fold_in(self._key, len(self.moves))

    def take(self, action: int) -> Taken:
        """Plays an action for the seat to move; a ValueError says why it cannot be."""
        action = check_action(self.game, self.state, action)
        before, seat = self.state, self.mover
        after, reward = _programs(self.game)[1](before, jnp.int32(action))
        paid = np.asarray(jax.device_get(reward.team + reward.agent + reward.process))
        if self.prompt.context == "history":
            self._said[seat], self._pending[seat] = self.prompt_text(seat) + self.prompt.text.names[action], ""
            for other in self._said:
                self._pending[other] += self.prompt.event_text(before, action, after, other)
        self.moves.append(Taken(seat, action, paid, before, after))
        self.state, self.paid = after, self.paid + paid
        self._look()
        return self.moves[-1]

    def prompt_text(self, seat: int) -> str:
        """All that a model in a seat would have read so far, up to where its answer begins."""
        if seat in self._said:
            return self._said[seat] + self.prompt.close_text + self._pending[seat] + self.prompt.ask_text(seat)
        return self.prompt.opening_text(self.state, seat)

    def seat_label(self, seat: int) -> str:
        """A seat with who sits there."""
        roles = self.game.roles
        return f"{roles[seat] if roles else f'player {seat}'} ({self.names[seat]})"

    def describe(self, action: int) -> str:
        """An action's name, and what it means where the name alone does not tell."""
        name, meaning = self.prompt.text.names[action], self.game.action_texts[action]
        return name if name == meaning else f"{name} ({meaning})"

    def result(self) -> list[str]:
        """How the game ended, in sentences."""
        if self.game.competitive:
            best = int(np.argmax(self.paid))
            return ["A draw." if (self.paid == self.paid[best]).all() else f"{self.seat_label(best)} wins."]
        lines = []
        if self.game.solvable:
            lines.append("Solved." if bool(self.game.success(self.state)) else "Not solved.")
        if (score := self.game.score(self.state)) is not None:
            lines.append(f"Score: {int(score)}.")
        paid = (f"{self.seat_label(seat)} {pay:.2f}" for seat, pay in enumerate(self.paid))
        return [*lines, "Reward: " + ", ".join(paid)]

    def _look(self) -> None:
        mover, done, self.legal = jax.device_get(_programs(self.game)[2](self.state))
        self.mover, self.done = int(mover), bool(done) or len(self.moves) >= self.game.max_turns


@functools.lru_cache(maxsize=32)
def _programs(game: Game):
    """Compiled once for each game: reset, step, and (mover, done, legal) of a state."""
    return (
        jax.jit(game.reset),
        jax.jit(game.step),
        jax.jit(lambda state: (game.player(state), game.done(state), game.legal(state))),
    )


class PolicySeat:
    """A team with its weights, to be asked like a bot; its conversations go on as they do in training.

    temperature  0 takes the most likely move
    """

    def __init__(self, game: Game, seated: SeatedTeam, ready: dict, temperature: float = 0.0):
        self._game, self._seated, self._temperature = game, seated, temperature
        self._context = seated.context(game)
        self._ready, self._turn = ready, 0
        self._talk = self._context.begin(1, recording=False)
        self._asked, self._told = jax.jit(self._answer), jax.jit(self._observe)

    def act(self, state: State, key: jax.Array) -> jax.Array:
        """The policy's action: int32[]."""
        action, self._talk = self._asked(self._ready, self._talk, state, key, self._turn)
        return action

    def observe(self, before: State, action: int, after: State) -> None:
        """Hears of a move, its own too."""
        self._talk = self._told(self._talk, before, jnp.int32(action), after, self._turn)
        self._turn += 1

    def _answer(self, ready, talk, state, key, turn):
        team, seating = self._seated.team, self._seated.seating
        state, key = jax.tree.map(lambda x: x[None], (state, key))
        seat = jax.vmap(self._game.player)(state)
        seen = look(self._game, team, state, seat, self._seated.policy(seat, turn))
        asked = self._context.read(talk, seen)
        decision, talk = self._context.act(
            ready, talk, asked, key, legal=seen.legal, policy=seen.policy, temperature=self._temperature
        )
        # As in a match: a free answer that names no legal action is one drawn from them.
        action = team.playable(decision.action, seen.legal, key)
        talk, _ = self._context.say(talk, asked, decision, seen.policy)
        return seating.bot_actions(state, seat, key, action)[0], talk

    def _observe(self, talk, before, action, after, turn):
        before, action, after = jax.tree.map(lambda x: x[None], (before, action, after))
        return self._context.observe(talk, before, action, after, jnp.full((1,), turn))
