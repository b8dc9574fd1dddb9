"""Samples: the one thing that passes from rollout to learner.

A row is one conversation of one policy: what it read and what it answered, token ids as they were sampled. Nothing is
tokenised again between sampling and learning. A prompt with its answer is a row with one answer; a prompt with K
candidates is a row with K answers, each of which sees the prompt and itself; a seat's turns in a game, or a chat, are
a row whose later answers see the earlier ones. Several conversations may share a row (`segment`).

Axis letters beyond those of `models/config.py`: N rows, S answers of a row, X answer tokens of a row, P seats, R turns
of B games. Arrays may be NumPy's (host rollouts) or JAX's.

What sees what, for tokens i and j of a row: both are of one segment, `positions[j] <= positions[i]`, and

    j on the trunk      where i is on the trunk too, or `positions[j]` is less than what the branch of i sees
    j on a branch       where i is on the same one
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

STATIC = dict(metadata=dict(static=True))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Samples:
    """N rows.

    tokens          int32 [N, T]     what was read and written, without the prefix that all prompts of the policy share
    positions       int32 [N, T]     place of each token in its conversation, the prefix included
    lengths         int32 [N]        tokens of the row that are real
    policy          int32 [N]        who answered, a number of the policies that learn; -1 is anyone else
    prompt_len      int32 [N]        tokens of the row's conversation before its first answer, whoever gave that: the
                    question; None where rows may hold several conversations

    of answers [N, S]:
    completion_lengths int32            0 where there is none
    context_len     int32            tokens of its conversation that stand before the answer, the prefix included; 0
                    where the row had no room for them: there are value, reward and time of such an answer, no scores
    seat            int32            whose turn it was
    episode, turn   int32            which game of its row or episode of the batch, and the move in it
    group, member   int32            answers or episodes to be compared, numbered from 0, and the place in the group
    ends            bool             the episode ended with this answer
    loss_weights    float32          0 for answers that do not contribute: bots, snapshots, frozen policies, open ends
    informative     bool             whether the rewards of the answer's group differ; None without groups
    rewards         float32 [N,S,P]  what the step paid to every seat, levels weighed and added
    version         int32            of the parameters that sampled it; None: the present ones
    action, legal   int32, bool [N,S,A]  what a constrained answer names and was allowed to name; None for free text.
                    An action of -1: a free answer that names nothing
    central         (int32 [N, S, C], int32 [N, S])  what a central critic reads, and its lengths

    of answer tokens [N, X], those of an answer in their order:
    completion_of   int32            the answer that the token belongs to; -1 where there is none
    logits_index    int32            the place in the row whose hidden state predicts the token
    targets         int32            what was sampled; the row may go on with another token (a template's end of turn)
    logps           float32          under the parameters that sampled
    values          float32          of the critic, before the token
    advantages, returns  float32     zeros until an algorithm fills them in
    ref_logps       float32          under the reference policy, where the algorithm needs it
    magnet_logps    float32          under the slow copy of the policy, where the algorithm needs it
    old_logps       float32          under the parameters before the update; None: those that sampled

    segment, branch int32 [N, T]     which conversation of the row (-1: padding), and which answer's branch (-1: the
                    trunk). None: one conversation in each row, no branches
    completion_at   int32 [R, B]     the number (row · S + answer) of every turn of every game, in order of time; the
                    last `lookahead` turns were played only to look ahead: their values close the streams before them
    """

    tokens: jax.Array
    positions: jax.Array
    lengths: jax.Array
    policy: jax.Array
    completion_lengths: jax.Array
    context_len: jax.Array
    seat: jax.Array
    episode: jax.Array
    turn: jax.Array
    group: jax.Array
    member: jax.Array
    ends: jax.Array
    loss_weights: jax.Array
    rewards: jax.Array
    completion_of: jax.Array
    logits_index: jax.Array
    targets: jax.Array
    logps: jax.Array
    values: jax.Array
    advantages: jax.Array
    returns: jax.Array
    action: jax.Array | None = None
    legal: jax.Array | None = None
    version: jax.Array | None = None
    central: tuple[jax.Array, jax.Array] | None = None
    ref_logps: jax.Array | None = None
    magnet_logps: jax.Array | None = None
    old_logps: jax.Array | None = None
    prompt_len: jax.Array | None = None
    segment: jax.Array | None = None
    branch: jax.Array | None = None
    completion_at: jax.Array | None = None
    informative: jax.Array | None = None
    lookahead: int = dataclasses.field(default=0, **STATIC)
    n_groups: int = dataclasses.field(default=0, **STATIC)
    group_size: int = dataclasses.field(default=1, **STATIC)
    branch_len: int = dataclasses.field(default=0, **STATIC)
    """Tokens of each branch, where a row is a prompt with S branches of equal room behind it."""
    longest: int = dataclasses.field(default=0, **STATIC)
    """Tokens that an answer may have, where that is not X / S."""

    @property
    def n(self) -> int:
        """N."""
        return self.tokens.shape[0]

    @property
    def n_completions(self) -> int:
        """S."""
        return self.completion_lengths.shape[1]

    @property
    def width(self) -> int:
        """X."""
        return self.targets.shape[1]

    @property
    def max_new(self) -> int:
        """Tokens that an answer may have."""
        return self.longest or self.width // self.n_completions

    @property
    def n_seats(self) -> int:
        """P."""
        return self.rewards.shape[-1]

    def mask(self) -> jax.Array:
        """float32 [N, X]: 1 on tokens of answers, whatever their weight."""
        return (self.completion_of >= 0).astype(jnp.float32)

    def first(self) -> jax.Array:
        """float32 [N, X]: 1 on the first token of every answer."""
        before = jnp.pad(self.completion_of[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        return ((self.completion_of >= 0) & (self.completion_of != before)).astype(jnp.float32)

    def to_tokens(self, x: jax.Array) -> jax.Array:
        """[N, S] -> [N, X]: for each token what its answer has; meaningless where there is none."""
        return jnp.take_along_axis(x, jnp.maximum(self.completion_of, 0), axis=1)

    def to_completions(self, x: jax.Array) -> jax.Array:
        """[N, X] -> [N, S]: the sum over the tokens of each answer."""
        x = jnp.where(self.completion_of >= 0, x, 0)
        if self.n_completions == 1:
            return jnp.sum(x, axis=1, keepdims=True)
        rows = jnp.arange(self.n)[:, None]
        return jnp.zeros(self.completion_lengths.shape, x.dtype).at[rows, jnp.maximum(self.completion_of, 0)].add(x)

    def at_first(self, x: jax.Array) -> jax.Array:
        """[N, X] -> [N, S]: what stands at the first token of each answer."""
        return self.to_completions(x * self.first())

    def in_time(self, x: jax.Array) -> jax.Array:
        """[N, S, …] -> [R, B, …] in order of time."""
        return x.reshape(-1, *x.shape[2:])[self.completion_at]

    def from_time(self, x: jax.Array) -> jax.Array:
        """[R, B] -> [N, S]; zero for answers at no time."""
        flat = jnp.zeros((self.n * self.n_completions,), x.dtype)
        return flat.at[self.completion_at.reshape(-1)].set(x.reshape(-1)).reshape(self.completion_lengths.shape)

    def own_rewards(self) -> jax.Array:
        """float32 [N, S]: what each answer's own seat was paid for it."""
        return jnp.take_along_axis(self.rewards, self.seat[..., None], axis=2)[..., 0]

    def recorded(self) -> jax.Array:
        """bool [N, S]: answers whose conversation stands in the row, so that they can be scored."""
        return (self.completion_lengths > 0) & (self.context_len > 0)

    def active(self) -> jax.Array:
        """bool [N]: rows with an answer that contributes to the loss."""
        return jnp.any(self.loss_weights > 0, axis=1)

    def without_lookahead(self) -> Samples:
        """The rows without those that hold nothing but turns of looking ahead, which come last."""
        if self.n_completions > 1 or not self.lookahead:
            return self
        turns, games = self.completion_at.shape
        kept = rows(self.replace(completion_at=None), slice((turns - self.lookahead) * games))
        return kept.replace(completion_at=self.completion_at[: turns - self.lookahead], lookahead=0)

    def replace(self, **changes: Any) -> Samples:
        """The same samples with some fields changed."""
        return dataclasses.replace(self, **changes)


