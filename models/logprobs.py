"""Log-probabilities of given tokens without ever holding [B, T, V]."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from models.model import Model
from models.sharding import constrain, ways


def token_logprobs(
    model: Model, params: dict, hidden: jax.Array, targets: jax.Array, temperature=1.0, chunk: int = 2048
) -> tuple[jax.Array, jax.Array]:
    """log p(target) and the entropy at every position, both float32 [B, T].

    hidden       [B, T, D], as `Model.forward` gives it
    targets      int32 [B, T], the token that follows each position
    temperature  a number or [B]; the distribution is softmax(logits / temperature)
    chunk        tokens whose logits a device holds at once; they are recomputed in the backward pass

    Time is cut rather than the flattened batch, so that a batch split over a mesh stays split.
    """
    batch, time, _ = hidden.shape
    width = max(1, min(time, chunk * ways("B", batch) // max(batch, 1)))
    n = -(-time // width)
    pad = n * width - time

    def cut(x):
        """[B, T, …] as [n, B, width, …]."""
        padded = jnp.pad(x, ((0, 0), (0, pad), *((0, 0),) * (x.ndim - 2)))
        return jnp.moveaxis(padded.reshape(batch, n, width, *x.shape[2:]), 1, 0)

    temperature = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), (batch,))[:, None, None]

    # On a mesh the head is gathered here, once; left to the partitioner, the backward pass would gather logits instead.
    name, letters = ("embed", "VD") if model.cfg.tie_embeddings else ("head", "DV")
    params = {**params, name: constrain(params[name], letters)}

    @jax.checkpoint
    def piece(hidden, targets):
        logits = constrain(model.logits(params, constrain(hidden, "BTD")) / temperature, "BTV")
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        # Both sums over the vocabulary are taken in one pass.
        top = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
        odds = jnp.exp(logits - top)
        mass, moment = jnp.sum(odds, axis=-1), jnp.sum(odds * logits, axis=-1)
        total = jnp.log(mass) + top[..., 0]
        return chosen - total, total - moment / mass

    _, (logp, entropy) = jax.lax.scan(lambda _, xs: (None, piece(*xs)), None, (cut(hidden), cut(targets)))
    join = lambda x: jnp.moveaxis(x, 0, 1).reshape(batch, n * width)[:, :time]  # noqa: E731
    return join(logp), join(entropy)
