"""From a config to the things a run is made of: game, text, tokenizer, policy, programs. Nothing is trained here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from envs.games import registry as games
from envs.games import text as texts
from envs.games.bots import Bot
from envs.games.game import Game
from envs.games.text import Prompt
from marl_jax.agents.policy import Free, LoraSpec, Policy
from marl_jax.agents.team import Backbone, Prompts, Team
from marl_jax.config.batches import check_batches
from marl_jax.devices import mesh as meshes
from marl_jax.errors import ConfigError
from marl_jax.modes import init_from as starts
from marl_jax.rollouts import opponents
from marl_jax.rollouts.curriculum import Graded, Rule
from marl_jax.rollouts.games import Rollout, make_sections
from marl_jax.rollouts.groups import GroupRollout
from marl_jax.rollouts.matches import Player
from marl_jax.rollouts.opponents import BOT
from marl_jax.rollouts.tree import TreeRollout
from marl_jax.sampling.choice import make_choices
from models import chat, fetch, tokenizers
from models import registry as models
from models.config import ModelConfig
from models.model import build
from models.tokenizers import Tokenizer
from models.weights.load import read_config


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """What a config stands for.

    team         the models, each with the policies that live on it
    seat_policy  for each seat, the number of the policy that plays it; -1 where a bot does
    seat_bots    for each seat, the bot to whom it belongs, or None
    """

    config: ConfigDict
    mesh: Mesh
    game: Game
    team: Team
    seat_policy: tuple[int, ...]
    seat_bots: tuple[Bot | None, ...]

    @property
    def sampling_mesh(self) -> Mesh:
        """The devices as they are arranged while games are played."""
        return meshes.for_sampling(self.mesh, self.config.mesh.sampling)

    @property
    def backbones(self) -> tuple[Backbone, ...]:
        """The models of the team."""
        return self.team.backbones

    @property
    def train_states(self) -> tuple[Backbone, ...]:
        """Those of them that learn."""
        return tuple(backbone for backbone in self.backbones if any(backbone.learns))

    @property
    def backbone(self) -> Backbone:
        """The only model, for what works with one at a time."""
        if len(self.backbones) > 1:
            names = ", ".join(f"{backbone.name} ({backbone.config.name})" for backbone in self.backbones)
            raise ConfigError([f"config.policies have models of their own: {names}; accepted here: one for all"])
        return self.backbones[0]

    @property
    def prompt(self) -> Prompt | Prompts:
        """What the seats read."""
        return self.team.prompt(self.seat_policy)

    # Of the only model:
    model = property(lambda self: self.backbone.model)
    tokenizer = property(lambda self: self.backbone.tokenizer)
    policy = property(lambda self: self.backbone.policy)

    def weights_at_start(self) -> tuple[dict, dict]:
        """`Mind.weights_at_start` of the only model."""
        return self.backbone.weights_at_start()

    def abstract(self) -> tuple[dict, dict]:
        """`Mind.abstract` of the only model."""
        return self.backbone.abstract()

    def rollout(self) -> Rollout | Graded:
        """The program that gathers samples, with a curriculum around it if there is one."""
        settings = {name: value for name, value in self.config.curriculum.items() if name != "enabled"}
        rollout = self.plain_rollout()
        if not self.config.curriculum.enabled:
            return rollout
        # GRPO plays the games of a rollout to their ends; others leave some to the next.
        return Graded(rollout, Rule(**settings, wait=0 if self.config.algo.name == "grpo" else self.game.max_turns))

    def plain_rollout(self) -> Rollout:
        """The program without a curriculum."""
        c = self.config
        bots = [opponents.make_bot(self.game, name) for name in c.opponents.bots]
        settings = dict(
            game=self.game,
            prompt=self.prompt,
            policy=self.team,
            sections=make_sections(c.rollout.games, c.opponents.self_play_frac, bots, c.opponents.bot_frac),
            turns=c.rollout.turns,
            seat_policy=self.seat_policy,
            seat_bots=self.seat_bots,
            learns=tuple(not c.policies[name].frozen for name in self.team.policies),
            symmetry=games.symmetry(self.game) if c.env.symmetry else None,
            weights=(c.reward.team, c.reward.agent, c.reward.process),
            dense=c.reward.dense,
            parse_failure_reward=c.rollout.parse_failure_reward,
        )
        if c.algo.name == "ppo":
            return Rollout(**settings)
        if c.algo.name == "grpo":
            return GroupRollout(**settings, candidates=c.algo.group_size)
        return TreeRollout(
            **settings, candidates=c.algo.group_size, continuation=c.algo.continuation, team_term=c.algo.team_term
        )

    def player(self, swapped: bool = False) -> Player:
        """The team as a contestant of matches; swapped, every seat is played by whoever has the one after it."""
        turn = lambda seats: (*seats[1:], seats[0]) if swapped else seats  # noqa: E731
        seat_policy = turn(self.seat_policy)
        spoken = tuple(self.backbones[self.team.backbone_of(policy)].tokenizer for policy in seat_policy)
        return Player(self.team, self.team.prompt(seat_policy), seat_policy, turn(self.seat_bots), spoken)

    def rows_to_learn(self, backbone: Backbone, n: int) -> int:
        """How many of n samples are a model's own where all seats move equally often, if so many make a batch."""
        algo, learning = self.config.algo, dict(zip(backbone.policies, backbone.learns, strict=True))
        seats = sum(policy >= 0 and learning.get(self.team.policies[policy], False) for policy in self.seat_policy)
        few = n * seats // self.game.n_players
        parts = algo.minibatches * algo.grad_accum_steps * backbone.policy.share * meshes.batch_ways(self.mesh)
        return n if few % parts else few

    def seat_names(self) -> tuple[str, ...]:
        """For each seat, who plays it: the name of the model, with that of the policy where there are several."""
        several = len(self.team.policies) > 1

        def name(seat: int, policy: int) -> str:
            if policy < 0:
                return seats[seat]
            model = self.backbones[self.team.backbone_of(policy)].config.name
            return f"{model} {self.team.policies[policy]}" if several else model

        seats = _seats(self.config, self.game)
        return tuple(name(seat, policy) for seat, policy in enumerate(self.seat_policy))


