"""K answers of one prompt in one row of the learner: the prompt is read once, forward and backward.

A row is `prompt | answer 1 | … | answer K` (`models.layouts.Branches`). An answer sees the prompt and itself, at the
positions it would have alone, so loss and gradients are those of K separate rows. Of one-token answers nothing has to
be read at all: the row is the prompt, and its last position predicts all K of them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from marl_jax.samples import Samples
from models.layouts import Branches


class Rows(NamedTuple):
    """N/K rows for `Model.forward`; the last two are None for one-token answers.

    tokens     int32 [N/K, T']
    lengths    int32 [N/K], of the prompts
    positions  int32 [N/K, T']
    layout     who sees whom
    """

    tokens: jax.Array
    lengths: jax.Array
    positions: jax.Array | None
    layout: Branches | None


def join(samples: Samples, group: int) -> Rows:
    """The rows of samples [N, …] whose groups of K are next to each other."""
    # The last token of an answer predicts nothing, so width - 1 of them are read, and prompts leave room for as many.
    read = samples.width - 1
    tokens = samples.tokens[::group, : samples.tokens.shape[1] - read]
    lengths = samples.prompt_lengths[::group]
    if not read:
        return Rows(tokens, lengths, None, None)
    rows, room = tokens.shape
    answers = samples.answers[:, :read].reshape(rows, group * read)
    place = jnp.arange(room)
    behind = jnp.tile(jnp.arange(read), group)
    positions = jnp.concatenate(
        [jnp.broadcast_to(place, tokens.shape), lengths[:, None] + jnp.broadcast_to(behind, answers.shape)], axis=1
    )
    layout = Branches(lengths, group, read)
    return Rows(jnp.concatenate([tokens, answers], axis=1), lengths, positions, layout)


def before_answers(hidden: jax.Array, rows: Rows, group: int, width: int) -> jax.Array:
    """hidden [N/K, T', D] -> [N, W, D]: the states that predict the tokens of each answer."""
    n, _, size = hidden.shape
    first = jnp.take_along_axis(hidden, rows.lengths[:, None, None] - 1, axis=1)  # [N/K, 1, D]
    first = jnp.broadcast_to(first[:, None], (n, group, 1, size))
    if width == 1:
        return first.reshape(n * group, 1, size)
    rest = hidden[:, -group * (width - 1) :].reshape(n, group, width - 1, size)
    return jnp.concatenate([first, rest], axis=2).reshape(n * group, width, size)
