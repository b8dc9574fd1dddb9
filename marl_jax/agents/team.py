"""A team: the models of all policies, and the prompts that each of them reads.

    L1  one policy for all seats                               one backbone, one set of weights
    L2  one policy per role, as LoRA adapters on one base      one backbone; each row selects its adapter
    L3  separate models, of any architecture and tokenizer,    one backbone per model, each with a tokenizer,
        or copies of one model trained separately              prompts, weights, optimizer and samples

Weights are a dict by backbone name. With several backbones, each seat uses the tokens of its model, in rows padded to
the longest. For learning, `Team.own` extracts the samples of one backbone.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from envs.games.medium import Medium
from envs.games.template import join
from envs.games.text import Prompt
from marl_jax.agents import answering
from marl_jax.agents.answering import Decision
from marl_jax.agents.policy import Policy
from marl_jax.devices import placement
from marl_jax.devices.aot import SharedPrograms, compiler_options_once
from marl_jax.samples import Samples, row_length
from models import messages
from models.model import Model, build
from models.sharding import param_shardings
from models.tokenizers import Tokenizer
from models.weights.load import load, read_config


class WeightSource(Protocol):
    """Initial weights of a backbone from another run (`setup/warm_start.py`)."""

    @property
    def lora(self) -> bool:
        """Whether that run trained adapters."""
        ...

    @property
    def resumed(self) -> bool:
        """Whether the present run already has checkpoints."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """Step, model and checksum of the weights, for checkpoints of the present run."""
        ...

    def params(self, backbone: Backbone) -> dict:
        """Return the model's parameters in the backbone's dtype and on its mesh."""
        ...

    def adapters(self, backbone: Backbone) -> dict | None:
        """Return the initial adapters; None if that run trained all weights."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Backbone:
    """A base model with its policies.

    Attributes:
        name: Name of the first policy.
        policies: Names of the policies; several if they are LoRA adapters.
        learns: Whether each policy is trained.
        config: The model's config.
        place: Path of the weights; None for random initialization.
        model: The model.
        tokenizer: Its tokenizer.
        prompt: Rendering of a game for its policies; None for tasks.
        policy: Settings for using the model as a policy.
        mesh: The mesh of its weights.
        number: Index in the team.
        seed: Random seed of the run.
        reference: Whether the update compares with the initial policy.
        source: Run that provides the initial weights, or None.
        programs: Programs of the run.
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
    programs: SharedPrograms = dataclasses.field(default_factory=SharedPrograms)

    @property
    def game_prompt(self) -> Prompt:
        """Rendering of the game; games only."""
        assert self.prompt is not None
        return self.prompt

    @property
    def prompt_length(self) -> int:
        """Maximum number of prompt tokens after the prefix, with a soft message."""
        return self.game_prompt.opening_length - len(self.policy.prefix) + self.policy.message_tokens

    @property
    def row(self) -> int:
        """Length T of a row of prompt and completion."""
        return row_length(self.prompt_length, self.policy.width)

    def opening(self, state: Any, seat: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Render the prompt of an independent turn, after the prefix: int32 [T'] and its length."""
        prompt = self.game_prompt
        return prompt.suffix(state, seat) if self.policy.prefix else prompt.opening(state, seat)

    def params(self, key: jax.Array) -> dict:
        """Load the model's parameters, or initialize them randomly, sharded over the mesh."""
        if self.source is not None:
            return self.source.params(self)
        dtype = jnp.dtype(self.config.param_dtype)
        shardings = param_shardings(self.mesh, self.model.axes(), self.model.abstract(dtype))
        if self.place is not None:
            return self._loaded(self.place, key, dtype, shardings)
        settings: dict[str, Any] = dict(out_shardings=shardings, compiler_options=compiler_options_once())
        init = self.programs.get(("model", self.name), lambda: jax.jit(lambda k: self.model.init(k, dtype), **settings))
        return init(key)

    def _loaded(self, place: str, key: jax.Array, dtype: Any, shardings: dict) -> dict:
        """Load the parameters; with files of a text model, the encoder is new.

        Parameters of soft messages are always new, because no files have them.
        """
        cfg, encoder = self.model.cfg, self.model.vision
        if cfg.message_tokens:
            placed = dict(shardings)
            settings: dict[str, Any] = dict(out_shardings=placed.pop("message"))
            text = dataclasses.replace(self, model=build(dataclasses.replace(cfg, message_tokens=0)))
            params = text._loaded(place, key, dtype, placed)
            fresh = jax.jit(functools.partial(messages.init, cfg), **settings)
            return {**params, "message": fresh(jax.random.fold_in(key, 2), params["embed"])}
        if encoder is None or read_config(place).vision is not None:
            return load(place, cfg, dtype, shardings)[1]
        placed = dict(shardings)
        settings: dict[str, Any] = dict(out_shardings=placed.pop("vision"), compiler_options=compiler_options_once())
        init = self.programs.get(("encoder", self.name), lambda: jax.jit(lambda k: encoder.init(k, dtype), **settings))
        text = load(place, dataclasses.replace(cfg, vision=None), dtype, placed)[1]
        return {**text, "vision": init(jax.random.fold_in(key, 1))}

    def keys(self) -> jax.Array:
        """Return PRNG keys [2] for the model's parameters and for its adapters."""
        key = jax.random.key(self.seed)
        # Copies of one model start from different weights.
        key = jax.random.fold_in(key, self.number) if self.number else key
        return jax.random.split(key)

    def weights_at_start(self) -> tuple[dict, dict]:
        """Return the initial trained and frozen weights."""
        model_key, adapter_key = self.keys()
        adapters = None if self.source is None else self.source.adapters(self)

        def make(params, key, adapters):
            return self._sorted(*self.policy.init(params, key, self.reference, adapters))

        # Donated, so that a large model is not in memory twice.
        shardings = placement.shardings_of(self.abstract())
        jitted = functools.partial(jax.jit, make, donate_argnums=(0, 2), out_shardings=shardings)
        program = self.programs.get(("weights", self.name), jitted)
        return program(self.params(model_key), adapter_key, adapters)

    def abstract(self) -> tuple[dict, dict]:
        """Return the shapes, dtypes and shardings of `weights_at_start`."""
        dtype = jnp.dtype(self.config.param_dtype)
        make = functools.partial(self.policy.init, reference=self.reference)
        shapes = self._sorted(*jax.eval_shape(make, self.model.abstract(dtype), jax.random.key(0)))
        placed = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
        return tuple(
            jax.tree.map(placed, tree, param_shardings(self.mesh, axes, tree))
            for axes, tree in zip(self._sorted(*self.policy.axes(self.reference)), shapes, strict=True)
        )

    def _sorted(self, trained: dict, frozen: dict) -> tuple[dict, dict]:
        """Treat all weights as frozen if no policy is trained.

        Then there is no optimizer and no critic, and checkpoints contain none of the weights.
        """
        return (trained, frozen) if any(self.learns) else ({}, self.policy.acting_params({**frozen, **trained}))


