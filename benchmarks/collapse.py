"""A toy policy on which GRPO collapses, to compare remedies in the real learner.

    python -m benchmarks.collapse
    python -m benchmarks.collapse --variants off default --rates 0.25 --seeds 10

The policy generates 40 tokens from a vocabulary of 12 and is rewarded if all of them are right. A frozen base gets 5 %
of its completions right. A LoRA adapter of rank 16 on features that the 40 positions share learns the rest, so a step
that lowers the probability of one token also changes the other 39. Only the forward pass is a toy: advantages, loss,
minibatches, guard and optimizer are those of `marl_jax.learning.learn_step`. A batch has 16 groups of 8 completions.

0.05 is a safe learning rate; the default rates are 1, 4 and 10 times as high. A JSON line for each variant and rate has
the minimum, median and maximum over the seeds of:

after_95      lowest success after it first reached 95 %
last_20       mean success of the last 20 updates
updates_to_95 updates until success first reached 95 %
rejected      updates that the guard rejected

Success is the exact probability of a right completion, not a sampled fraction. `reached_95` is the number of seeds that
reached 95 %.
"""

from __future__ import annotations

import argparse
import types
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from benchmarks.sampler import report
from configs import algorithms, defaults
from marl_jax.agents.answers import free_text
from marl_jax.agents.policy import LoraSpec, Policy
from marl_jax.algorithms.grpo import GRPO
from marl_jax.learning.learn_step import learn_step
from marl_jax.learning.optimizer import make_optimizer
from marl_jax.learning.update import TrainState, new_train_state
from marl_jax.samples import Samples, from_prompts
from models import lora

TOKENS, VOCABULARY, FEATURES, RANK = 40, 12, 32, 16
GROUPS, GROUP_SIZE = 16, 8
FIRST_SUCCESS = 0.05
SAFE_RATE = 0.05

QUICK = {"xla_backend_optimization_level": 1, "xla_llvm_disable_expensive_passes": True}
"""Compiler options for fast compilation, which would otherwise take most of the time."""

OFF = dict(minibatch_groups=False, signal_frac=0.0, guard="off")
"""Settings of the algorithm that disable every remedy."""

VARIANTS = {
    "off": OFF,
    "groups": OFF | dict(minibatch_groups=True),
    "signal": OFF | dict(signal_frac=0.5),
    "guard": OFF | dict(guard="on"),
    "groups, signal": dict(guard="off"),
    "groups, guard": dict(signal_frac=0.0),
    "default": {},
    "signal_frac=0.25": dict(signal_frac=0.25),
    "signal_frac=1": dict(signal_frac=1.0),
    "guard_drop=0.3": dict(guard_drop=0.3),
    "guard_drop=3": dict(guard_drop=3.0),
    "guard_drop=10": dict(guard_drop=10.0),
}
"""Changes to the algorithm's defaults, by name."""


class Toy(NamedTuple):
    """A frozen base with the interface of `models.model.Model` that `agents.scoring` needs.

    Attributes:
        features: float32 [TOKENS, FEATURES], of unit length, with a part that all positions share.
        logits: float32 [TOKENS, VOCABULARY] of the base.
        right: int32 [TOKENS], the right tokens.
        cfg: Config with the field that scoring reads.
    """

    features: jax.Array
    logits: jax.Array
    right: jax.Array
    cfg: types.SimpleNamespace = types.SimpleNamespace(tie_embeddings=False)

    def forward(self, params: dict, tokens: jax.Array, *, adapters: lora.Lora, **_) -> tuple[jax.Array, None]:
        """Return the logits as hidden states [N, TOKENS, VOCABULARY]; the head is the identity."""
        adapter = jax.tree.map(lambda x: x[0], adapters.adapters["head"])
        logits = self.logits + lora.delta(self.features[None], adapter, adapters.row_weights()[:1])
        return jnp.broadcast_to(logits, (len(tokens), TOKENS, VOCABULARY)), None


