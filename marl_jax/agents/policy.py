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
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marl_jax.agents import critics, packing, reading
from marl_jax.samples import Samples
from marl_jax.sampling import decode
from marl_jax.sampling.choice import Choices, choice_logprobs, choose
from models import cache as kv
from models import lora, sharding
from models.layouts import move
from models.logprobs import token_logprobs
from models.model import Model

SCAN_UNROLL = 4  # of the loop over layers that reads prompts for answers of one token
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
    """n adapters of one rank on some projections; `learns` says which of them do (left out: all)."""

    n: int
    rank: int
    alpha: float
    targets: tuple[str, ...]
    learns: tuple[bool, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Free:
    """Free answers: up to `max_new` tokens until one of the stop ids, which may reason before they name an action.

    ids      int32 [A, W'], the names, -1 behind their ends
    lengths  int32 [A]
    parser   (answers [B, W], lengths [B] without the stop, legal [B, A]) -> int32 [B], the legal action that each
             answer names, or -1
    """

    ids: np.ndarray
    lengths: np.ndarray
    stop_ids: tuple[int, ...]
    max_new: int
    parser: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """How a model is used as a policy.

    choices      the action names as tokens
    prefix       tokens with which every prompt begins (the rules): read once per rollout
    lora         None trains all weights
    critic       see `marl_jax/agents/critics.py`
    dtype        of the arithmetic
    remat        what the learner computes again in the backward pass; `unroll`: see `Model.forward`
    free         None: answers are names of legal actions; else answers are any text, see `Free`
    fuse         decode with fused projections; off when heads are split over a mesh
    warm         adapters begin with those of another run, whose policy is then the reference of a KL
    share        so many samples next to each other answer one prompt, which the learner reads once for all of them
    """

    model: Model
    choices: Choices
    prefix: tuple[int, ...] = ()
    lora: LoraSpec | None = None
    critic: str = "head"
    dtype: jnp.dtype = jnp.bfloat16
    remat: str = "none"
    unroll: int = 0
    temperature: float = 1.0
    free: Free | None = None
    fuse: bool = True
    warm: bool = False
    share: int = 1

    @property
    def width(self) -> int:
        """W: tokens of the longest answer."""
        return self.free.max_new if self.free else self.choices.width

    @property
    def decodes(self) -> bool:
        """Whether an answer is more than one step: only then do weights have to lie as decoding wants them."""
        return self.width > 1 or self.free is not None

    # --------------------------------------------------------------------------------------------------- weights

    def init(
        self, params: dict, key: jax.Array, reference: bool = False, adapters: dict | None = None
    ) -> tuple[dict, dict]:
        """From a model's parameters: (what is trained, what is only read).

        With a KL to the policy at the start, full training keeps a copy of it; LoRA has it for free, its base, unless
        `adapters` of another run are what it starts from (`warm`): then of those.
        """
        critic = {"critic": critics.init(self.critic, self.model.cfg, params)}
        if self.lora is not None:
            spec = self.lora
            if adapters is None:
                adapters = lora.init(self.model.cfg, key, spec.n, spec.rank, spec.targets)
            kept = {"reference": jax.tree.map(jnp.copy, adapters)} if reference and self.warm else {}
            return {"adapters": adapters, **critic}, {"model": params, **kept}
        frozen = {"reference": jax.tree.map(lambda x: jnp.array(x, self.dtype), params)} if reference else {}
        return {"model": params, **critic}, frozen

    def axes(self, reference: bool = False) -> tuple[dict, dict]:
        """The axis letters of what `init` gives."""
        critic = {"critic": critics.axes(self.critic, self.model)}
        if self.lora is not None:
            adapters = lora.axes(dict.fromkeys(self.lora.targets))
            kept = {"reference": adapters} if reference and self.warm else {}
            return {"adapters": adapters, **critic}, {"model": self.model.axes(), **kept}
        return {"model": self.model.axes(), **critic}, {"reference": self.model.axes()} if reference else {}

    def player(self, trained: dict) -> dict:
        """The part of the weights that decides how the policy plays: what a past self or an export needs."""
        return {k: v for k, v in trained.items() if k in ("model", "adapters")}

    def as_player(self, weights: dict, player: dict) -> dict:
        """Weights with which it plays as `player`, from another time, did; nobody asks what that one hoped for."""
        return {**{name: w for name, w in weights.items() if name != "critic"}, **player}

    def changes(self, changes: dict) -> dict:
        """The changes of what is trained, without those of adapters that do not learn, whatever the optimiser adds."""
        if self.lora is None or all(self.lora.learns):
            return changes
        learns = jnp.asarray(self.lora.learns)[:, None, None]  # arrays of adapters are [L, n, …, …]
        kept = jax.tree.map(lambda x: jnp.where(learns, x, jnp.zeros_like(x)), changes["adapters"])
        return {**changes, "adapters": kept}

    def sampling_layout(self, weights: dict) -> dict:
        """Weights as sampling wants them: cast, for decoding one tree per layer; those that are so already stay.

        On a mesh that splits no parameters over its rows (`mesh.for_sampling`) they are gathered here, once, instead of
        wherever they are used.
        """
        cast = functools.partial(jax.tree.map, lambda x: x.astype(self.dtype))
        fast = {name: cast(weights[name]) for name in ("model", "adapters") if name in weights}
        if self.decodes and "model" in fast and not isinstance(fast["model"]["layers"], tuple):
            fast["model"] = self.model.unstack(fast["model"], self.dtype, self.fuse)
        if self.decodes and "adapters" in fast and not isinstance(fast["adapters"], tuple):
            fast["adapters"] = lora.unstack(fast["adapters"], self.model.cfg.n_layers, self.dtype)
        if "critic" in weights:
            fast["critic"] = self.cast_for_compute({"critic": weights["critic"]})["critic"]
        return self._gathered(fast)

    def _gathered(self, fast: dict) -> dict:
        sizes = jax.sharding.get_abstract_mesh().shape
        split = sizes.get("tensor", 1) > 1
        if sizes.get("fsdp", 1) > 1 or (split and self.fuse):
            return fast
        if not split:
            return sharding.whole(fast)
        letters = {"model": self.model.axes(), "critic": critics.axes(self.critic, self.model)}
        placed = {name: sharding.whole(part) for name, part in fast.items() if name == "adapters"}
        for name in fast.keys() & letters.keys():
            placed[name] = sharding.constrain_params(_like(letters[name], fast[name]), fast[name])
        return placed

    def ready(self, weights: dict) -> dict:
        """Weights laid out for sampling, once per rollout, and the common prefix read."""
        fast = self.sampling_layout(weights)
        if self.keeps_prefix:
            # With adapters the prefix reads differently for each of them.
            n = self.lora.n if self.lora else 1
            tokens = jnp.broadcast_to(jnp.asarray(self.prefix, jnp.int32), (n, len(self.prefix)))
            settings = dict(adapters=self._lora(fast, jnp.arange(n)), dtype=self.dtype)
            if self.decodes:
                _, fast["prefix"] = self.model.forward(fast["model"], tokens, new_cache=len(self.prefix), **settings)
            else:
                fast["prefix"] = self.model.read_prefix(fast["model"], tokens, **settings)
        return fast

    def cast_for_compute(self, trained: dict) -> dict:
        """What is trained, in the dtype of the arithmetic as far as it is used so: a copy for one step of the learner.

        Norms and the critic's head are used in float32. Embedding and head keep their dtype because the gradients of
        many pieces of a batch are added up in it.
        """

        def one(path, x):
            name = path[-1].key
            value_head = path[0].key == "critic" and len(path) == 2
            return x if value_head or "norm" in name or name in ("embed", "head") else x.astype(self.dtype)

        return jax.tree.map_with_path(one, trained)

    @property
    def keeps_prefix(self) -> bool:
        """Whether the common beginning of all prompts is read once per rollout."""
        return len(self.prefix) >= PREFIX_WORTH_KEEPING

    def _lora(self, weights: dict, ids: jax.Array) -> lora.Lora | None:
        if "adapters" not in weights:
            return None
        scale = lora.scales(self.lora.n, self.lora.rank, self.lora.alpha)
        return lora.Lora(weights["adapters"], scale, jnp.maximum(ids, 0))

    # ---------------------------------------------------------------------------------------------------- sampling

    @jax.named_scope("answer")
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
        adapters = self._lora(fast, ids)
        last, cache = self._read_prompts(fast, tokens, lengths, adapters)
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

    def _read_prompts(self, fast, tokens, lengths, adapters):
        """The hidden states [B, D] that answers begin from, and the cache that further tokens need, if there are any.

        Without further tokens the weights stay stacked and nothing is kept: that compiles several times faster.
        """
        batch, time = tokens.shape
        read = functools.partial(self.model.forward, fast["model"], adapters=adapters, dtype=self.dtype)
        skip = len(self.prefix) if "prefix" in fast else 0
        tokens, lengths = tokens[:, skip:], lengths - skip
        if not self.decodes:
            hidden, cache = read(tokens, lengths=lengths, prefix=fast.get("prefix"), unroll=SCAN_UNROLL)
        elif skip:
            cache = self._prefix_rows(fast["prefix"], adapters, batch, time + self.width)
            hidden, cache = read(tokens, lengths=lengths, cache=cache)
        else:
            hidden, cache = read(tokens, lengths=lengths, new_cache=time + self.width)
        return _at(hidden, lengths - 1), cache

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
        # Whole rounds of steps between two looks at who is done; a full row stays as it is in the steps too many.
        steps = -(-(free.max_new - 1) // decode.CHECK_EVERY) * decode.CHECK_EVERY
        answers, logps = token[:, None], logp[:, None]
        if steps:
            rows, *rest, _ = decode.chunk(self.model, fast["model"], rows, settings, steps, adapters, self.dtype)
            answers, logps = (jnp.concatenate(x, axis=1) for x in zip((answers, logps), rest, strict=True))
        answers, logps = answers[:, : free.max_new], logps[:, : free.max_new]
        said = rows.written - (rows.finish == decode.STOP)
        return free.parser(answers, said, legal), answers, rows.written, logps

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

    @property
    def reader(self) -> reading.Reader:
        """How the learner reads samples with this model."""
        prefix = self.prefix if self.keeps_prefix else self.prefix[:0]
        return reading.Reader(self.model, prefix, self.share, self.dtype, self.remat, self.unroll)

    def score(self, weights: dict, samples: Samples) -> Scores:
        """The samples under these weights; differentiable."""
        logps, entropy, hidden = self._answers(weights["model"], samples, self._lora(weights, samples.policy))
        return Scores(logps, entropy, self._values(weights.get("critic", {}), samples, hidden))

    def score_packed(self, weights: dict, samples: Samples, rows: packing.Rows) -> Scores:
        """The same for samples [R·S, …] in the slots of packed rows, answers of any text; 0 in empty slots."""
        adapters = self._lora(weights, jnp.zeros((len(rows.table),), jnp.int32))
        before, targets, (there, back) = reading.packed_answers(self.reader, weights["model"], samples, rows, adapters)
        found = token_logprobs(self.model, weights["model"], before, targets, self.temperature)
        values = critics.read(weights["critic"], before) if self.critic == "head" else jnp.zeros(targets.shape)
        return Scores(*(move(x, there, back).reshape(samples.answers.shape) for x in (*found, values)))

    def reference_logps(self, weights: dict, samples: Samples) -> jax.Array:
        """float32 [N, W] under the policy at the start: the base without adapters, or the copy that was kept."""
        if self.lora is None:
            return self._answers(weights["reference"], samples, None)[0]
        adapters = self._lora({"adapters": weights["reference"]}, samples.policy) if self.warm else None
        return self._answers(weights["model"], samples, adapters)[0]

    def _answers(self, params, samples: Samples, adapters):
        before = reading.before_answers(self.reader, params, samples, adapters)
        if self.free is None:
            logps, entropy = choice_logprobs(
                self.model, params, before, self.choices, samples.legal, samples.action, self.temperature
            )
        else:
            logps, entropy = token_logprobs(self.model, params, before, samples.answers, self.temperature)
            logps, entropy = logps * samples.mask(), entropy * samples.mask()
        return logps, entropy, before

    def _values(self, critic: dict, samples: Samples, before: jax.Array) -> jax.Array:
        if self.critic == "none":
            return jnp.zeros(samples.answers.shape, jnp.float32)
        if self.critic == "head":
            return critics.read(critic, before)
        if self.critic == "separate":
            return critics.read(critic, reading.before_answers(self.reader, critic["model"], samples, None))
        settings = dict(remat=self.remat, unroll=self.unroll)
        tokens, lengths = samples.central
        values = _at(critics.trunk(self.model, critic, tokens, lengths, self.dtype, **settings), lengths - 1)
        return jnp.broadcast_to(values[:, None], samples.answers.shape)


def _like(axes: dict, fast: dict) -> dict:
    """The axis letters of stacked parameters, for the same parameters with one tree per layer."""
    if not isinstance(fast.get("layers"), tuple):
        return axes
    one = jax.tree.map(lambda letters: letters[1:], axes["layers"], is_leaf=lambda x: isinstance(x, tuple))
    return {**axes, "layers": (one,) * len(fast["layers"])}


def _at(x: jax.Array, positions: jax.Array) -> jax.Array:
    """x [B, T, …] at one position of each row, [B, …]."""
    return x[jnp.arange(x.shape[0]), positions]