def rows(samples: Samples, picked: Any) -> Samples:
    """Some rows, by number or slice, in that order; what stands across rows (`completion_at`) is dropped."""
    return jax.tree.map(lambda x: x[picked], samples.replace(completion_at=None))


def split(tree: Any, parts: int) -> Any:
    """Every array [N, …] of a tree as [parts, N/parts, …], to scan over; a part takes every `parts`-th row.

    Strided parts keep a batch that is split over a mesh split: each device gives a share to every part.
    """

    def one(x):
        if x.shape[0] % parts:
            raise ValueError(f"{x.shape[0]} rows do not split into {parts} equal parts")
        return jnp.moveaxis(x.reshape(-1, parts, *x.shape[1:]), 1, 0)

    return jax.tree.map(one, tree)


def unsplit(tree: Any) -> Any:
    """Every array [parts, N/parts, …] as [N, …], in the order from before `split`."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(-1, *x.shape[2:]), tree)


def join_answer(prompts: jax.Array, lengths: jax.Array, answers: jax.Array) -> jax.Array:
    """Rows of prompts int32 [N, T] with their answers int32 [N, W] written behind them, as far as they fit."""
    width = answers.shape[1]
    offset = jnp.arange(prompts.shape[1]) - lengths[:, None]
    answer = jnp.take_along_axis(answers, jnp.clip(offset, 0, width - 1), axis=1)
    return jnp.where((offset >= 0) & (offset < width), answer, prompts)


def row_length(prompt: int, answer: int) -> int:
    """T for prompts and answers of these greatest lengths: the answer's last token needs no place.

    Rounded up to a multiple that grows with the length, at most by a tenth or so: kernels like round numbers, and a
    processor without them pays for every token of padding.
    """
    exact = prompt + answer - 1
    step = 2 if exact <= 32 else 8 if exact <= 128 else 32 if exact <= 512 else 128
    return -(-exact // step) * step


def from_prompts(
    prompts: jax.Array,
    lengths: jax.Array,
    answers: jax.Array,
    completion_lengths: jax.Array,
    logps: jax.Array,
    skip: jax.Array | int = 0,
    **more: Any,
) -> Samples:
    """Rows of a prompt and its S answers, which see the prompt and themselves.

    prompts         int32 [N, T], of lengths int32 [N], without the common prefix of `skip` (int32 [N]) tokens
    answers         int32 [N, S, W], of lengths int32 [N, S], log-probabilities float32 [N, S, W]
    more            the other fields; values [N, S] are those before the answers, and what is left out is zero

    With one answer the row continues with it, in the room that is left behind the prompt (all but the last token of an
    answer has to be read). With several they are branches behind the longest prompt; of one-token answers nothing has
    to be read.
    """
    n, s, w = answers.shape
    skip = jnp.broadcast_to(jnp.asarray(skip, jnp.int32), (n,))[:, None]
    place = jnp.arange(w)
    inside = place < completion_lengths[..., None]  # [N, S, W]
    number = jnp.broadcast_to(jnp.arange(s)[:, None], (n, s, w))
    completion_of = jnp.where(inside, number, -1).reshape(n, s * w)
    branch_len = w - 1 if s > 1 else 0
    room = prompts.shape[1]
    if s == 1:
        tokens = join_answer(prompts, lengths, answers[:, 0])
        logits_index = jnp.minimum(lengths[:, None, None] - 1 + place, room - 1)
        real = jnp.minimum(lengths + completion_lengths[:, 0], room)
        positions = skip + jnp.arange(room)
        branch = None
    else:
        behind = room + jnp.arange(s)[:, None] * branch_len + place - 1
        logits_index = jnp.where(place == 0, lengths[:, None, None] - 1, behind)
        tokens = jnp.concatenate([prompts, answers[..., :branch_len].reshape(n, s * branch_len)], axis=1)
        real = jnp.full_like(lengths, tokens.shape[1]) if branch_len else lengths
        branched = (lengths[:, None, None] + jnp.broadcast_to(place[:branch_len], (n, s, branch_len))).reshape(
            n, s * branch_len
        )
        positions = skip + jnp.concatenate([jnp.broadcast_to(jnp.arange(room), prompts.shape), branched], axis=1)
        of_branch = jnp.broadcast_to(jnp.repeat(jnp.arange(s), branch_len), (n, s * branch_len))
        branch = jnp.concatenate([jnp.full(prompts.shape, -1), of_branch], axis=1) if branch_len else None
    zeros = jnp.zeros((n, s), jnp.int32)
    wide = jnp.zeros((n, s * w), jnp.float32)
    values = more.pop("values", None)
    if values is not None:
        values = (jnp.where(place == 0, values[..., None], 0.0) * inside).reshape(n, s * w)
    fields = dict(
        tokens=tokens,
        positions=jnp.broadcast_to(positions, tokens.shape).astype(jnp.int32),
        lengths=real,
        completion_lengths=completion_lengths,
        context_len=jnp.broadcast_to(skip + lengths[:, None], (n, s)),
        completion_of=completion_of.astype(jnp.int32),
        logits_index=jnp.broadcast_to(logits_index, (n, s, w)).reshape(n, s * w).astype(jnp.int32),
        targets=answers.reshape(n, s * w),
        logps=logps.reshape(n, s * w),
        values=wide if values is None else values,
        advantages=wide,
        returns=wide,
        branch=None if branch is None else branch.astype(jnp.int32),
        branch_len=branch_len,
        policy=zeros[:, 0],
        seat=zeros,
        episode=zeros,
        turn=zeros,
        group=jnp.broadcast_to(jnp.arange(n)[:, None], (n, s)).astype(jnp.int32),
        member=jnp.broadcast_to(jnp.arange(s), (n, s)).astype(jnp.int32),
        ends=jnp.ones((n, s), bool),
        loss_weights=jnp.ones((n, s), jnp.float32),
        n_groups=n,
        group_size=s,
    )
    return Samples(**{**fields, **more})
