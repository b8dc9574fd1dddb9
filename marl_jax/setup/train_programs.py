"""Train states, their checkpointed form, and the jitted programs of a training run."""

from __future__ import annotations

import dataclasses
import functools
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp

from marl_jax.agents.team import Backbone
from marl_jax.devices import mesh as meshes
from marl_jax.devices import placement
from marl_jax.devices.aot import AotCompiler, Program, compiler_options
from marl_jax.learning.learn_step import all_weights, averages_of, learn_step
from marl_jax.learning.microbatching import AutoMicrobatch
from marl_jax.learning.update import TrainState, new_train_state
from marl_jax.setup import Setup
from marl_jax.setup.warm_start import MissingWeights


def at_start(setup: Setup, rollout, optimizer, key: jax.Array) -> tuple[dict[str, TrainState], Any]:
    """Return the initial train states and rollout state, with every array placed on its mesh."""
    states = {
        b.name: new_train_state(
            *_initial_weights(b), optimizer, setup.mesh, averages_of(setup, b), kept=_kept(setup, "states", b.name)
        )
        for b in setup.backbones
    }
    weights = all_weights(states)
    if not rollout.jitted:
        return states, rollout.init(key, weights)

    def places(state):
        rows = functools.partial(placement.rows, setup.sample_mesh)
        snapshot = setup.team.acting_params(weights)
        return rollout.shardings(
            state, rows, lambda tree: placement.like_parameters(setup.mesh, tree, parameters=snapshot)
        )

    return states, placement.init_sharded(rollout.init, places, key, weights, kept=_kept(setup, "rollout state"))


def _kept(setup: Setup, *name: str):
    """Return a function that makes a program, unless another run has made it."""
    return functools.partial(setup.programs.get, name)


def _initial_weights(backbone: Backbone) -> tuple[dict, dict]:
    """Return the initial weights, or zeros if a checkpoint will replace all of them."""
    shapes, source = backbone.abstract(), backbone.source
    if source is None or not source.resumed or (shapes[1] and not isinstance(source, MissingWeights)):
        return backbone.weights_at_start()
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding), shapes)


def check_frozen_weights(backbones: tuple[Backbone, ...]) -> None:
    """Raise an error if frozen weights, which no checkpoint has, cannot be found."""
    for backbone in backbones:
        if isinstance(backbone.source, MissingWeights) and backbone.abstract()[1]:
            backbone.source.refuse(backbone)


def programs(setup: Setup, rollout, optimizer, states: dict[str, TrainState], rollout_state: Any):
    """Return the rollout, the update and the step after it as jitted programs.

    States keep their shardings, and metrics are replicated.
    """
    everywhere = placement.replicated(setup.mesh)
    kept_states = placement.shardings_of(states)

    def make_learn(accum_multiplier: int) -> Program:
        program = functools.partial(
            Program,
            functools.partial(learn_step, setup, optimizer, accum_multiplier=accum_multiplier),
            "the update",
            donate_argnums=(0,),
            out_shardings=(kept_states, everywhere),
            compiler_options=compiler_options(),
        )
        return setup.programs.get(("update", accum_multiplier), program)

    # The rows of a round that are learned together must not be split.
    together = setup.seating.n_seats if setup.algo.joint else 1
    learn = AutoMicrobatch(make_learn, setup.algo, together * meshes.batch_shards(setup.mesh))
    if not rollout.jitted:
        return rollout, learn, rollout.after_update
    kept = placement.shardings_of(rollout_state)
    roll = functools.partial(
        Program,
        rollout.__call__,
        "the rollout",
        donate_argnums=(1,),
        out_shardings=(everywhere if setup.mesh.size == 1 else None, kept, everywhere),
        compiler_options=compiler_options(),
    )
    after_update = functools.partial(jax.jit, rollout.after_update, donate_argnums=(0,), out_shardings=kept)
    return setup.programs.get("rollout", roll), learn, setup.programs.get("after update", after_update)


def compile_ahead(
    setup: Setup, ahead: AotCompiler, matches, roll: Program, learn: AutoMicrobatch, played: tuple, states, key, step,
    lr: float,
):  # fmt: skip
    """Compile the first step's programs concurrently.

    They are started in the order in which they are needed. On a GPU, which waits for all of them, the update comes
    first because it takes longest.

    Args:
        setup: Parts of the run.
        ahead: Compiles programs in the background.
        matches: Starts to compile the evaluation before training; None if there is none.
        roll: The rollout.
        learn: The update.
        played: Parameters and state for the rollout.
        states: Train states.
        key: Random key of the run.
        step: First step.
        lr: Learning rate.
    """
    step_key, everywhere = jax.random.fold_in(key, step), placement.replicated(setup.sample_mesh)
    rolled: list[Future] = []
    with jax.set_mesh(setup.sample_mesh):  # as in the training loop, so that the key has the same sharding
        given = (*played, jax.random.fold_in(step_key, 0))

    def learned() -> tuple:
        with jax.set_mesh(setup.sample_mesh):
            samples = roll.jitted.eval_shape(*given)[0]
        if everywhere.mesh.size > 1:  # chosen by the compiler
            shardings = rolled[0].result().output_shardings[0]
        else:
            shardings = jax.tree.map(lambda _: everywhere, samples)
        placed = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
        return states, jax.tree.map(placed, samples, shardings), step_key, step, 1.0, lr

    def begin_playing() -> None:
        with jax.set_mesh(setup.sample_mesh):
            if matches is not None:
                matches(ahead, played[0])
            rolled.append(roll.compile_ahead(ahead, lambda: given))

    def begin_update() -> None:
        with jax.set_mesh(setup.mesh):
            learn.compile_ahead(ahead, learned)

    waits = jax.default_backend() == "gpu"  # its compiler times kernels, which other work would slow down
    order = (begin_update, begin_playing) if waits and everywhere.mesh.size == 1 else (begin_playing, begin_update)
    for begin in order:
        begin()
    if waits:
        ahead.wait()


def arrays(rollout, rollout_state: Any) -> Any:
    """Return the arrays of a rollout state; the state of a host rollout has none."""
    return rollout_state if rollout.jitted else {}


def saved(states: dict[str, TrainState], rollout_state: Any) -> dict:
    """Return the contents of a checkpoint; frozen weights are loaded from their source instead."""
    learning = {name: state for name, state in states.items() if state.trained}
    fields = ("trained", "optimizer", "skipped", "averages", "lr_factor")
    state = {field: {name: getattr(one, field) for name, one in learning.items()} for field in fields}
    if not any(state["averages"].values()):
        del state["averages"]
    return {**state, "rollout": rollout_state}


def resumed(states: dict[str, TrainState], state: dict) -> tuple[dict[str, TrainState], Any]:
    """Return the train states and rollout state of a checkpoint."""
    fields = [field for field in state if field != "rollout"]
    again = {
        name: dataclasses.replace(one, **{field: state[field][name] for field in fields})
        for name, one in states.items()
        if name in state["trained"]
    }
    return {**states, **again}, state["rollout"]
