"""Samples: the one thing that passes from rollout to learner.

A row is one answer with the prompt it was given to. Token ids are the truth: they are the ids that were sampled, and
nothing is tokenised again between sampling and learning.

Axis letters beyond those of `models/config.py`: N rows, W tokens of the longest answer. A rollout of R turns of B games
gives arrays [R, B, …], so that advantages can follow the games through time; `flat` makes them [N, …] for learning.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Samples:
    """N answers.

    tokens          int32 [N, T]    prompt and answer, right-padded; the answer's last token may be cut: nobody reads it
    prompt_lengths  int32 [N]
    answers         int32 [N, W]    the answer alone, 0 behind its end
    answer_lengths  int32 [N]
    action          int32 [N]       what the answer names; -1 where a free answer named nothing
    legal           bool [N, A]     what it was allowed to name
    logps           float32 [N, W]  log-probabilities under the policy that sampled, 0 behind the end
    values          float32 [N, W]  the critic before each token of the answer; for GAE over turns only column 0 counts
    weights         float32 [N]     0 for rows that teach nothing: bots, past selves, frozen policies, open ends
    agent           int32 [N]       seat
    policy          int32 [N]       who answered, a number of the policies that learn; -1 is anyone else
    episode, turn   int32 [N]       which game of its row, and the move in it
    rewards         float32 [N, P]  what the step paid to every seat, levels weighed and added
    ends            bool [N]        the game ended with this step
    group           int32 [N]       the same for rows that began alike; a label for people and tests, since the learner
                                    finds groups by their places; without groups, the number of the row
    advantages      float32 [N, W]  zeros until an algorithm fills them in; so are returns
    returns         float32 [N, W]  what the critic should have said
    ref_logps       float32 [N, W]  under the reference policy, where the algorithm needs it
    old_logps       float32 [N, W]  under the learner's weights before the update; None: those that sampled
    central         (int32 [N, C], int32 [N])  what a central critic reads, and its lengths
    """

    tokens: jax.Array
    prompt_lengths: jax.Array
    answers: jax.Array
    answer_lengths: jax.Array
    action: jax.Array
    legal: jax.Array
    logps: jax.Array
    values: jax.Array
    weights: jax.Array
    agent: jax.Array
    policy: jax.Array
    episode: jax.Array
    turn: jax.Array
    rewards: jax.Array
    ends: jax.Array
    group: jax.Array
    advantages: jax.Array
    returns: jax.Array
    ref_logps: jax.Array | None = None
    old_logps: jax.Array | None = None
    central: tuple[jax.Array, jax.Array] | None = None

    @property
    def n(self) -> int:
        """N."""
        return self.tokens.shape[0]

    @property
    def width(self) -> int:
        """W."""
        return self.answers.shape[1]

    def mask(self) -> jax.Array:
        """float32 [N, W]: 1 on tokens of answers, whatever their weight."""
        return (jnp.arange(self.width) < self.answer_lengths[:, None]).astype(jnp.float32)

    def before_answer(self) -> jax.Array:
        """int32 [N, W]: the positions whose hidden states predict the tokens of the answer."""
        positions = self.prompt_lengths[:, None] - 1 + jnp.arange(self.width)
        return jnp.clip(positions, 0, self.tokens.shape[1] - 1)

    def flat(self) -> Samples:
        """Arrays [R, B, …] as [R·B, …]; turn by turn, so that a batch split over a mesh stays split."""
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), self)

    def replace(self, **changes) -> Samples:
        """The same samples with some fields changed."""
        return dataclasses.replace(self, **changes)


def take(samples: Samples, rows: jax.Array) -> Samples:
    """The rows of the given numbers, in that order."""
    return jax.tree.map(lambda x: x[rows], samples)


def split(tree, parts: int, unit: int = 1):
    """Every array [N, …] of a tree as [parts, N/parts, …], to scan over; a part takes every `parts`-th row.

    Strided parts keep a batch that is split over a mesh split: each device gives a share to every part. Runs of `unit`
    rows stay together.
    """

    def one(x):
        if x.shape[0] % (parts * unit):
            runs = f" of runs of {unit}" if unit > 1 else ""
            raise ValueError(f"{x.shape[0]} samples do not split into {parts} equal parts{runs}")
        runs = jnp.moveaxis(x.reshape(-1, parts, unit, *x.shape[1:]), 1, 0)
        return runs.reshape(parts, -1, *x.shape[1:])

    return jax.tree.map(one, tree)


def unsplit(tree, unit: int = 1):
    """Every array [parts, N/parts, …] as [N, …], in the order from before `split`."""

    def one(x):
        runs = x.reshape(x.shape[0], -1, unit, *x.shape[2:])
        return jnp.moveaxis(runs, 0, 1).reshape(-1, *x.shape[2:])

    return jax.tree.map(one, tree)


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
