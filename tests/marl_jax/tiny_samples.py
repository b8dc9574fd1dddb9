"""Samples for tests of the learner: random ones of unequal lengths that begin alike, and rows written by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from marl_jax.samples import Samples, from_prompts

_from_prompts = jax.jit(from_prompts)  # one program instead of one for every operation

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
        return (rng.standard_normal(mask.shape) * mask).astype(np.float32)

    def flat(x):
        return jnp.asarray(x.reshape(n, -1))

    tokens = np.where(np.arange(time) < lengths[:, None], tokens, 0).astype(np.int32)
    samples = _from_prompts(
        tokens[:, skip:], lengths - skip, answers, said, np.float32(-5.0 * mask + 0.1 * noise()), skip=skip,
        rewards=np.zeros((n, group, 1), np.float32), legal=np.ones((n, group, 9), bool),
        action=np.zeros((n, group), np.int32), policy=rng.integers(0, adapters, n).astype(np.int32),
    )  # fmt: skip
    return samples.replace(values=flat(noise()), advantages=flat(noise()), returns=flat(noise()))


def by_hand(completion_of, n_completions: int | None = None, n_seats: int = 1, **fields) -> Samples:
    """Return rows with these `completion_of`, int [N, X]; other fields default to zero."""
    completion_of = np.asarray(completion_of, np.int32)
    (n, width), s = completion_of.shape, n_completions or int(completion_of.max()) + 1
    zeros, wide = np.zeros((n, s), np.int32), np.zeros((n, width), np.float32)
    lengths = np.sum(completion_of[:, None] == np.arange(s)[:, None], axis=2).astype(np.int32)
    given = dict(
        tokens=np.zeros((n, 1), np.int32),
        positions=np.zeros((n, 1), np.int32),
        lengths=np.ones((n,), np.int32),
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
        loss_weights=np.ones((n, s), np.float32),
        rewards=np.zeros((n, s, n_seats), np.float32),
        completion_of=completion_of,
        logits_index=np.zeros((n, width), np.int32),
        targets=np.zeros((n, width), np.int32),
        logps=wide,
        values=wide,
        advantages=wide,
        returns=wide,
    )
    return jax.device_put(Samples(**{**given, **fields}))
