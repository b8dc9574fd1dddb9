"""From a config to the parts a run is made of: game, texts, tokenizers, policies, rollout. Nothing is trained here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from envs.games import registry as games
from envs.games import text as texts
from envs.games.bots import Bot, bot_names, make_bot
from envs.games.game import Game
from envs.games.parser import make_parser
from envs.games.text import Prompt
from marl_jax.agents.answers import Answers, Constrained, FreeText
from marl_jax.agents.policy import LoraSpec, Policy
from marl_jax.agents.seating import BOT, Seating, seat_names
from marl_jax.agents.team import Backbone, Team
from marl_jax.algorithms import ALGORITHMS
from marl_jax.algorithms.algorithm import Algorithm
from marl_jax.config.batches import check_batches
from marl_jax.devices import mesh as meshes
from marl_jax.errors import ConfigError
from marl_jax.modes import init_from
from marl_jax.rollouts.curriculum import Curriculum, LadderRule
from marl_jax.rollouts.matches import SeatedTeam
from marl_jax.rollouts.opponents import Opponents, make_sections
from marl_jax.sampling.choice import make_choices
from models import chat, fetch, tokenizers
from models import registry as models
from models.config import ModelConfig
from models.model import build
from models.tokenizers import Tokenizer
from models.weights.load import read_config


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """What a config stands for: algorithm, mesh, game, models with their policies, and who sits where."""

    config: ConfigDict
    mesh: Mesh
    game: Game
    team: Team
    seating: Seating
    algorithm: Algorithm

    @property
    def sample_mesh(self) -> Mesh:
        """The devices as they are arranged while answers are sampled."""
        return meshes.for_sampling(self.mesh, self.config.mesh.sampling)

    @property
    def backbones(self) -> tuple[Backbone, ...]:
        """The models of the team."""
        return self.team.backbones

    @property
    def trained_backbones(self) -> tuple[Backbone, ...]:
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
    def rollout(self) -> Any:
        """What gathers the samples, with a curriculum around it if there is one."""
        rollout, c = self.algorithm.rollout(self), self.config.curriculum
        if not c.enabled:
            return rollout
        settings = {name: value for name, value in c.items() if name != "enabled"}
        # Where games go on from rollout to rollout, those of the grade before are still ending after a change.
        wait = self.game.max_turns if rollout.games_go_on else 0
        return Curriculum(rollout, LadderRule(**settings, wait=wait))

    def rollout_settings(self) -> dict[str, Any]:
        """The arguments that all rollouts of games share."""
        c = self.config
        return dict(
            game=self.game,
            team=self.team,
            rows=c.rollout.games,
            turns=c.rollout.turns,
            seating=self.seating,
            learns=tuple(not c.policies[name].frozen for name in self.team.policies),
            symmetry=games.symmetry(self.game) if c.env.symmetry else None,
            reward_weights=(c.reward.team, c.reward.agent, c.reward.process),
            dense=c.reward.dense,
            parse_failure_reward=c.rollout.parse_failure_reward,
            history_turns=c.env.history_turns if c.env.context == "history" else 0,
            history_tokens=c.env.history_tokens,
        )

    def opponents(self) -> Opponents | None:
        """Who sits opposite the learner; None where it only meets itself."""
        o = self.config.opponents
        bots = [make_bot(self.game, name) for name in o.bots]
        sections = make_sections(self.config.rollout.games, o.self_play_frac, bots, o.bot_frac)
        if sections.own == sections.rows and not o.pool_size:
            return None
        return Opponents(sections, o.pool_size, o.snapshot_every, o.prioritised)

    def demonstrator(self) -> Bot:
        """The bot that is imitated: that of the config, or the best that the game has."""
        name = self.config.algo.bot or bot_names(self.config.env.name)[-1]
        return make_bot(self.game, name)

    def seated(self, swapped: bool = False) -> SeatedTeam:
        """The team as a contestant of matches; swapped, every seat is played by whoever has the one after it."""
        return SeatedTeam(self.team, self.seating.swapped() if swapped else self.seating)

    def max_active_rows(self, backbone: Backbone, n: int) -> int:
        """How many of n rows are a model's own where all seats move equally often, if so many make a batch."""
        algo, learning = self.config.algo, dict(zip(backbone.policies, backbone.learns, strict=True))
        policies = [self.seating.policies(seat) for seat in range(self.game.n_players)]
        seats = sum(any(learning.get(self.team.policies[p], False) for p in found) for found in policies)
        most = n * seats // self.game.n_players
        parts = algo.minibatches * algo.grad_accum_steps * meshes.batch_ways(self.mesh)
        return n if most % parts else most

    def seat_labels(self) -> tuple[str, ...]:
        """For each seat, who plays it: the name of the model, with that of the policy where there are several."""
        several = len(self.team.policies) > 1

        def label(seat: int, name: str) -> str:
            if not self.seating.policies(seat):
                return name
            policy = self.seating.policies(seat)[0]
            model = self.backbones[int(self.team.backbone_of(policy))].config.name
            return f"{model} {self.team.policies[policy]}" if several else model

        return tuple(label(seat, names[0]) for seat, names in enumerate(_names_of_seats(self.config, self.game)))


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
    algorithm = ALGORITHMS.get(config.algo.name)
    policies = tuple(config.policies)
    backbones = tuple(
        _backbone(config, algorithm, number, chosen, names, game, mesh, find or found)
        for number, (chosen, names) in enumerate(models_of(config))
    )
    _check_tokenizers(config, backbones)
    return Setup(config, mesh, game, Team(backbones, policies), _seating(config, game, policies), algorithm)


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


