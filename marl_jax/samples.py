"""Samples: the batch format that rollouts pass to the learner.

A row is one conversation of one policy: the tokens that the policy read and the completions that it sampled. Token ids
are kept exactly as sampled, and nothing is tokenized again between sampling and learning. A row is one of:

- A prompt with one completion.
- A prompt with K candidates: K completions, each of which attends to the prompt and to itself.
- The turns of one seat in a game or a chat: later completions attend to earlier ones.

Several conversations may share a row (`segment`).

Axis letters in addition to those in `models/config.py`: N rows, S completions per row, X completion tokens per row, P
seats, R turns of B games. Host rollouts fill the fields with NumPy arrays, game rollouts with JAX arrays.

Token i of a row attends to token j if both are in the same segment, `positions[j] <= positions[i]`, and:

- j is on the trunk, and i is too or `positions[j]` is less than the `context_len` of the branch of i; or
- j is on a branch, and i is on the same one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from models.sharding import num_shards

STATIC: dict[str, Any] = dict(metadata=dict(static=True))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Samples:
    """A batch of N rows.

    Attributes:
        tokens: int32 [N, T]. Prompt and completion tokens, without the prefix that all prompts of the policy share.
        positions: int32 [N, T]. Position of each token in its conversation, counting the prefix.
        lengths: int32 [N]. Number of tokens that are not padding.
        policy: int32 [N]. Index of the learning policy that sampled the completions; -1 for any other player.
        completion_lengths: int32 [N, S]. Number of tokens of each completion; 0 for unused slots.
        truncated: bool [N, S]. Whether a token limit cut the completion off: its finish reason is "length".
        context_len: int32 [N, S]. Number of tokens of the conversation before the completion, counting the prefix. It
            is 0 if the row had no room for the context. Such a completion has a value, a reward and a time, but cannot
            be scored.
        seat: int32 [N, S]. Seat that acted.
        episode: int32 [N, S]. Number of the game in its row, or of the episode in the batch.
        turn: int32 [N, S]. Number of the turn in its episode.
        group: int32 [N, S]. Group of completions or episodes that are compared with each other.
        member: int32 [N, S]. Index of the completion or episode in its group.
        ends: bool [N, S]. Whether the episode ended with this completion.
        loss_weights: float32 [N, S]. Weight in the loss. It is 0 for bots, snapshots, frozen policies and turns whose
            outcome is still open.
        rewards: float32 [N, S, P]. Reward of the step for every seat: the weighted sum of the reward levels.
        completion_of: int32 [N, X]. Completion that the token belongs to; -1 for padding. Tokens of a completion are in
            order.
        logits_index: int32 [N, X]. Index in the row of the hidden state that predicts the token.
        targets: int32 [N, X]. Sampled token. The row may continue with a different one, such as the end of turn of a
            chat template.
        logps: float32 [N, X]. Log-probability under the parameters that sampled the token.
        values: float32 [N, X]. Value that the critic predicted before the token.
        advantages: float32 [N, X]. Zeros until an algorithm computes them.
        returns: float32 [N, X]. Zeros until an algorithm computes them.
        action: int32 [N, S]. Action that the completion names; -1 if a free completion names none. None for tasks.
        legal: bool [N, S, A]. Actions that were legal; None for tasks.
        version: int32 [N, S]. Version of the parameters that sampled the completion; None for the current version.
        central: int32 [N, S, C] tokens and int32 [N, S] lengths of the input of a central critic.
        ref_logps: float32 [N, X]. Log-probability under the reference policy, if the algorithm uses one.
        magnet_logps: float32 [N, X]. Log-probability under the slow copy of the policy, if the algorithm uses one.
        old_logps: float32 [N, X]. Log-probability under the parameters before the update; None if these sampled the
            tokens.
        prompt_len: int32 [N]. Number of tokens of the conversation before its first completion, by any policy; None if
            rows may hold several conversations.
        segment: int32 [N, T]. Conversation that the token belongs to; -1 for padding. None if every row has one
            conversation.
        branch: int32 [N, T]. Completion on whose branch the token is; -1 for the trunk. None without branches.
        completion_at: int32 [R, B]. Index `row * S + completion` of every turn of every game in order of time. The last
            `lookahead` turns were only played to provide values that close the streams before them.
        media: uint8 or uint16 [N, C], codes of the media in the row's prompt, see `envs.games.medium`; or int32 [N, C],
            prompt of the speaker whose soft message it contains, -1 where there is none. None for text.
        action_values: float32 [N, S, A]. Values of all actions, 0 for illegal ones; None if the rollout has none.
        informative: bool [N, S]. Whether the rewards of the completion's group differ; None without groups.
        lookahead: Number of lookahead turns in `completion_at`.
        n_groups: Number of groups.
        group_size: Maximum number of members of a group.
        branch_len: Number of tokens of each branch, if rows are prompts followed by S branches of equal size.
        longest: Maximum number of tokens of a completion, if it is not X / S.
    """

    tokens: jax.Array
    positions: jax.Array
    lengths: jax.Array
    policy: jax.Array
    completion_lengths: jax.Array
    truncated: jax.Array
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
    media: jax.Array | None = None
    action_values: jax.Array | None = None
    informative: jax.Array | None = None
    lookahead: int = dataclasses.field(default=0, **STATIC)
    n_groups: int = dataclasses.field(default=0, **STATIC)
    group_size: int = dataclasses.field(default=1, **STATIC)
    branch_len: int = dataclasses.field(default=0, **STATIC)
    longest: int = dataclasses.field(default=0, **STATIC)

    @property
    def n(self) -> int:
        """Number of rows, N."""
        return self.tokens.shape[0]

    @property
    def n_completions(self) -> int:
        """Number of completions per row, S."""
        return self.completion_lengths.shape[1]

    @property
    def width(self) -> int:
        """Number of completion tokens per row, X."""
        return self.targets.shape[1]

    @property
    def max_new(self) -> int:
        """Maximum number of tokens of a completion."""
        return self.longest or self.width // self.n_completions

    @property
    def n_seats(self) -> int:
        """Number of seats, P."""
        return self.rewards.shape[-1]

    def mask(self) -> jax.Array:
        """Return float32 [N, X] with 1 on completion tokens, whatever their weight."""
        return (self.completion_of >= 0).astype(jnp.float32)

    def first(self) -> jax.Array:
        """Return float32 [N, X] with 1 on the first token of every completion."""
        before = jnp.pad(self.completion_of[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        return ((self.completion_of >= 0) & (self.completion_of != before)).astype(jnp.float32)

    def last(self) -> jax.Array:
        """Return float32 [N, X] with 1 on the last token of every completion."""
        after = jnp.pad(self.completion_of[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
        return ((self.completion_of >= 0) & (self.completion_of != after)).astype(jnp.float32)

    def to_tokens(self, x: jax.Array) -> jax.Array:
        """Gather values [N, S] of completions to their tokens [N, X]; padding is undefined."""
        return jnp.take_along_axis(x, jnp.maximum(self.completion_of, 0), axis=1)

    def to_completions(self, x: jax.Array) -> jax.Array:
        """Sum values [N, X] over the tokens of each completion, [N, S]."""
        x = jnp.where(self.completion_of >= 0, x, 0)
        if self.n_completions == 1:
            return jnp.sum(x, axis=1, keepdims=True)
        rows = jnp.arange(self.n)[:, None]
        return jnp.zeros(self.completion_lengths.shape, x.dtype).at[rows, jnp.maximum(self.completion_of, 0)].add(x)

    def at_first(self, x: jax.Array) -> jax.Array:
        """Return the values [N, S] at the first token of each completion, from [N, X]."""
        return self.to_completions(x * self.first())

    def in_time(self, x: jax.Array) -> jax.Array:
        """Reorder values [N, S, …] of completions by time, [R, B, …]."""
        return x.reshape(-1, *x.shape[2:])[self.completion_at]

    def from_time(self, x: jax.Array) -> jax.Array:
        """Scatter values [R, B] back to completions [N, S]; completions at no time get 0."""
        assert self.completion_at is not None
        flat = jnp.zeros((self.n * self.n_completions,), x.dtype)
        return flat.at[self.completion_at.reshape(-1)].set(x.reshape(-1)).reshape(self.completion_lengths.shape)

    def own_rewards(self) -> jax.Array:
        """Return the reward of each completion for its own seat, float32 [N, S]."""
        return jnp.take_along_axis(self.rewards, self.seat[..., None], axis=2)[..., 0]

    def recorded(self) -> jax.Array:
        """Return which completions can be scored because their context fits, bool [N, S]."""
        return (self.completion_lengths > 0) & (self.context_len > 0)

    def active(self) -> jax.Array:
        """Return which rows have a completion that contributes to the loss, bool [N]."""
        return jnp.any(self.loss_weights > 0, axis=1)

    def without_lookahead(self) -> Samples:
        """Drop the rows that hold only lookahead turns, which come last."""
        if self.n_completions > 1 or not self.lookahead:
            return self
        assert self.completion_at is not None
        turns, games = self.completion_at.shape
        kept = rows(self.replace(completion_at=None), slice((turns - self.lookahead) * games))
        return kept.replace(completion_at=self.completion_at[: turns - self.lookahead], lookahead=0)

    def replace(self, **changes: Any) -> Samples:
        """Return a copy with some fields replaced."""
        return dataclasses.replace(self, **changes)


def rows(samples: Samples, picked: Any) -> Samples:
    """Select rows by index or slice and drop `completion_at`, which spans rows."""
    return jax.tree.map(lambda x: x[picked], samples.replace(completion_at=None))


def split(tree: Any, parts: int) -> Any:
    """Split every array [N, …] of a tree into [parts, N/parts, …] for a scan.

    A part takes every `parts`-th row. This keeps a batch sharded over a mesh, because each device contributes to every
    part.
    """

    def one(x):
        if x.shape[0] % parts:
            raise ValueError(f"{x.shape[0]} rows do not split into {parts} equal parts")
        return jnp.moveaxis(x.reshape(-1, parts, *x.shape[1:]), 1, 0)

    return jax.tree.map(one, tree)


def unsplit(tree: Any) -> Any:
    """Merge arrays [parts, N/parts, …] into [N, …] in the order before `split`."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(-1, *x.shape[2:]), tree)


