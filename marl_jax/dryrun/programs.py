"""The two programs of a training step, from shapes alone: traced, lowered and compiled for devices that need not exist.

No array is made and no weight is read. What the programs are given is described by `abstract_state`: the same trees as
in `train.py`, with shapes, dtypes and places on the mesh.
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
    """`setup.found` without weights: nothing is read or fetched but tokenizers; `notes` collects what must be said."""

    notes: set[str] = dataclasses.field(default_factory=set)

    def __call__(self, config: ConfigDict) -> tuple[ModelConfig, None, Tokenizer]:
        """The shape of a model, as its weights or the registry have it, no place of weights, a tokenizer."""
        cfg = self._shape(config)
        return cfg, None, self._own_tokenizer(config) or self._stand_in(config, cfg)

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
        """A tokenizer in place of the model's: what it changes is the length of the prompts."""
        places = {name: name if name == "bytes" else fetch.locate(name) for name in STAND_INS}
        loaded = ((name, tokenizers.load(place)) for name, place in places.items() if place is not None)
        name, tokenizer = next((name, found) for name, found in loaded if found.vocab_size <= cfg.vocab_size)
        self.notes.add(
            f"The tokenizer of {config.name} is not in {fetch.folder(config.name)}; that of {name} stands in for it, "
            "so prompts are not as long as they will be."
        )
        return tokenizer


# ----------------------------------------------------------------------------------------------------------- arguments


@dataclasses.dataclass(frozen=True)
class AbstractState:
    """What the programs read and write, as shapes on a mesh."""

    train_states: dict[str, TrainState]
    rollout: Any
    key: jax.ShapeDtypeStruct

    def of_each(self, field: str) -> dict:
        """One field of every learner."""
        return {name: getattr(train_state, field) for name, train_state in self.train_states.items()}


def abstract_state(setup: Setup, rollout, optimizer) -> AbstractState:
    """Shapes, dtypes and places of everything that `train.py` starts with."""
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
    """Shapes split over the mesh by their rows, which are an axis; what has none or does not divide is whole."""
    num_shards = meshes.batch_shards(setup.mesh)

    def one(x):
        rows = (*(None,) * axis, placement.ROWS) if x.ndim > axis and x.shape[axis] % num_shards == 0 else ()
        return NamedSharding(setup.mesh, PartitionSpec(*rows))

    return placed(tree, jax.tree.map(one, tree))


def placed(tree: Any, shardings: Any) -> Any:
    """Shapes with shardings: a tree of them, or one for all."""
    if isinstance(shardings, jax.sharding.Sharding):
        shardings = jax.tree.map(lambda _, one=shardings: one, tree)
    return jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree, shardings)


# ------------------------------------------------------------------------------------------------------------ programs


@dataclasses.dataclass(frozen=True)
class Traced:
    """A program as it was traced: what it is given, by kind, and what JAX knows before compiling."""

    traced: Any
    given: dict[str, Any]


def trace_play(setup: Setup, rollout, state: AbstractState) -> Traced:
    """The rollout of `train.py`."""
    play = jax.jit(rollout.__call__, donate_argnums=(1,))
    with _mesh(setup):
        traced = play.trace(all_weights(state.train_states), state.rollout, state.key)
    kinds = dict(parameters="trained", frozen="frozen", averages="averages")
    given = {kind: state.of_each(field) for kind, field in kinds.items()}
    return Traced(traced, dict(**given, rollout=state.rollout))


def trace_learn(setup: Setup, optimizer, state: AbstractState, samples: Any) -> Traced:
    """The update of `train.py` on the samples of a rollout."""
    learn = jax.jit(functools.partial(learn_step, setup, optimizer), donate_argnums=(0,))
    with _mesh(setup):
        traced = learn.trace(state.train_states, samples, state.key)
    given = dict(parameters="trained", optimizer="optimizer", frozen="frozen", averages="averages")
    return Traced(traced, {**{kind: state.of_each(field) for kind, field in given.items()}, "samples": samples})


def compiled(setup: Setup, program: Traced) -> jax.stages.Compiled:
    """The program for the devices of the mesh."""
    with _mesh(setup):
        return program.traced.lower().compile(compiler_options_for(setup.mesh.devices.flat[0].platform))


def results_of(program: Traced, done: jax.stages.Compiled) -> Any:
    """What a compiled program gives, as shapes where it puts them."""
    return placed(program.traced.out_info, done.output_shardings)


def _mesh(setup: Setup):
    # Abstract, because nothing can be put on devices that are not there.
    return jax.sharding.use_abstract_mesh(setup.mesh.abstract_mesh)
