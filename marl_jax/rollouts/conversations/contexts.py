"""Contexts, which form the prompts of turns with or without a conversation.

A rollout uses its context as follows, without knowing which kind it has:

    carry = context.begin(…)                   start the conversations, if there are any
    inputs = context.read(carry, seen)         form the prompts of the acting seats
    decision, carry = context.act(…)           sample completions of the learner, one or several per prompt
    decision, carry = context.act_opposite(…)  sample completions of a historical opponent, in its rows
    carry, places = context.say(…)             append the completions to the conversations
    carry = context.observe(…)                 show the move to every seat
    carry = context.restart(carry, ended)      start conversations of new games
    samples = context.samples(…)               build the samples of the rollout
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
    """Interface of contexts, used by rollouts and matches.

    The value returned by `begin` is passed to the other methods and carried from turn to turn.

    Attributes:
        records_prompts: Whether prompts are recorded with the turns.
    """

    records_prompts: ClassVar[bool]

    def begin(self, games: int, opposite: int = 0, sampling: bool = True, recording: bool = True) -> Any:
        """Return the state that is carried from turn to turn."""
        ...

    def read(self, carry: Any, seen: Any) -> Any:
        """Return the input of the acting seats at this turn."""
        ...

    def fresh(self, inputs: Any) -> jax.Array:
        """Return whether the turn starts a conversation, bool [B]."""
        ...

    def act(self, prepared: dict, carry: Any, inputs: Any, keys: jax.Array, **settings: Any) -> tuple[Decision, Any]:
        """Sample completions of the learner."""
        ...

    def act_opposite(
        self, prepared: dict, carry: Any, inputs: Any, seen: Any, start: int, keys: jax.Array
    ) -> tuple[Decision, Any]:
        """Sample completions of a historical opponent for the games from `start` on."""
        ...

    def say(
        self, carry: Any, inputs: Any, decision: Decision, policy: jax.Array
    ) -> tuple[Any, transcripts.RowPosition | None]:
        """Append the completions to the conversations."""
        ...

    def observe(self, carry: Any, before: Any, action: jax.Array, after: Any, turn: jax.Array, through=None) -> Any:
        """Show a move to every seat."""
        ...

    def restart(self, carry: Any, ended: jax.Array) -> Any:
        """Start new conversations in the games that ended."""
        ...

    def samples(self, carry: Any, played: Turn, places: Any, candidates: int = 1, **more: Any) -> Samples:
        """Build samples from the turns of a rollout."""
        ...

    def dropped(self, played: Turn, places: Any) -> jax.Array | None:
        """Count the completions per turn that do not fit in their row, int32 [V, B]."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class TurnContext:
    """A context of self-contained prompts with rules and current position, without memory.

    Attributes:
        team: Policies that act.
        tokens: Maximum row length of samples; 0 fits the longest prompt.
    """

    team: Team
    tokens: int = 0

    records_prompts: ClassVar[bool] = True

    def begin(self, games: int, opposite: int = 0, sampling: bool = True, recording: bool = True) -> tuple:
        """Return an empty state."""
        return ()

    def read(self, carry: tuple, seen: Any) -> Any:
        """Return the observations, which contain the prompts."""
        return seen

    def fresh(self, inputs: Any) -> jax.Array:
        """Return True for all games, bool [B]: every prompt starts a conversation."""
        return jnp.ones(inputs.seat.shape, bool)

    def act(
        self, prepared: dict, carry: tuple, inputs: Any, keys: jax.Array, **settings: Any
    ) -> tuple[Decision, tuple]:
        """Sample completions with `Team.act`."""
        ids = settings.pop("policy")
        decision = self.team.act(
            prepared, inputs.prompts, inputs.lengths, keys=keys, ids=ids, media=inputs.media, **settings
        )
        return decision, carry

    def act_opposite(self, prepared: dict, carry: tuple, inputs: Any, seen: Any, start: int, keys: jax.Array):
        """Sample completions with other weights for some rows."""
        return self.act(prepared, carry, inputs, keys, legal=seen.legal, policy=seen.policy)

    def say(self, carry: tuple, inputs: Any, decision: Decision, policy: jax.Array) -> tuple[tuple, None]:
        """Return the state unchanged."""
        return carry, None

    def observe(self, carry: tuple, before: Any, action: jax.Array, after: Any, turn: jax.Array, through=None) -> tuple:
        """Return the state unchanged."""
        return carry

    def restart(self, carry: tuple, ended: jax.Array) -> tuple:
        """Return the state unchanged."""
        return carry

    def samples(self, carry: tuple, played: Turn, places: None, candidates: int = 1, **more: Any) -> Samples:
        """Build samples with one row per prompt."""
        return turns.to_samples(played, candidates, self.tokens, **more)

    def dropped(self, played: Turn, places: None) -> jax.Array | None:
        """Count the completions per turn with too long a prompt, int32 [V, B]."""
        if not self.tokens:
            return None
        assert played.lengths is not None
        counted = jnp.sum(played.counts.reshape(*played.lengths.shape, -1) > 0, axis=-1)
        return jnp.where(turns.has_room(played, self.tokens), 0, counted)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Carry:
    """State of conversations during a rollout.

    Attributes:
        threads: Conversations of all seats.
        opposite: KV caches of a historical opponent, by backbone.
        script: Recorded rows; None if no samples are needed.
    """

    threads: Threads
    opposite: dict
    script: Transcript | None