def make_toy(key: jax.Array) -> Toy:
    """Draw features, right tokens and a base with success rate `FIRST_SUCCESS`."""
    keys = jax.random.split(key, 4)
    features = jax.random.normal(keys[0], (TOKENS, FEATURES)) + jax.random.normal(keys[1], (FEATURES,))
    features /= jnp.linalg.norm(features, axis=1, keepdims=True)
    right = jax.random.randint(keys[2], (TOKENS,), 0, VOCABULARY)
    # All right tokens are equally likely; the rest is spread at random over the others.
    logits = jax.random.normal(keys[3], (TOKENS, VOCABULARY))
    chosen = jax.nn.one_hot(right, VOCABULARY, dtype=bool)
    probability = FIRST_SUCCESS ** (1 / TOKENS)
    others = logsumexp(jnp.where(chosen, -jnp.inf, logits), axis=1, keepdims=True)
    return Toy(features, jnp.where(chosen, others + jnp.log(probability / (1 - probability)), logits), right)


def as_samples(completions: jax.Array, logps: jax.Array, rewards: jax.Array) -> Samples:
    """Build samples as a host rollout does, with one completion in each row.

    Args:
        completions: int32 [N, TOKENS], the members of a group in consecutive rows.
        logps: float32 [TOKENS, VOCABULARY], of the policy that sampled them.
        rewards: float32 [N].
    """
    n = len(completions)
    row = jnp.arange(n)[:, None]
    return from_prompts(
        jnp.zeros((n, TOKENS), jnp.int32),
        jnp.ones((n,), jnp.int32),
        completions[:, None],
        jnp.full((n, 1), TOKENS),
        jnp.take_along_axis(logps[None], completions[..., None], axis=2)[:, None, :, 0],
        rewards=rewards[:, None, None],
        episode=row,
        group=row // GROUP_SIZE,
        member=row % GROUP_SIZE,
        n_groups=n // GROUP_SIZE,
        group_size=GROUP_SIZE,
    )


class Learner:
    """The learner of a run with the toy as its only model.

    Attributes:
        policy: The toy with one adapter.
        states: Train states before the first update.
    """

    def __init__(self, toy: Toy, key: jax.Array, lr: float, updates: int, **algo):
        """Build a learner with a constant learning rate; `algo` overrides settings of GRPO."""
        config = defaults.get_config()
        config.steps, config.algo = updates, algorithms.grpo(GROUP_SIZE, **dict(minibatches=2) | algo)
        config.optim.update(dict(lr=lr, schedule="constant"))
        spec = LoraSpec(1, RANK, alpha=RANK, targets=("head",), learns=(True,))
        self.policy = Policy(toy, free_text((), TOKENS), lora=spec, critic="none", dtype=jnp.float32)
        self._setup = types.SimpleNamespace(
            config=config,
            algorithm=GRPO,
            algo=GRPO.settings.from_config(config.algo),
            trained_backbones=(types.SimpleNamespace(policy=self.policy, name="toy", number=0),),
            team=types.SimpleNamespace(own=lambda samples, number: samples),
            max_active_rows=lambda backbone, n, algo: n,
        )
        self._optimizer = make_optimizer(config.optim, updates, config.algo.epochs * config.algo.minibatches)
        bound = FEATURES**-0.5
        adapter = {
            "a": jax.random.uniform(key, (1, 1, FEATURES, RANK), minval=-bound, maxval=bound),
            "b": jnp.zeros((1, 1, RANK, VOCABULARY)),
        }
        frozen = {"model": {"head": jnp.eye(VOCABULARY)}}
        self.states = {"toy": new_train_state({"adapters": {"head": adapter}}, frozen, self._optimizer)}

    def logps(self, states: dict[str, TrainState]) -> jax.Array:
        """Return the log-probabilities of all tokens at all positions, float32 [TOKENS, VOCABULARY]."""
        weights, one = states["toy"].weights, jnp.zeros((1,), jnp.int32)
        hidden, _ = self.policy.model.forward(weights["model"], one, adapters=self.policy.adapters(weights, one))
        return jax.nn.log_softmax(hidden[0])

    def __call__(self, states: dict[str, TrainState], samples: Samples, key: jax.Array, step: jax.Array | int = 0):
        """Return the train states after an update, and its metrics."""
        return learn_step(self._setup, self._optimizer, states, samples, key, step)


