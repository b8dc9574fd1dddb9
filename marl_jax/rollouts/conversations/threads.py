"""Conversations that continue from turn to turn, with their KV caches.

A conversation starts with the opening (rules and current position) at every new game, at every rollout and after
`history_turns` completions. In between, a turn only reads new tokens: the seat's last completion, the events since
then, and the question. So a position is prefilled once, not at every turn.

Axis letters: C = B·P conversations, where seat p of game b has conversation b·P + p; E pending tokens.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from envs.games.game import Game
from envs.games.text import Prompt
from marl_jax.agents import answering
from marl_jax.agents.answering import Decision
from marl_jax.agents.answers import Reply
from marl_jax.agents.seating import Seating
from marl_jax.agents.team import Backbone, Team
from models import cache as kv
from models.sharding import num_shards

LONG_ONES = 8  # openings and long turns are read in batches of B/8: few games have one at the same turn


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Threads:
    """State of the conversations.

    Attributes:
        caches: KV caches of the conversations after the common prefix, by backbone.
        length: int32 [C]. Number of tokens in the cache, without the prefix and the last completion.
        answers: int32 [C]. Number of completions so far; 0 if the conversation has not started.
        said: int32 [C, W]. Last completion, which is not in the cache yet.
        said_length: int32 [C]. Length of the last completion.
        pending: int32 [C, E]. Events since the last completion.
        pending_length: int32 [C]. Length of the events.
    """

    caches: dict[str, kv.Cache]
    length: jax.Array
    answers: jax.Array
    said: jax.Array
    said_length: jax.Array
    pending: jax.Array
    pending_length: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ThreadRead:
    """Input tokens of the acting seats of B games at one turn.

    Attributes:
        row: int32 [B]. Index of the conversation.
        fresh: bool [B]. Whether the conversation starts with this turn.
        skip: int32 [B]. Length of the common prefix.
        before: int32 [B]. Number of tokens of the conversation in the cache, without the prefix.
        tokens: int32 [B, T]. New tokens, starting with the seat's last completion.
        lengths: int32 [B]. Number of new tokens.
        answer: int32 [B]. Number of new tokens that belong to the last completion.
        context_len: int32 [B]. Number of tokens before the next completion, counting the prefix.
    """

    row: jax.Array
    fresh: jax.Array
    skip: jax.Array
    before: jax.Array
    tokens: jax.Array
    lengths: jax.Array
    answer: jax.Array
    context_len: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class History:
    """The conversations of a team in a game.

    Attributes:
        game: Rules of the game.
        team: Policies that converse.
        seating: Assignment of policies to seats.
        turns: Number of completions after which a conversation starts again.
        horizon: Maximum number of turns of a game that the cache must hold; longer conversations start again.
        symmetry: Symmetries through which seats see the game, or None.
    """

    game: Game
    team: Team
    seating: Seating
    turns: int
    horizon: int
    symmetry: Any = None

    @property
    def _prompts(self) -> list[Prompt]:
        """Prompts of the backbones, which all have one in a game."""
        return [backbone.prompt for backbone in self.team.backbones if backbone.prompt is not None]

    @property
    def room(self) -> int:
        """Maximum number of pending tokens, E.

        Every seat moves once between two turns of a seat. A conversation with more events starts again.
        """
        return self.game.n_players * max(prompt.event_length for prompt in self._prompts)

    @property
    def more_length(self) -> int:
        """Maximum number of new tokens of a later turn."""
        ask = max(len(prompt.close_ids) + prompt.ask_length for prompt in self._prompts)
        return self.team.width + self.room + ask

    @property
    def usual_length(self) -> int:
        """Number of tokens of a later turn and its completion, for events of average length."""
        ask = max(len(prompt.close_ids) + prompt.ask_length for prompt in self._prompts)
        events = ((p.event_length, p.history.event.min_length) for p in self._prompts if p.history is not None)
        event = max((longest + shortest) / 2 for longest, shortest in events)
        return ask + round(self.game.n_players * event) + self.team.width

    def own_turns(self, turns: int) -> int:
        """Return the number of turns of one seat among `turns` turns of a game."""
        return -(-turns // self.game.n_players) + 1

    def slots(self, backbone: Backbone) -> int:
        """Return the cache size: an opening and later turns of usual length.

        A conversation that fills its cache starts again.
        """
        later = min(self.turns, self.own_turns(self.horizon)) - 1
        least = self.more_length + self.team.width if later else self.team.width
        exact = backbone.prompt_length + max(later * self.usual_length, least)
        rounded, positions = -(-exact // 64) * 64, backbone.model.cfg.learned_positions
        return min(rounded, positions - len(backbone.policy.prefix)) if positions else rounded

    def begin(self, games: int, sampling: bool = True) -> Threads:
        """Return conversations that have not started.

        Args:
            games: Number of games, B.
            sampling: Whether to allocate caches, which sampling requires.
        """
        n = games * self.game.n_players
        zeros = jnp.zeros((n,), jnp.int32)
        backbones = self.team.backbones if sampling else ()
        caches = {b.name: kv.empty(b.model.cfg, n, self.slots(b), b.policy.dtype) for b in backbones}
        empty = lambda width: jnp.zeros((n, width), jnp.int32)  # noqa: E731
        return Threads(caches, zeros, zeros, empty(self.team.width), zeros, empty(self.room), zeros)

    # ------------------------------------------------------------------------------------------------------ reading

    def read(
        self, threads: Threads, seat: jax.Array, policy: jax.Array, opening: jax.Array, lengths: jax.Array
    ) -> ThreadRead:
        """Return the input of the acting seats: openings or new tokens.

        Args:
            threads: State of the conversations.
            seat: int32 [B]. Acting seats.
            policy: int32 [B]. Policies of these seats.
            opening: int32 [B, T]. Openings of new conversations.
            lengths: int32 [B]. Lengths of the openings.
        """
        row = jnp.arange(len(seat)) * self.game.n_players + seat
        own = jax.tree.map(lambda x: x[row], dataclasses.replace(threads, caches={}))
        before = own.length
        more, more_lengths = jax.vmap(self.team.prompts.following)(
            own.said, own.said_length, own.pending, own.pending_length, seat, policy
        )
        room = jnp.asarray([self.slots(b) for b in self.team.backbones], jnp.int32)[self.team.backbone_of(policy)]
        full = before + more_lengths + self.team.width > room
        fresh = (own.answers == 0) | (own.answers >= self.turns) | full
        width = max(opening.shape[1], more.shape[1])
        wide = lambda x: jnp.pad(x, ((0, 0), (0, width - x.shape[1])))  # noqa: E731
        skip = self.team.prompts.skip(policy)
        lengths = jnp.where(fresh, lengths, more_lengths)
        before = jnp.where(fresh, 0, before)
        return ThreadRead(
            row=row,
            fresh=fresh,
            skip=skip,
            before=before,
            tokens=jnp.where(fresh[:, None], wide(opening), wide(more)),
            lengths=lengths,
            answer=jnp.where(fresh, 0, own.said_length),
            context_len=skip + before + lengths,
        )

    def act(
        self,
        prepared: dict,
        threads: Threads,
        read: ThreadRead,
        legal: jax.Array,
        keys: jax.Array,
        policy: jax.Array,
        temperature: float | None = None,
        central: tuple[jax.Array, jax.Array] | None = None,
        candidates: int = 1,
    ) -> tuple[Decision, Threads]:
        """Prefill the new tokens and sample completions; see `Team.act`.

        The completions are not added to the conversations yet; `say` does that.
        """
        caches, decision = dict(threads.caches), None
        for backbone in self.team.backbones:
            own = self.team.own_ids(policy, backbone.number)
            belongs = own >= 0 if len(self.team.backbones) > 1 else jnp.ones(own.shape, bool)
            weights = prepared[backbone.name]
            last, cache = self._read(backbone, weights, caches[backbone.name], read, belongs, own)
            result = self._answer(
                backbone, weights, cache, last, read, legal, keys, own, temperature, central, candidates
            )
            caches[backbone.name] = cache
            result = self.team.padded(result)
            each = jnp.repeat(belongs, candidates)
            pick = lambda a, b, each=each: jnp.where(each.reshape(-1, *(1,) * (a.ndim - 1)), a, b)  # noqa: E731
            decision = result if decision is None else jax.tree.map(pick, result, decision)
        assert decision is not None
        return decision, dataclasses.replace(threads, caches=caches)

    def _read(self, backbone: Backbone, weights: dict, cache: kv.Cache, read: ThreadRead, belongs, own):
        """Prefill the new tokens and return the last hidden states [B, D] and the cache."""
        cache = kv.restart(cache, jnp.zeros((len(cache.lengths),), bool).at[read.row].set(read.fresh & belongs))
        narrow = min(self.usual_length, read.tokens.shape[1])
        lengths = jnp.where(belongs, read.lengths, 0)
        waits = lengths > narrow  # openings, and turns with long events

        def some(cache, rows, tokens, lengths, ids):
            return answering.read_more(backbone.policy, weights, cache, rows, tokens, lengths, ids)

        def all_rows(cache, width, lengths):
            return some(cache, read.row, read.tokens[:, :width], lengths, own)

        games = len(read.row)
        if narrow == read.tokens.shape[1]:
            return all_rows(cache, narrow, lengths)
        if num_shards("B", games) > 1:  # conversations stay on their devices
            return jax.lax.cond(
                jnp.any(waits),
                lambda: all_rows(cache, read.tokens.shape[1], lengths),
                lambda: all_rows(cache, narrow, lengths),
            )
        last, cache = all_rows(cache, narrow, jnp.where(waits, 0, lengths))
        batch = max(1, games // LONG_ONES)

        def long_ones(carry):
            last, cache, waits = carry
            at = jnp.nonzero(waits, size=batch, fill_value=games)[0]
            there = jnp.minimum(at, games - 1)
            real = jnp.where(at < games, lengths[there], 0)
            # Every conversation has a separate row; unused entries point to a row that does not exist.
            rows = jnp.where(at < games, read.row[there], len(cache.lengths))
            hidden, cache = some(cache, rows, read.tokens[there], real, own[there])
            last = last.at[at].set(hidden, mode="drop")
            return last, cache, waits.at[at].set(False, mode="drop")

        last, cache, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[2]), long_ones, (last, cache, waits))
        return last, cache

    def _answer(
        self, backbone, weights, cache, last, read: ThreadRead, legal, keys, own, temperature, central, candidates
    ) -> Decision:
        policy = backbone.policy
        values = answering.values_at_prompt(policy, weights, last, None, jnp.maximum(read.lengths, 1), central)
        lengths, ids = read.context_len, own
        trial = kv.take(cache, read.row) if policy.answers.decodes else None
        if candidates > 1:
            last, lengths, legal, ids, values, trial = jax.tree.map(
                lambda x: jnp.repeat(x, candidates, axis=0), (last, lengths, legal, ids, values, trial)
            )
        adapters = policy.adapters(weights, ids)
        prefix = weights.get("prefix")
        return answering.answer(
            policy, weights, last, lengths, legal, keys, temperature, trial, adapters, values, prefix
        )

    # ------------------------------------------------------------------------------------------------------ writing

    def kept(self, decision: Decision, policy: jax.Array) -> jax.Array:
        """Return the number of tokens of each completion that stay in its conversation, int32 [B]."""
        lengths = jnp.zeros_like(decision.lengths)
        for backbone in self.team.backbones:
            belongs = self.team.own_ids(policy, backbone.number) >= 0
            width = backbone.policy.width
            tokens, logps = decision.answers[:, :width], decision.logps[:, :width]
            reply = Reply(decision.action, tokens, decision.lengths, logps, decision.truncated)
            lengths = jnp.where(belongs, backbone.policy.answers.kept(reply), lengths)
        return lengths

    def say(self, threads: Threads, read: ThreadRead, answers: jax.Array, kept: jax.Array) -> Threads:
        """Append completions to the conversations of the acting seats and clear their events.

        Args:
            threads: State of the conversations.
            read: Input of the turn.
            answers: int32 [B, W]. Completions.
            kept: int32 [B]. Number of tokens of each completion that stay in the conversation.
        """
        row = read.row
        return dataclasses.replace(
            threads,
            length=threads.length.at[row].set(read.before + read.lengths),
            answers=threads.answers.at[row].set(jnp.where(read.fresh, 0, threads.answers[row]) + 1),
            said=threads.said.at[row].set(answers),
            said_length=threads.said_length.at[row].set(kept),
            pending_length=threads.pending_length.at[row].set(0),
        )

    def observe(self, threads: Threads, before: Any, action: jax.Array, after: Any, turn, through=None) -> Threads:
        """Append the event of a move to all conversations of B games.

        A conversation without room for the event starts again.

        Args:
            threads: State of the conversations.
            before: States [B, …] before the moves.
            action: int32 [B]. Moves.
            after: States [B, …] after the moves.
            turn: int32 [B]. Turns of the games.
            through: int32 [B, P]. Symmetry through which each seat sees its game; None for the identity.
        """
        seats = jnp.arange(self.game.n_players)

        def one(before, action, after, turn, through):
            def of_seat(seat):
                views, move = (before, after), action
                if self.symmetry is not None:
                    views = tuple(self.symmetry.apply(state, through[seat]) for state in views)
                    move = self.symmetry.map_action(action, through[seat])
                policy = self.seating.policy(seat, turn // self.game.n_players)
                return self.team.prompts.event(views[0], move, views[1], seat, policy)

            return jax.vmap(of_seat)(seats)

        through = jnp.zeros((len(action), self.game.n_players), jnp.int32) if through is None else through
        tokens, lengths = jax.vmap(one)(before, action, after, turn, through)
        tokens, lengths = (x.reshape(-1, *x.shape[2:]) for x in (tokens, lengths))
        place = jnp.arange(self.room)
        offset = place - threads.pending_length[:, None]
        new = jnp.take_along_axis(tokens, jnp.clip(offset, 0, tokens.shape[1] - 1), axis=1)
        inside = (offset >= 0) & (offset < lengths[:, None])
        full = threads.pending_length + lengths > self.room
        return dataclasses.replace(
            threads,
            pending=jnp.where(inside, new, threads.pending),
            pending_length=jnp.where(full, 0, threads.pending_length + lengths),
            answers=jnp.where(full, 0, threads.answers),
        )

    def restart(self, threads: Threads, ended: jax.Array) -> Threads:
        """Restart the conversations of the games that ended, bool [B]."""
        ended = jnp.repeat(ended, self.game.n_players)
        return dataclasses.replace(
            threads,
            answers=jnp.where(ended, 0, threads.answers),
            pending_length=jnp.where(ended, 0, threads.pending_length),
        )
