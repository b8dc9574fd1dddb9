"""Choosing among named actions: sampling from the token trie of the legal names inside jit.

Initially all legal names of a row are candidates. At each step, the allowed tokens are the next tokens of the
candidates. Only their logits are computed (A instead of V), normalized and sampled, and names with other tokens are
dropped. The result is always legal, and its log-probability is exact under the masked distribution. The learner
recomputes the allowed tokens from the legal mask and the action, so samples need no additional data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from marl_jax.sampling import draw
from models.cache import Cache
from models.lora import Lora
from models.model import Model


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Choices:
    """Names of A actions as tokens.

    Attributes:
        ids: int32 [A, W], one name per row, −1 after its end.
        lengths: int32 [A].
        same: int32 [A, W], the first name with the same token at that step, so that shared tokens count once.
    """

    ids: jax.Array
    lengths: jax.Array
    same: jax.Array

    @property
    def width(self) -> int:
        """Maximum number of tokens W of a name."""
        return self.ids.shape[1]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Choice:
    """Chosen actions of B rows.

    The cache contains all tokens of a name but the last. If the logits were not finite, neither are the
    log-probabilities, and the action is undefined.

    Attributes:
        action: int32 [B].
        tokens: int32 [B, W], 0 after the end.
        lengths: int32 [B].
        logps: float32 [B, W].
        cache: The KV cache, or None.
    """

    action: jax.Array
    tokens: jax.Array
    lengths: jax.Array
    logps: jax.Array
    cache: Cache | None


def make_choices(names: Sequence[Sequence[int]], end_id: int | None = None) -> Choices:
    """Build the table of tokenized names, with `end_id` after prefixes of others."""
    names = [tuple(n) for n in names]
    if not names or not all(names):
        raise ValueError(
            f"there are {len(names)} action names, {sum(not n for n in names)} of them empty, but every action needs a "
            f"name of at least one token"
        )
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ValueError(f"two actions have the tokens {list(twice[0])}, but names must differ")
    closed = []
    for name in names:
        if any(other != name and other[: len(name)] == name for other in names):
            if end_id is None:
                raise ValueError(f"the name with tokens {list(name)} is a prefix of another; pass an end_id")
            name = (*name, end_id)
        closed.append(name)
    for name in closed:
        if sum(other[: len(name)] == name for other in closed) > 1:
            raise ValueError(f"the name with tokens {list(name)} is a prefix of another in spite of end_id {end_id}")
    width = max(map(len, closed))
    ids = np.full((len(closed), width), -1, np.int32)
    for row, name in zip(ids, closed, strict=True):
        row[: len(name)] = name
    same = np.argmax(ids[:, None, :] == ids[None, :, :], axis=1).astype(np.int32)
    return Choices(jnp.asarray(ids), jnp.asarray([len(n) for n in closed], jnp.int32), jnp.asarray(same))


def _allowed(choices: Choices, alive, step):
    """Mark one name for each distinct token allowed at this step, bool [B, A]."""
    same = choices.same[:, step]
    alive = alive & (choices.ids[:, step] >= 0)
    return jnp.zeros_like(alive).at[:, same].max(alive)


def _logits(model: Model, params, hidden, choices: Choices, alive, step, temperature):
    """Compute the logits of the allowed tokens, float32 [B, A], −inf elsewhere."""
    ids = jnp.maximum(choices.ids[:, step], 0)
    logits = draw.scaled(model.logits(params, hidden, ids), temperature)
    return jnp.where(_allowed(choices, alive, step), logits, -jnp.inf)


def _survivors(choices: Choices, alive, step, pick):
    """Return the candidates with the same token at this step as name `pick`."""
    return alive & (choices.same[:, step][None] == choices.same[pick, step][:, None])


def choose(
    model: Model,
    params,
    hidden: jax.Array,
    positions: jax.Array,
    choices: Choices,
    legal: jax.Array,
    temperature: jax.Array,
    keys: jax.Array,
    *,
    cache: Cache | None = None,
    adapters: Lora | None = None,
    dtype=jnp.bfloat16,
    prefix=None,
) -> Choice:
    """Sample one legal action per row.

    Args:
        model: The model.
        params: Its parameters, unstacked if names have several tokens.
        hidden: [B, D], hidden states of the last tokens.
        positions: int32 [B], tokens so far, which are folded into the rows' keys.
        choices: The action names.
        legal: bool [B, A], at least one per row.
        temperature: float32 [B], 0 for greedy decoding.
        keys: PRNG keys [B].
        cache: KV cache, required if names have several tokens.
        adapters: LoRA adapters of the rows, or None.
        dtype: Dtype of the computation.
        prefix: Shared prefix before the cache, see `Model.forward`.
    """
    rows, width = jnp.arange(hidden.shape[0]), choices.width
    if width > 1 and cache is None:
        raise ValueError(f"the longest action name has {width} tokens, so choosing among them needs a cache")
    greedy = temperature <= 0

    def pick(step, alive, hidden):
        logits = _logits(model, params, hidden, choices, alive, step, temperature)
        uniform = draw.row_uniform(keys, positions + step)
        name, logp = draw.categorical(logits, uniform, greedy)
        open_ = jnp.any(alive & (choices.ids[:, step] >= 0)[None], axis=1)  # a complete name has no next token
        alive = jnp.where(open_[:, None], _survivors(choices, alive, step, name), alive)
        return alive, jnp.where(open_, choices.ids[name, step], 0), jnp.where(open_, logp, 0.0), open_

    alive, token, logp, _ = pick(0, legal, hidden)
    tokens = jnp.zeros((len(rows), width), jnp.int32).at[:, 0].set(token)
    logps = jnp.zeros((len(rows), width), jnp.float32).at[:, 0].set(logp)

    def step(i, carry):
        alive, token, tokens, logps, cache = carry
        going = jnp.any(alive & (choices.ids[:, i] >= 0)[None], axis=1).astype(jnp.int32)
        hidden, cache = model.forward(
            params, token[:, None], lengths=going, cache=cache, adapters=adapters, dtype=dtype, prefix=prefix
        )
        alive, token, logp, _ = pick(i, alive, hidden[:, 0])
        return alive, token, tokens.at[:, i].set(token), logps.at[:, i].set(logp), cache

    if width > 1:
        carry = (alive, token, tokens, logps, cache)
        alive, _, tokens, logps, cache = jax.lax.fori_loop(1, width, step, carry)
    # No name is left if the logits are not finite.
    alive = jnp.where(jnp.any(alive, axis=1, keepdims=True), alive, legal)
    action = jnp.argmax(alive, axis=1).astype(jnp.int32)
    return Choice(action, tokens, choices.lengths[action], logps, cache)


def first_logprobs(
    model: Model, params, hidden: jax.Array, choices: Choices, legal: jax.Array, temperature=1.0
) -> jax.Array:
    """Compute the log-probabilities of all names of one token, float32 [B, A].

    Args:
        model: The model.
        params: Its parameters.
        hidden: [B, D], hidden states before the names.
        choices: The action names, all of one token.
        legal: bool [B, A]. Illegal actions get -inf. A row without legal actions gets a uniform distribution.
        temperature: A number, or one per row.
    """
    temperature = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), legal.shape[:1])
    legal = legal | ~jnp.any(legal, axis=1, keepdims=True)
    return jax.nn.log_softmax(_logits(model, params, hidden, choices, legal, 0, temperature), axis=-1)


def choice_logprobs(
    model: Model, params, hidden: jax.Array, choices: Choices, legal: jax.Array, action: jax.Array, temperature=1.0
) -> tuple[jax.Array, jax.Array]:
    """Compute log-probabilities and entropies of the tokens of chosen names, for the learner.

    Args:
        model: The model.
        params: Its parameters.
        hidden: [B, W, D], hidden states before each token of the name.
        choices: The action names.
        legal: bool [B, A].
        action: int32 [B]. For an illegal action, the first token that no legal name has gets −inf.
        temperature: A number, or one per row.

    Returns:
        Log-probabilities and entropies, both float32 [B, W], 0 after the end.
    """
    temperature = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), action.shape)
    logps, entropies, alive = [], [], legal
    for step in range(choices.width):
        logits = _logits(model, params, hidden[:, step], choices, alive, step, temperature)
        inside = (step < choices.lengths[action]) & jnp.any(alive, axis=1)
        # Rows with a complete name, and padding rows without a legal action, allow no token. They get a uniform
        # distribution, so that no NaN reaches a gradient.
        logits = jnp.where(inside[:, None], logits, 0.0)
        log_p = jax.nn.log_softmax(logits, axis=-1)
        chosen = jnp.take_along_axis(log_p, choices.same[action, step][:, None], axis=1)[:, 0]
        finite = jnp.where(jnp.isfinite(log_p), log_p, 0.0)
        logps.append(jnp.where(inside, chosen, 0.0))
        entropies.append(jnp.where(inside, -jnp.sum(jnp.exp(log_p) * finite, axis=-1), 0.0))
        alive = jnp.where(inside[:, None], _survivors(choices, alive, step, action), alive)
    return jnp.stack(logps, axis=1), jnp.stack(entropies, axis=1)