@dataclasses.dataclass(frozen=True, eq=False)
class HistoryContext:
    """A context in which the turns of a seat form one conversation.

    Attributes:
        history: Conversations of the team.
        turns: Number of turns of the rollout, including lookahead.
        tokens: Row length; 0 chooses it with `transcripts.room`.
    """

    history: History
    turns: int
    tokens: int = 0

    records_prompts: ClassVar[bool] = False

    def begin(self, games: int, opposite: int = 0, sampling: bool = True, recording: bool = True) -> Carry:
        """Return conversations that have not started.

        Args:
            games: Number of games, B.
            opposite: Number of games with a historical opponent.
            sampling: Whether policies are sampled, which requires caches.
            recording: Whether samples are needed, which requires rows to record.
        """
        h = self.history
        script = None
        if recording:
            room = transcripts.room(h, self.turns, self.tokens)
            script = transcripts.new_transcript(games * h.game.n_players, room)
        others = h.begin(opposite).caches if opposite else {}
        return Carry(h.begin(games, sampling), others, script)

    def read(self, carry: Carry, seen: Any) -> ThreadRead:
        """Return the opening or the new tokens of each acting seat."""
        return self.history.read(carry.threads, seen.seat, seen.policy, seen.prompts, seen.lengths)

    def fresh(self, inputs: ThreadRead) -> jax.Array:
        """Return whether the turn starts a conversation, bool [B]."""
        return inputs.fresh

    def act(
        self, prepared: dict, carry: Carry, inputs: ThreadRead, keys: jax.Array, **settings: Any
    ) -> tuple[Decision, Carry]:
        """Prefill the new tokens and sample completions."""
        decision, threads = self.history.act(prepared, carry.threads, inputs, keys=keys, **settings)
        return decision, dataclasses.replace(carry, threads=threads)

    def act_opposite(
        self, prepared: dict, carry: Carry, inputs: ThreadRead, seen: Any, start: int, keys: jax.Array
    ) -> tuple[Decision, Carry]:
        """Sample completions with other weights for the games from `start` on.

        Both policies read the same conversations.
        """
        opponent_inputs = dataclasses.replace(inputs, row=inputs.row - start * self.history.game.n_players)
        threads = dataclasses.replace(carry.threads, caches=carry.opposite)
        decision, threads = self.history.act(
            prepared, threads, opponent_inputs, keys=keys, legal=seen.legal, policy=seen.policy
        )
        return decision, dataclasses.replace(carry, opposite=threads.caches)

    def say(
        self, carry: Carry, inputs: ThreadRead, decision: Decision, policy: jax.Array
    ) -> tuple[Carry, RowPosition | None]:
        """Append the completions to the conversations and record them."""
        kept = self.history.kept(decision, policy)
        script, places = carry.script, None
        if script is not None:
            script = transcripts.write_read(script, inputs)
            script, places = transcripts.write_answer(script, inputs, decision.answers, kept)
        threads = self.history.say(carry.threads, inputs, decision.answers, kept)
        return dataclasses.replace(carry, threads=threads, script=script), places

    def observe(self, carry: Carry, before: Any, action: jax.Array, after: Any, turn: jax.Array, through=None) -> Carry:
        """Append the event of a move to all conversations; see `History.observe`."""
        threads = self.history.observe(carry.threads, before, action, after, turn, through)
        return dataclasses.replace(carry, threads=threads)

    def restart(self, carry: Carry, ended: jax.Array) -> Carry:
        """Start new conversations in the games that ended, bool [B]."""
        return dataclasses.replace(carry, threads=self.history.restart(carry.threads, ended))

    def samples(self, carry: Carry, played: Turn, places: RowPosition, candidates: int = 1, **more: Any) -> Samples:
        """Build samples with one row per seat and game."""
        assert carry.script is not None
        return transcripts.to_samples(carry.script, played, places, candidates, **more)

    def dropped(self, played: Turn, places: RowPosition) -> jax.Array:
        """Count the completions per turn that do not fit in their row, int32 [V, B]."""
        counted = jnp.sum(played.counts.reshape(*places.whole.shape, -1) > 0, axis=-1)
        return jnp.where(places.whole, 0, counted)
