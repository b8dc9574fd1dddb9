"""A team: the models behind the policies, and which of them answers for which seat.

    L1  all seats have one policy                              one backbone, one set of weights
    L2  a policy for each role, LoRA adapters on one base      one backbone, a row picks its adapter in the forward pass
    L3  policies with models of their own, of any shape and    a backbone each, with its own tokenizer, prompts,
        tokenizer, or copies of one model trained apart        weights, optimizer and samples

Weights are a dict by the names of the backbones. With one backbone `Team` only passes on what it is asked. With
several, each seat reads and writes in the tokens of its own model, in rows as long as the longest needs; for learning,
`own` cuts out what belongs to one of them.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from envs.games.template import join
from envs.games.text import Prompt
from marl_jax.agents import answering
from marl_jax.agents.answering import Decision
from marl_jax.agents.policy import Policy
from marl_jax.devices import placement
from marl_jax.devices.aot import compiler_options_once
from marl_jax.samples import Samples, row_length
from models.model import Model
from models.sharding import param_shardings
from models.tokenizers import Tokenizer
from models.weights.load import load


class WeightSource(Protocol):
    """Where the weights of a backbone come from when a run continues another one's (`setup/warm_start.py`)."""

    lora: bool
    resumed: bool

    def params(self, backbone: Backbone) -> dict:
        """The model's parameters, in the backbone's dtype and on its mesh."""
        ...

    def adapters(self, backbone: Backbone) -> dict | None:
        """The adapters to begin with; None where that run trained all weights."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Backbone:
    """A base model with the policies that live on it; `name` is that of the first.

    policies   their names; more than one where they are LoRA adapters
    learns     for each of them, whether it does
    config     of the model
    place      of its weights; None for a model from scratch
    prompt     what its policies read of a game; None where the environment is a task
    number     its place in the team
    seed       of the run
    reference  whether the update compares with the policy at the start
    source     the run whose weights it begins with, or None
    """

    name: str
    policies: tuple[str, ...]
    learns: tuple[bool, ...]
    config: ConfigDict
    place: str | None
    model: Model
    tokenizer: Tokenizer
    prompt: Prompt | None
    policy: Policy
    mesh: Mesh
    number: int = 0
    seed: int = 0
    reference: bool = False
    source: WeightSource | None = None

    @property
    def game_prompt(self) -> Prompt:
        """The prompt, in a run on a game."""
        assert self.prompt is not None
        return self.prompt

    @property
    def prompt_length(self) -> int:
        """Tokens of the longest prompt behind the prefix."""
        return self.game_prompt.opening_length - len(self.policy.prefix)

    @property
    def row(self) -> int:
        """T: the length of a row of its prompts and answers."""
        return row_length(self.prompt_length, self.policy.width)

    def opening(self, state: Any, seat: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The prompt of a turn that stands alone, behind the prefix: int32 [T'], and its length."""
        prompt = self.game_prompt
        return prompt.suffix(state, seat) if self.policy.prefix else prompt.opening(state, seat)

    def params(self, key: jax.Array) -> dict:
        """The model's parameters: another run's, read, or random; split over the mesh as its rules say."""
        if self.source is not None:
            return self.source.params(self)
        dtype = jnp.dtype(self.config.param_dtype)
        shardings = param_shardings(self.mesh, self.model.axes(), self.model.abstract(dtype))
        if self.place is not None:
            return load(self.place, self.model.cfg, dtype, shardings)[1]
        settings = dict(out_shardings=shardings, compiler_options=compiler_options_once())
        return jax.jit(lambda k: self.model.init(k, dtype), **settings)(key)

    def keys(self) -> jax.Array:
        """Of the seed, for the model's parameters and for its adapters: keys [2]."""
        key = jax.random.key(self.seed)
        key = jax.random.fold_in(key, self.number) if self.number else key  # copies of one model start apart
        return jax.random.split(key)

    def weights_at_start(self) -> tuple[dict, dict]:
        """(what is trained, what is only read), from the seed and the model's weights."""
        model_key, adapter_key = self.keys()
        adapters = None if self.source is None else self.source.adapters(self)

        def make(params, key, adapters):
            return self._sorted(*self.policy.init(params, key, self.reference, adapters))

        # Donated, so that a large model is not there twice.
        program = jax.jit(make, donate_argnums=(0, 2), out_shardings=placement.shardings_of(self.abstract()))
        return program(self.params(model_key), adapter_key, adapters)

    def abstract(self) -> tuple[dict, dict]:
        """Shapes, dtypes and shardings of `weights_at_start`."""
        dtype = jnp.dtype(self.config.param_dtype)
        make = functools.partial(self.policy.init, reference=self.reference)
        shapes = self._sorted(*jax.eval_shape(make, self.model.abstract(dtype), jax.random.key(0)))
        placed = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
        return tuple(
            jax.tree.map(placed, tree, param_shardings(self.mesh, axes, tree))
            for axes, tree in zip(self._sorted(*self.policy.axes(self.reference)), shapes, strict=True)
        )

    def _sorted(self, trained: dict, frozen: dict) -> tuple[dict, dict]:
        """Where no policy learns, everything is only read: no optimizer, no critic, nothing in checkpoints."""
        return (trained, frozen) if any(self.learns) else ({}, self.policy.acting_params({**frozen, **trained}))


