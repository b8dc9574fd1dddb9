"""How a policy answers: with a name of a legal action, or with free text that is parsed afterwards.

Both kinds have one interface for sampling and for scoring, so that no other code asks which one it is:

    width             W, tokens of the longest answer
    decodes           whether an answer takes more than one step, so that sampling needs a cache
    sample(…)         -> `Reply`
    score(…)          the log-probabilities and entropies of sampled answers, for the learner
    kept(…)           how much of an answer stays in a conversation
    written()         the answer that names each action, as tokens: for demonstrations
    playable(…)       the action that is played: the one that was named, or a random legal one in its place
    truncated(…)      answers that ran into the limit of their length
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.bots import pick
from marl_jax.samples import Samples
from marl_jax.sampling import choice, decode
from models.cache import Cache
from models.logprobs import token_logprobs
from models.lora import Lora
from models.model import Model


class Reply(NamedTuple):
    """Answers of B rows: action [B] (-1: none), tokens [B, W] (0 behind the end), lengths [B], logps [B, W]."""

    action: jax.Array
    tokens: jax.Array
    lengths: jax.Array
    logps: jax.Array


@dataclasses.dataclass(frozen=True)
class DecodeInputs:
    """What an answer begins from.

    model, params  parameters laid out for sampling
    hidden         [B, D] at the last token read
    lengths        int32 [B], tokens read so far: what the rows' keys are folded with
    legal          bool [B, A]
    temperature    float32 [B], 0 for the most likely answer
    keys           PRNG keys [B]
    cache          of what was read; None where answers are one step
    prefix         what was read before it, where the cache does not hold that
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


