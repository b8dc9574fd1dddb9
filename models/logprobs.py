"""Log-probabilities of given tokens without materializing logits [B, T, V]."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from models.decoder import to_logits
from models.model import Model
from models.sharding import constrain, num_shards


def token_logprobs(
    model: Model, params: dict, hidden: jax.Array, targets: jax.Array, temperature=1.0, chunk: int = 2048
) -> tuple[jax.Array, jax.Array]:
    """Return log p(target) and the entropy at every position, both float32 [B, T].

    The time axis is chunked rather than the flattened batch, so that a batch sharded over a mesh stays sharded.

    Args:
        model: The model.
        params: Its parameters.
        hidden: [B, T, D] from `Model.forward`.
        targets: int32 [B, T], the token that follows each position.
        temperature: A number or [B]. The distribution is softmax(logits / temperature).
        chunk: Number of tokens per device whose logits are held at a time. They are recomputed in the backward pass.
    """
    batch, time, _ = hidden.shape
    width = max(1, min(time, chunk * num_shards("B", batch) // max(batch, 1)))
    padded = lambda x: jnp.pad(x, ((0, 0), (0, -time % width), *((0, 0),) * (x.ndim - 2)))  # noqa: E731
    weight = params["embed"] if model.cfg.tie_embeddings else params["head"].T
    temperature = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), (batch,))
    scores: tuple[jax.Array, jax.Array] = _score(width, weight, padded(hidden), padded(targets), temperature)
    logp, entropy = scores
    return logp[:, :time], entropy[:, :time]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _score(width, weight, hidden, targets, temperature) -> tuple[jax.Array, jax.Array]:
    """Return log-probabilities and entropies for a head [V, D], `width` time steps at a time.

    The backward pass is written out: it reuses the sums over the vocabulary from the forward pass and reads the logits
    of a chunk once. XLA's own would read them four times.
    """
    return _score_forward(width, weight, hidden, targets, temperature)[0]


def _score_forward(width, weight, hidden, targets, temperature):
    """Return log-probabilities and entropies, and the residuals for the backward pass."""
    head = _cast_head(weight, hidden.dtype)

    def piece(hidden, targets):
        logits = _logits(head, hidden, temperature)
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        # Both sums over the vocabulary take one pass.
        top = jnp.max(logits, axis=-1, keepdims=True)
        odds = jnp.exp(logits - top)
        mass, moment = jnp.sum(odds, axis=-1), jnp.sum(odds * logits, axis=-1)
        total = jnp.log(mass) + top[..., 0]
        return chosen - total, total - moment / mass, total

    _, (logp, entropy, total) = _over_time(width, lambda _, *given: (None, piece(*given)), None, hidden, targets)
    return (logp, entropy), (weight, hidden, targets, temperature, entropy, total)


def _score_backward(width, kept, grads):
    """Return the gradients of `_score`."""
    weight, hidden, targets, temperature, *sums = kept
    head, tokens = _cast_head(weight, hidden.dtype), jnp.arange(len(weight), dtype=targets.dtype)

    def piece(to_weight, hidden, *given):
        targets, entropy, total, to_logp, to_entropy = (x[..., None] for x in given)
        logits = _logits(head, hidden, temperature)
        # Gradient of log p(t): [i = t] - p(i). Gradient of the entropy: -p(i) (logit(i) - mean logit).
        mean = total - entropy
        to_logits = jnp.where(tokens == targets, to_logp, 0.0)
        to_logits -= jnp.exp(logits - total) * (to_logp + to_entropy * (logits - mean))
        to_temperature = -jnp.sum(to_logits * logits, axis=-1) / temperature[:, None]
        # In float32 both products would run at half the speed.
        to_logits = constrain((to_logits / temperature[:, None, None]).astype(hidden.dtype), "BTV")
        tokens_of = (x.reshape(*parts, -1, x.shape[-1]) for x in (hidden, to_logits))
        to_weight += jnp.einsum("...nd,...nv->...dv", *tokens_of, preferred_element_type=jnp.float32)
        return constrain(to_weight, letters), (to_logits @ head, to_temperature)

    # Each shard of the batch accumulates its own sum. A common one would be sent over the network for every chunk.
    parts = (n,) if (n := num_shards("B", len(hidden))) > 1 else ()
    letters = "BDV" if parts else "DV"
    nothing = constrain(jnp.zeros((*parts, *weight.T.shape), jnp.float32), letters)
    given = (hidden, targets, *sums, *grads)
    to_weight, (to_hidden, to_temperature) = _over_time(width, piece, nothing, *given)
    to_weight = constrain((jnp.sum(to_weight, axis=0) if parts else to_weight).T, "VD").astype(weight.dtype)
    return to_weight, to_hidden, None, jnp.sum(to_temperature, axis=1)


_score.defvjp(_score_forward, _score_backward)


def _over_time(width, piece, carry, *given):
    """Scan `piece(carry, *chunk) -> (carry, result)` over the time axis.

    Chunks are [B, width, ...] of arrays [B, T, ...], and the results are joined to [B, T, ...]. Chunks of an inner axis
    are copied. XLA would read chunks of the first axis in place, with matrix kernels that it does not tune.
    """
    time = given[0].shape[1]

    def step(carry, start):
        return piece(carry, *(jax.lax.dynamic_slice_in_dim(x, start, width, axis=1) for x in given))

    carry, results = jax.lax.scan(step, carry, jnp.arange(0, time, width))
    return carry, jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], time, *x.shape[3:]), results)


def _cast_head(weight, dtype):
    """Cast the head to the dtype of the computation, once for all chunks.

    On a mesh it is gathered here. Otherwise the partitioner would gather logits in the backward pass instead.
    """
    return constrain(weight.astype(dtype), "VD")


def _logits(head, hidden, temperature):
    """Return the logits of a chunk, divided by the temperature."""
    return constrain(to_logits(constrain(hidden, "BTD"), head) / temperature[:, None, None], "BTV")