def make(
    config: ConfigDict,
    devices: Sequence[jax.Device] | None = None,
    find: Callable[[ConfigDict], tuple[ModelConfig, str | None, Tokenizer]] | None = None,
) -> Setup:
    """Builds everything that a config names; what does not fit together is refused here, before anything compiles.

    devices  those of the mesh; None: all
    find     from a model's config: its shape, the place of its weights, its tokenizer; None: `found`
    """
    mesh = meshes.make(config, devices)
    sample_mesh = meshes.for_sampling(mesh, config.mesh.sampling)
    check_batches(config, meshes.batch_ways(mesh), meshes.batch_ways(sample_mesh))
    game = games.make(config.env.name, **config.env.params.to_dict())
    policies = tuple(config.policies)
    backbones = tuple(
        _mind(config, number, chosen, names, game, mesh, find or found)
        for number, (chosen, names) in enumerate(models_of(config))
    )
    _check_tokenizers(config, backbones)
    seats = _seats(config, game)
    return Setup(
        config, mesh, game, Team(backbones, policies),
        seat_policy=tuple(-1 if name.startswith(BOT) else policies.index(name) for name in seats),
        seat_bots=tuple(opponents.make_bot(game, name[len(BOT) :]) if name.startswith(BOT) else None for name in seats),
    )  # fmt: skip


