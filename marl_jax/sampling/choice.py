"""Choosing among named actions: the token trie of the legal names, walked inside jit.

A row starts with its legal names alive. At each step the allowed next tokens are the next ids of the alive names;
only their logits are computed (A of them, not V), normalised and sampled, and names that disagree die. The answer is
always legal and its log-probability is exact under the masked distribution. The learner recomputes the same allowed
sets from the legal mask and the action, so nothing else has to travel with a sample.
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
    """The names of A actions as tokens.

    ids      int32 [A, W], a name per row, −1 behind its end
    lengths  int32 [A]
    same     int32 [A, W]: the first name with the same token at that step, so that shared tokens count once
    """

    ids: jax.Array
    lengths: jax.Array
    same: jax.Array

    @property
    def width(self) -> int:
        return self.ids.shape[1]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Choice:
    """What was chosen: action int32 [B], its tokens int32 [B, W] (0 behind the end), lengths [B], logps float32 [B, W].

    The cache has read all tokens of the answer but the last. Where the logits were not finite, neither are the logps,
    and the action means nothing.
    """

    action: jax.Array
    tokens: jax.Array
    lengths: jax.Array
    logps: jax.Array
    cache: Cache | None


def make_choices(names: Sequence[Sequence[int]], end_id: int | None = None) -> Choices:
    """The table of tokenised names; a name that begins another one is closed by `end_id`."""
    names = [tuple(n) for n in names]
    if not names or not all(names):
        raise ValueError(
            f"every action needs a name of at least one token; got {len(names)} names, "
            f"{sum(not n for n in names)} of them empty"
        )
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ValueError(f"two actions have the same tokens {list(twice[0])}: names must differ")
    closed = []
    for name in names:
        if any(other != name and other[: len(name)] == name for other in names):
            if end_id is None:
                raise ValueError(f"the name with tokens {list(name)} begins another: give an end_id to tell them apart")
            name = (*name, end_id)
        closed.append(name)
    for name in closed:
        if sum(other[: len(name)] == name for other in closed) > 1:
            raise ValueError(f"closed by end_id {end_id}, the name with tokens {list(name)} still begins another one")
    width = max(map(len, closed))
    ids = np.full((len(closed), width), -1, np.int32)
    for row, name in zip(ids, closed, strict=True):
        row[: len(name)] = name
    same = np.argmax(ids[:, None, :] == ids[None, :, :], axis=1).astype(np.int32)
    return Choices(jnp.asarray(ids), jnp.asarray([len(n) for n in closed], jnp.int32), jnp.asarray(same))


def _allowed(choices: Choices, alive, step):
    """bool [B, A]: the names that stand for the distinct tokens allowed at this step."""
    same = choices.same[:, step]
    alive = alive & (choices.ids[:, step] >= 0)
    return jnp.zeros_like(alive).at[:, same].max(alive)


def _logits(model: Model, params, hidden, choices: Choices, alive, step, temperature):
    """float32 [B, A] of the allowed tokens at this step, −inf elsewhere."""
    ids = jnp.maximum(choices.ids[:, step], 0)
    logits = draw.scaled(model.logits(params, hidden, ids), temperature)
    return jnp.where(_allowed(choices, alive, step), logits, -jnp.inf)


def _survivors(choices: Choices, alive, step, pick):
    """The alive names whose token at this step is that of name `pick`."""
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
    """One legal action per row.

    hidden       [B, D] at the last token read
    positions    int32 [B], tokens read so far: what the rows' keys are folded with
    legal        bool [B, A], at least one per row
    temperature  float32 [B], 0 for the most likely
    keys         PRNG keys [B]
    cache        needed when names have several tokens (params unstacked), untouched otherwise
    prefix       what the rows continue besides their cache, see `Model.forward`
    """
    rows, width = jnp.arange(hidden.shape[0]), choices.width
    if width > 1 and cache is None:
        raise ValueError(f"the longest action name has {width} tokens: choosing among them needs the cache")
    greedy = temperature <= 0

    def pick(step, alive, hidden):
        logits = _logits(model, params, hidden, choices, alive, step, temperature)
        uniform = draw.row_uniform(keys, positions + step)
        name, logp = draw.categorical(logits, uniform, greedy)
        open_ = jnp.any(alive & (choices.ids[:, step] >= 0)[None], axis=1)  # a finished name allows nothing more
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
    alive = jnp.where(jnp.any(alive, axis=1, keepdims=True), alive, legal)  # none is left where weights are not finite
    action = jnp.argmax(alive, axis=1).astype(jnp.int32)
    return Choice(action, tokens, choices.lengths[action], logps, cache)


def choice_logprobs(
    model: Model, params, hidden: jax.Array, choices: Choices, legal: jax.Array, action: jax.Array, temperature=1.0
) -> tuple[jax.Array, jax.Array]:
    """The learner's side: log-probability and entropy of each token of a chosen name, float32 [B, W], 0 behind its end.

    hidden  [B, W, D] at the position before each token of the answer
    action  int32 [B]; of an illegal one the first token that no legal name has gets −inf
    """
    temperature = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), action.shape)
    logps, entropies, alive = [], [], legal
    for step in range(choices.width):
        logits = _logits(model, params, hidden[:, step], choices, alive, step, temperature)
        inside = (step < choices.lengths[action]) & jnp.any(alive, axis=1)
        # Rows whose name has ended allow nothing, nor does a row of padding without a legal action: give them a
        # harmless distribution, so that no NaN reaches a gradient.
        logits = jnp.where(inside[:, None], logits, 0.0)
        log_p = jax.nn.log_softmax(logits, axis=-1)
        chosen = jnp.take_along_axis(log_p, choices.same[action, step][:, None], axis=1)[:, 0]
        finite = jnp.where(jnp.isfinite(log_p), log_p, 0.0)
        logps.append(jnp.where(inside, chosen, 0.0))
        entropies.append(jnp.where(inside, -jnp.sum(jnp.exp(log_p) * finite, axis=-1), 0.0))
        alive = jnp.where(inside[:, None], _survivors(choices, alive, step, action), alive)
    return jnp.stack(logps, axis=1), jnp.stack(entropies, axis=1)