class Curves(NamedTuple):
    """Figures of every update, float32 [seeds, updates]; success is before the update."""

    success: jax.Array
    informative: jax.Array
    rejected: jax.Array


def train(lr: float, seeds: Sequence[int], updates: int = 150, **algo) -> Curves:
    """Train the toy once per seed with overrides of the algorithm's settings."""

    def run(key: jax.Array) -> Curves:
        toy = make_toy(jax.random.fold_in(key, 0))
        learn = Learner(toy, jax.random.fold_in(key, 1), lr, updates, **algo)

        def update(states: dict[str, TrainState], step: jax.Array) -> tuple[dict[str, TrainState], Curves]:
            step_key, logps = jax.random.fold_in(key, 2 + step), learn.logps(states)
            drawn = jax.random.uniform(jax.random.fold_in(step_key, 0), (GROUPS * GROUP_SIZE, TOKENS, 1))
            completions = jnp.sum(drawn > jnp.cumsum(jnp.exp(logps[:, :-1]), axis=1), axis=2)
            rewards = jnp.all(completions == toy.right, axis=1).astype(jnp.float32)
            states, metrics = learn(states, as_samples(completions, logps, rewards), step_key, step)
            success = jnp.exp(jnp.sum(logps[jnp.arange(TOKENS), toy.right]))
            return states, Curves(success, metrics["informative_share"], metrics.get("rejected", jnp.zeros(())))

        return jax.lax.scan(update, learn.states, jnp.arange(updates))[1]

    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds))
    return jax.device_get(jax.jit(jax.vmap(run), compiler_options=QUICK)(keys))


def updates_to_95(success: np.ndarray) -> int | None:
    """Return the number of updates until success reaches 95 %, or None."""
    reached = np.flatnonzero(success >= 0.95)
    return int(reached[0]) if len(reached) else None


def after_95(success: np.ndarray) -> float | None:
    """Return the lowest success after it first reached 95 %, or None."""
    first = updates_to_95(success)
    return None if first is None else float(np.min(success[first:]))


def spread(values: list[float | None]) -> list[float] | None:
    """Return the minimum, median and maximum of the values that are not None."""
    values = [x for x in values if x is not None]
    return [round(float(f(values)), 2) for f in (np.min, np.median, np.max)] if values else None


def main() -> None:
    """Print a JSON line for each variant and rate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="Variants to train")
    rates = [SAFE_RATE, 4 * SAFE_RATE, 10 * SAFE_RATE]
    parser.add_argument("--rates", nargs="+", type=float, default=rates, help="Learning rates")
    parser.add_argument("--seeds", type=int, default=5, help="Number of seeds, starting at 0")
    parser.add_argument("--updates", type=int, default=150, help="Number of updates")
    args = parser.parse_args()
    for lr in args.rates:
        for variant in args.variants:
            curves = train(lr, range(args.seeds), args.updates, **VARIANTS[variant])
            report(
                lr=lr,
                variant=variant,
                reached_95=sum(updates_to_95(x) is not None for x in curves.success),
                after_95=spread([after_95(x) for x in curves.success]),
                last_20=spread([x[-20:].mean() for x in curves.success]),
                updates_to_95=spread([updates_to_95(x) for x in curves.success]),
                rejected=spread(list(curves.rejected.sum(axis=1))),
            )


if __name__ == "__main__":
    main()