@dataclasses.dataclass(frozen=True, eq=False)
class Team:
    """All backbones of a run.

    Attributes:
        backbones: The backbones.
        policies: Names of all policies. The index of a policy is its position here.
    """

    backbones: tuple[Backbone, ...]
    policies: tuple[str, ...]

    @property
    def width(self) -> int:
        """Maximum number of tokens W of a completion, over all backbones."""
        return max(backbone.policy.width for backbone in self.backbones)

    @property
    def critic(self) -> str:
        """Kind of critic, which is the same for all backbones."""
        return self.backbones[0].policy.critic

    @property
    def medium(self) -> Medium | None:
        """Media in prompts, which all backbones share; None for text."""
        return self.backbones[0].policy.medium

    @property
    def message(self) -> str:
        """Kind of soft messages; "" for none."""
        return self.backbones[0].policy.message

    @property
    def message_tokens(self) -> int:
        """Number of tokens of a soft message."""
        return self.backbones[0].policy.message_tokens

    @property
    def prompts(self) -> Prompts:
        """Rendering of prompts for all seats."""
        return Prompts(self)

    def playable(self, action: jax.Array, legal: jax.Array, keys: jax.Array) -> jax.Array:
        """See `CompletionFormat.playable`; all policies have the same format."""
        return self.backbones[0].policy.answers.playable(action, legal, keys)

    def backbone_of(self, policy: jax.Array | int) -> jax.Array:
        """Return the backbone index of policies, int32 [...]; 0 for bots (-1)."""
        numbers = [next(i for i, b in enumerate(self.backbones) if name in b.policies) for name in self.policies]
        return jnp.asarray([*numbers, 0], jnp.int32)[policy]  # -1 is the last entry

    def acting_params(self, weights: dict[str, dict]) -> dict[str, dict]:
        """Apply `Policy.acting_params` to every backbone."""
        return {b.name: b.policy.acting_params(weights[b.name]) for b in self.backbones}

    def snapshot(self, weights: dict[str, dict]) -> dict[str, dict]:
        """Return the trainable parameters of every backbone, as stored in a pool of past policies.

        These are the adapters without their base, or the full model. Frozen backbones have none.
        """
        return {b.name: self._learnt(b, self.acting_params(weights)[b.name]) for b in self.backbones}

    @staticmethod
    def _learnt(backbone: Backbone, acting: dict) -> dict:
        """Select the trainable parameters of a backbone."""
        kept = ("adapters",) if backbone.policy.lora else ("model",)
        return {name: acting[name] for name in kept if any(backbone.learns)}

    def with_snapshot(self, weights: dict[str, dict], snapshot: dict[str, dict]) -> dict[str, dict]:
        """Apply `Policy.with_snapshot` to every backbone."""
        return {b.name: b.policy.with_snapshot(weights[b.name], snapshot[b.name]) for b in self.backbones}

    def sampling_layout(self, weights: dict[str, dict]) -> dict[str, dict]:
        """Apply `Policy.sampling_layout` to every backbone in `weights`."""
        return {b.name: b.policy.sampling_layout(weights[b.name]) for b in self.backbones if b.name in weights}

    def prepare_for_sampling(self, weights: dict[str, dict]) -> dict[str, dict]:
        """Apply `Policy.prepare_for_sampling` to every backbone."""
        return {b.name: b.policy.prepare_for_sampling(weights[b.name]) for b in self.backbones}

    def act(
        self,
        prepared: dict[str, dict],
        tokens: jax.Array,
        lengths: jax.Array,
        legal: jax.Array,
        keys: jax.Array,
        ids: jax.Array,
        temperature: float | None = None,
        central: tuple[jax.Array, jax.Array] | None = None,
        candidates: int = 1,
        media: jax.Array | None = None,
    ) -> Decision:
        """Apply `answering.act`, where each row uses the model of its policy.

        A backbone without rows is not run. If all rows have the same mover, as with planner and executor, a turn costs
        one forward pass regardless of the number of models. If movers are mixed, every model processes all rows, with
        empty ones in place of the others'.

        Args:
            prepared: Weights from `prepare_for_sampling`.
            tokens: int32 [B, T], each row in the tokens of its model.
            lengths: int32 [B].
            legal: bool [B, A].
            keys: PRNG keys [B], or [B·K] with K candidates.
            ids: int32 [B], policy indices.
            temperature: See `answering.act`.
            central: See `answering.act`.
            candidates: See `answering.act`.
            media: See `answering.act`.
        """
        given = (temperature, central, candidates, media)
        if len(self.backbones) == 1:
            one = self.backbones[0]
            ids = self.own_ids(ids, 0)
            return answering.act(one.policy, prepared[one.name], tokens, lengths, legal, keys, ids, *given)
        answers = []
        for number, backbone in enumerate(self.backbones):
            own = self.own_ids(ids, number)
            acts = own >= 0

            def ask(backbone=backbone, own=own, acts=acts):
                read = jnp.where(acts[:, None], tokens[:, : backbone.row], 0)
                length = jnp.where(acts, lengths, 1)
                weights = prepared[backbone.name]
                return self.padded(answering.act(backbone.policy, weights, read, length, legal, keys, own, *given))

            empty_decision = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(ask))
            answers.append((jnp.repeat(acts, candidates), jax.lax.cond(jnp.any(acts), ask, lambda s=empty_decision: s)))
        decision = answers[0][1]
        for acts, other in answers[1:]:
            pick = lambda a, b, acts=acts: jnp.where(acts.reshape(-1, *(1,) * (a.ndim - 1)), a, b)  # noqa: E731
            decision = jax.tree.map(pick, other, decision)
        return decision

    def padded(self, decision: Decision) -> Decision:
        """Pad the completions of one backbone to the width of the team."""
        room = ((0, 0), (0, self.width - decision.answers.shape[1]))
        return decision._replace(answers=jnp.pad(decision.answers, room), logps=jnp.pad(decision.logps, room))

    def own_ids(self, ids: jax.Array, number: int) -> jax.Array:
        """Convert policy indices to adapter indices of one backbone, int32 [...]; -1 for all others."""
        backbone = self.backbones[number]
        place = [backbone.policies.index(name) if name in backbone.policies else -1 for name in self.policies]
        return jnp.asarray([*place, -1], jnp.int32)[ids]  # -1, a bot, is the last entry

    def own(self, samples: Samples, number: int) -> Samples:
        """Return the samples of one backbone.

        Rows of other backbones get weight 0 and empty tokens.
        """
        if len(self.backbones) == 1:
            return samples
        own = self.own_ids(samples.policy, number)
        is_own = (own >= 0)[:, None]
        backbone = self.backbones[number]
        skip = len(backbone.policy.prefix)
        alone = skip + jnp.arange(samples.tokens.shape[1], dtype=jnp.int32)
        samples = samples.replace(
            tokens=jnp.where(is_own, samples.tokens, 0),
            positions=jnp.where(is_own, samples.positions, alone),
            lengths=jnp.where(is_own[:, 0], samples.lengths, 1),
            completion_lengths=jnp.where(is_own, samples.completion_lengths, 0),
            completion_of=jnp.where(is_own, samples.completion_of, -1),
            logits_index=jnp.where(is_own, samples.logits_index, 0),
            targets=jnp.where(is_own, samples.targets, 0),
            context_len=jnp.where(is_own, samples.context_len, skip + 1),
            loss_weights=samples.loss_weights * is_own,
            policy=own,
        )
        return self._cropped(samples, backbone)

    def _cropped(self, samples: Samples, backbone: Backbone) -> Samples:
        """Crop rows and completions to the lengths of one backbone; those of tasks stay unchanged."""
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
    """Prompts of a game, each in the tokens of the model that reads it."""

    team: Team

    @property
    def length(self) -> int:
        """Maximum number of prompt tokens after the prefix, over all backbones."""
        return max(backbone.prompt_length for backbone in self.team.backbones)

    def skip(self, policy: jax.Array) -> jax.Array:
        """Return the length of the common prefix of these policies, int32 [...]."""
        prefixes = jnp.asarray([len(backbone.policy.prefix) for backbone in self.team.backbones], jnp.int32)
        return prefixes[self.team.backbone_of(policy)]

    def opening(self, state: Any, seat: jax.Array, policy: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Render the prompt of an independent turn, int32 [T] right-padded, and its length."""
        return self._picked([backbone.opening(state, seat) for backbone in self.team.backbones], policy)

    def following(
        self, said: jax.Array, said_length, pending: jax.Array, pending_length, seat: jax.Array, policy: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Render the tokens that a later turn appends to a conversation.

        Args:
            said: int32 [W], the previous completion.
            said_length: Its length.
            pending: Tokens of the events since then.
            pending_length: Their number.
            seat: The seat to move.
            policy: Its policy.

        Returns:
            int32 [T], right-padded, and its length.
        """
        rendered = []
        for backbone in self.team.backbones:
            more = backbone.game_prompt.next(pending, pending_length, seat)
            rendered.append(join([(said, said_length), more], backbone.game_prompt.pad_id))
        return self._picked(rendered, policy)

    def event(self, before: Any, action: jax.Array, after: Any, seat: jax.Array, policy: jax.Array):
        """Render a move from the view of a seat, int32 [T] right-padded, and its length."""
        rendered = [backbone.game_prompt.event(before, action, after, seat) for backbone in self.team.backbones]
        return self._picked(rendered, policy)

    def _picked(self, rendered: list, policy: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Select the text in the tokens of the policy's backbone."""
        if len(rendered) == 1:
            return rendered[0]
        width = max(tokens.shape[0] for tokens, _ in rendered)
        rows = jnp.stack([jnp.pad(tokens, (0, width - tokens.shape[0])) for tokens, _ in rendered])
        number = self.team.backbone_of(policy)
        return rows[number], jnp.stack([length for _, length in rendered])[number]

    def opening_text(self, state: Any, seat: int, policy: int) -> str:
        """Return the text of an opening prompt; chat templates differ between models."""
        return self.team.backbones[int(self.team.backbone_of(policy))].game_prompt.opening_text(state, seat)
