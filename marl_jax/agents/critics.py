"""Critics: estimates of the return of the agent that is about to act.

- `head`: a linear map of the policy's hidden state, without another forward pass.
- `separate`: a separate trunk, initialized from the policy's weights, that reads the same tokens.
- `central`: a separate trunk that reads the views of all seats, the acting agent's last. It is used in training only.
- `q`: a linear map of the policy's hidden state to the values of the game's actions and of passing. The policy acts by
  these values.
- `q_mixed`: the same, and a trunk that reads the views of all seats and mixes the values of a round (`mix`).
- `q_central`: a separate trunk that reads the views of all seats and the others' actions, and values each own action.

The critic of a chat reads the full conversation, or the prompt and one completion only (`answers_alone`). The second
case costs a head another forward pass, because the hidden states of the conversation depend on the other turns.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from marl_jax.samples import Samples, join_answer
from models.config import ModelConfig
from models.model import Model

KINDS = ("none", "head", "separate", "central", "q", "q_mixed", "q_central")
OF_ACTIONS = ("q", "q_mixed", "q_central")
"""Kinds with a value for each action."""
ACTING = ("q", "q_mixed")
"""Kinds whose head the policy acts by."""
CENTRAL = ("central", "q_mixed", "q_central")
"""Kinds that read the views of all seats."""
MIXER_UNITS = 32


def init(
    kind: str,
    cfg: ModelConfig,
    params: dict,
    n_actions: int = 0,
    n_seats: int = 1,
    key: jax.Array | None = None,
) -> dict:
    """Initialize the critic's parameters so that the values of its head are 0.

    Args:
        kind: One of `KINDS`.
        cfg: The model's config.
        params: The policy's parameters. A separate trunk starts from a float32 copy of them.
        n_actions: Number of actions of the game, for kinds `OF_ACTIONS`.
        n_seats: Number of seats, for `q_mixed`.
        key: PRNG key of the mixing network, whose units must differ, for `q_mixed`.
    """
    if kind not in KINDS:
        raise ValueError(f"critic is {kind!r}, but must be one of: {', '.join(KINDS)}")
    if kind == "none":
        return {}
    outputs = (n_actions + (kind in ACTING),) if kind in OF_ACTIONS else ()
    head = {"weight": jnp.zeros((cfg.d_model, *outputs), jnp.float32), "bias": jnp.zeros(outputs, jnp.float32)}
    if kind == "q_mixed":
        assert key is not None
        shape = (cfg.d_model, (n_seats + 2) * MIXER_UNITS + 1)
        head["mix_weight"] = jax.random.normal(key, shape, jnp.float32) / jnp.sqrt(cfg.d_model)
        head["mix_bias"] = jnp.zeros(shape[1:], jnp.float32)
    if kind in ("head", "q"):
        return head
    return {**head, "model": jax.tree.map(lambda x: jnp.array(x, jnp.float32), params)}


def axes(kind: str, model: Model) -> dict:
    """Return the axis letters of the critic's parameters."""
    if kind == "none":
        return {}
    outputs = ("A",) if kind in OF_ACTIONS else ()
    head = {"weight": ("D", *outputs), "bias": outputs}
    if kind == "q_mixed":
        head |= {"mix_weight": ("D", "A"), "mix_bias": ("A",)}
    return head if kind in ("head", "q") else {**head, "model": model.axes()}


def acting_head(critic: dict) -> dict:
    """Select the parameters of the head that a policy acts by."""
    return {name: critic[name] for name in ("weight", "bias")}


def read(critic: dict, hidden: jax.Array) -> jax.Array:
    """Compute the values [...] of hidden states [..., D] in float32.

    Kinds `OF_ACTIONS` give [..., A], or [..., A + 1] with the value of passing.
    """
    return hidden.astype(jnp.float32) @ critic["weight"] + critic["bias"]


