"""Random samples of unequal lengths that begin alike, for tests of how the learner reads them."""

import jax.numpy as jnp
import numpy as np

from marl_jax.samples import Samples, from_prompts

PREFIX = tuple(range(10, 44))  # long enough to be kept
VOCABULARY = 256


def make(
    n: int, prompt: int, width: int, group: int = 1, adapters: int = 1, seed: int = 0, kept: bool = False
) -> Samples:
    """n prompts of up to `prompt` tokens behind `PREFIX` with `group` answers each; `kept` leaves the prefix out."""
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
