"""Conversations that continue from turn to turn: one for every seat of every game, with its cache.

A conversation begins with the opening (rules and present position) at every new game, at every rollout and after
`history_turns` answers. In between a turn reads only what is new: the seat's last answer, the events since then, and
the question. So a position is read once instead of at every turn.

Axis letters: C = B·P conversations, that of seat p of game b has number b·P + p; E pending tokens.
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

LONG_ONES = 8  # openings and long turns are read an eighth of the games at a time: few come at the same turn


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Threads:
    """Where the conversations stand.

    caches          by backbone, what each conversation has read behind the common prefix
    length          int32 [C], tokens that were read, without the prefix and the last answer
    answers         int32 [C], answers given in it; 0: it has yet to begin
    said            int32 [C, W], the last answer, which is not read yet, of lengths int32 [C]
    pending         int32 [C, E], events since then, of lengths int32 [C]
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
    """What the movers of B games read at a turn.

    row      int32 [B], the number of the conversation
    fresh    bool [B], whether it begins with this turn
    skip     int32 [B], tokens of the common prefix before it
    before   int32 [B], tokens of the conversation that were read before, without the prefix
    tokens   int32 [B, T], what is new, the seat's last answer first, of lengths int32 [B]
    answer   int32 [B], how many of these are the seat's last answer
    sees     int32 [B], tokens before the answer that comes next, the prefix included
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
    """How a team converses in a game.

    turns     answers after which a conversation begins again
    horizon   turns of a game that a cache must hold at most; longer conversations begin again
    symmetry  through which seats see the game, or None
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
        """E: every seat moves once between two turns of a seat; a conversation with more to tell begins again."""
        return self.game.n_players * max(prompt.event_length for prompt in self._prompts)

    @property
    def more_length(self) -> int:
        """Tokens that a later turn reads at most."""
        ask = max(len(prompt.close_ids) + prompt.ask_length for prompt in self._prompts)
        return self.team.width + self.room + ask

    @property
    def usual_length(self) -> int:
        """Tokens that a later turn reads and answers where events are neither short nor long."""
        ask = max(len(prompt.close_ids) + prompt.ask_length for prompt in self._prompts)
        events = ((p.event_length, p.history.event.min_length) for p in self._prompts if p.history is not None)
        event = max((longest + shortest) / 2 for longest, shortest in events)
        return ask + round(self.game.n_players * event) + self.team.width

    def own_turns(self, turns: int) -> int:
        """Turns of one seat among so many of a game, where seats move in order."""
        return -(-turns // self.game.n_players) + 1

    def slots(self, backbone: Backbone) -> int:
        """Of a cache: an opening and later turns at their usual length; a conversation that fills it begins again."""
        later = min(self.turns, self.own_turns(self.horizon)) - 1
        least = self.more_length + self.team.width if later else self.team.width
        exact = backbone.prompt_length + max(later * self.usual_length, least)
        rounded, positions = -(-exact // 64) * 64, backbone.model.cfg.learned_positions
        return min(rounded, positions - len(backbone.policy.prefix)) if positions else rounded

    def begin(self, games: int, sampling: bool = True) -> Threads:
        """Conversations that have yet to begin; without `sampling` there are no caches, and nobody can be asked."""
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
        """What the movers read: the opening, int32 [B, T] of lengths [B], or what is new since their last turn."""
        row = jnp.arange(len(seat)) * self.game.n_players + seat
        mine = jax.tree.map(lambda x: x[row], dataclasses.replace(threads, caches={}))
        before = mine.length
        more, more_lengths = jax.vmap(self.team.prompts.following)(
            mine.said, mine.said_length, mine.pending, mine.pending_length, seat, policy
        )
        room = jnp.asarray([self.slots(b) for b in self.team.backbones], jnp.int32)[self.team.backbone_of(policy)]
        full = before + more_lengths + self.team.width > room
        fresh = (mine.answers == 0) | (mine.answers >= self.turns) | full
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
            answer=jnp.where(fresh, 0, mine.said_length),
            context_len=skip + before + lengths,
        )

    def act(
        self,
        ready: dict,
        threads: Threads,
        read: ThreadRead,
        legal: jax.Array,
        keys: jax.Array,
        policy: jax.Array,
        temperature: float | None = None,
        central: tuple[jax.Array, jax.Array] | None = None,
        candidates: int = 1,
    ) -> tuple[Decision, Threads]:
        """Reads what is new and answers, as `Team.act` does; the answers are not part of the conversations yet."""
        caches, decision = dict(threads.caches), None
        for backbone in self.team.backbones:
            own = self.team.own_ids(policy, backbone.number)
            mine = own >= 0 if len(self.team.backbones) > 1 else jnp.ones(own.shape, bool)
            weights = ready[backbone.name]
            last, cache = self._read(backbone, weights, caches[backbone.name], read, mine, own)
            found = self._answer(
                backbone, weights, cache, last, read, legal, keys, own, temperature, central, candidates
            )
            caches[backbone.name] = cache
            found = self.team.padded(found)
            each = jnp.repeat(mine, candidates)
            pick = lambda a, b, each=each: jnp.where(each.reshape(-1, *(1,) * (a.ndim - 1)), a, b)  # noqa: E731
            decision = found if decision is None else jax.tree.map(pick, found, decision)
        assert decision is not None
        return decision, dataclasses.replace(threads, caches=caches)

    def _read(self, backbone: Backbone, ready: dict, cache: kv.Cache, read: ThreadRead, mine, own):
        """The last hidden states [B, D], and the cache behind what is new."""
        cache = kv.restart(cache, jnp.zeros((len(cache.lengths),), bool).at[read.row].set(read.fresh & mine))
        narrow = min(self.usual_length, read.tokens.shape[1])
        lengths = jnp.where(mine, read.lengths, 0)
        waits = lengths > narrow  # openings, and turns with much to tell

        def some(cache, rows, tokens, lengths, ids):
            return answering.read_more(backbone.policy, ready, cache, rows, tokens, lengths, ids)

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
            # Conversations are read into rows of their own: those of nobody go to rows that nobody else has.
            rows = jnp.where(at < games, read.row[there], len(cache.lengths))
            found, cache = some(cache, rows, read.tokens[there], real, own[there])
            last = last.at[at].set(found, mode="drop")
            return last, cache, waits.at[at].set(False, mode="drop")

        last, cache, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[2]), long_ones, (last, cache, waits))
        return last, cache

    def _answer(
        self, backbone, ready, cache, last, read: ThreadRead, legal, keys, own, temperature, central, candidates
    ) -> Decision:
        policy = backbone.policy
        values = answering.values_at_prompt(policy, ready, last, None, jnp.maximum(read.lengths, 1), central)
        lengths, ids = read.context_len, own
        trial = kv.take(cache, read.row) if policy.answers.decodes else None
        if candidates > 1:
            last, lengths, legal, ids, values, trial = jax.tree.map(
                lambda x: jnp.repeat(x, candidates, axis=0), (last, lengths, legal, ids, values, trial)
            )
        adapters = policy.adapters(ready, ids)
        prefix = ready.get("prefix")
        return answering.answer(policy, ready, last, lengths, legal, keys, temperature, trial, adapters, values, prefix)

    # ------------------------------------------------------------------------------------------------------ writing

    def kept(self, decision: Decision, policy: jax.Array) -> jax.Array:
        """int32 [B]: how many tokens of each answer stay in its conversation."""
        found = jnp.zeros_like(decision.lengths)
        for backbone in self.team.backbones:
            mine = self.team.own_ids(policy, backbone.number) >= 0
            width = backbone.policy.width
            reply = Reply(decision.action, decision.answers[:, :width], decision.lengths, decision.logps[:, :width])
            found = jnp.where(mine, backbone.policy.answers.kept(reply), found)
        return found

    def say(self, threads: Threads, read: ThreadRead, answers: jax.Array, kept: jax.Array) -> Threads:
        """The movers' conversations with their answers, int32 [B, W], of which `kept` [B] tokens stay; none pending."""
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
        """Every seat with the event of a move in each of B games; one with no room for it begins again.

        before, after  states [B, …]
        action         int32 [B]
        turn           int32 [B], of the games
        through        int32 [B, P], the symmetry through which each seat sees its game
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
        """The conversations of games bool [B] that ended begin again."""
        ended = jnp.repeat(ended, self.game.n_players)
        return dataclasses.replace(
            threads,
            answers=jnp.where(ended, 0, threads.answers),
            pending_length=jnp.where(ended, 0, threads.pending_length),
        )