def _backbone(
    config: ConfigDict, algorithm: Algorithm, number: int, chosen: ConfigDict, names, game: Game, mesh: Mesh, find
) -> Backbone:
    cfg, place, tokenizer = find(chosen)
    tokenizers.check_fits(tokenizer, cfg)
    parts = chat.chat_parts(tokenizer) if config.env.style == "chat" else None
    prompt = texts.make(game, config.env.text).compile(
        tokenizer, parts, config.env.context, free=config.rollout.answer == "free"
    )
    built = build(cfg)
    source = init_from.find(chosen.init_from, names[0])
    if source is not None:
        adapters = chosen.lora.to_dict() if chosen.lora.rank else {}
        init_from.check(source, chosen.name, chosen.shape.to_dict(), adapters, names)
    learns = tuple(not config.policies[name].frozen for name in names)
    lora = chosen.lora
    policy = Policy(
        model=built,
        answers=_answers(config, prompt, tokenizer),
        rules=prompt.prefix,
        lora=LoraSpec(len(names), lora.rank, lora.alpha, tuple(lora.targets), learns) if lora.rank else None,
        critic=config.algo.critic if algorithm.critic else "none",
        dtype=jnp.dtype(chosen.dtype),
        remat=chosen.remat,
        unroll=chosen.unroll,
        temperature=config.rollout.temperature,
        fuse=meshes.for_sampling(mesh, config.mesh.sampling).shape["tensor"] == 1,
        warm=source is not None and source.lora,
        keeps_cache=config.env.context == "history",
    )
    return Backbone(
        names[0], names, learns, chosen, place, built, tokenizer, prompt, policy, mesh,
        number=number, seed=config.seed, reference=config.algo.get("kl_coef", 0) > 0, source=source,
    )  # fmt: skip


def _check_tokenizers(config: ConfigDict, backbones: tuple[Backbone, ...]) -> None:
    """Refuses modes in which one model reads what was written for another, where their tokenizers differ."""
    if len({backbone.tokenizer.fingerprint for backbone in backbones}) == 1:
        return
    words = ", ".join(f"{backbone.name} has that of {backbone.config.name}" for backbone in backbones)
    if config.algo.get("critic", "none") == "central":
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


def _answers(config: ConfigDict, prompt: Prompt, tokenizer: Tokenizer) -> Answers:
    """How the policies answer."""
    if config.rollout.answer == "constrained":
        names = [row[:n].tolist() for row, n in zip(prompt.action_ids, prompt.action_lengths, strict=True)]
        return Constrained(make_choices(names, tokenizer.eos_id), prompt.action_lengths)
    longest, limit = int(prompt.action_lengths.max()), config.rollout.max_new_tokens
    if longest > limit:
        problem = f"config.rollout.max_new_tokens is {limit}, and the longest answer has {longest} tokens"
        raise ConfigError([f"{problem}; accepted: {longest} and more"])
    parse = make_parser(prompt.text.names, tokenizer.token_bytes(skip_special=True))
    return FreeText(parse, prompt.action_ids, prompt.action_lengths, tokenizer.stop_ids, limit)


def _names_of_seats(config: ConfigDict, game: Game) -> list[tuple[str, ...]]:
    return seat_names(config.agents, game.seat_names)


def _seating(config: ConfigDict, game: Game, policies: tuple[str, ...]) -> Seating:
    seats = _names_of_seats(config, game)
    bots = [names[0].removeprefix(BOT) if names[0].startswith(BOT) else None for names in seats]
    return Seating(
        table=tuple(tuple(-1 if name.startswith(BOT) else policies.index(name) for name in names) for names in seats),
        bots=tuple(None if name is None else make_bot(game, name) for name in bots),
    )