def mix(critic: dict, state: jax.Array, values: jax.Array) -> jax.Array:
    """Mix the values of all seats into those of joint actions (QMIX).

    The result never decreases in a value, because the weights that multiply values are absolute.

    Args:
        critic: Parameters of the kind `q_mixed`.
        state: [..., D], hidden states of the trunk after the views of all seats.
        values: float32 [..., P].

    Returns:
        float32 [...].
    """
    generated = state.astype(jnp.float32) @ critic["mix_weight"] + critic["mix_bias"]
    n_seats = values.shape[-1]
    first, bias, second = jnp.split(generated[..., :-1], [n_seats * MIXER_UNITS, (n_seats + 1) * MIXER_UNITS], axis=-1)
    first = jnp.abs(first).reshape(*first.shape[:-1], n_seats, MIXER_UNITS)
    hidden = jax.nn.elu(jnp.einsum("...p,...pu->...u", values, first) + bias)
    return jnp.sum(hidden * jnp.abs(second), axis=-1) / jnp.sqrt(MIXER_UNITS) + generated[..., -1]


def trunk(model: Model, critic: dict, tokens: jax.Array, lengths: jax.Array, dtype, **settings) -> jax.Array:
    """Compute the hidden state of a separate trunk after the last token.

    Args:
        model: The model.
        critic: The critic's parameters.
        tokens: int32 [N, T].
        lengths: int32 [N].
        dtype: Dtype of the computation.
        **settings: Further arguments of `Model.forward`.

    Returns:
        [N, D].
    """
    hidden, _ = model.forward(critic["model"], tokens, lengths=lengths, dtype=dtype, **settings)
    return hidden[jnp.arange(len(tokens)), lengths - 1]


def answers_alone(samples: Samples) -> Samples:
    """Return the same rows with every completion attending to the initial prompt only.

    No token moves. Completions become branches of the prompt with positions that continue it, and no completion attends
    to the tokens between them:

        tokens     q q a a u u b b b        q: prompt, a and b: completions, u: later user turn
        positions  0 1 2 3 . . 2 3 4
        branch     - - 0 0 . . 1 1 1
    """
    assert samples.prompt_len is not None
    rows = jnp.arange(samples.n)[:, None]
    # The first token of a completion follows the prompt, every other one the token before it.
    later = (samples.completion_of >= 0) & (samples.first() == 0)
    place = jnp.where(later, samples.logits_index, samples.tokens.shape[1])  # out of bounds: dropped
    branch = jnp.full(samples.tokens.shape, -1, jnp.int32).at[rows, place].set(samples.completion_of, mode="drop")
    shift = jnp.take_along_axis(samples.prompt_len[:, None] - samples.context_len, jnp.maximum(branch, 0), axis=1)
    question = samples.positions < samples.prompt_len[:, None]
    last = jnp.maximum(samples.prompt_len - samples.positions[:, 0] - 1, 0)[:, None]
    return samples.replace(
        positions=jnp.where(branch >= 0, samples.positions + shift, samples.positions),
        branch=branch,
        segment=jnp.where(question | (branch >= 0), 0, -1),
        context_len=jnp.broadcast_to(samples.prompt_len[:, None], samples.context_len.shape),
        logits_index=jnp.where(later, samples.logits_index, last),
        branch_len=0,
    )


def join_views(tokens: jax.Array, lengths: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
    """Concatenate several texts.

    Args:
        tokens: int32 [P, T], right-padded.
        lengths: int32 [P].
        width: Length of the result.

    Returns:
        int32 [width], right-padded with 0, and the number of tokens.
    """
    ends = jnp.cumsum(lengths)
    starts = ends - lengths
    position = jnp.arange(width)
    view = jnp.minimum(jnp.sum(position[:, None] >= ends, axis=1), tokens.shape[0] - 1)
    offset = jnp.clip(position - starts[view], 0, tokens.shape[1] - 1)
    return jnp.where(position < ends[-1], tokens[view, offset], 0), ends[-1].astype(jnp.int32)


def with_actions(
    central: tuple[jax.Array, jax.Array], names: jax.Array, lengths: jax.Array, actions: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Append the names of actions to the views of all seats.

    Args:
        central: Tokens int32 [N, C], with room for the names, and their number int32 [N].
        names: int32 [A, W], the tokens of the names, right-padded.
        lengths: int32 [A], their lengths.
        actions: int32 [N, n], the actions in order.

    Returns:
        The same as `central`.
    """
    tokens, length = central
    for action in actions.T:
        tokens = join_answer(tokens, length, names[action])
        length = length + lengths[action]
    return jnp.where(jnp.arange(tokens.shape[1]) < length[:, None], tokens, 0), length
