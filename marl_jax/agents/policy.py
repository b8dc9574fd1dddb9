"""A policy: a model that acts, with the settings that jitted programs close over.

Weights are a dict with some of the keys `{"model", "adapters", "critic", "reference"}`; `Policy` itself holds no
arrays. This module defines the weights and their layout. `answering.py` samples with them and `scoring.py` scores the
samples, both with the same distribution, temperature and positions.

Several agents share one set of weights, or each has a LoRA adapter on a common base. With adapters, the `policy` index
of a row selects its adapter inside the forward pass.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from envs.games.medium import Medium
from marl_jax.agents import critics
from marl_jax.agents.answers import CompletionFormat
from models import lora, sharding
from models.model import Model

PREFIX_WORTH_KEEPING = 32  # tokens; a shorter prefix is cheaper to prefill again than to copy from a cache


@dataclasses.dataclass(frozen=True)
class LoraSpec:
    """LoRA adapters of one backbone.

    Attributes:
        n: Number of adapters.
        rank: Their rank.
        alpha: Numerator of their scale, alpha / rank.
        targets: Names of the projections that they adapt.
        learns: Whether each adapter is trained; empty for all.
    """

    n: int
    rank: int
    alpha: float
    targets: tuple[str, ...]
    learns: tuple[bool, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """Settings for using a model as a policy.

    Attributes:
        model: The model.
        answers: Completion format: constrained choice or free text.
        rules: Tokens at the start of every prompt (the rules of a game).
        lora: LoRA adapters, or None to train all weights.
        critic: Kind of critic, see `critics.py`.
        critic_reads: "chat" for the full conversation, or "completion" for the prompt and one completion.
        dtype: Dtype of the computation.
        remat: Rematerialization in the backward pass, see `Model.forward`.
        unroll: Unrolled layers, see `Model.forward`.
        temperature: Sampling temperature during training.
        fuse: Whether to decode with fused projections; off when heads are sharded.
        warm: Whether adapters start from another run, whose policy is then the reference of a KL penalty.
        keeps_cache: Whether conversations continue over several turns, so that sampling always needs a KV cache.
        n_seats: Number of seats P of the game.
        simultaneous: Whether the seats of the game move simultaneously.
        on_host: Whether completions come from a batcher, which does not evaluate the critic. The learner then fills in
            the values.
        medium: Pictures, sounds or tables in prompts; None for text.
        message: Kind of soft messages, see `agents/messages.py`; "" for none.
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
    n_seats: int = 1
    simultaneous: bool = False
    on_host: bool = False
    medium: Medium | None = None
    message: str = ""

    @property
    def message_tokens(self) -> int:
        """Number of soft tokens M at the end of a prompt with a message."""
        return self.model.cfg.message_tokens

    @property
    def width(self) -> int:
        """Maximum number of tokens W of a completion."""
        return self.answers.width

    @property
    def decodes(self) -> bool:
        """Whether sampling needs a KV cache, and thus weights laid out for decoding."""
        return self.answers.decodes or self.keeps_cache

    @property
    def prefix(self) -> tuple[int, ...]:
        """Common prefix of all prompts that is prefilled once and left out of samples."""
        return self.rules if len(self.rules) >= PREFIX_WORTH_KEEPING else ()

    # Weights

    def init(
        self, params: dict, key: jax.Array, reference: bool = False, adapters: dict | None = None
    ) -> tuple[dict, dict]:
        """Split initial weights into trained and frozen ones.

        Args:
            params: The model's parameters.
            key: PRNG key for new adapters.
            reference: Whether a KL penalty needs the initial policy. Full training keeps a copy of it. With LoRA the
                base serves as the reference, unless `warm` is set, in which case the initial adapters are copied.
            adapters: Adapters of another run to start from.

        Returns:
            The trained weights and the frozen weights.
        """
        head_key = jax.random.fold_in(key, 1)
        given = (self.critic, self.model.cfg, params, self.answers.n_actions, self.n_seats, head_key)
        critic = {"critic": critics.init(*given)}
        if self.lora is not None:
            spec = self.lora
            if adapters is None:
                adapters = lora.init(self.model.cfg, key, spec.n, spec.rank, spec.targets)
            kept = {"reference": jax.tree.map(jnp.copy, adapters)} if reference and self.warm else {}
            return {"adapters": adapters, **critic}, {"model": params, **kept}
        frozen = {"reference": jax.tree.map(lambda x: jnp.array(x, self.dtype), params)} if reference else {}
        return {"model": params, **critic}, frozen

    def axes(self, reference: bool = False) -> tuple[dict, dict]:
        """Return the axis letters of the weights from `init`."""
        critic = {"critic": critics.axes(self.critic, self.model)}
        if self.lora is not None:
            adapters = lora.axes(dict.fromkeys(self.lora.targets))
            kept = {"reference": adapters} if reference and self.warm else {}
            return {"adapters": adapters, **critic}, {"model": self.model.axes(), **kept}
        return {"model": self.model.axes(), **critic}, {"reference": self.model.axes()} if reference else {}

    def acting_params(self, trained: dict) -> dict:
        """Select the weights that determine how the policy acts.

        The head of the critic is one of them if the policy acts by its values.
        """
        acting = {k: v for k, v in trained.items() if k in ("model", "adapters")}
        if self.critic in critics.ACTING and "critic" in trained:
            acting["critic"] = critics.acting_head(trained["critic"])
        return acting

    def with_snapshot(self, weights: dict, snapshot: dict) -> dict:
        """Return weights that act like a snapshot; they have no critic."""
        return {**{name: w for name, w in weights.items() if name != "critic"}, **snapshot}

    def mask_frozen_adapters(self, updates: dict) -> dict:
        """Set the updates of adapters that are not trained to zero."""
        if self.lora is None or all(self.lora.learns):
            return updates
        learns = jnp.asarray(self.lora.learns)[:, None, None]  # arrays of adapters are [L, n, …, …]
        kept = jax.tree.map(lambda x: jnp.where(learns, x, jnp.zeros_like(x)), updates["adapters"])
        return {**updates, "adapters": kept}

    def adapters(self, weights: dict, ids: jax.Array) -> lora.Lora | None:
        """Return the adapters for rows with these policy ids, int32 [N]; None without LoRA."""
        if "adapters" not in weights:
            return None
        assert self.lora is not None
        scale = lora.scales(self.lora.n, self.lora.rank, self.lora.alpha)
        adapters = weights["adapters"]  # already isolated if laid out for decoding
        adapters = adapters if isinstance(adapters, tuple) else lora.isolate(adapters)
        return lora.Lora(adapters, scale, jnp.maximum(ids, 0))

    # Layout

    def sampling_layout(self, weights: dict) -> dict:
        """Cast weights and lay them out for sampling, for decoding as one tree per layer.

        Weights that already have this layout are unchanged. On a mesh that does not shard parameters over its rows
        (`mesh.for_sampling`), weights are gathered here once instead of at every use.
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
        """Gather weights, or constrain them to the tensor axis, if the mesh has no FSDP."""
        sizes = jax.sharding.get_abstract_mesh().shape
        split = sizes.get("tensor", 1) > 1
        if sizes.get("fsdp", 1) > 1 or (split and self.fuse):
            return laid_out
        if not split:
            return sharding.whole(laid_out)
        letters = {"model": self.model.axes(), "critic": critics.axes(self.critic, self.model)}
        placed = {name: sharding.whole(part) for name, part in laid_out.items() if name == "adapters"}
        for name in laid_out.keys() & letters.keys():
            own = {part: letters[name][part] for part in laid_out[name]}  # a critic may be its head only
            placed[name] = sharding.constrain_params(_like(own, laid_out[name]), laid_out[name])
        return placed

    def prepare_for_sampling(self, weights: dict) -> dict:
        """Lay out weights and prefill the common prefix, once per rollout."""
        prepared = self.sampling_layout(weights)
        if not self.prefix:
            return prepared
        # Each adapter computes the prefix differently.
        n = self.lora.n if self.lora else 1
        tokens = jnp.broadcast_to(jnp.asarray(self.prefix, jnp.int32), (n, len(self.prefix)))
        settings: dict[str, Any] = dict(adapters=self.adapters(prepared, jnp.arange(n)), dtype=self.dtype)
        if self.keeps_cache:
            read = self.model.read_prefix(prepared["model"], tokens, **settings)
            prepared["prefix"] = self.model.unstack_prefix(read)
        elif self.decodes:
            _, prepared["prefix"] = self.model.forward(
                prepared["model"], tokens, new_cache=len(self.prefix), **settings
            )
        else:
            prepared["prefix"] = self.model.read_prefix(prepared["model"], tokens, **settings)
        if self.critic == "separate" and "critic" in prepared:
            prepared["critic_prefix"] = self.model.read_prefix(
                prepared["critic"]["model"], tokens[:1], dtype=self.dtype
            )
        return prepared

    def cast_for_compute(self, trained: dict) -> dict:
        """Cast trained weights to the compute dtype, as a copy for one optimizer step.

        Norms and the critic's head are used in float32. Embedding, head and biases keep their dtype because gradients
        over many parts of a batch are accumulated in it.
        """

        def one(path, x):
            name = path[-1].key
            value_head = path[0].key == "critic" and len(path) == 2
            kept = value_head or "norm" in name or name.endswith("bias") or name in ("embed", "head")
            return x if kept else x.astype(self.dtype)

        return jax.tree.map_with_path(one, trained)


def _like(axes: dict, laid_out: dict) -> dict:
    """Return the axis letters of unstacked parameters from those of stacked ones."""
    if not isinstance(laid_out.get("layers"), tuple):
        return axes
    one = jax.tree.map(lambda letters: letters[1:], axes["layers"], is_leaf=lambda x: isinstance(x, tuple))
    return {**axes, "layers": (one,) * len(laid_out["layers"])}
