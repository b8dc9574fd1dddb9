"""Free answers that run into the limit of their length: what DAPO does about them.

An answer that was cut may have been on a good way, so its reward says little; and without a price answers grow. `mask`
leaves cut answers out of the loss; their rewards still count in the means of their groups. `penalty` takes from an
answer's reward what grows from 0 to 1 over the last `overlong_buffer` tokens before the limit. Answers that are names
of actions cannot be too long.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from marl_jax.agents.policy import Policy
from marl_jax.samples import Samples


def handle(policy: Policy, samples: Samples, algo: ConfigDict) -> tuple[Samples, dict[str, jax.Array]]:
    """Samples with over-long answers handled as `algo.overlong` says, and the share of answers that were cut."""
    cut = policy.answers.truncated(samples)
    counts = samples.loss_weights > 0
    share = jnp.sum(cut & counts) / jnp.maximum(jnp.sum(counts), 1)
    kind = algo.get("overlong", "none")
    if kind == "mask":
        samples = samples.replace(loss_weights=samples.loss_weights * ~cut)
    elif kind == "penalty":
        price = penalty(samples.answer_lengths, policy.width, algo.overlong_buffer)
        price = price * (samples.policy >= 0)[:, None]
        own = jax.nn.one_hot(samples.seat, samples.n_seats)
        samples = samples.replace(rewards=samples.rewards + price[..., None] * own)
    return samples, {"truncated_answers": share}


def penalty(lengths: jax.Array, longest: int, buffer: int) -> jax.Array:
    """float32 [...]: 0 up to `longest - buffer` tokens, then falling to -1 at `longest`."""
    return -jnp.clip((lengths - (longest - buffer)) / buffer, 0.0, 1.0)