def in_parts(function: Callable[[Samples], Any], samples: Samples, parts: int) -> Any:
    """Map a function over parts of the rows to bound its memory.

    Args:
        function: Maps samples to a tree of arrays [N, …].
        samples: Samples to process.
        parts: Number of parts. The nearest number is used that divides N and gives every device of a mesh equally many
            rows of each part. A part that the mesh does not divide would not be sharded.
    """
    per_device = samples.n // num_shards("B", samples.n)
    divisors = [n for n in range(1, per_device + 1) if per_device % n == 0]
    parts = min(divisors, key=lambda n: max(n / parts, parts / n))
    return unsplit(jax.lax.map(function, split(samples.replace(completion_at=None), parts)))


def join_answer(prompts: jax.Array, lengths: jax.Array, answers: jax.Array) -> jax.Array:
    """Write completions int32 [N, W] after prompts int32 [N, T] as far as they fit."""
    width = answers.shape[1]
    offset = jnp.arange(prompts.shape[1]) - lengths[:, None]
    answer = jnp.take_along_axis(answers, jnp.clip(offset, 0, width - 1), axis=1)
    return jnp.where((offset >= 0) & (offset < width), answer, prompts)


def row_length(prompt: int, answer: int) -> int:
    """Return the row length T for the maximum lengths of prompts and completions.

    The last token of a completion is never read, so it needs no slot. The length is rounded up to a multiple that grows
    with it, by about a tenth at most: kernels prefer round sizes, but a CPU computes every padding token.
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
    """Build rows of a prompt and its S completions.

    Each completion attends to the prompt and to itself. A single completion continues the row, in the space after the
    prompt; all its tokens but the last are read. Several completions are branches after the longest prompt. Completions
    of
    one token need no branch.

    Args:
        prompts: int32 [N, T]. Prompts without the common prefix.
        lengths: int32 [N]. Lengths of the prompts.
        answers: int32 [N, S, W]. Completions.
        completion_lengths: int32 [N, S]. Lengths of the completions.
        logps: float32 [N, S, W]. Log-probabilities of the completion tokens.
        skip: int32 [N]. Length of the common prefix.
        **more: Other fields of `Samples`, by default zero. `values` are those before the completions, [N, S].
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
        on_branch = room + jnp.arange(s)[:, None] * branch_len + place - 1
        logits_index = jnp.where(place == 0, lengths[:, None, None] - 1, on_branch)
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
        truncated=jnp.zeros((n, s), bool),
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
