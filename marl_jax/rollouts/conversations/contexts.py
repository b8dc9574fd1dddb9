"""What a turn's prompt is: one that stands alone, or the next part of a conversation.

A rollout asks its context, and does not know which of the two it has:

    carry = context.begin(…)                           conversations, where there are any
    asked = context.read(carry, seen)                  what the movers read
    decision, carry = context.act(…)                   the learner's answers, or several to each prompt
    decision, carry = context.act_opposite(…)          a historical opponent's, in its own rows
    carry, places = context.say(…)                     the answers that were given become part of the conversations
    carry = context.observe(…)                         every seat hears of the move
    carry = context.restart(carry, ended)              new games
    samples = context.samples(…)
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp

from marl_jax.agents.answering import Decision
from marl_jax.agents.team import Team
from marl_jax.rollouts.conversations import transcripts, turns
from marl_jax.rollouts.conversations.threads import History, ThreadRead, Threads
from marl_jax.rollouts.conversations.transcripts import RowPosition, Transcript
from marl_jax.rollouts.conversations.turns import Turn
from marl_jax.samples import Samples


class Context(Protocol):
    """What a rollout asks of a context; what `begin` returns is carried from turn to turn."""

    records_prompts: ClassVar[bool]

    def begin(self, games: int, opposite: int = 0, sampling: bool = True, recording: bool = True) -> Any:
        """Return what is carried from turn to turn."""
        ...

    def read(self, carry: Any, seen: Any) -> Any:
        """Return what the movers read at this turn."""
        ...

    def fresh(self, asked: Any) -> jax.Array:
        """Return whether prompts begin a conversation, bool [B]."""
        ...

    def act(self, ready: dict, carry: Any, asked: Any, keys: jax.Array, **settings: Any) -> tuple[Decision, Any]:
        """Sample the answers of the learner."""
        ...

    def act_opposite(
        self, ready: dict, carry: Any, asked: Any, seen: Any, start: int, keys: jax.Array
    ) -> tuple[Decision, Any]:
        """Sample the answers of a historical opponent for the games from `start` on."""
        ...

    def say(
        self, carry: Any, asked: Any, decision: Decision, policy: jax.Array
    ) -> tuple[Any, transcripts.RowPosition | None]:
        """Append the answers to the conversations."""
        ...

    def observe(self, carry: Any, before: Any, action: jax.Array, after: Any, turn: jax.Array, through=None) -> Any:
        """Tell every seat of a move."""
        ...

    def restart(self, carry: Any, ended: jax.Array) -> Any:
        """Begin new conversations in the games that ended."""
        ...

    def samples(self, carry: Any, played: Turn, places: Any, candidates: int = 1, **more: Any) -> Samples:
        """Convert the turns of a rollout to samples."""
        ...

    def dropped(self, played: Turn, places: Any) -> jax.Array | None:
        """Count the answers of each turn for which a row had no room, int32 [V, B]."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class TurnContext:
    """Every prompt has the rules and the present position; nothing is remembered.

    tokens  of a row of samples at most; 0: as many as the longest prompt needs
    """

    team: Team
    tokens: int = 0

    records_prompts: ClassVar[bool] = True

    def begin(self, games: int, opposite: int = 0, sampling: bool = True, recording: bool = True) -> tuple:
        """Nothing."""
        return ()

    def read(self, carry: tuple, seen: Any) -> Any:
        """The prompts of what is seen."""
        return seen

    def fresh(self, asked: Any) -> jax.Array:
        """bool [B]: whether prompts begin a conversation, as all do here."""
        return jnp.ones(asked.seat.shape, bool)

    def act(self, ready: dict, carry: tuple, asked: Any, keys: jax.Array, **settings: Any) -> tuple[Decision, tuple]:
        """`Team.act`."""
        decision = self.team.act(ready, asked.prompts, asked.lengths, keys=keys, ids=settings.pop("policy"), **settings)
        return decision, carry

    def act_opposite(self, ready: dict, carry: tuple, asked: Any, seen: Any, start: int, keys: jax.Array):
        """`Team.act` with other weights, for some rows."""
        return self.act(ready, carry, asked, keys, legal=seen.legal, policy=seen.policy)

    def say(self, carry: tuple, asked: Any, decision: Decision, policy: jax.Array) -> tuple[tuple, None]:
        """Nothing is remembered."""
        return carry, None

    def observe(self, carry: tuple, before: Any, action: jax.Array, after: Any, turn: jax.Array, through=None) -> tuple:
        """Nothing is remembered."""
        return carry

    def restart(self, carry: tuple, ended: jax.Array) -> tuple:
        """Nothing is remembered."""
        return carry

    def samples(self, carry: tuple, played: Turn, places: None, candidates: int = 1, **more: Any) -> Samples:
        """A row for every prompt."""
        return turns.to_samples(played, candidates, self.tokens, **more)

    def dropped(self, played: Turn, places: None) -> jax.Array | None:
        """int32 [V, B]: answers of each turn that count and whose prompt is too long; None where every one fits."""
        if not self.tokens:
            return None
        assert played.lengths is not None
        counted = jnp.sum(played.counts.reshape(*played.lengths.shape, -1) > 0, axis=-1)
        return jnp.where(turns.has_room(played, self.tokens), 0, counted)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Carry:
    """Conversations, what a historical opponent has read of them (by backbone), and what was written down."""

    threads: Threads
    opposite: dict
    script: Transcript | None


