"""Completion formats: the name of a legal action, or free text that is parsed afterwards.

`CompletionFormat` is the interface of both, so no other code has to distinguish them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.bots import pick
from marl_jax.agents import critics
from marl_jax.samples import Samples
from marl_jax.sampling import choice, decode, draw
from models.cache import Cache
from models.logprobs import token_logprobs
from models.lora import Lora
from models.model import Model


class Reply(NamedTuple):
    """Completions of B rows.

    Attributes:
        action: int32 [B], -1 where the completion names no action.
        tokens: int32 [B, W], 0 after the end.
        lengths: int32 [B].
        logps: float32 [B, W].
        truncated: bool [B], whether the token limit cut the completion off.
    """

    action: jax.Array
    tokens: jax.Array
    lengths: jax.Array
    logps: jax.Array
    truncated: jax.Array


@dataclasses.dataclass(frozen=True)
class DecodeInputs:
    """Inputs of `CompletionFormat.sample` for B prefilled rows.

    Attributes:
        model: The model.
        params: Parameters laid out for sampling.
        hidden: [B, D], hidden states of the last tokens.
        lengths: int32 [B], tokens prefilled so far, which are folded into the rows' keys.
        legal: bool [B, A].
        temperature: float32 [B], 0 for greedy decoding.
        keys: PRNG keys [B].
        cache: KV cache of the rows, or None for one-token completions.
        adapters: LoRA adapters of the rows, or None.
        dtype: Dtype of the computation.
        prefix: Layers of a shared prefix that the cache does not contain.
        critic: Parameters of the critic; None if there is none.
    """

    model: Model
    params: dict
    hidden: jax.Array
    lengths: jax.Array
    legal: jax.Array
    temperature: jax.Array
    keys: jax.Array
    cache: Cache | None
    adapters: Lora | None
    dtype: jnp.dtype
    prefix: tuple | None = None
    critic: dict | None = None


class CompletionFormat(Protocol):
    """Interface of completion formats."""

    @property
    def width(self) -> int:
        """Maximum number of tokens W of a completion."""
        ...

    @property
    def n_actions(self) -> int:
        """Number of actions A that a completion can name."""
        ...

    @property
    def decodes(self) -> bool:
        """Whether a completion may take several steps, so that sampling needs a KV cache."""
        ...

    def sample(self, inputs: DecodeInputs) -> Reply:
        """Sample a completion for every row."""
        ...

    def score(
        self, model: Model, weights: dict, before: jax.Array, samples: Samples, temperature: float
    ) -> tuple[jax.Array, jax.Array]:
        """Compute log-probabilities and entropies of sampled tokens, both float32 [N, X].

        Args:
            model: The model.
            weights: Weights of the policy that determine how it acts.
            before: [N, X, D], the hidden states that predict the tokens.
            samples: The samples to score.
            temperature: The sampling temperature.
        """
        ...

    def written(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the completion that names each action, for demonstrations.

        Returns:
            Tokens int32 [A, W], 0 after the end, and lengths int32 [A].
        """
        ...

    def kept(self, reply: Reply) -> jax.Array:
        """Return how many tokens of each completion stay in the conversation, int32 [B]."""
        ...

    def playable(self, action: jax.Array, legal: jax.Array, keys: jax.Array) -> jax.Array:
        """Return the named actions, or random legal ones where none was named, int32 [B]."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Constrained:
    """The name of a legal action, sampled exactly from the masked distribution (`sampling/choice.py`).

    Attributes:
        choices: The token trie of the action names.
        names: int32 [A], number of tokens of each name without its end token. None where names have no end token.
    """

    choices: choice.Choices
    names: np.ndarray | None = None

    @property
    def width(self) -> int:
        """See `CompletionFormat.width`."""
        return self.choices.width

    @property
    def n_actions(self) -> int:
        """See `CompletionFormat.n_actions`."""
        return len(self.choices.lengths)

    @property
    def decodes(self) -> bool:
        """Whether some name has several tokens."""
        return self.width > 1

    def sample(self, inputs: DecodeInputs) -> Reply:
        """Sample a legal action name for every row."""
        chosen = choice.choose(
            inputs.model, inputs.params, inputs.hidden, inputs.lengths, self.choices, inputs.legal, inputs.temperature,
            inputs.keys, cache=inputs.cache, adapters=inputs.adapters, dtype=inputs.dtype, prefix=inputs.prefix,
        )  # fmt: skip
        never = jnp.zeros(chosen.action.shape, bool)
        return Reply(chosen.action, chosen.tokens, chosen.lengths, chosen.logps, never)

    def score(self, model, weights, before, samples: Samples, temperature):
        """Score tokens under the distribution over legal names.

        The tokens of completion s are at positions s · W to s · W + W − 1.
        """
        fold = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
        before = before.reshape(-1, self.width, before.shape[-1])
        logps, entropy = choice.choice_logprobs(
            model, weights["model"], before, self.choices, fold(samples.legal), fold(samples.action), temperature
        )
        return logps.reshape(samples.targets.shape), entropy.reshape(samples.targets.shape)

    def action_logps(self, model: Model, weights: dict, before: jax.Array, samples: Samples, temperature: float):
        """Compute the log-probabilities of all actions, float32 [N, S, A], for names of one token.

        Illegal actions have -inf.
        """
        assert self.width == 1 and samples.legal is not None
        fold = lambda x: x.reshape(-1, x.shape[-1])  # noqa: E731
        logps = choice.first_logprobs(
            model, weights["model"], fold(before), self.choices, fold(samples.legal), temperature
        )
        return logps.reshape(samples.legal.shape)

    def written(self):
        """Return the names themselves."""
        choices = jax.device_get(self.choices)
        return np.maximum(choices.ids, 0).astype(np.int32), choices.lengths.astype(np.int32)

    def kept(self, reply: Reply):
        """Return the lengths of the names without their end tokens."""
        return reply.lengths if self.names is None else jnp.asarray(self.names, jnp.int32)[reply.action]

    def playable(self, action, legal, keys):
        """Return the actions unchanged, since all of them are legal."""
        return action


@dataclasses.dataclass(frozen=True, eq=False)
class ByValue(Constrained):
    """The name of a legal action, chosen by the values of a Q head.

    With probability `epsilon` the action is uniformly random, otherwise it is sampled from softmax(Q / temperature). At
    temperature 0 the action with the highest value is taken.

    Attributes:
        epsilon: Probability of a uniformly random legal action.
    """

    epsilon: float = 0.0

    @property
    def decodes(self) -> bool:
        """Always False: the hidden state after the prompt determines the complete name."""
        return False

    def sample(self, inputs: DecodeInputs) -> Reply:
        """Choose a legal action for every row."""
        assert inputs.critic is not None
        logps = self._logps(inputs.critic, inputs.hidden, inputs.legal, inputs.temperature)
        uniform = draw.row_uniform(inputs.keys, inputs.lengths)
        action, logp = draw.categorical(logps, uniform, inputs.temperature <= 0)
        first = jnp.arange(self.width) == 0
        tokens = jnp.maximum(self.choices.ids, 0)[action]
        never = jnp.zeros(action.shape, bool)
        return Reply(action, tokens, self.choices.lengths[action], jnp.where(first, logp[:, None], 0.0), never)

    def score(self, model, weights, before, samples: Samples, temperature):
        """Score names under the distribution that sampled them, at their first token."""
        assert samples.legal is not None and samples.action is not None
        shape = samples.targets.shape
        hidden = before.reshape(-1, self.width, before.shape[-1])[:, 0]
        legal = samples.legal.reshape(-1, self.n_actions)
        logps = self._logps(weights["critic"], hidden, legal, jnp.full(len(hidden), temperature, jnp.float32))
        chosen = jnp.take_along_axis(logps, jnp.clip(samples.action.reshape(-1, 1), 0, self.n_actions - 1), axis=1)
        entropy = -jnp.sum(jnp.where(legal, jnp.exp(logps) * logps, 0.0), axis=-1, keepdims=True)
        first = (jnp.arange(self.width) == 0) * jnp.any(legal, axis=1, keepdims=True)
        return jnp.where(first, chosen, 0.0).reshape(shape), jnp.where(first, entropy, 0.0).reshape(shape)

    def _logps(self, critic: dict, hidden: jax.Array, legal: jax.Array, temperature: jax.Array) -> jax.Array:
        """Compute the log-probabilities of all actions, float32 [B, A], -inf for illegal ones."""
        values = critics.read(critic, hidden)[..., : self.n_actions]
        legal = legal | ~jnp.any(legal, axis=-1, keepdims=True)  # rows that pass are not used
        greedy = jax.nn.softmax(jnp.where(legal, draw.scaled(values, temperature), -jnp.inf), axis=-1)
        epsilon = jnp.where(temperature > 0, self.epsilon, 0.0)[:, None]
        mixed = (1 - epsilon) * greedy + epsilon * legal / jnp.sum(legal, axis=-1, keepdims=True)
        return jnp.where(legal, jnp.log(mixed), -jnp.inf)


@dataclasses.dataclass(frozen=True, eq=False)
class FreeText:
    """Free text of up to `max_new` tokens, which may contain reasoning.

    Attributes:
        parse: Maps (tokens [B, W], lengths [B], legal [B, A]) to the legal action that is named, int32 [B], or -1.
        ids: int32 [A, W'], the action names, -1 after their ends.
        lengths: int32 [A], their lengths.
        stop_ids: Token ids that end a completion.
        max_new: Maximum number of tokens.
    """

    parse: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    ids: np.ndarray
    lengths: np.ndarray
    stop_ids: tuple[int, ...]
    max_new: int

    @property
    def width(self) -> int:
        """See `CompletionFormat.width`."""
        return self.max_new

    @property
    def n_actions(self) -> int:
        """See `CompletionFormat.n_actions`."""
        return len(self.lengths)

    @property
    def decodes(self) -> bool:
        """Always True."""
        return True

    def sample(self, inputs: DecodeInputs) -> Reply:
        """Sample text until a stop token or the limit.

        The stop token is part of the completion, but it is not parsed.
        """
        assert inputs.cache is not None
        batch = inputs.hidden.shape[0]
        settings = decode.Settings(
            keys=inputs.keys,
            temperature=inputs.temperature,
            stop_ids=jnp.broadcast_to(jnp.asarray(self.stop_ids, jnp.int32), (batch, len(self.stop_ids))),
            budget=jnp.full((batch,), self.max_new, jnp.int32),
        )
        rows, token, logp = decode.begin(inputs.model, inputs.params, inputs.hidden, inputs.cache, settings)
        # Round up to the interval at which the loop checks for unfinished rows; finished rows ignore the extra steps.
        steps = -(-(self.max_new - 1) // decode.CHECK_EVERY) * decode.CHECK_EVERY
        tokens, logps = token[:, None], logp[:, None]
        if steps:
            rows, *rest, _ = decode.chunk(
                inputs.model, inputs.params, rows, settings, steps, inputs.adapters, inputs.dtype, prefix=inputs.prefix
            )
            tokens, logps = (jnp.concatenate(x, axis=1) for x in zip((tokens, logps), rest, strict=True))
        tokens, logps = tokens[:, : self.max_new], logps[:, : self.max_new]
        said = rows.written - (rows.finish == decode.STOP)
        action = self.parse(tokens, said, inputs.legal)
        return Reply(action, tokens, rows.written, logps, rows.finish == decode.LENGTH)

    def score(self, model, weights, before, samples: Samples, temperature):
        """Score tokens under the distribution over the full vocabulary."""
        mask = samples.mask()
        logps, entropy = token_logprobs(model, weights["model"], before, samples.targets, temperature)
        return logps * mask, entropy * mask

    def written(self):
        """Return the names, each followed by a stop token if it fits."""
        longest = int(self.lengths.max())
        ids = np.zeros((len(self.ids), self.max_new), np.int32)
        ids[:, :longest] = np.maximum(self.ids[:, :longest], 0)
        stops = np.flatnonzero(self.lengths < self.max_new)
        ids[stops, self.lengths[stops]] = self.stop_ids[0]
        return ids, np.minimum(self.lengths + 1, self.max_new).astype(np.int32)

    def kept(self, reply: Reply):
        """Return the lengths of the completions without a final stop token."""
        last = jnp.take_along_axis(reply.tokens, jnp.maximum(reply.lengths - 1, 0)[:, None], axis=1)[:, 0]
        return reply.lengths - jnp.isin(last, jnp.asarray(self.stop_ids, jnp.int32))

    def playable(self, action, legal, keys):
        """Replace missing actions by random legal ones."""
        return jnp.where(action < 0, jax.vmap(pick)(legal, keys), action)


def free_text(stop_ids: tuple[int, ...], max_new: int) -> FreeText:
    """Return a format for text that is not parsed, as tasks use it."""

    def parse(tokens, lengths, legal):
        return jnp.full(lengths.shape, -1, jnp.int32)

    return FreeText(parse, np.zeros((1, 1), np.int32), np.ones((1,), np.int32), stop_ids, max_new)
