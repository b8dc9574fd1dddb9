"""A team: the models behind the policies, and which of them answers for which seat.

    L1  all seats have one policy                              one mind, one set of weights
    L2  a policy for each role, LoRA adapters on one base      one mind, a row picks its adapter in the forward pass
    L3  policies with models of their own, of any shape and    a mind each, with its own tokenizer, prompts, weights,
        tokenizer, or copies of one model trained apart        optimiser and samples

`Team` stands wherever a `Policy` stands in rollouts and matches, and `Prompts` wherever a `Prompt` does; weights are
then a dict by the names of the minds. With one mind both only pass on what they are asked. With several, each seat
reads and writes in the tokens of its own model, in rows as long as the longest of them needs; for learning, `own` cuts
out what belongs to one mind.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from envs.games.text import Prompt
from marl_jax.agents.policy import Decision, Policy
from marl_jax.devices import placement
from marl_jax.modes import init_from as starts
from marl_jax.modes.init_from import Start
from marl_jax.samples import Samples, row_length, take
from models.model import Model
from models.sharding import param_shardings
from models.tokenizers import Tokenizer
from models.weights.load import load


@dataclasses.dataclass(frozen=True, eq=False)
class Backbone:
    """One model with the policies that live on it; `name` is that of the first.

    policies   their names; more than one where they are LoRA adapters
    learns     for each of them, whether it does
    config     of the model
    place      of its weights; None for a model from scratch
    number     its place in the team
    seed       of the run
    reference  whether the update compares with the policy at the start
    start      the run whose weights it begins with, or None
    """

    name: str
    policies: tuple[str, ...]
    learns: tuple[bool, ...]
    config: ConfigDict
    place: str | None
    model: Model
    tokenizer: Tokenizer
    prompt: Prompt
    policy: Policy
    mesh: Mesh
    number: int = 0
    seed: int = 0
    reference: bool = False
    start: Start | None = None

    @property
    def row(self) -> int:
        """T: the length of a row of its prompts and answers."""
        return row_length(self.prompt.opening_length, self.policy.width)

    def params(self, key: jax.Array) -> dict:
        """The model's parameters: another run's, read, or random; split over the mesh as its rules say."""
        if self.start is not None:
            return starts.params(self.start, self)
        dtype = jnp.dtype(self.config.param_dtype)
        shardings = param_shardings(self.mesh, self.model.axes(), self.model.abstract(dtype))
        if self.place is not None:
            return load(self.place, self.model.cfg, dtype, shardings)[1]
        return jax.jit(lambda k: self.model.init(k, dtype), out_shardings=shardings)(key)

    def keys(self) -> jax.Array:
        """Of the seed, for the model's parameters and for its adapters: keys [2]."""
        key = jax.random.key(self.seed)
        key = jax.random.fold_in(key, self.number) if self.number else key  # copies of one model start apart
        return jax.random.split(key)

    def weights_at_start(self) -> tuple[dict, dict]:
        """(what is trained, what is only read), from the seed and the model's weights."""
        model_key, adapter_key = self.keys()
        adapters = None if self.start is None else starts.adapters(self.start, self)

        def make(params, key, adapters):
            return self._sorted(*self.policy.init(params, key, self.reference, adapters))

        # Donated, so that a large model is not there twice.
        program = jax.jit(make, donate_argnums=(0, 2), out_shardings=placement.shardings_of(self.abstract()))
        return program(self.params(model_key), adapter_key, adapters)

    def abstract(self) -> tuple[dict, dict]:
        """Shapes, dtypes and shardings of `weights_at_start`."""
        dtype = jnp.dtype(self.config.param_dtype)
        make = lambda p, k: self.policy.init(p, k, self.reference)  # noqa: E731
        shapes = self._sorted(*jax.eval_shape(make, self.model.abstract(dtype), jax.random.key(0)))
        placed = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
        return tuple(
            jax.tree.map(placed, tree, param_shardings(self.mesh, axes, tree))
            for axes, tree in zip(self._sorted(*self.policy.axes(self.reference)), shapes, strict=True)
        )

    def _sorted(self, trained: dict, frozen: dict) -> tuple[dict, dict]:
        """Where no policy learns, everything is only read: no optimiser, no critic, nothing in checkpoints."""
        return (trained, frozen) if any(self.learns) else ({}, self.policy.player({**frozen, **trained}))


