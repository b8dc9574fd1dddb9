"""From a config to the things a run is made of: game, text, tokenizer, policy, programs. Nothing is trained here."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from envs import registry as games
from envs import text as texts
from envs.bots import Bot
from envs.game import Game
from envs.text import Prompt
from marl_jax import mesh as meshes
from marl_jax import opponents
from marl_jax.errors import ConfigError
from marl_jax.group_rollout import GroupRollout
from marl_jax.matches import Player
from marl_jax.policy import Free, LoraSpec, Policy
from marl_jax.rollout import Rollout, make_sections
from marl_jax.sampling.choice import make_choices
from marl_jax.tree_rollout import TreeRollout
from models import chat, fetch, tokenizers
from models import registry as models
from models.config import ModelConfig
from models.model import Model, build
from models.sharding import param_shardings
from models.tokenizers import Tokenizer
from models.weights.load import load, read_config

BOT = "bot:"  # in front of a bot's name where a policy's name could stand


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """What a config stands for; `weights` is the path of the model's weights, None for a model from scratch."""

    config: ConfigDict
    mesh: Mesh
    game: Game
    prompt: Prompt
    tokenizer: Tokenizer
    model: Model
    policy: Policy
    policies: tuple[str, ...]
    seat_policy: tuple[int, ...]
    seat_bots: tuple[Bot | None, ...]
    weights: str | None

    def params(self, key: jax.Array) -> dict:
        """The model's parameters: read, or random; split over the mesh as its rules say."""
        dtype = jnp.dtype(self.config.model.param_dtype)
        shardings = param_shardings(self.mesh, self.model.axes(), self.model.abstract(dtype))
        if self.weights is not None:
            return load(self.weights, self.model.cfg, dtype, shardings)[1]
        return jax.jit(lambda k: self.model.init(k, dtype), out_shardings=shardings)(key)

    @property
    def reference(self) -> bool:
        """Whether the update compares with the policy at the start."""
        return self.config.algo.kl_coef > 0

    def weights_at_start(self) -> tuple[dict, dict]:
        """(what is trained, what is only read), from the seed and the model's weights."""
        model_key, adapter_key = jax.random.split(jax.random.key(self.config.seed))
        return self.policy.init(self.params(model_key), adapter_key, self.reference)

    def abstract(self) -> tuple[dict, dict]:
        """Shapes, dtypes and shardings of `weights_at_start`."""
        dtype = jnp.dtype(self.config.model.param_dtype)
        make = lambda p, k: self.policy.init(p, k, self.reference)  # noqa: E731
        shapes = jax.eval_shape(make, self.model.abstract(dtype), jax.random.key(0))
        placed = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
        return tuple(
            jax.tree.map(placed, tree, param_shardings(self.mesh, axes, tree))
            for axes, tree in zip(self.policy.axes(self.reference), shapes, strict=True)
        )

    def rollout(self) -> Rollout:
        """The program that gathers samples."""
        c = self.config
        bots = [opponents.make_bot(self.game, name) for name in c.opponents.bots]
        settings = dict(
            game=self.game,
            prompt=self.prompt,
            policy=self.policy,
            sections=make_sections(c.rollout.games, c.opponents.self_share, bots, c.opponents.bot_share),
            turns=c.rollout.turns,
            seat_policy=self.seat_policy,
            seat_bots=self.seat_bots,
            learns=tuple(not c.policies[name].frozen for name in self.policies),
            symmetry=games.symmetry(self.game) if c.env.symmetry else None,
            weights=(c.reward.team, c.reward.agent, c.reward.process),
            dense=c.reward.dense,
            unusable=c.rollout.parse_failure_reward,
        )
        if c.algo.name == "ppo":
            return Rollout(**settings)
        if c.algo.name == "grpo":
            return GroupRollout(**settings, candidates=c.algo.group)
        return TreeRollout(
            **settings, candidates=c.algo.group, continuation=c.algo.continuation, team_term=c.algo.team_term
        )

    def player(self) -> Player:
        """The policy as a contestant of matches."""
        return Player(self.policy, self.prompt, self.seat_policy, self.seat_bots)

    def place_rows(self, tree: Any) -> Any:
        """Arrays [B, …] split over the mesh by their rows."""
        rows = NamedSharding(self.mesh, PartitionSpec(("data", "fsdp")))
        return jax.tree.map(lambda x: jax.device_put(x, rows), tree)


def make(config: ConfigDict) -> Setup:
    """Builds everything that a config names; what does not fit together is refused here, before anything compiles."""
    if config.env.context != "turn":
        raise ConfigError([f"config.env.context is {config.env.context!r}; in games every prompt stands alone: 'turn'"])
    mesh = meshes.make(config)
    meshes.check_batches(config, meshes.batch_ways(mesh))
    game = games.make(config.env.name, **config.env.params.to_dict())
    cfg, place = _model_config(config.model)
    tokenizer = tokenizers.load(place or config.model.name)
    tokenizers.check_fits(tokenizer, cfg)
    parts = chat.chat_parts(tokenizer) if config.env.style == "chat" else None
    prompt = texts.make(game, config.env.text).compile(tokenizer, parts, config.env.context)
    model = build(cfg)
    policies = tuple(config.policies)
    lora = config.model.lora
    policy = Policy(
        model=model,
        choices=make_choices(_names(prompt), tokenizer.eos_id),
        prefix=prompt.prefix,
        lora=LoraSpec(len(policies), lora.rank, lora.alpha, tuple(lora.targets)) if lora.rank else None,
        critic=config.algo.critic,
        dtype=jnp.dtype(config.model.dtype),
        remat=config.model.remat,
        temperature=config.rollout.temperature,
        free=_free(config, prompt, tokenizer) if config.rollout.answer == "free" else None,
        fuse=mesh.shape["tensor"] == 1,
        share=config.algo.group if config.algo.share_prefix else 1,
    )
    seats = _seats(config, game)
    return Setup(
        config, mesh, game, prompt, tokenizer, model, policy, policies,
        seat_policy=tuple(-1 if name.startswith(BOT) else policies.index(name) for name in seats),
        seat_bots=tuple(opponents.make_bot(game, name[len(BOT) :]) if name.startswith(BOT) else None for name in seats),
        weights=place,
    )  # fmt: skip


def _model_config(config: ConfigDict) -> tuple[ModelConfig, str | None]:
    """The shape of the model and the place of its weights (None: from scratch)."""
    shape = config.shape.to_dict()
    if config.weights == "random":
        return dataclasses.replace(models.get(config.name).config, **shape), None
    if shape:
        raise ConfigError([f"config.model.shape is {shape}, but the weights bring their own shape; accepted: nothing"])
    place = config.weights or fetch.ensure(config.name)
    if place is None:
        raise ConfigError([f"config.model.weights is '', {config.name} has no published weights; accepted: 'random'"])
    return read_config(place), str(place)


def _names(prompt: Prompt) -> list[list[int]]:
    return [row[:n].tolist() for row, n in zip(prompt.action_ids, prompt.action_lengths, strict=True)]


def _free(config: ConfigDict, prompt: Prompt, tokenizer: Tokenizer) -> Free:
    return Free(prompt.action_ids, prompt.action_lengths, tokenizer.stop_ids, config.rollout.max_new_tokens)


def _seats(config: ConfigDict, game: Game) -> list[str]:
    """For each seat, who plays it: the name of a policy, or bot:NAME."""
    agents, roles = config.agents, getattr(game, "roles", [f"seat_{i}" for i in range(game.n_players)])
    return [agents.get(f"seat_{i}", agents.get(role, agents.get("all"))) for i, role in enumerate(roles)]
