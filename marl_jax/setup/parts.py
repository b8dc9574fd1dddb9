"""Parts of every run: algorithm, mesh, models, policies and seating."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from marl_jax.agents.policy import LoraSpec, Policy
from marl_jax.agents.seating import Seating, seat_names
from marl_jax.agents.team import Backbone, Team
from marl_jax.algorithms.algorithm import Algorithm
from marl_jax.devices import mesh as meshes
from marl_jax.devices.aot import SharedPrograms
from marl_jax.errors import ConfigError
from marl_jax.learning.settings import LearnerSettings
from marl_jax.rollouts.base import Rollout, RunParts
from marl_jax.setup import warm_start
from models import fetch, tokenizers
from models import registry as models
from models.config import ModelConfig
from models.model import build
from models.tokenizers import Tokenizer
from models.weights.load import read_config

Find = Callable[[ConfigDict], tuple[ModelConfig, str | None, Tokenizer]]
"""Maps the config of a model to its shape, the location of its weights and its tokenizer."""


@dataclasses.dataclass(frozen=True, eq=False)
class Setup(abc.ABC):
    """Parts of a run; `GameSetup` and `TaskSetup` add those of their environment.

    Attributes:
        host: Whether episodes run in Python on the host.
        config: Config of the run.
        mesh: Device mesh for training.
        team: Models and their policies.
        seating: Policy or bot of every seat and turn.
        algorithm: Algorithm named by `algo.name`.
        workdir: Folder of the run, if any.
        programs: Programs of the run, which other runs may share.
    """

    host: ClassVar[bool]

    config: ConfigDict
    mesh: Mesh
    team: Team
    seating: Seating
    algorithm: Algorithm
    workdir: Path | None = None
    programs: SharedPrograms = dataclasses.field(default_factory=SharedPrograms)

    @property
    @abc.abstractmethod
    def roles(self) -> tuple[str, ...]:
        """Names of the seats."""

    @property
    @abc.abstractmethod
    def parts(self) -> RunParts:
        """Parts that the algorithm builds its rollout from."""

    @property
    @abc.abstractmethod
    def rollout(self) -> Rollout:
        """Source of the training samples."""

    @abc.abstractmethod
    def environment(self) -> dict[str, Any]:
        """Return the settings of the environment that must match to resume from a checkpoint."""

    @property
    def reshards(self) -> bool:
        """Whether a separate program reshards the parameters for sampling."""
        return False

    @property
    def drawing(self) -> str:
        """SVG of the workflow of an episode, or ""."""
        return ""

    @functools.cached_property
    def algo(self) -> LearnerSettings:
        """Settings of the algorithm."""
        return self.algorithm.settings.from_config(self.config.algo)

    @property
    def sample_mesh(self) -> Mesh:
        """Device mesh for sampling."""
        return meshes.for_sampling(self.mesh, self.config.mesh.sampling)

    @property
    def backbones(self) -> tuple[Backbone, ...]:
        """Models of the team."""
        return self.team.backbones

    @property
    def trained_backbones(self) -> tuple[Backbone, ...]:
        """Models with at least one policy that is trained."""
        return tuple(backbone for backbone in self.backbones if any(backbone.learns))

    @property
    def backbone(self) -> Backbone:
        """The only model of the team; raises `ConfigError` if there are several."""
        backbone, *others = self.backbones
        if others:
            names = ", ".join(f"{backbone.name} ({backbone.config.name})" for backbone in self.backbones)
            raise ConfigError([f"config.policies have different models ({names}), but must share one model here"])
        return backbone

    def check_remote(self) -> None:  # noqa: B027  # optional
        """Check that the remote models of the run can be used; call before compilation."""

    def close(self) -> None:  # noqa: B027  # optional
        """Stop everything that the parts have started."""

    @property
    def learns(self) -> tuple[bool, ...]:
        """Whether each policy is trained."""
        return tuple(not self.config.policies[name].frozen for name in self.team.policies)

    def max_active_rows(self, backbone: Backbone, n: int, algo: LearnerSettings) -> int:
        """Return how many of n rows a model has if seats move equally often.

        Returns n if that number does not divide into microbatches.
        """
        learning = dict(zip(backbone.policies, backbone.learns, strict=True))
        n_seats = self.seating.n_seats
        policies = [self.seating.policies(seat) for seat in range(n_seats)]
        seats = sum(any(learning.get(self.team.policies[p], False) for p in numbers) for numbers in policies)
        most = n * seats // n_seats
        parts = algo.minibatches * algo.grad_accum_steps * meshes.batch_shards(self.mesh)
        return n if most % parts else most

    def seat_labels(self) -> tuple[str, ...]:
        """Return a label for the player of each seat.

        The label is the name of the model, followed by that of the policy if there are several.
        """
        several = len(self.team.policies) > 1

        def label(seat: int, name: str) -> str:
            if not self.seating.policies(seat):
                return name
            policy = self.seating.policies(seat)[0]
            model = self.backbones[int(self.team.backbone_of(policy))].config.name
            return f"{model} {self.team.policies[policy]}" if several else model

        return tuple(label(seat, names[0]) for seat, names in enumerate(seat_names(self.config.agents, self.roles)))


def models_of(config: ConfigDict) -> list[tuple[ConfigDict, tuple[str, ...]]]:
    """Return the config and policy names of every model of a run.

    Policies without a separate model are adapters on the run's model, or copies of it without LoRA.
    """
    table: dict[str, tuple[ConfigDict, tuple[str, ...]]] = {}
    for name, policy in config.policies.items():
        own = policy.get("model")
        shared = not own and config.model.lora.rank
        key = "" if shared else name  # no policy has the empty name
        chosen, names = table.get(key, (own or config.model, ()))
        table[key] = (chosen, (*names, name))
    return list(table.values())


def make_backbones(
    config: ConfigDict,
    algorithm: Algorithm,
    mesh: Mesh,
    find: Find,
    environment: Callable[[ModelConfig, Tokenizer], tuple[Any, dict[str, Any]]],
    workdir: Path | None,
    programs: SharedPrograms,
) -> tuple[Backbone, ...]:
    """Build the models of a run.

    Args:
        config: Config of the run.
        algorithm: Algorithm of the run.
        mesh: Device mesh for training.
        find: Finds the shape, weights and tokenizer of a model.
        environment: Maps the shape and tokenizer of a model to the prompts of the game (None for tasks) and to the
            arguments of `Policy` that depend on the environment.
        workdir: Folder of the run; its checkpoints may record the initial weights.
        programs: Programs of the run.
    """
    return tuple(
        _backbone(config, algorithm, number, chosen, names, mesh, find, environment, workdir, programs)
        for number, (chosen, names) in enumerate(models_of(config))
    )


def _backbone(
    config: ConfigDict,
    algorithm: Algorithm,
    number: int,
    chosen: ConfigDict,
    names: tuple[str, ...],
    mesh: Mesh,
    find: Find,
    environment: Callable[[ModelConfig, Tokenizer], tuple[Any, dict[str, Any]]],
    workdir: Path | None,
    programs: SharedPrograms,
) -> Backbone:
    algo = algorithm.settings.from_config(config.algo)
    cfg, place, tokenizer = find(chosen)
    tokenizers.check_fits(tokenizer, cfg)
    prompt, settings = environment(cfg, tokenizer)
    built = build(cfg)
    learns = tuple(not config.policies[name].frozen for name in names)
    source = warm_start.find(chosen.init_from, names[0], workdir)
    if isinstance(source, warm_start.Start):
        adapters = chosen.lora.to_dict() if chosen.lora.rank else {}
        warm_start.check(source, chosen.name, chosen.shape.to_dict(), adapters, names)
    lora = chosen.lora
    policy = Policy(
        model=built,
        lora=LoraSpec(len(names), lora.rank, lora.alpha, tuple(lora.targets), learns) if lora.rank else None,
        critic=algo.critic if algorithm.critic and algo.baseline == "critic" else "none",
        critic_reads=algo.critic_reads,
        dtype=jnp.dtype(chosen.dtype),
        remat=chosen.remat,
        unroll=chosen.unroll,
        temperature=config.rollout.temperature,
        fuse=meshes.for_sampling(mesh, config.mesh.sampling).shape["tensor"] == 1,
        warm=source is not None and source.lora,
        **settings,
    )
    return Backbone(
        names[0], names, learns, chosen, place, built, tokenizer, prompt, policy, mesh,
        number=number, seed=config.seed, reference=algo.reference, source=source, programs=programs,
    )  # fmt: skip


def found(config: ConfigDict) -> tuple[ModelConfig, str | None, Tokenizer]:
    """Return the shape, weights location and tokenizer of a model; download missing files."""
    cfg, place = _model_config(config)
    return cfg, place, tokenizers.load(place or config.name)


def _model_config(config: ConfigDict) -> tuple[ModelConfig, str | None]:
    """Return the shape of a model and the location of its weights, if any."""
    shape = config.shape.to_dict()
    if config.weights == "random":
        return dataclasses.replace(models.get(config.name).config, **shape), None
    if shape:
        raise ConfigError([f"config.model.shape is {shape}, but must be empty unless model.weights is 'random'"])
    place = config.weights or fetch.ensure(config.name)
    if place is None:
        raise ConfigError([f"config.model.weights is '', but must be 'random': {config.name} has no published weights"])
    cfg, entry = read_config(place), models.get(config.name)
    if entry.decoder and cfg.vision is None:
        cfg = dataclasses.replace(cfg, vision=entry.config.vision)
    return cfg, str(place)
