"""A policy: a model that answers prompts, as the jitted programs of rollout and update close over it.

Weights are one dict, `{"model", "adapters", "critic", "reference"}`, of which a policy has what it needs; `Policy`
itself holds none. This file says what they are and how they are laid out; `answering.py` samples with them and
`scoring.py` scores what was sampled, both with the same distribution, temperature and positions.

Several agents share one policy (one set of weights), or have a LoRA adapter each on one base: then a row's `policy`
number picks its adapter inside the same forward pass.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from marl_jax.agents import critics
from marl_jax.agents.answers import CompletionFormat
from models import lora, sharding
from models.model import Model

PREFIX_WORTH_KEEPING = 32  # tokens; a shorter common beginning is cheaper to read again than to copy from a cache


@dataclasses.dataclass(frozen=True)
class LoraSpec:
    """n adapters of one rank on some projections; `learns` says which of them do (left out: all)."""

    n: int
    rank: int
    alpha: float
    targets: tuple[str, ...]
    learns: tuple[bool, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """How a model is used as a policy.

    answers      constrained choice or free text
    rules        tokens with which every prompt begins (the rules of a game)
    lora         None trains all weights
    critic       see `critics.py`
    critic_reads "chat", or "completion": a question and one answer to it, without the turns between
    dtype        of the arithmetic
    remat        what the learner rematerialises in the backward pass; `unroll`: see `Model.forward`
    fuse         decode with fused projections; off when heads are split over a mesh
    warm         adapters begin with those of another run, whose policy is then the reference of a KL
    keeps_cache  conversations continue from turn to turn, so that sampling always needs a cache
    on_host      answers come from a batcher, which asks no critic: values are filled in by the learner
    """

    model: Model
    answers: CompletionFormat
    rules: tuple[int, ...] = ()
    lora: LoraSpec | None = None
    critic: str = "head"
    critic_reads: str = "chat"
    dtype: jnp.dtype = jnp.bfloat16
    remat: str = "none"
    unroll: int = 0
    temperature: float = 1.0
    fuse: bool = True
    warm: bool = False
    keeps_cache: bool = False
    on_host: bool = False

    @property
    def width(self) -> int:
        """W: tokens of the longest answer."""
        return self.answers.width

    @property
    def decodes(self) -> bool:
        """Whether answering needs a cache, and so weights that lie as decoding wants them."""
        return self.answers.decodes or self.keeps_cache

    @property
    def prefix(self) -> tuple[int, ...]:
        """The common beginning of all prompts as far as it is read once: samples have only what stands behind it."""
        return self.rules if len(self.rules) >= PREFIX_WORTH_KEEPING else ()

    # ------------------------------------------------------------------------------------------------ what there is

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

    def acting_params(self, trained: dict) -> dict:
        """The part of the weights that decides how the policy acts: what a snapshot or an export needs."""
        return {k: v for k, v in trained.items() if k in ("model", "adapters")}

    def with_snapshot(self, weights: dict, snapshot: dict) -> dict:
        """Weights with which it acts as at the time of the snapshot; there is no critic then."""
        return {**{name: w for name, w in weights.items() if name != "critic"}, **snapshot}

    def mask_frozen_adapters(self, updates: dict) -> dict:
        """The updates of what is trained, without those of adapters that do not learn."""
        if self.lora is None or all(self.lora.learns):
            return updates
        learns = jnp.asarray(self.lora.learns)[:, None, None]  # arrays of adapters are [L, n, …, …]
        kept = jax.tree.map(lambda x: jnp.where(learns, x, jnp.zeros_like(x)), updates["adapters"])
        return {**updates, "adapters": kept}

    def adapters(self, weights: dict, ids: jax.Array) -> lora.Lora | None:
        """The adapters for rows with these policies, int32 [N]; None without LoRA."""
        if "adapters" not in weights:
            return None
        assert self.lora is not None
        scale = lora.scales(self.lora.n, self.lora.rank, self.lora.alpha)
        adapters = weights["adapters"]  # laid out for decoding they are isolated already
        adapters = adapters if isinstance(adapters, tuple) else lora.isolate(adapters)
        return lora.Lora(adapters, scale, jnp.maximum(ids, 0))

    # -------------------------------------------------------------------------------------------------- how it lies

    def sampling_layout(self, weights: dict) -> dict:
        """Weights as sampling wants them: cast, for decoding one tree per layer; those that are so already stay.

        On a mesh that splits no parameters over its rows (`mesh.for_sampling`) they are gathered here, once, instead of
        wherever they are used.
        """
        cast = functools.partial(jax.tree.map, lambda x: x.astype(self.dtype))
        laid_out = {name: cast(weights[name]) for name in ("model", "adapters") if name in weights}
        if self.decodes and "model" in laid_out and not isinstance(laid_out["model"]["layers"], tuple):
            laid_out["model"] = self.model.unstack(laid_out["model"], self.dtype, self.fuse)
        if self.decodes and "adapters" in laid_out and not isinstance(laid_out["adapters"], tuple):
            laid_out["adapters"] = lora.unstack(laid_out["adapters"], self.model.cfg.n_layers, self.dtype)
        if "critic" in weights:
            laid_out["critic"] = self.cast_for_compute({"critic": weights["critic"]})["critic"]
        return self._gathered(laid_out)

    def _gathered(self, laid_out: dict) -> dict:
        sizes = jax.sharding.get_abstract_mesh().shape
        split = sizes.get("tensor", 1) > 1
        if sizes.get("fsdp", 1) > 1 or (split and self.fuse):
            return laid_out
        if not split:
            return sharding.whole(laid_out)
        letters = {"model": self.model.axes(), "critic": critics.axes(self.critic, self.model)}
        placed = {name: sharding.whole(part) for name, part in laid_out.items() if name == "adapters"}
        for name in laid_out.keys() & letters.keys():
            placed[name] = sharding.constrain_params(_like(letters[name], laid_out[name]), laid_out[name])
        return placed

    def prepare_for_sampling(self, weights: dict) -> dict:
        """Weights laid out for sampling, once per rollout, and the common prefix read."""
        ready = self.sampling_layout(weights)
        if not self.prefix:
            return ready
        # With adapters the prefix reads differently for each of them.
        n = self.lora.n if self.lora else 1
        tokens = jnp.broadcast_to(jnp.asarray(self.prefix, jnp.int32), (n, len(self.prefix)))
        settings: dict[str, Any] = dict(adapters=self.adapters(ready, jnp.arange(n)), dtype=self.dtype)
        if self.keeps_cache:
            read = self.model.read_prefix(ready["model"], tokens, **settings)
            ready["prefix"] = self.model.unstack_prefix(read)
        elif self.decodes:
            _, ready["prefix"] = self.model.forward(ready["model"], tokens, new_cache=len(self.prefix), **settings)
        else:
            ready["prefix"] = self.model.read_prefix(ready["model"], tokens, **settings)
        if self.critic == "separate" and "critic" in ready:
            ready["critic_prefix"] = self.model.read_prefix(ready["critic"]["model"], tokens[:1], dtype=self.dtype)
        return ready

    def cast_for_compute(self, trained: dict) -> dict:
        """What is trained, in the dtype of the arithmetic as far as it is used so: a copy for one optimizer step.

        Norms and the critic's head are used in float32. Embedding, head and biases keep their dtype because the
        gradients of many pieces of a batch are added up in it.
        """

        def one(path, x):
            name = path[-1].key
            value_head = path[0].key == "critic" and len(path) == 2
            kept = value_head or "norm" in name or name.endswith("bias") or name in ("embed", "head")
            return x if kept else x.astype(self.dtype)

        return jax.tree.map_with_path(one, trained)


def _like(axes: dict, laid_out: dict) -> dict:
    """The axis letters of stacked parameters, for the same parameters with one tree per layer."""
    if not isinstance(laid_out.get("layers"), tuple):
        return axes
    one = jax.tree.map(lambda letters: letters[1:], axes["layers"], is_leaf=lambda x: isinstance(x, tuple))
    return {**axes, "layers": (one,) * len(laid_out["layers"])}
