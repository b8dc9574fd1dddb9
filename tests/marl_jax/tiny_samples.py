"""Random samples of unequal lengths that begin alike, for tests of how the learner reads them."""

import jax.numpy as jnp
import numpy as np

from marl_jax.samples import Samples, join_answer

PREFIX = tuple(range(10, 44))  # long enough to be kept
VOCABULARY = 256


def make(n: int, prompt: int, width: int, group: int = 1, adapters: int = 1, seed: int = 0) -> Samples:
    """n samples with prompts of up to `prompt` tokens behind `PREFIX`; `group` neighbours share theirs."""
    rng = np.random.default_rng(seed)
    time = len(PREFIX) + prompt + width - 1
    per_group = lambda x: np.repeat(x, group, axis=0)  # noqa: E731
    tokens = per_group(rng.integers(1, VOCABULARY, (n // group, time)))
    tokens[:, : len(PREFIX)] = PREFIX
    lengths = per_group(len(PREFIX) + rng.integers(1, prompt + 1, n // group)).astype(np.int32)
    said = rng.integers(1, width + 1, n).astype(np.int32)
    mask = np.arange(width) < said[:, None]
    answers = (rng.integers(1, VOCABULARY, (n, width)) * mask).astype(np.int32)
    noise = lambda: jnp.asarray(rng.standard_normal((n, width)) * mask, jnp.float32)  # noqa: E731
    column = jnp.zeros((n,), jnp.int32)
    tokens = np.where(np.arange(time) < lengths[:, None], tokens, 0).astype(np.int32)
    return Samples(
        tokens=join_answer(jnp.asarray(tokens), jnp.asarray(lengths), jnp.asarray(answers)),
        prompt_lengths=jnp.asarray(lengths), answers=jnp.asarray(answers), answer_lengths=jnp.asarray(said),
        action=column, legal=jnp.ones((n, 9), bool), logps=-5.0 * mask + 0.1 * noise(), values=noise(),
        weights=jnp.ones((n,)), agent=column, policy=jnp.asarray(per_group(rng.integers(0, adapters, n // group))),
        episode=column, turn=column, rewards=jnp.zeros((n, 1)), ends=jnp.ones((n,), bool), group=jnp.arange(n) // group,
        advantages=noise(), returns=noise(),
    )  # fmt: skip