@dataclasses.dataclass(frozen=True, eq=False)
class HistoryContext:
    """A seat's turns are one conversation.

    turns   of the rollout, those that look ahead included
    tokens  of a row; 0: by `transcripts.room`
    """

    history: History
    turns: int
    tokens: int = 0

    records_prompts: ClassVar[bool] = False

    def begin(self, games: int, opposite: int = 0, sampling: bool = True, recording: bool = True) -> Carry:
        """Conversations that have yet to begin.

        opposite   games with a historical opponent
        sampling   whether policies are asked, which needs caches
        recording  whether samples are wanted, which need rows to write into
        """
        h = self.history
        script = None
        if recording:
            room = transcripts.room(h, self.turns, self.tokens)
            script = transcripts.new_transcript(games * h.game.n_players, room)
        others = h.begin(opposite).caches if opposite else {}
        return Carry(h.begin(games, sampling), others, script)

    def read(self, carry: Carry, seen: Any) -> ThreadRead:
        """The opening, or what is new."""
        return self.history.read(carry.threads, seen.seat, seen.policy, seen.prompts, seen.lengths)

    def fresh(self, asked: ThreadRead) -> jax.Array:
        """bool [B]: whether conversations begin with this turn."""
        return asked.fresh

    def act(
        self, ready: dict, carry: Carry, asked: ThreadRead, keys: jax.Array, **settings: Any
    ) -> tuple[Decision, Carry]:
        """What is new is read and answered."""
        decision, threads = self.history.act(ready, carry.threads, asked, keys=keys, **settings)
        return decision, dataclasses.replace(carry, threads=threads)

    def act_opposite(
        self, ready: dict, carry: Carry, asked: ThreadRead, seen: Any, start: int, keys: jax.Array
    ) -> tuple[Decision, Carry]:
        """The same with other weights, for the games from `start` on; both read the same conversations."""
        theirs = dataclasses.replace(asked, row=asked.row - start * self.history.game.n_players)
        threads = dataclasses.replace(carry.threads, caches=carry.opposite)
        decision, threads = self.history.act(ready, threads, theirs, keys=keys, legal=seen.legal, policy=seen.policy)
        return decision, dataclasses.replace(carry, opposite=threads.caches)

    def say(
        self, carry: Carry, asked: ThreadRead, decision: Decision, policy: jax.Array
    ) -> tuple[Carry, RowPosition | None]:
        """The conversations with these answers."""
        kept = self.history.kept(decision, policy)
        script, places = carry.script, None
        if script is not None:
            script = transcripts.write_read(script, asked)
            script, places = transcripts.write_answer(script, asked, decision.answers, kept)
        threads = self.history.say(carry.threads, asked, decision.answers, kept)
        return dataclasses.replace(carry, threads=threads, script=script), places

    def observe(self, carry: Carry, before: Any, action: jax.Array, after: Any, turn: jax.Array, through=None) -> Carry:
        """Every seat with the event of a move; see `History.observe`."""
        threads = self.history.observe(carry.threads, before, action, after, turn, through)
        return dataclasses.replace(carry, threads=threads)

    def restart(self, carry: Carry, ended: jax.Array) -> Carry:
        """New conversations in games that ended, bool [B]."""
        return dataclasses.replace(carry, threads=self.history.restart(carry.threads, ended))

    def samples(self, carry: Carry, played: Turn, places: RowPosition, candidates: int = 1, **more: Any) -> Samples:
        """A row for every seat of every game."""
        assert carry.script is not None
        return transcripts.to_samples(carry.script, played, places, candidates, **more)

    def dropped(self, played: Turn, places: RowPosition) -> jax.Array:
        """int32 [V, B]: answers of each turn that count and for which a row had no room."""
        counted = jnp.sum(played.counts.reshape(*places.whole.shape, -1) > 0, axis=-1)
        return jnp.where(places.whole, 0, counted)