class CompletionFormat(Protocol):
    """The interface of both kinds."""

    @property
    def width(self) -> int:
        """W."""
        ...

    @property
    def decodes(self) -> bool:
        """Whether sampling needs a cache."""
        ...

    def sample(self, asked: DecodeInputs) -> Reply:
        """An answer for every row."""
        ...

    def score(
        self, model: Model, params: dict, before: jax.Array, samples: Samples, temperature: float
    ) -> tuple[jax.Array, jax.Array]:
        """Log-probabilities and entropies float32 [N, X] of answers, from the states [N, X, D] that predict them."""
        ...

    def written(self) -> tuple[np.ndarray, np.ndarray]:
        """The answers that name each action: int32 [A, W], 0 behind the end, and lengths int32 [A]."""
        ...

    def kept(self, reply: Reply) -> jax.Array:
        """int32 [B]: how many tokens of each answer stay in the conversation, whose template closes the turn."""
        ...

    def playable(self, action: jax.Array, legal: jax.Array, keys: jax.Array) -> jax.Array:
        """int32 [B]: the actions, or random legal ones where none was named."""
        ...

    def truncated(self, samples: Samples) -> jax.Array:
        """bool [N, S]: answers that used all their tokens without ending."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Constrained:
    """A name of a legal action, exact under the masked distribution (`sampling/choice.py`).

    names  int32 [A], tokens of each name without what closes it; None: names need no closing
    """

    choices: choice.Choices
    names: np.ndarray | None = None

    @property
    def width(self) -> int:
        """W."""
        return self.choices.width

    @property
    def decodes(self) -> bool:
        """Only names of several tokens."""
        return self.width > 1

    def sample(self, asked: DecodeInputs) -> Reply:
        """A legal name for every row."""
        chosen = choice.choose(
            asked.model, asked.params, asked.hidden, asked.lengths, self.choices, asked.legal, asked.temperature,
            asked.keys, cache=asked.cache, adapters=asked.adapters, dtype=asked.dtype, prefix=asked.prefix,
        )  # fmt: skip
        return Reply(chosen.action, chosen.tokens, chosen.lengths, chosen.logps)

    def score(self, model, params, before, samples: Samples, temperature):
        """Under the distribution over legal names; the tokens of answer s stand at s · W and behind."""
        fold = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
        before = before.reshape(-1, self.width, before.shape[-1])
        found = choice.choice_logprobs(
            model, params, before, self.choices, fold(samples.legal), fold(samples.action), temperature
        )
        return tuple(x.reshape(samples.targets.shape) for x in found)

    def written(self):
        """The names."""
        choices = jax.device_get(self.choices)
        return np.maximum(choices.ids, 0).astype(np.int32), choices.lengths.astype(np.int32)

    def kept(self, reply: Reply):
        """The names."""
        return reply.lengths if self.names is None else jnp.asarray(self.names, jnp.int32)[reply.action]

    def playable(self, action, legal, keys):
        """Every answer names a legal action."""
        return action

    def truncated(self, samples: Samples):
        """None is."""
        return jnp.zeros(samples.completion_lengths.shape, bool)


@dataclasses.dataclass(frozen=True, eq=False)
class FreeText:
    """Any text of up to `max_new` tokens until one of the stop ids; it may reason before it answers.

    parse     (tokens [B, W], lengths [B], legal [B, A]) -> int32 [B], the legal action that is named, or -1
    ids       int32 [A, W'], the names of the actions, -1 behind their ends, of lengths int32 [A]
    """

    parse: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    ids: np.ndarray
    lengths: np.ndarray
    stop_ids: tuple[int, ...]
    max_new: int

    @property
    def width(self) -> int:
        """W."""
        return self.max_new

    @property
    def decodes(self) -> bool:
        """Always."""
        return True

    def sample(self, asked: DecodeInputs) -> Reply:
        """Text until a stop or the limit; the stop is part of the answer's tokens, not of what is parsed."""
        assert asked.cache is not None
        batch = asked.hidden.shape[0]
        settings = decode.Settings(
            keys=asked.keys,
            temperature=asked.temperature,
            stop_ids=jnp.broadcast_to(jnp.asarray(self.stop_ids, jnp.int32), (batch, len(self.stop_ids))),
            budget=jnp.full((batch,), self.max_new, jnp.int32),
        )
        rows, token, logp = decode.begin(asked.model, asked.params, asked.hidden, asked.cache, settings)
        # Whole rounds of steps between two looks at who is done; a full row stays as it is in the steps too many.
        steps = -(-(self.max_new - 1) // decode.CHECK_EVERY) * decode.CHECK_EVERY
        tokens, logps = token[:, None], logp[:, None]
        if steps:
            rows, *rest, _ = decode.chunk(
                asked.model, asked.params, rows, settings, steps, asked.adapters, asked.dtype, prefix=asked.prefix
            )
            tokens, logps = (jnp.concatenate(x, axis=1) for x in zip((tokens, logps), rest, strict=True))
        tokens, logps = tokens[:, : self.max_new], logps[:, : self.max_new]
        said = rows.written - (rows.finish == decode.STOP)
        return Reply(self.parse(tokens, said, asked.legal), tokens, rows.written, logps)

    def score(self, model, params, before, samples: Samples, temperature):
        """Under the distribution over all tokens."""
        mask = samples.mask()
        logps, entropy = token_logprobs(model, params, before, samples.targets, temperature)
        return logps * mask, entropy * mask

    def written(self):
        """The names, with a stop behind them where there is room for it."""
        longest = int(self.lengths.max())
        ids = np.zeros((len(self.ids), self.max_new), np.int32)
        ids[:, :longest] = np.maximum(self.ids[:, :longest], 0)
        stops = np.flatnonzero(self.lengths < self.max_new)
        ids[stops, self.lengths[stops]] = self.stop_ids[0]
        return ids, np.minimum(self.lengths + 1, self.max_new).astype(np.int32)

    def kept(self, reply: Reply):
        """All but a stop."""
        last = jnp.take_along_axis(reply.tokens, jnp.maximum(reply.lengths - 1, 0)[:, None], axis=1)[:, 0]
        return reply.lengths - jnp.isin(last, jnp.asarray(self.stop_ids, jnp.int32))

    def playable(self, action, legal, keys):
        """A random legal action where none was named."""
        return jnp.where(action < 0, jax.vmap(pick)(legal, keys), action)

    def truncated(self, samples: Samples):
        """Those of full length that do not end with a stop."""
        stopped = jnp.isin(samples.targets, jnp.asarray(self.stop_ids, jnp.int32)).astype(jnp.int32)
        return (samples.completion_lengths == self.max_new) & (samples.to_completions(stopped) == 0)


def free_text(stop_ids: tuple[int, ...], max_new: int) -> FreeText:
    """Free text that names no actions: whoever asked reads it."""

    def parse(tokens, lengths, legal):
        return jnp.full(lengths.shape, -1, jnp.int32)

    return FreeText(parse, np.zeros((1, 1), np.int32), np.ones((1,), np.int32), stop_ids, max_new)
