"""State of a training run and the programs that update it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from marl_jax.devices.aot import AotCompiler, Program, Recompiles
from marl_jax.devices.resharding import SamplerParams
from marl_jax.learning.learn_step import all_weights, optimizer_for
from marl_jax.running.checkpoint import Checkpoints, Restored
from marl_jax.running.events import Events
from marl_jax.running.monitor import Monitor
from marl_jax.running.profiling import Clock
from marl_jax.running.recovery import roll_back
from marl_jax.samples import Samples
from marl_jax.setup.members import with_opponents
from marl_jax.setup.parts import Setup
from marl_jax.setup.run_fingerprint import run_fingerprint
from marl_jax.setup.train_programs import arrays, at_start, compile_ahead, programs, resumed, saved

Result = TypeVar("Result")


class Trainer:
    """Rollouts, updates and checkpoints of a training run.

    Hides from the training loop whether a rollout is jitted or runs on the host, which mesh a program runs on, how
    parameters are resharded for sampling, the number of microbatches, and when programs are compiled.
    """

    def __init__(self, setup: Setup):
        self._setup, self._rollout, self._optimizer = setup, setup.rollout, optimizer_for(setup.config)
        self._key, self._lr = jax.random.key(setup.config.seed), float(setup.config.optim.lr)
        with self._train_mesh():
            self._states, self._rollout_state = at_start(setup, self._rollout, self._optimizer, self._key)
        self._sampler = SamplerParams(setup.team.sampling_layout, setup.reshards)
        self._ahead, self._recompiles = AotCompiler(), Recompiles()

    def restore(self, checkpoints: Checkpoints) -> Restored | None:
        """Continue from the newest checkpoint, if there is one. Call once, before the first rollout."""
        restored = checkpoints.restore(self._saved(), run=run_fingerprint(self._setup))
        if restored is None:
            self._rollout_state = with_opponents(self._setup, self._rollout_state)
        else:
            self._states, kept = resumed(self._states, restored.state)
            self._rollout_state = kept if self._rollout.jitted else restored.meta["rollout"]
        self._play, self._learn, self._after_update = programs(
            self._setup, self._rollout, self._optimizer, self._states, self._rollout_state
        )
        if restored is not None:
            self._learn.accum_multiplier = restored.meta["accum_multiplier"]
        return restored

    def compile_ahead(self, step: int, evaluation: Any = None) -> None:
        """Start to compile the programs of the first step and an initial evaluation."""
        # Several processes would have to compile programs in the same order.
        if jax.process_count() > 1 or not self._rollout.jitted or self._sampler.apart:
            return
        assert isinstance(self._play, Program)
        matches = None if evaluation is None else functools.partial(evaluation.compile_ahead, baselines=True)
        played = (self._sampler(self._states), self._rollout_state)
        compile_ahead(
            self._setup, self._ahead, matches, self._play, self._learn, played, self._states, self._key, step, self._lr
        )

    def step_key(self, step: int) -> jax.Array:
        """Return the random key of a step."""
        return jax.random.fold_in(self._key, step)

    def with_params(self, function: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """Call `function` with the parameters for sampling, on the mesh for sampling.

        The parameters may be a second copy of all weights, so they are released after the call.
        """
        with self._sample_mesh():
            return function(self._sampler(self._states), *args, **options)

    def rollout(self, step: int, clock: Clock) -> tuple[Samples, dict[str, Any]]:
        """Collect the samples of a step and return them with metrics."""
        step_key = self.step_key(step)  # created outside the mesh, as in `compile_ahead`
        with self._sample_mesh():
            with clock.phase("reshard") if self._sampler.apart else contextlib.nullcontext():
                params = jax.block_until_ready(self._sampler(self._states))
            with clock.phase("rollout"):
                key = jax.random.fold_in(step_key, 0)
                samples, self._rollout_state, metrics = self._play(params, self._rollout_state, key)
                jax.block_until_ready(samples.tokens)
        return samples, jax.device_get(metrics)

    def update(self, samples: Samples, step: int, lr_scale: float, clock: Clock) -> dict[str, Any]:
        """Compute advantages, update every backbone and return metrics."""
        step_key = self.step_key(step)
        with self._train_mesh(), clock.phase("update"):
            self._states, metrics = self._learn(self._states, samples, step_key, step, lr_scale, self._lr)
            metrics = jax.device_get(metrics)
        self._recompiles.look(step + 1, samples, clock.seconds("update"))
        return metrics

    def after_update(self, step: int) -> None:
        """Update the rollout state with the new parameters, for example for opponent snapshots."""
        if self._rollout.changes_after(step):
            with self._train_mesh():
                self._rollout_state = self._after_update(self._rollout_state, all_weights(self._states), step)

    def save(self, checkpoints: Checkpoints, step: int, monitor: Monitor, metric: float | None) -> None:
        """Write a checkpoint."""
        meta = {
            "run": run_fingerprint(self._setup),
            "accum_multiplier": self._learn.accum_multiplier,
            "monitor": monitor.saved(),
        }
        meta |= {} if self._rollout.jitted else {"rollout": self._rollout_state}
        checkpoints.save(step, self._saved(), meta, metric)
        self._rollout.checkpointed(checkpoints.durable)

    def finish(self, checkpoints: Checkpoints, step: int) -> None:
        """Wait until the last checkpoint is written."""
        checkpoints.finish(step)
        self._rollout.checkpointed(step)

    def roll_back(self, checkpoints: Checkpoints, monitor: Monitor, events: Events, step: int) -> None:
        """Return to the weights of the last good checkpoint, at half the learning rate."""
        with self._train_mesh():
            self._states = resumed(self._states, roll_back(checkpoints, monitor, self._saved(), events, step))[0]

    def close(self) -> None:
        """Stop everything that the run has started."""
        for part in (self._rollout, self._ahead, self._setup):
            part.close()

    def _saved(self) -> dict:
        return saved(self._states, arrays(self._rollout, self._rollout_state))

    def _train_mesh(self):
        return jax.set_mesh(self._setup.mesh)

    def _sample_mesh(self):
        return jax.set_mesh(self._setup.sample_mesh)
