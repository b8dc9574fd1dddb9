"""Rows in which the learner reads less: several samples, several answers behind one prompt, or conversations.

A layout is what `Model.forward` takes as `layout`. Norms, projections and feed-forward take tokens one by one, so they
run over these rows as they lie; only attention has to know.

`Packed` and `Branches` lay attention out sample by sample. It is then plain causal attention, for which every platform
has a fast kernel, at the price of one gather there and one back, in both directions: `attend(q, k, v, causal)` gives
each token what it would see in a row of its own, where `causal(q, k, v, repeat)` is attention over rows, `repeat` of
them from each row of the batch.

`Conversations` are as long as the row and branch anywhere, so laying them out one by one would repeat most of a row
for every branch. They give a mask instead, one for all heads and layers.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@jax.custom_vjp
def move(x: jax.Array, there: jax.Array, back: jax.Array) -> jax.Array:
    """x [B, X, …] -> [B, Y, …]: at y what was at `there[b, y]`, zero where that is negative.

    there  int32 [B, Y]
    back   int32 [B, X], the inverse: where each x went, or a negative number
    """
    picked = jax.vmap(lambda row, i: row.at[i].get(mode="clip"))(x, there)
    return jnp.where((there >= 0).reshape(*there.shape, *(1,) * (x.ndim - 2)), picked, 0)


def _move_forward(x, there, back):
    return move(x, there, back), (there, back)


def _move_backward(places, y):
    # Autodiff would turn the gather into a scatter that adds; one to one, the way back is a gather as well.
    there, back = places
    return move(y, back, there), None, None


move.defvjp(_move_forward, _move_backward)


def fold(x: jax.Array, rows: int) -> jax.Array:
    """[B, R·T, …] as [B·R, T, …]."""
    return x.reshape(x.shape[0] * rows, -1, *x.shape[2:])


def unfold(x: jax.Array, rows: int) -> jax.Array:
    """[B·R, T, …] as [B, R·T, …]."""
    return x.reshape(x.shape[0] // rows, -1, *x.shape[2:])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """S samples one behind the other in each row.

    starts   int32 [B, S]
    sizes    int32 [B, S], 0 for an empty slot
    longest  tokens of the longest sample
    """

    starts: jax.Array
    sizes: jax.Array
    longest: int = dataclasses.field(metadata=dict(static=True))

    def places(self, width: int) -> tuple[jax.Array, jax.Array]:
        """Between rows [B, width] and samples [B, S·longest]: (there, back) of `move`."""
        batch, slots = self.starts.shape
        step = jnp.arange(self.longest)
        there = jnp.where(step < self.sizes[..., None], self.starts[..., None] + step, -1)
        offset = jnp.arange(width)[:, None] - self.starts[:, None]  # [B, width, S]
        inside = (offset >= 0) & (offset < self.sizes[:, None])
        home = jnp.sum(jnp.where(inside, offset + jnp.arange(slots) * self.longest, 0), axis=-1)
        return there.reshape(batch, -1), jnp.where(jnp.any(inside, axis=-1), home, -1)

    def attend(self, q, k, v, causal):
        there, back = self.places(q.shape[1])
        slots = self.starts.shape[1]
        alone = (fold(move(x, there, back), slots) for x in (q, k, v))
        return move(unfold(causal(*alone, slots), slots), back, there)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Branches:
    """`prompt | answer 1 | … | answer G` in each row: an answer sees the prompt and itself.

    lengths  int32 [B], of the prompts, which are right-padded
    group    G
    read     tokens of each answer
    """

    lengths: jax.Array
    group: int = dataclasses.field(metadata=dict(static=True))
    read: int = dataclasses.field(metadata=dict(static=True))

    def attend(self, q, k, v, causal):
        room = q.shape[1] - self.group * self.read
        batch, width = len(self.lengths), room + self.read
        starts = self.lengths[:, None]
        offset = jnp.arange(width) - starts  # [B, width]
        first = jnp.arange(self.group)[:, None]
        there = jnp.where((offset >= 0) & (offset < self.read), offset, -1)[:, None]
        there = jnp.where(there >= 0, there + first * self.read, -1).reshape(batch, -1)
        back = (first * width + (starts + jnp.arange(self.read))[:, None]).reshape(batch, -1)

        def behind_prompt(x):
            """Keys or values of each answer behind those of the prompt, [B·G, width, …]."""
            prompt = jnp.where((offset < 0)[..., None, None], _padded(x[:, :room], width), 0)
            prompt = jnp.broadcast_to(prompt[:, None], (batch, self.group, *prompt.shape[1:]))
            return fold(move(x[:, room:], there, back), self.group) + prompt.reshape(-1, *prompt.shape[2:])

        prompts = causal(q[:, :room], k[:, :room], v[:, :room], 1)
        alone = fold(move(q[:, room:], there, back), self.group)
        answers = causal(alone, behind_prompt(k), behind_prompt(v), self.group)
        return jnp.concatenate([prompts, move(unfold(answers, self.group), back, there)], axis=1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Conversations:
    """Conversations one behind the other in each row, and candidate answers that branch off them.

    positions  int32 [B, T], place of a token in its conversation; what stands in a prefix counts
    segment    int32 [B, T], which conversation of the row, -1 for padding; None: one in each row
    branch     int32 [B, T], which candidate a token belongs to, -1 for the trunk; None: no branches
    sees       int32 [B, T], on a branch: it continues the tokens of the trunk at positions below this; needed with
               `branch`, without meaning on the trunk

    A conversation of three tokens (positions 0 1 2), a candidate of two that continues the first token only, and a
    second conversation:

        positions   0  1  2   1  2   0  1
        segment     0  0  0   0  0   1  1
        branch     -1 -1 -1   7  7  -1 -1
        sees        .  .  .   1  1   .  .

        sees:  0    x  .  .   .  .   .  .
               1    x  x  .   .  .   .  .
               2    x  x  x   .  .   .  .
               1    x  .  .   x  .   .  .
               2    x  .  .   x  x   .  .
               0    .  .  .   .  .   x  .
               1    .  .  .   .  .   x  x

    With branches the mask goes by these numbers, not by the order in the row. Without branches the tokens of a
    conversation must stand in the order of their positions; without segments there is then no mask at all.
    """

    positions: jax.Array
    segment: jax.Array | None = None
    branch: jax.Array | None = None
    context_len: jax.Array | None = None

    def __post_init__(self):
        if (self.branch is None) != (self.context_len is None):
            raise ValueError(
                "Conversations has branch without sees or sees without branch, but must be both or neither"
            )

    @property
    def causal(self) -> bool:
        """Whether each row is one conversation without branches, which needs no mask."""
        return self.segment is None and self.branch is None

    def mask(self, lengths: jax.Array, window: int | None = None) -> jax.Array:
        """bool [B, T, T]: who (second axis) sees whom (third).

        lengths  int32 [B], real tokens of each row; others are seen by nobody else
        window   a token sees positions down to its own − window + 1
        """
        own, other = self.positions[:, :, None], self.positions[:, None]
        seen = band(own, other, window)
        if self.segment is not None:
            seen &= self.segment[:, :, None] == self.segment[:, None]
        if self.branch is not None and self.context_len is not None:
            mine, theirs = self.branch[:, :, None], self.branch[:, None]
            seen &= jnp.where(theirs == -1, (mine == -1) | (other < self.context_len[:, :, None]), mine == theirs)
        place = jnp.arange(self.positions.shape[1])
        # A token that sees nothing would have no average to take: padding sees itself.
        return (seen & (place < lengths[:, None])[:, None]) | (place[:, None] == place)


def band(query: jax.Array, key: jax.Array, window: int | None) -> jax.Array:
    """Whether a token at position `query` sees one at `key`: no later than itself, and inside the window."""
    seen = key <= query
    return seen if window is None else seen & (key > query - window)


def _padded(x, width):
    return jnp.pad(x, ((0, 0), (0, width - x.shape[1]), *((0, 0),) * (x.ndim - 2)))
