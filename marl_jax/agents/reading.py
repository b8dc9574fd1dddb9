"""How the learner reads samples: no token more often than loss and gradients need.

What all prompts of a game begin with is read once for a whole part of a batch (`Reader.prefix`); K answers of one
prompt share it (`shared_prompt`); short samples share a row (`packing`). Loss and gradients are those of separate,
whole rows.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from marl_jax.agents import shared_prompt
from marl_jax.agents.packing import Rows
from marl_jax.samples import Samples
from models import lora
from models.layouts import Packed, move
from models.model import Model


@dataclasses.dataclass(frozen=True, eq=False)
class Reader:
    """A model and how it reads.

    prefix         what all prompts begin with, read once; empty: every row is read from its first token
    share          samples next to each other that have one prompt, read once
    dtype          of the arithmetic
    remat, unroll  as in `Model.forward`
    """

    model: Model
    prefix: tuple[int, ...]
    share: int
    dtype: jnp.dtype
    remat: str
    unroll: int


def before_answers(reader: Reader, params: dict, samples: Samples, adapters: lora.Lora | None) -> jax.Array:
    """[N, W, D]: the hidden states that predict the tokens of the answers."""
    samples, read = _behind_prefix(reader, params, samples, adapters)
    if reader.share == 1:
        lengths = jnp.minimum(samples.prompt_lengths + samples.answer_lengths, samples.tokens.shape[1])
        hidden = read(samples.tokens, lengths=lengths, adapters=adapters)
        return jnp.take_along_axis(hidden, samples.before_answer()[..., None], axis=1)
    rows = shared_prompt.join(samples, reader.share)
    if adapters is not None:
        adapters = dataclasses.replace(adapters, ids=adapters.ids[:: reader.share])
    hidden = read(rows.tokens, positions=rows.positions, layout=rows.layout, adapters=adapters)
    return shared_prompt.before_answers(hidden, rows, reader.share, samples.width)


def packed_answers(
    reader: Reader, params: dict, samples: Samples, rows: Rows, adapters: lora.Lora | None
) -> tuple[jax.Array, jax.Array, tuple[jax.Array, jax.Array]]:
    """Hidden states before the answers and what they predict, answer behind answer: [R, X, D], [R, X], and places.

    samples   [R·S, …], those in the slots of the rows
    adapters  the same for all R rows
    places    (there, back) of `layouts.move` from [R, X] to samples [R, S·W]
    """
    samples, read = _behind_prefix(reader, params, samples, adapters)
    n, slots = rows.starts.shape
    filled = rows.filled.reshape(-1)
    sizes = jnp.where(filled, samples.prompt_lengths + samples.answer_lengths - 1, 0).reshape(n, slots)
    layout = Packed(rows.starts, sizes, samples.tokens.shape[1])
    there, back = layout.places(rows.room)
    in_rows = lambda x: move(x.reshape(n, -1), back, there)  # noqa: E731
    positions = in_rows(jnp.broadcast_to(jnp.arange(layout.longest), samples.tokens.shape))
    hidden = read(in_rows(samples.tokens), positions=positions, layout=layout, adapters=adapters)

    lengths = jnp.where(filled, samples.answer_lengths, 0).reshape(n, slots)
    there, back = Packed(rows.answer_starts, lengths, samples.width).places(rows.answer_room)
    before = rows.starts[..., None] + samples.before_answer().reshape(n, slots, -1)
    before = move(before.reshape(n, -1), back, there)
    targets = move(samples.answers.reshape(n, -1), back, there)
    return jnp.take_along_axis(hidden, before[..., None], axis=1), targets, (there, back)


def _behind_prefix(reader: Reader, params: dict, samples: Samples, adapters: lora.Lora | None):
    """(samples without what all prompts begin with, `Model.forward` behind it, giving hidden states)."""
    settings = dict(dtype=reader.dtype, remat=reader.remat, unroll=reader.unroll)
    skip = len(reader.prefix)
    if not skip:
        return samples, _hidden(functools.partial(reader.model.forward, params, **settings), 0)
    # With adapters the prefix reads differently for each of them.
    n = 1 if adapters is None else len(adapters.scale)
    tokens = jnp.broadcast_to(jnp.asarray(reader.prefix, jnp.int32), (n, skip))
    readers = None if adapters is None else dataclasses.replace(adapters, ids=jnp.arange(n))
    prefix = reader.model.read_prefix(params, tokens, adapters=readers, **settings)
    samples = samples.replace(tokens=samples.tokens[:, skip:], prompt_lengths=samples.prompt_lengths - skip)
    return samples, _hidden(functools.partial(reader.model.forward, params, prefix=prefix, **settings), skip)


def _hidden(forward, skip: int):
    """`forward` without its cache; positions, where they are given, count from behind the prefix."""

    def read(tokens, positions=None, **more):
        return forward(tokens, positions=None if positions is None else positions + skip, **more)[0]

    return read