@dataclasses.dataclass(frozen=True, eq=False)
class Team:
    """All minds of a run; `policies` are the names of all policies, whose places are their numbers."""

    backbones: tuple[Backbone, ...]
    policies: tuple[str, ...]

    @property
    def width(self) -> int:
        """W: tokens of the longest answer of anyone."""
        return max(backbone.policy.width for backbone in self.backbones)

    @property
    def free(self) -> bool:
        """Whether answers are any text."""
        return self.backbones[0].policy.free is not None

    @property
    def critic(self) -> str:
        """The kind of critic, the same for all."""
        return self.backbones[0].policy.critic

    def backbone_of(self, policy: int) -> int:
        """The number of the mind of a policy; -1, a bot, has none and counts as the first's."""
        name = self.policies[max(policy, 0)]
        return next(i for i, backbone in enumerate(self.backbones) if name in backbone.policies)

    def prompt(self, seat_policy: tuple[int, ...]) -> Prompt | Prompts:
        """The prompts of seats with these policies, each in the tokens of its model."""
        if len(self.backbones) == 1:
            return self.backbones[0].prompt
        return Prompts(tuple(backbone.prompt for backbone in self.backbones), tuple(map(self.backbone_of, seat_policy)))

    def player(self, weights: dict[str, dict]) -> dict[str, dict]:
        """As `Policy.player`, of every mind."""
        return {backbone.name: backbone.policy.player(weights[backbone.name]) for backbone in self.backbones}

    def as_player(self, weights: dict[str, dict], player: dict[str, dict]) -> dict[str, dict]:
        """As `Policy.as_player`, of every mind."""
        return {
            backbone.name: backbone.policy.as_player(weights[backbone.name], player[backbone.name])
            for backbone in self.backbones
        }

    def sampling_layout(self, weights: dict[str, dict]) -> dict[str, dict]:
        """As `Policy.lay_out`, of every mind that is given."""
        return {
            backbone.name: backbone.policy.sampling_layout(weights[backbone.name])
            for backbone in self.backbones
            if backbone.name in weights
        }

    def ready(self, weights: dict[str, dict]) -> dict[str, dict]:
        """As `Policy.ready`, of every mind."""
        return {backbone.name: backbone.policy.ready(weights[backbone.name]) for backbone in self.backbones}

    def act(
        self,
        fast: dict[str, dict],
        tokens: jax.Array,
        lengths: jax.Array,
        legal: jax.Array,
        keys: jax.Array,
        ids: jax.Array,
        temperature: float | None = None,
        central: tuple[jax.Array, jax.Array] | None = None,
        candidates: int = 1,
    ) -> Decision:
        """As `Policy.act`; `ids` are numbers of policies, and tokens those of their models.

        A mind that no row asks is not run. Where all rows have the same mover at the same time, as with planner and
        executor, a turn therefore costs one forward pass, whatever the number of models; where movers are mixed, every
        model reads every row, its own and (empty) those of the others.
        """
        given = (temperature, central, candidates)
        if len(self.backbones) == 1:
            backbone = self.backbones[0]
            return backbone.policy.act(fast[backbone.name], tokens, lengths, legal, keys, self.own_ids(ids, 0), *given)
        answers = []
        for number, backbone in enumerate(self.backbones):
            own = self.own_ids(ids, number)
            mine = own >= 0

            def ask(backbone=backbone, own=own, mine=mine):
                read = jnp.where(mine[:, None], tokens[:, : backbone.row], 0)
                length = jnp.where(mine, lengths, 1 + len(backbone.prompt.prefix))
                return self._padded(backbone.policy.act(fast[backbone.name], read, length, legal, keys, own, *given))

            empty_decision = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(ask))
            answers.append((jnp.repeat(mine, candidates), jax.lax.cond(jnp.any(mine), ask, lambda s=empty_decision: s)))
        decision = answers[0][1]
        for mine, other in answers[1:]:
            pick = lambda a, b, mine=mine: jnp.where(mine.reshape(-1, *(1,) * (a.ndim - 1)), a, b)  # noqa: E731
            decision = jax.tree.map(pick, other, decision)
        return decision

    def _padded(self, decision: Decision) -> Decision:
        room = ((0, 0), (0, self.width - decision.answers.shape[1]))
        return decision._replace(answers=jnp.pad(decision.answers, room), logps=jnp.pad(decision.logps, room))

    def own_ids(self, ids: jax.Array, number: int) -> jax.Array:
        """Numbers of policies as the numbers of their adapters on one mind, -1 for everybody else's: int32 [...]."""
        backbone = self.backbones[number]
        place = [backbone.policies.index(name) if name in backbone.policies else -1 for name in self.policies]
        return jnp.asarray([*place, -1], jnp.int32)[ids]  # -1, a bot, is the last entry

    def own(self, samples: Samples, number: int) -> Samples:
        """The samples [...] for one mind to learn from: rows of its length, and weight 0 where another answered."""
        if len(self.backbones) == 1:
            return samples
        backbone = self.backbones[number]
        own = self.own_ids(samples.policy, number)
        mine = own >= 0
        only = lambda x, length: jnp.where(mine[..., None], x[..., :length], 0)  # noqa: E731
        width = backbone.policy.width
        short = ("answers", "logps", "values", "advantages", "returns")
        return samples.replace(
            tokens=only(samples.tokens, backbone.row),
            prompt_lengths=jnp.where(mine, samples.prompt_lengths, 1 + len(backbone.prompt.prefix)),
            answer_lengths=jnp.where(mine, samples.answer_lengths, 0),
            weights=samples.weights * mine,
            policy=own,
            **{name: only(getattr(samples, name), width) for name in short},
        )


