"""Recording of conversations in rows, and their conversion to samples.

Every seat of every game has a row, which is empty at the start of a rollout. The tokens that the seat reads and its
completions are appended to it, one conversation after another. Candidates that are not continued are stored in a
separate part at the end of the row.

Rows have a fixed length (see `room`). A completion that does not fit is played but not learned from, and neither are
the later ones of its conversation. Their number is reported.

Axis letters: C = B·P rows, T tokens of a row, K candidates of a turn, V turns of the rollout.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from marl_jax.rollouts.conversations.threads import History, ThreadRead
from marl_jax.rollouts.conversations.turns import Turn
from marl_jax.samples import Samples


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Transcript:
    """Recorded rows.

    Attributes:
        tokens: int32 [C, T]. See `Samples`.
        positions: int32 [C, T]. See `Samples`.
        segment: int32 [C, T]. See `Samples`.
        length: int32 [C]. Number of recorded tokens.
        begun: int32 [C]. Number of conversations started.
        answers: int32 [C]. Number of completions, recorded or not.
        whole: bool [C]. Whether the current conversation is recorded completely.
    """

    tokens: jax.Array
    positions: jax.Array
    segment: jax.Array
    length: jax.Array
    begun: jax.Array
    answers: jax.Array
    whole: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowPosition:
    """Positions in the rows of the completions of one turn of B games.

    Attributes:
        row: int32 [B]. Row of the seat.
        number: int32 [B]. Index of the completion in its row.
        last: int32 [B]. Position of the last token before the completion.
        context_len: int32 [B]. See `Samples`.
        whole: bool [B]. Whether the completion is recorded and can be learned from.
        kept: int32 [B]. Candidate that the conversation continues with.
    """

    row: jax.Array
    number: jax.Array
    last: jax.Array
    context_len: jax.Array
    whole: jax.Array
    kept: jax.Array


def new_transcript(rows: int, room: int) -> Transcript:
    """Return empty rows."""
    zeros = jnp.zeros((rows,), jnp.int32)
    wide = jnp.zeros((rows, room), jnp.int32)
    return Transcript(wide, wide, wide - 1, zeros, zeros, zeros, jnp.ones((rows,), bool))


def room(history: History, turns: int, wanted: int = 0) -> int:
    """Return the row length T: `wanted`, or room for turns of usual length.

    The default has room for at least two openings. Events are rarely as long as possible, and games that end early need
    more openings. A row that runs out of room loses completions, which is reported.
    """
    opening = max(backbone.prompt_length for backbone in history.team.backbones)
    openings = 1 + -(-turns // history.game.max_turns)
    exact = wanted or openings * opening + history.own_turns(turns) * history.usual_length
    step = 8 if exact <= 512 else 64
    return -(-exact // step) * step


def write_read(script: Transcript, read: ThreadRead) -> Transcript:
    """Append the input of a turn, without the last completions, which are recorded already."""
    row = read.row
    new = read.lengths - read.answer
    longest = script.tokens.shape[1]
    whole = (read.fresh | script.whole[row]) & (script.length[row] + new <= longest)
    place = jnp.arange(read.tokens.shape[1])
    real = (place >= read.answer[:, None]) & (place < read.lengths[:, None]) & whole[:, None]
    at = jnp.where(real, script.length[row][:, None] + place - read.answer[:, None], longest)
    positions = read.skip[:, None] + read.before[:, None] + place
    script = _put(script, row, at, read.tokens, positions, script.begun[row] + read.fresh - 1)
    return dataclasses.replace(
        script,
        length=script.length.at[row].add(jnp.where(whole, new, 0)),
        begun=script.begun.at[row].add(read.fresh),
        whole=script.whole.at[row].set(whole),
    )


def write_answer(
    script: Transcript, read: ThreadRead, answers: jax.Array, kept: jax.Array
) -> tuple[Transcript, RowPosition]:
    """Append the completions that the conversations continue with.

    Args:
        script: Recorded rows.
        read: Input of the turn.
        answers: int32 [B, W]. Completions.
        kept: int32 [B]. Number of tokens of each completion that stay in the conversation.
    """
    row = read.row
    length, longest = script.length[row], script.tokens.shape[1]
    whole = script.whole[row] & (length + kept <= longest)
    place = jnp.arange(answers.shape[1])
    real = (place < kept[:, None]) & whole[:, None]
    at = jnp.where(real, length[:, None] + place, longest)
    positions = read.context_len[:, None] + place
    where = RowPosition(row, script.answers[row], length - 1, read.context_len, whole, jnp.zeros_like(row))
    script = _put(script, row, at, answers, positions, script.begun[row] - 1)
    script = dataclasses.replace(
        script,
        length=script.length.at[row].add(jnp.where(whole, kept, 0)),
        answers=script.answers.at[row].add(1),
        whole=script.whole.at[row].set(whole),
    )
    return script, where


def _put(script: Transcript, row, at, tokens, positions, segment) -> Transcript:
    rows = row[:, None]
    put = lambda old, new: old.at[rows, at].set(new, mode="drop")  # noqa: E731
    return dataclasses.replace(
        script,
        tokens=put(script.tokens, tokens),
        positions=put(script.positions, positions),
        segment=put(script.segment, jnp.broadcast_to(segment[:, None], at.shape)),
    )


def to_samples(script: Transcript, turns: Turn, places: RowPosition, candidates: int = 1, **more) -> Samples:
    """Convert recorded rows to samples, with all completions of a seat in its row.

    Args:
        script: Recorded rows.
        turns: Turns [V, B, …] without prompts; [V, B·K, …] for K candidates.
        places: Positions [V, B] of the completions.
        candidates: Number of candidates per turn, K.
        **more: Other fields of `Samples`. `group` and `member` [V, B·K] replace the default groups.
    """
    v, games = turns.seat.shape
    n, room = script.tokens.shape
    k, w = candidates, turns.decision.answers.shape[-1]
    s = v * k
    number = places.number[..., None] * k + jnp.arange(k)  # [V, B, K]
    rows = jnp.broadcast_to(places.row[..., None], number.shape)
    flat = (rows.reshape(-1), number.reshape(-1))

    def spread(x, fill=0):
        """Scatter [V, B·K, …] to [N, S, …]."""
        x = x.reshape(v * games * k, *x.shape[2:])
        return jnp.full((n, s, *x.shape[1:]), fill, x.dtype).at[flat].set(x)

    def each(x):
        """Repeat [V, B, …] for each candidate, [V, B·K, …]."""
        return jnp.repeat(x, k, axis=1)

    decision = turns.decision
    # An opponent's turn has no completion of the learner that could have failed to parse.
    action = jnp.where(each(turns.policy) >= 0, decision.action, jnp.maximum(decision.action, 0))
    whole = each(places.whole)
    lengths = spread(decision.lengths)
    inside = (jnp.arange(w) < lengths[..., None]).reshape(n, s * w)
    completion_of = jnp.where(inside, jnp.repeat(jnp.arange(s), w), -1)
    # The kept candidate is on the trunk, right after its context. The others are branches at the end of the row.
    kept = (jnp.arange(k) == places.kept[..., None]).reshape(v, games * k)
    on_trunk, last = spread(kept), spread(each(places.last))
    place = jnp.arange(w)
    branch_len = w - 1 if k > 1 else 0
    trunk = last[..., None] + place
    off_trunk = room + (jnp.arange(s) * branch_len)[:, None] + place - 1
    logits_index = jnp.where((place == 0) | on_trunk[..., None], trunk, off_trunk)
    tokens, positions, segment, branch = script.tokens, script.positions, script.segment, None
    if branch_len:
        answers = spread(decision.answers)[..., :branch_len].reshape(n, s * branch_len)
        places_of = (spread(each(places.context_len))[..., None] + place[:branch_len]).reshape(n, s * branch_len)
        own = jnp.take_along_axis(script.segment, jnp.clip(last, 0, room - 1), axis=1)
        real = (place[:branch_len] < lengths[..., None]) & ~on_trunk[..., None] & spread(whole)[..., None]
        of_segment = jnp.where(real, own[..., None], -1).reshape(n, s * branch_len)
        tokens = jnp.concatenate([tokens, answers], axis=1)
        positions = jnp.concatenate([positions, places_of], axis=1)
        segment = jnp.concatenate([segment, of_segment], axis=1)
        numbers = jnp.broadcast_to(jnp.repeat(jnp.arange(s), branch_len), (n, s * branch_len))
        branch = jnp.concatenate([jnp.full(script.tokens.shape, -1), numbers], axis=1).astype(jnp.int32)
    wide = jnp.zeros((n, s * w), jnp.float32)
    values = spread(decision.values)[..., None] * (place == 0)
    fields = dict(
        tokens=tokens,
        positions=positions,
        lengths=script.length if not branch_len else jnp.full_like(script.length, tokens.shape[1]),
        segment=segment,
        branch=branch,
        policy=jnp.full((n,), -1, jnp.int32).at[places.row.reshape(-1)].max(turns.policy.reshape(-1)),
        completion_lengths=lengths,
        truncated=spread(decision.truncated),
        context_len=spread(each(places.context_len) * whole),
        seat=spread(each(turns.seat)),
        episode=spread(each(turns.episode)),
        turn=spread(each(turns.turn)),
        group=spread(each(jnp.arange(v * games, dtype=jnp.int32).reshape(v, games))),
        member=jnp.broadcast_to(jnp.arange(s, dtype=jnp.int32) % k, (n, s)),
        ends=spread(turns.ends),
        loss_weights=spread(turns.counts * whole),
        rewards=spread(turns.rewards),
        action=spread(action, -1),
        legal=spread(each(turns.legal), True),
        central=None if turns.central is None else tuple(spread(each(x), 1) for x in turns.central),
        completion_of=completion_of.astype(jnp.int32),
        logits_index=jnp.clip(logits_index, 0, tokens.shape[1] - 1).reshape(n, s * w).astype(jnp.int32),
        targets=spread(decision.answers).reshape(n, s * w),
        logps=spread(decision.logps).reshape(n, s * w),
        values=values.reshape(n, s * w) * inside,
        advantages=wide,
        returns=wide,
        completion_at=(places.row * s + places.number).astype(jnp.int32) if k == 1 else None,
        n_groups=v * games,
        group_size=k,
    )
    fields |= {name: spread(more.pop(name)) for name in ("group", "member") if name in more}
    return Samples(**{**fields, **more})