@dataclasses.dataclass(frozen=True, eq=False)
class Team:
    """All backbones of a run; `policies` are the names of all policies, whose places are their numbers."""

    backbones: tuple[Backbone, ...]
    policies: tuple[str, ...]

    @property
    def width(self) -> int:
        """W: tokens of the longest answer of anyone."""
        return max(backbone.policy.width for backbone in self.backbones)

    @property
    def critic(self) -> str:
        """The kind of critic, the same for all."""
        return self.backbones[0].policy.critic

    @property
    def prompts(self) -> Prompts:
        """What the seats read."""
        return Prompts(self)

    def playable(self, action: jax.Array, legal: jax.Array, keys: jax.Array) -> jax.Array:
        """As `Answers.playable`; all policies answer in the same way."""
        return self.backbones[0].policy.answers.playable(action, legal, keys)

    def backbone_of(self, policy: jax.Array | int) -> jax.Array:
        """int32 [...]: the number of the backbone of a policy; -1, a bot, has none and counts as the first's."""
        found = [next(i for i, b in enumerate(self.backbones) if name in b.policies) for name in self.policies]
        return jnp.asarray([*found, 0], jnp.int32)[policy]  # -1 is the last entry

    def acting_params(self, weights: dict[str, dict]) -> dict[str, dict]:
        """As `Policy.acting_params`, of every backbone."""
        return {b.name: b.policy.acting_params(weights[b.name]) for b in self.backbones}

    def snapshot(self, weights: dict[str, dict]) -> dict[str, dict]:
        """What changes of them as they learn, of every backbone: adapters without their base, of frozen ones nothing.

        A pool has many snapshots, and the rest is the same in all of them.
        """
        return {b.name: self._learnt(b, self.acting_params(weights)[b.name]) for b in self.backbones}

    @staticmethod
    def _learnt(backbone: Backbone, acting: dict) -> dict:
        kept = ("adapters",) if backbone.policy.lora else ("model",)
        return {name: acting[name] for name in kept if any(backbone.learns)}

    def with_snapshot(self, weights: dict[str, dict], snapshot: dict[str, dict]) -> dict[str, dict]:
        """As `Policy.with_snapshot`, of every backbone."""
        return {b.name: b.policy.with_snapshot(weights[b.name], snapshot[b.name]) for b in self.backbones}

    def sampling_layout(self, weights: dict[str, dict]) -> dict[str, dict]:
        """As `Policy.sampling_layout`, of every backbone that is given."""
        return {b.name: b.policy.sampling_layout(weights[b.name]) for b in self.backbones if b.name in weights}

    def prepare_for_sampling(self, weights: dict[str, dict]) -> dict[str, dict]:
        """As `Policy.prepare_for_sampling`, of every backbone."""
        return {b.name: b.policy.prepare_for_sampling(weights[b.name]) for b in self.backbones}

    def act(
        self,
        ready: dict[str, dict],
        tokens: jax.Array,
        lengths: jax.Array,
        legal: jax.Array,
        keys: jax.Array,
        ids: jax.Array,
        temperature: float | None = None,
        central: tuple[jax.Array, jax.Array] | None = None,
        candidates: int = 1,
    ) -> Decision:
        """As `answering.act`; `ids` are numbers of policies, and tokens those of their models.

        A backbone that no row asks is not run. Where all rows have the same mover at the same time, as with planner and
        executor, a turn therefore costs one forward pass, whatever the number of models; where movers are mixed, every
        model reads every row, its own and (empty) those of the others.
        """
        given = (temperature, central, candidates)
        if len(self.backbones) == 1:
            one = self.backbones[0]
            ids = self.own_ids(ids, 0)
            return answering.act(one.policy, ready[one.name], tokens, lengths, legal, keys, ids, *given)
        answers = []
        for number, backbone in enumerate(self.backbones):
            own = self.own_ids(ids, number)
            mine = own >= 0

            def ask(backbone=backbone, own=own, mine=mine):
                read = jnp.where(mine[:, None], tokens[:, : backbone.row], 0)
                length = jnp.where(mine, lengths, 1)
                decision = answering.act(backbone.policy, ready[backbone.name], read, length, legal, keys, own, *given)
                return self.padded(decision)

            empty_decision = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(ask))
            answers.append((jnp.repeat(mine, candidates), jax.lax.cond(jnp.any(mine), ask, lambda s=empty_decision: s)))
        decision = answers[0][1]
        for mine, other in answers[1:]:
            pick = lambda a, b, mine=mine: jnp.where(mine.reshape(-1, *(1,) * (a.ndim - 1)), a, b)  # noqa: E731
            decision = jax.tree.map(pick, other, decision)
        return decision

    def padded(self, decision: Decision) -> Decision:
        """A decision of one backbone with answers as wide as the team's."""
        room = ((0, 0), (0, self.width - decision.answers.shape[1]))
        return decision._replace(answers=jnp.pad(decision.answers, room), logps=jnp.pad(decision.logps, room))

    def own_ids(self, ids: jax.Array, number: int) -> jax.Array:
        """Numbers of policies as those of their adapters on one backbone, -1 for everybody else's: int32 [...]."""
        backbone = self.backbones[number]
        place = [backbone.policies.index(name) if name in backbone.policies else -1 for name in self.policies]
        return jnp.asarray([*place, -1], jnp.int32)[ids]  # -1, a bot, is the last entry

    def own(self, samples: Samples, number: int) -> Samples:
        """The samples for one backbone to learn from: weight 0 where another answered, and no token of theirs."""
        if len(self.backbones) == 1:
            return samples
        own = self.own_ids(samples.policy, number)
        mine = (own >= 0)[:, None]
        backbone = self.backbones[number]
        skip = len(backbone.policy.prefix)
        alone = skip + jnp.arange(samples.tokens.shape[1], dtype=jnp.int32)
        samples = samples.replace(
            tokens=jnp.where(mine, samples.tokens, 0),
            positions=jnp.where(mine, samples.positions, alone),
            lengths=jnp.where(mine[:, 0], samples.lengths, 1),
            completion_lengths=jnp.where(mine, samples.completion_lengths, 0),
            completion_of=jnp.where(mine, samples.completion_of, -1),
            logits_index=jnp.where(mine, samples.logits_index, 0),
            targets=jnp.where(mine, samples.targets, 0),
            context_len=jnp.where(mine, samples.context_len, skip + 1),
            loss_weights=samples.loss_weights * mine,
            policy=own,
        )
        return self._cropped(samples, backbone)

    def _cropped(self, samples: Samples, backbone: Backbone) -> Samples:
        """Rows and answers no longer than those of one backbone; those of tasks are as long as they have to be."""
        if backbone.prompt is None:
            return samples
        if not samples.branch_len and samples.segment is None:
            short = {name: getattr(samples, name)[:, : backbone.row] for name in ("tokens", "positions")}
            samples = samples.replace(**short)
        width = backbone.policy.width

        def crop(x):
            return x.reshape(*samples.completion_lengths.shape, -1)[..., :width].reshape(samples.n, -1)

        names = ("completion_of", "logits_index", "targets", "logps", "values", "advantages", "returns")
        return samples.replace(**{name: crop(getattr(samples, name)) for name in names})


