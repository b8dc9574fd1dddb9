"""Programs of a training step, compiled from shapes for devices that need not exist.

No arrays are created and no weights are read. `abstract_state` returns the arguments of the programs: the same trees as
in training, with shapes, dtypes and shardings.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from marl_jax.devices import mesh as meshes
from marl_jax.devices import placement
from marl_jax.devices.aot import compiler_options_for
from marl_jax.learning.learn_step import all_weights, averages_of, learn_step
from marl_jax.learning.update import TrainState, n_policies
from marl_jax.setup import Setup
from models import fetch, registry, tokenizers
from models.config import ModelConfig
from models.tokenizers import Tokenizer
from models.weights.load import read_config

STAND_INS = ("smollm2-135m", "bytes")


@dataclasses.dataclass(frozen=True)
class Finder:
    """`setup.found` without weights, which only loads tokenizers; collects `notes` for the user."""

    notes: set[str] = dataclasses.field(default_factory=set)

    def __call__(self, config: ConfigDict) -> tuple[ModelConfig, None, Tokenizer]:
        """Return the shape of a model, no weights, and a tokenizer."""
        cfg = self._shape(config)
        if (tokenizer := self._own_tokenizer(config)) is not None:
            return cfg, None, tokenizer
        tokenizer = self._stand_in(config, cfg)
        return with_image_tokens_of(tokenizer, cfg), None, tokenizer

    def _shape(self, config: ConfigDict) -> ModelConfig:
        if config.weights == "random":
            return dataclasses.replace(registry.get(config.name).config, **config.shape.to_dict())
        place = config.weights or fetch.locate(config.name)
        return read_config(place) if place else registry.get(config.name).config

    def _own_tokenizer(self, config: ConfigDict) -> Tokenizer | None:
        if registry.get(config.name).hub_id is None:
            return tokenizers.load(config.name)
        place = fetch.folder(config.name) if config.weights in ("", "random") else Path(config.weights)
        return tokenizers.load(place) if place.exists() else None

    def _stand_in(self, config: ConfigDict, cfg: ModelConfig) -> Tokenizer:
        """Return another tokenizer, which only changes the length of the prompts."""
        places = {name: name if name == "bytes" else fetch.locate(name) for name in STAND_INS}
        loaded = ((name, tokenizers.load(place)) for name, place in places.items() if place is not None)
        name, tokenizer = next((name, other) for name, other in loaded if other.vocab_size <= cfg.vocab_size)
        self.notes.add(
            f"The tokenizer of {config.name} is not in {fetch.folder(config.name)}; that of {name} is used instead, so "
            "the lengths of prompts are approximate."
        )
        return tokenizer


def with_image_tokens_of(tokenizer: Tokenizer, cfg: ModelConfig) -> ModelConfig:
    """Return the config with a stand-in tokenizer's special tokens for images; shapes stay the same."""
    if cfg.vision is None:
        return cfg
    names = [name for name in ("image_id", "start_id", "end_id") if getattr(cfg.vision, name) is not None]
    ids = list(tokenizer.special_tokens.values())[-len(names) :]
    return dataclasses.replace(cfg, vision=dataclasses.replace(cfg.vision, **dict(zip(names, ids, strict=True))))


# ----------------------------------------------------------------------------------------------------------- arguments


@dataclasses.dataclass(frozen=True)
class AbstractState:
    """Arguments of the programs, as shapes on a mesh."""

    train_states: dict[str, TrainState]
    rollout: Any
    key: jax.ShapeDtypeStruct

    def of_each(self, field: str) -> dict:
        """Return one field of every train state."""
        return {name: getattr(train_state, field) for name, train_state in self.train_states.items()}


def abstract_state(setup: Setup, rollout, optimizer) -> AbstractState:
    """Return shapes, dtypes and shardings of the initial state of training."""
    everywhere = NamedSharding(setup.mesh, PartitionSpec())
    key = jax.eval_shape(lambda: jax.random.key(0))
    train_states = {}
    for backbone in setup.backbones:
        trained, frozen = backbone.abstract()
        state = jax.eval_shape(optimizer.init, trained)
        state = placed(state, placement.like_parameters(setup.mesh, state, trained))
        skipped = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
        averages = jax.eval_shape(averages_of(setup, backbone), trained)
        averages = placed(averages, placement.like_parameters(setup.mesh, averages, trained))
        lr_factor = jax.ShapeDtypeStruct((n_policies(trained),), jnp.float32, sharding=everywhere)
        skipped, lr_factor = cast(jax.Array, skipped), cast(jax.Array, lr_factor)  # shapes take the place of arrays
        train_states[backbone.name] = TrainState(trained, frozen, state, skipped, averages, lr_factor)
    weights = all_weights(train_states)
    abstract = jax.eval_shape(rollout.init, key, weights)
    shardings = rollout.shardings(
        abstract,
        functools.partial(placement.rows, setup.sample_mesh),
        functools.partial(placement.like_parameters, setup.mesh, parameters=setup.team.acting_params(weights)),
    )
    return AbstractState(train_states, placed(abstract, shardings), placed(key, everywhere))


def by_rows(tree: Any, setup: Setup, axis: int) -> Any:
    """Shard shapes along the axis of rows; replicate those that do not divide."""
    num_shards = meshes.batch_shards(setup.mesh)

    def one(x):
        rows = (*(None,) * axis, placement.ROWS) if x.ndim > axis and x.shape[axis] % num_shards == 0 else ()
        return NamedSharding(setup.mesh, PartitionSpec(*rows))

    return placed(tree, jax.tree.map(one, tree))


def placed(tree: Any, shardings: Any) -> Any:
    """Return shapes with shardings, given as a tree or as one for all."""
    if isinstance(shardings, jax.sharding.Sharding):
        shardings = jax.tree.map(lambda _, one=shardings: one, tree)
    return jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree, shardings)


# ------------------------------------------------------------------------------------------------------------ programs


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced program and its arguments by kind."""

    traced: Any
    given: dict[str, Any]


def trace_play(setup: Setup, rollout, state: AbstractState) -> Traced:
    """Trace the rollout."""
    play = jax.jit(rollout.__call__, donate_argnums=(1,))
    with _mesh(setup):
        traced = play.trace(all_weights(state.train_states), state.rollout, state.key)
    kinds = dict(parameters="trained", frozen="frozen", averages="averages")
    given = {kind: state.of_each(field) for kind, field in kinds.items()}
    return Traced(traced, dict(**given, rollout=state.rollout))


def trace_learn(setup: Setup, optimizer, state: AbstractState, samples: Any) -> Traced:
    """Trace the update with the samples of a rollout."""
    learn = jax.jit(functools.partial(learn_step, setup, optimizer), donate_argnums=(0,))
    with _mesh(setup):
        traced = learn.trace(state.train_states, samples, state.key)
    given = dict(parameters="trained", optimizer="optimizer", frozen="frozen", averages="averages")
    return Traced(traced, {**{kind: state.of_each(field) for kind, field in given.items()}, "samples": samples})


def compiled(setup: Setup, program: Traced) -> jax.stages.Compiled:
    """Compile a program for the devices of the mesh."""
    with _mesh(setup):
        return program.traced.lower().compile(compiler_options_for(setup.mesh.devices.flat[0].platform))


def results_of(program: Traced, done: jax.stages.Compiled) -> Any:
    """Return the outputs of a compiled program as shapes with shardings."""
    return placed(program.traced.out_info, done.output_shardings)


def _mesh(setup: Setup):
    # Abstract, because no array can be placed on devices that do not exist.
    return jax.sharding.use_abstract_mesh(setup.mesh.abstract_mesh)
