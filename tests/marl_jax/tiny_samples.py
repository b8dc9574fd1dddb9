"""Samples for tests of the learner: random ones of unequal lengths that begin alike, and rows written by hand."""

import jax.numpy as jnp
import numpy as np

from marl_jax.samples import Samples, from_prompts

PREFIX = tuple(range(10, 44))  # long enough to be kept
VOCABULARY = 256


def make(
    n: int, prompt: int, width: int, group: int = 1, adapters: int = 1, seed: int = 0, kept: bool = False
) -> Samples:
    """Return n prompts after `PREFIX` with `group` completions each; `kept` omits the prefix."""
    rng = np.random.default_rng(seed)
    skip = len(PREFIX) if kept else 0
    time = len(PREFIX) + prompt + (width - 1 if group == 1 else 0)
    tokens = rng.integers(1, VOCABULARY, (n, time))
    tokens[:, : len(PREFIX)] = PREFIX
    lengths = (len(PREFIX) + rng.integers(1, prompt + 1, n)).astype(np.int32)
    said = rng.integers(1, width + 1, (n, group)).astype(np.int32)
    mask = np.arange(width) < said[..., None]
    answers = (rng.integers(1, VOCABULARY, mask.shape) * mask).astype(np.int32)

    def noise():
        return jnp.asarray(rng.standard_normal(mask.shape) * mask, jnp.float32)

    def flat(x):
        return x.reshape(n, -1)

    tokens = np.where(np.arange(time) < lengths[:, None], tokens, 0).astype(np.int32)
    samples = from_prompts(
        jnp.asarray(tokens[:, skip:]), jnp.asarray(lengths - skip), jnp.asarray(answers), jnp.asarray(said),
        -5.0 * mask + 0.1 * noise(), skip=skip, rewards=jnp.zeros((n, group, 1)),
        legal=jnp.ones((n, group, 9), bool), action=jnp.zeros((n, group), jnp.int32),
        policy=jnp.asarray(rng.integers(0, adapters, n), jnp.int32),
    )  # fmt: skip
    return samples.replace(values=flat(noise()), advantages=flat(noise()), returns=flat(noise()))


def by_hand(completion_of, n_completions: int | None = None, n_seats: int = 1, **fields) -> Samples:
    """Return rows with these `completion_of`, int [N, X]; other fields default to zero."""
    completion_of = jnp.asarray(completion_of, jnp.int32)
    (n, width), s = completion_of.shape, n_completions or int(completion_of.max()) + 1
    zeros, wide = jnp.zeros((n, s), jnp.int32), jnp.zeros((n, width), jnp.float32)
    lengths = jnp.sum(completion_of[:, None] == jnp.arange(s)[:, None], axis=2).astype(jnp.int32)
    given = dict(
        tokens=jnp.zeros((n, 1), jnp.int32),
        positions=jnp.zeros((n, 1), jnp.int32),
        lengths=jnp.ones((n,), jnp.int32),
        policy=zeros[:, 0],
        completion_lengths=lengths,
        truncated=zeros > 0,
        context_len=zeros + 1,
        seat=zeros,
        episode=zeros,
        turn=zeros,
        group=zeros,
        member=zeros,
        ends=zeros > 0,
        loss_weights=jnp.ones((n, s)),
        rewards=jnp.zeros((n, s, n_seats)),
        completion_of=completion_of,
        logits_index=jnp.zeros((n, width), jnp.int32),
        targets=jnp.zeros((n, width), jnp.int32),
        logps=wide,
        values=wide,
        advantages=wide,
        returns=wide,
    )
    return Samples(**{**given, **fields})