def update_active_rows(update, train_state, rows: Samples, key: jax.Array, few: int, share: int) -> tuple:
    """`update(learner, rows, key)`, on the rows that teach something where `few` of them [N] are enough.

    Rows of other models, bots and frozen policies have weight 0 and would be read for nothing. How many there are is
    known only when the program runs, so it has both ways in it; runs of `share` rows stay together.
    """
    if few >= rows.n:
        return update(train_state, rows, key)
    active = jnp.max(rows.weights.reshape(-1, share), axis=1) > 0
    order = jnp.argsort(~active, stable=True)[: few // share]
    picked = (order[:, None] * share + jnp.arange(share)).reshape(-1)
    return jax.lax.cond(
        jnp.sum(active) * share <= few,
        lambda: update(train_state, take(rows, picked), key),
        lambda: update(train_state, rows, key),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Prompts:
    """The prompts of one game for several models; `seat_mind` says whose each seat reads."""

    prompts: tuple[Prompt, ...]
    seat_backbone: tuple[int, ...]

    @property
    def text(self) -> Any:
        """The game's text, which is the same for all."""
        return self.prompts[0].text

    @property
    def context(self) -> str:
        """The context, which is the same for all."""
        return self.prompts[0].context

    @property
    def opening_length(self) -> int:
        """T of `opening`: the longest of them."""
        return max(prompt.opening_length for prompt in self.prompts)

    def opening(self, state: Any, player: jax.Array) -> tuple[jax.Array, jax.Array]:
        """As `Prompt.opening`, in the tokens of the model that plays the seat."""
        rendered = [prompt.opening(state, player) for prompt in self.prompts]
        rows = jnp.stack([jnp.pad(tokens, (0, self.opening_length - tokens.shape[0])) for tokens, _ in rendered])
        backbone = jnp.asarray(np.asarray(self.seat_backbone, np.int32))[player]
        return rows[backbone], jnp.stack([length for _, length in rendered])[backbone]

    def opening_text(self, state: Any, player: int) -> str:
        """As `Prompt.opening_text`; chat formats differ between models."""
        return self.prompts[self.seat_backbone[player]].opening_text(state, player)