@dataclasses.dataclass(frozen=True, eq=False)
class Prompts:
    """The prompts of one game, each in the tokens of the model that reads it."""

    team: Team

    @property
    def length(self) -> int:
        """Tokens of the longest prompt of anyone, behind the prefix."""
        return max(backbone.prompt_length for backbone in self.team.backbones)

    def skip(self, policy: jax.Array) -> jax.Array:
        """int32 [...]: the tokens of the common prefix that stand before the prompts of these policies."""
        prefixes = jnp.asarray([len(backbone.policy.prefix) for backbone in self.team.backbones], jnp.int32)
        return prefixes[self.team.backbone_of(policy)]

    def opening(self, state: Any, seat: jax.Array, policy: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The prompt of a turn that stands alone, behind the prefix: int32 [T], right-padded, and its length."""
        return self._picked([backbone.opening(state, seat) for backbone in self.team.backbones], policy)

    def following(
        self, said: jax.Array, said_length, pending: jax.Array, pending_length, seat: jax.Array, policy: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """What a later turn of a conversation reads: the last answer, int32 [W], pending events, the question."""
        rendered = []
        for backbone in self.team.backbones:
            more = backbone.game_prompt.next(pending, pending_length, seat)
            rendered.append(join([(said, said_length), more], backbone.game_prompt.pad_id))
        return self._picked(rendered, policy)

    def event(self, before: Any, action: jax.Array, after: Any, seat: jax.Array, policy: jax.Array):
        """A move as a seat reads it, int32 [T] right-padded, and its length."""
        rendered = [backbone.game_prompt.event(before, action, after, seat) for backbone in self.team.backbones]
        return self._picked(rendered, policy)

    def _picked(self, rendered: list, policy: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Of texts in the tokens of every backbone that of the policy's own."""
        if len(rendered) == 1:
            return rendered[0]
        width = max(tokens.shape[0] for tokens, _ in rendered)
        rows = jnp.stack([jnp.pad(tokens, (0, width - tokens.shape[0])) for tokens, _ in rendered])
        number = self.team.backbone_of(policy)
        return rows[number], jnp.stack([length for _, length in rendered])[number]

    def opening_text(self, state: Any, seat: int, policy: int) -> str:
        """The whole text of such a prompt; chat formats differ between models."""
        return self.team.backbones[int(self.team.backbone_of(policy))].game_prompt.opening_text(state, seat)
