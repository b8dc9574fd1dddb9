"""Layouts that put several samples, completions or conversations into one row.

A layout is the `layout` argument of `Model.forward`. It saves the learner padding and repeated prompts. Norms,
projections and feed-forward networks work token by token, so only attention depends on the layout.

`Packed` and `Branches` rearrange attention sample by sample. It is then plain causal attention, for which every
platform has a fast kernel, at the cost of one gather before and one after it, in both passes. `attend(q, k, v, causal)`
gives each token the result that it would have in a row with its sample only. `causal(q, k, v, repeat)` is attention
over rows, `repeat` of them from each row of the batch.

`Conversations` are as long as the row and branch anywhere. Rearranging them would repeat most of a row for every
branch, so they use one mask for all heads and layers instead.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@jax.custom_vjp
def move(x: jax.Array, there: jax.Array, back: jax.Array) -> jax.Array:
    """Gather x [B, X, ...] to [B, Y, ...] by indices; negative indices give zero.

    Args:
        x: [B, X, ...].
        there: int32 [B, Y], index in x of each element of the result.
        back: int32 [B, X], the inverse: index in the result of each element of x, or a negative number.
    """
    picked = jax.vmap(lambda row, i: row.at[i].get(mode="clip"))(x, there)
    return jnp.where((there >= 0).reshape(*there.shape, *(1,) * (x.ndim - 2)), picked, 0)


def _move_forward(x, there, back):
    return move(x, there, back), (there, back)


def _move_backward(places, y):
    # Autodiff would turn the gather into a scatter-add. The mapping is one to one, so its inverse is a gather as well.
    there, back = places
    return move(y, back, there), None, None


move.defvjp(_move_forward, _move_backward)


def fold(x: jax.Array, rows: int) -> jax.Array:
    """Reshape [B, R·T, ...] to [B·R, T, ...]."""
    return x.reshape(x.shape[0] * rows, -1, *x.shape[2:])


def unfold(x: jax.Array, rows: int) -> jax.Array:
    """Reshape [B·R, T, ...] to [B, R·T, ...]."""
    return x.reshape(x.shape[0] // rows, -1, *x.shape[2:])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """S consecutive samples in each row.

    Attributes:
        starts: int32 [B, S], first token of each sample.
        sizes: int32 [B, S], number of tokens of each sample; 0 for an empty slot.
        longest: Number of tokens of the longest sample.
    """

    starts: jax.Array
    sizes: jax.Array
    longest: int = dataclasses.field(metadata=dict(static=True))

    def places(self, width: int) -> tuple[jax.Array, jax.Array]:
        """Return (there, back) of `move` between rows [B, width] and samples [B, S·longest]."""
        batch, slots = self.starts.shape
        step = jnp.arange(self.longest)
        there = jnp.where(step < self.sizes[..., None], self.starts[..., None] + step, -1)
        offset = jnp.arange(width)[:, None] - self.starts[:, None]  # [B, width, S]
        inside = (offset >= 0) & (offset < self.sizes[:, None])
        home = jnp.sum(jnp.where(inside, offset + jnp.arange(slots) * self.longest, 0), axis=-1)
        return there.reshape(batch, -1), jnp.where(jnp.any(inside, axis=-1), home, -1)

    def attend(self, q, k, v, causal):
        """Attend within each sample."""
        there, back = self.places(q.shape[1])
        slots = self.starts.shape[1]
        alone = (fold(move(x, there, back), slots) for x in (q, k, v))
        return move(unfold(causal(*alone, slots), slots), back, there)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Branches:
    """Rows of the form `prompt | completion 1 | ... | completion G`.

    A completion attends to the prompt and to itself.

    Attributes:
        lengths: int32 [B], lengths of the prompts, which are right-padded.
        group: G.
        read: Number of tokens per completion.
    """

    lengths: jax.Array
    group: int = dataclasses.field(metadata=dict(static=True))
    read: int = dataclasses.field(metadata=dict(static=True))

    def attend(self, q, k, v, causal):
        """Attend from each prompt to itself, and from each completion to its prompt and itself."""
        room = q.shape[1] - self.group * self.read
        batch, width = len(self.lengths), room + self.read
        starts = self.lengths[:, None]
        offset = jnp.arange(width) - starts  # [B, width]
        first = jnp.arange(self.group)[:, None]
        there = jnp.where((offset >= 0) & (offset < self.read), offset, -1)[:, None]
        there = jnp.where(there >= 0, there + first * self.read, -1).reshape(batch, -1)
        back = (first * width + (starts + jnp.arange(self.read))[:, None]).reshape(batch, -1)

        def after_prompt(x):
            """Return keys or values of each completion after those of the prompt, [B·G, width, ...]."""
            prompt = jnp.where((offset < 0)[..., None, None], _padded(x[:, :room], width), 0)
            prompt = jnp.broadcast_to(prompt[:, None], (batch, self.group, *prompt.shape[1:]))
            return fold(move(x[:, room:], there, back), self.group) + prompt.reshape(-1, *prompt.shape[2:])

        prompts = causal(q[:, :room], k[:, :room], v[:, :room], 1)
        alone = fold(move(q[:, room:], there, back), self.group)
        answers = causal(alone, after_prompt(k), after_prompt(v), self.group)
        return jnp.concatenate([prompts, move(unfold(answers, self.group), back, there)], axis=1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Conversations:
    """Consecutive conversations in each row, with candidate completions that branch off.

    Attributes:
        positions: int32 [B, T], position of a token in its conversation, including a prefix.
        segment: int32 [B, T], index of the conversation in the row, -1 for padding. None: one conversation per row.
        branch: int32 [B, T], the candidate that a token belongs to, -1 for the trunk. None: no branches.
        context_len: int32 [B, T], for a token on a branch: it continues the tokens of the trunk at positions below
            this. Required with `branch`, and ignored on the trunk.

    A conversation of three tokens (positions 0 1 2), a candidate of two tokens that continues only the first one, and a
    second conversation:

        positions     0  1  2   1  2   0  1
        segment       0  0  0   0  0   1  1
        branch       -1 -1 -1   7  7  -1 -1
        context_len   .  .  .   1  1   .  .

        mask:    0    x  .  .   .  .   .  .
                 1    x  x  .   .  .   .  .
                 2    x  x  x   .  .   .  .
                 1    x  .  .   x  .   .  .
                 2    x  .  .   x  x   .  .
                 0    .  .  .   .  .   x  .
                 1    .  .  .   .  .   x  x

    With branches, the mask depends on these arrays and not on the order in the row. Without branches, the tokens of a
    conversation must be in the order of their positions. If there are no segments either, no mask is needed.
    """

    positions: jax.Array
    segment: jax.Array | None = None
    branch: jax.Array | None = None
    context_len: jax.Array | None = None

    def __post_init__(self):
        if (self.branch is None) != (self.context_len is None):
            raise ValueError("Conversations needs both branch and context_len, or neither")

    @property
    def causal(self) -> bool:
        """Whether each row is one conversation without branches, which needs no mask."""
        return self.segment is None and self.branch is None

    def mask(self, lengths: jax.Array, window: int | None = None) -> jax.Array:
        """Return bool [B, T, T]: whether a token (second axis) attends to another (third axis).

        Args:
            lengths: int32 [B], number of real tokens of each row. No other token attends to the rest.
            window: Size of the sliding window: a token attends to the last `window` positions, including its own.
        """
        own, other = self.positions[:, :, None], self.positions[:, None]
        seen = band(own, other, window)
        if self.segment is not None:
            seen &= self.segment[:, :, None] == self.segment[:, None]
        if self.branch is not None and self.context_len is not None:
            query_branch, key_branch = self.branch[:, :, None], self.branch[:, None]
            seen &= jnp.where(
                key_branch == -1,
                (query_branch == -1) | (other < self.context_len[:, :, None]),
                query_branch == key_branch,
            )
        place = jnp.arange(self.positions.shape[1])
        # Padding attends to itself, because a softmax over no keys is undefined.
        return (seen & (place < lengths[:, None])[:, None]) | (place[:, None] == place)


def band(query: jax.Array, key: jax.Array, window: int | None) -> jax.Array:
    """Return whether a token at position `query` attends to one at position `key`.

    The key must not be later than the query, and must be inside the window.
    """
    seen = key <= query
    return seen if window is None else seen & (key > query - window)


def _padded(x, width):
    """Pad x [B, T, ...] with zeros to [B, width, ...]."""
    return jnp.pad(x, ((0, 0), (0, width - x.shape[1]), *((0, 0),) * (x.ndim - 2)))