def models_of(config: ConfigDict) -> list[tuple[ConfigDict, tuple[str, ...]]]:
    """The models of a run, each with the names of its policies.

    Policies without a model of their own are adapters on the experiment's model, or, without LoRA, copies of it.
    """
    table: dict[str, tuple[ConfigDict, tuple[str, ...]]] = {}
    for name, policy in config.policies.items():
        own = policy.get("model")
        shared = not own and config.model.lora.rank
        key = "" if shared else name  # no policy has the empty name
        chosen, names = table.get(key, (own or config.model, ()))
        table[key] = (chosen, (*names, name))
    return list(table.values())


def _mind(config: ConfigDict, number: int, chosen: ConfigDict, names, game: Game, mesh: Mesh, find) -> Backbone:
    cfg, place, tokenizer = find(chosen)
    tokenizers.check_fits(tokenizer, cfg)
    parts = chat.chat_parts(tokenizer) if config.env.style == "chat" else None
    prompt = texts.make(game, config.env.text).compile(tokenizer, parts, config.env.context)
    built = build(cfg)
    start = starts.find(chosen.init_from, names[0])
    if start is not None:
        adapters = chosen.lora.to_dict() if chosen.lora.rank else {}
        starts.check(start, chosen.name, chosen.shape.to_dict(), adapters, names)
    learns = tuple(not config.policies[name].frozen for name in names)
    lora = chosen.lora
    policy = Policy(
        model=built,
        choices=make_choices(_names(prompt), tokenizer.eos_id),
        prefix=prompt.prefix,
        lora=LoraSpec(len(names), lora.rank, lora.alpha, tuple(lora.targets), learns) if lora.rank else None,
        critic=config.algo.get("critic", "none"),
        dtype=jnp.dtype(chosen.dtype),
        remat=chosen.remat,
        unroll=chosen.unroll,
        temperature=config.rollout.temperature,
        free=_free(config, prompt, tokenizer) if config.rollout.answer == "free" else None,
        fuse=meshes.for_sampling(mesh, config.mesh.sampling).shape["tensor"] == 1,
        warm=start is not None and start.lora,
        share=config.algo.group_size if config.algo.name == "at_grpo" else 1,
    )
    return Backbone(
        names[0], names, learns, chosen, place, built, tokenizer, prompt, policy, mesh,
        number=number, seed=config.seed, reference=config.algo.kl_coef > 0, start=start,
    )  # fmt: skip


def _check_tokenizers(config: ConfigDict, backbones: tuple[Backbone, ...]) -> None:
    """Refuses modes in which one model reads what was written for another, where their tokenizers differ."""
    if len({backbone.tokenizer.fingerprint for backbone in backbones}) == 1:
        return
    words = ", ".join(f"{backbone.name} has that of {backbone.config.name}" for backbone in backbones)
    if config.algo.get("critic") == "central":
        raise ConfigError(
            [
                "config.algo.critic is 'central', which reads the prompts of all seats, and the tokenizers of the "
                f"policies differ ({words}); accepted: 'head', 'separate', or models with one tokenizer"
            ]
        )


def found(config: ConfigDict) -> tuple[ModelConfig, str | None, Tokenizer]:
    """The shape of a model, the place of its weights and its tokenizer, fetched where they are missing."""
    cfg, place = _model_config(config)
    return cfg, place, tokenizers.load(place or config.name)


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
    longest, limit = int(prompt.action_lengths.max()), config.rollout.max_new_tokens
    if longest > limit:
        problem = f"config.rollout.max_new_tokens is {limit}, and the longest answer has {longest} tokens"
        raise ConfigError([f"{problem}; accepted: {longest} and more"])
    return Free(prompt.action_ids, prompt.action_lengths, tokenizer.stop_ids, limit)


def _seats(config: ConfigDict, game: Game) -> list[str]:
    """For each seat, who plays it: the name of a policy, or bot:NAME."""
    agents, roles = config.agents, getattr(game, "roles", [f"seat_{i}" for i in range(game.n_players)])
    return [agents.get(f"seat_{i}", agents.get(role, agents.get("all"))) for i, role in enumerate(roles)]
