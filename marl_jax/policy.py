"""A policy: a model that answers prompts with actions, and says how likely its answers were.

Weights are one dict, `{"model", "adapters", "critic", "reference"}`, of which a policy has what it needs. `Policy`
itself holds no weights: it is what the jitted programs of rollout and update close over. Sampling (`act`) and learning
(`score`) meet here, so that both use the same masked distribution, temperature and positions.

Several agents share one policy (one set of weights), or have a LoRA adapter each on one base: then a row's `policy`
number picks its adapter inside the same forward pass.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marl_jax import critic as critics
from marl_jax import shared_prompt
from marl_jax.samples import Samples
from marl_jax.sampling import decode
from marl_jax.sampling.choice import Choices, choice_logprobs, choose
from models import cache as kv
from models import lora
from models.logprobs import token_logprobs
from models.model import Model

PREFIX_WORTH_KEEPING = 32  # tokens; a shorter common beginning is cheaper to read again than to copy from a cache


class Decision(NamedTuple):
    """Answers of B rows: action [B] (-1: it names none), its tokens [B, W], lengths [B], logps [B, W], values [B]."""

    action: jax.Array
    answers: jax.Array
    lengths: jax.Array
    logps: jax.Array
    values: jax.Array


class Scores(NamedTuple):
    """What the learner sees, float32 [N, W]: log-probabilities, entropies, and values before each token."""

    logps: jax.Array
    entropy: jax.Array
    values: jax.Array


@dataclasses.dataclass(frozen=True)
class LoraSpec:
    """n adapters of one rank on some projections."""

    n: int
    rank: int
    alpha: float
    targets: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Free:
    """Free answers: up to `max_new` tokens until one of the stop ids; an answer is an action if it is exactly its name.

    ids      int32 [A, W'], the names, -1 behind their ends
    lengths  int32 [A]
    """

    ids: np.ndarray
    lengths: np.ndarray
    stop_ids: tuple[int, ...]
    max_new: int

    def parse(self, answers: jax.Array, lengths: jax.Array, legal: jax.Array) -> jax.Array:
        """int32 [B]: the legal action that each answer (without its stop) names, or -1."""
        width = max(answers.shape[1], self.ids.shape[1])
        pad = lambda x: jnp.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=-1)  # noqa: E731
        ids, answers = pad(jnp.asarray(self.ids)), pad(answers)
        same = (answers[:, None] == ids) | (jnp.arange(width) >= self.lengths[:, None])
        named = jnp.all(same, axis=-1) & (lengths[:, None] == self.lengths) & legal
        return jnp.where(jnp.any(named, axis=1), jnp.argmax(named, axis=1), -1).astype(jnp.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """How a model is used as a policy.

    choices      the action names as tokens
    prefix       tokens with which every prompt begins (the rules): read once per rollout
    lora         None trains all weights
    critic       see `marl_jax/critic.py`
    dtype        of the arithmetic
    free         None: answers are names of legal actions; else answers are any text, see `Free`
    fuse         decode with fused projections; off when heads are split over a mesh
    share        so many samples next to each other answer one prompt, which the learner reads once for all of them
    """

    model: Model
    choices: Choices
    prefix: tuple[int, ...] = ()
    lora: LoraSpec | None = None
    critic: str = "head"
    dtype: jnp.dtype = jnp.bfloat16
    remat: str = "none"
    temperature: float = 1.0
    free: Free | None = None
    fuse: bool = True
    share: int = 1

    @property
    def width(self) -> int:
        """W: tokens of the longest answer."""
        return self.free.max_new if self.free else self.choices.width

    # --------------------------------------------------------------------------------------------------- weights

    def init(self, params: dict, key: jax.Array, reference: bool = False) -> tuple[dict, dict]:
        """From a model's parameters: (what is trained, what is only read).

        With a KL to the policy at the start, full training keeps a copy of it; LoRA has it for free, its base.
        """
        critic = {"critic": critics.init(self.critic, self.model.cfg, params)}
        if self.lora is not None:
            spec = self.lora
            adapters = lora.init(self.model.cfg, key, spec.n, spec.rank, spec.targets)
            return {"adapters": adapters, **critic}, {"model": params}
        frozen = {"reference": jax.tree.map(lambda x: jnp.array(x, self.dtype), params)} if reference else {}
        return {"model": params, **critic}, frozen

    def axes(self, reference: bool = False) -> tuple[dict, dict]:
        """The axis letters of what `init` gives."""
        critic = {"critic": critics.axes(self.critic, self.model)}
        if self.lora is not None:
            adapters = dict.fromkeys(self.lora.targets)
            return {"adapters": lora.axes(adapters), **critic}, {"model": self.model.axes()}
        return {"model": self.model.axes(), **critic}, {"reference": self.model.axes()} if reference else {}

    def player(self, trained: dict) -> dict:
        """The part of the weights that decides how the policy plays: what a past self or an export needs."""
        return {k: v for k, v in trained.items() if k in ("model", "adapters")}

    def ready(self, weights: dict) -> dict:
        """Weights laid out for sampling, once per rollout: cast, unstacked, the common prefix read."""
        fast = {"model": self.model.unstack(weights["model"], self.dtype, self.fuse)}
        if "adapters" in weights:
            fast["adapters"] = lora.unstack(weights["adapters"], self.model.cfg.n_layers, self.dtype)
        if "critic" in weights:
            fast["critic"] = weights["critic"]
        if self._keeps_prefix:
            # With adapters the prefix reads differently for each of them.
            n = self.lora.n if self.lora else 1
            tokens = jnp.broadcast_to(jnp.asarray(self.prefix, jnp.int32), (n, len(self.prefix)))
            adapters = self._lora(fast, jnp.arange(n))
            _, fast["prefix"] = self.model.forward(
                fast["model"], tokens, new_cache=len(self.prefix), adapters=adapters, dtype=self.dtype
            )
        return fast

    @property
    def _keeps_prefix(self) -> bool:
        return len(self.prefix) >= PREFIX_WORTH_KEEPING

    def _lora(self, weights: dict, ids: jax.Array) -> lora.Lora | None:
        if "adapters" not in weights:
            return None
        scale = lora.scales(self.lora.n, self.lora.rank, self.lora.alpha)
        return lora.Lora(weights["adapters"], scale, jnp.maximum(ids, 0))

    # ---------------------------------------------------------------------------------------------------- sampling

    def act(
        self,
        fast: dict,
        tokens: jax.Array,
        lengths: jax.Array,
        legal: jax.Array,
        keys: jax.Array,
        ids: jax.Array,
        temperature: float | None = None,
        central: tuple[jax.Array, jax.Array] | None = None,
        candidates: int = 1,
    ) -> Decision:
        """An answer for every row, or several.

        fast         from `ready`
        tokens       int32 [B, T], prompts right-padded, of lengths int32 [B]
        legal        bool [B, A]
        keys         PRNG keys [B]
        ids          int32 [B], which of the policies answers (matters with adapters)
        temperature  None: that of training; 0: the most likely answer
        central      what a central critic reads
        candidates   K answers to each prompt, which is read once: rows b·K … b·K + K − 1 of the decision are row b's,
                     and so are those of `keys` [B·K]
        """
        batch, time = tokens.shape
        adapters = self._lora(fast, ids)
        read = functools.partial(self.model.forward, fast["model"], adapters=adapters, dtype=self.dtype)
        slots = time + self.width if self.width > 1 or self.free else None
        if "prefix" in fast:
            skip = len(self.prefix)
            cache = self._prefix_rows(fast["prefix"], adapters, batch, slots or time)
            hidden, cache = read(tokens[:, skip:], lengths=lengths - skip, cache=cache)
            last = _at(hidden, lengths - skip - 1)
        else:
            hidden, cache = read(tokens, lengths=lengths, new_cache=slots)
            last = _at(hidden, lengths - 1)
        values = self._values_at_prompt(fast, last, tokens, lengths, central)
        if candidates > 1:
            last, lengths, legal, ids, values, cache = jax.tree.map(
                lambda x: jnp.repeat(x, candidates, axis=0), (last, lengths, legal, ids, values, cache)
            )
            adapters = self._lora(fast, ids)
        heat = jnp.full(lengths.shape, self.temperature if temperature is None else temperature, jnp.float32)
        if self.free is not None:
            return Decision(*self._write(fast, last, legal, heat, keys, cache, adapters), values)
        choice = choose(
            self.model, fast["model"], last, lengths, self.choices, legal, heat, keys,
            cache=cache, adapters=adapters, dtype=self.dtype,
        )  # fmt: skip
        return Decision(choice.action, choice.tokens, choice.lengths, choice.logps, values)

    def _write(self, fast, last, legal, heat, keys, cache, adapters):
        """A free answer: (action, answers, lengths, logps)."""
        batch, free = last.shape[0], self.free
        settings = decode.Settings(
            keys=keys,
            temperature=heat,
            stop_ids=jnp.broadcast_to(jnp.asarray(free.stop_ids, jnp.int32), (batch, len(free.stop_ids))),
            budget=jnp.full((batch,), free.max_new, jnp.int32),
        )
        rows, token, logp = decode.begin(self.model, fast["model"], last, cache, settings)
        rows, tokens, logps, _ = decode.chunk(
            self.model, fast["model"], rows, settings, free.max_new - 1, adapters, self.dtype
        )
        answers = jnp.concatenate([token[:, None], tokens], axis=1)
        logps = jnp.concatenate([logp[:, None], logps], axis=1)
        said = rows.written - (rows.finish == decode.STOP)
        return free.parse(answers, said, legal), answers, rows.written, logps

    def _prefix_rows(self, prefix: kv.Cache, adapters: lora.Lora | None, batch: int, slots: int) -> kv.Cache:
        if adapters is None:
            return kv.broadcast(prefix, batch, slots)
        room = ((0, 0), (0, slots - prefix.slots), (0, 0), (0, 0))
        layers = tuple(tuple(jnp.pad(x, room)[adapters.ids] for x in layer) for layer in prefix.layers)
        return kv.Cache(layers, prefix.lengths[adapters.ids])

    def _values_at_prompt(self, fast, last, tokens, lengths, central):
        if "critic" not in fast or self.critic == "none":
            return jnp.zeros(lengths.shape, jnp.float32)
        if self.critic == "head":
            return critics.read(fast["critic"], last)
        tokens, lengths = central if self.critic == "central" else (tokens, lengths)
        return _at(critics.trunk(self.model, fast["critic"], tokens, lengths, self.dtype), lengths - 1)

    # ---------------------------------------------------------------------------------------------------- learning

    def score(self, weights: dict, samples: Samples) -> Scores:
        """The samples under these weights; differentiable."""
        logps, entropy, hidden = self._answers(weights["model"], samples, self._lora(weights, samples.policy))
        return Scores(logps, entropy, self._values(weights.get("critic", {}), samples, hidden))

    def reference_logps(self, weights: dict, samples: Samples) -> jax.Array:
        """float32 [N, W] under the policy at the start: the base without adapters, or the copy that was kept."""
        params = weights["model"] if self.lora is not None else weights["reference"]
        return self._answers(params, samples, None)[0]

    def _answers(self, params, samples: Samples, adapters):
        before = self._before_answers(params, samples, adapters)
        if self.free is None:
            logps, entropy = choice_logprobs(
                self.model, params, before, self.choices, samples.legal, samples.action, self.temperature
            )
        else:
            logps, entropy = token_logprobs(self.model, params, before, samples.answers, self.temperature)
            logps, entropy = logps * samples.mask(), entropy * samples.mask()
        return logps, entropy, before

    def _before_answers(self, params, samples: Samples, adapters):
        """[N, W, D]: the hidden states that predict the tokens of the answers."""
        read = functools.partial(self.model.forward, params, dtype=self.dtype, remat=self.remat)
        if self.share == 1:
            lengths = jnp.minimum(samples.prompt_lengths + samples.answer_lengths, samples.tokens.shape[1])
            hidden, _ = read(samples.tokens, lengths=lengths, adapters=adapters)
            return jnp.take_along_axis(hidden, samples.before_answer()[..., None], axis=1)
        rows = shared_prompt.join(samples, self.share)
        if adapters is not None:
            adapters = dataclasses.replace(adapters, ids=adapters.ids[:: self.share])
        hidden, _ = read(rows.tokens, positions=rows.positions, segments=rows.segments, adapters=adapters)
        return shared_prompt.before_answers(hidden, rows, self.share, samples.width)

    def _values(self, critic: dict, samples: Samples, before: jax.Array) -> jax.Array:
        if self.critic == "none":
            return jnp.zeros(samples.answers.shape, jnp.float32)
        if self.critic == "head":
            return critics.read(critic, before)
        if self.critic == "separate":
            lengths = samples.prompt_lengths + samples.answer_lengths
            values = critics.trunk(self.model, critic, samples.tokens, lengths, self.dtype, self.remat)
            return jnp.take_along_axis(values, samples.before_answer(), axis=1)
        tokens, lengths = samples.central
        values = _at(critics.trunk(self.model, critic, tokens, lengths, self.dtype, self.remat), lengths - 1)
        return jnp.broadcast_to(values[:, None], samples.answers.shape)


def _at(x: jax.Array, positions: jax.Array) -> jax.Array:
    """x [B, T, …] at one position of each row, [B, …]."""
    return x[jnp.arange(x.shape[0]), positions]
