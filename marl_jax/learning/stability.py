"""Step sizes that follow the signal, and a guard that rejects harmful updates.

The size of Adam's step does not depend on how many completions a gradient comes from. Near the end of training, when
almost all groups are solved, a handful of completions moves the policy as far as a full batch does, and nothing in the
loss protects the solved ones. Two remedies act per policy. Both look at the completions that are worth keeping: those
with a positive advantage, and those of uninformative groups with at least the average return. Completions of groups
that failed entirely are excluded, because a policy has to move away from these to improve.

- `signal_scale` lowers the learning rate when few completions are informative and many others are worth keeping.
- `UpdateGuard` scores completions worth keeping before and after an update. If they lose too much probability, the
  previous weights and moments are restored, and a factor on the learning rate is halved. The factor recovers with every
  accepted update.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from marl_jax.agents import scoring
from marl_jax.agents.policy import Policy
from marl_jax.learning.settings import LearnerSettings
from marl_jax.learning.update import TrainState, where_policies
from marl_jax.samples import Samples, in_parts, rows
from models.sharding import num_shards

SHRINK = 0.5
"""Factor on the learning rate of a policy whose update was rejected."""

REGROW = 1.05
"""Factor by which a lowered learning rate recovers with every accepted update, up to 1."""


def worth_keeping(samples: Samples, counted: jax.Array) -> jax.Array:
    """Return the completions that an update should not make less likely, bool [N, S].

    Args:
        samples: Samples with advantages and returns.
        counted: bool [N, S], the completions of the learner, over which returns are averaged for each seat.
    """
    advantages, returns = samples.to_completions(samples.advantages), samples.at_first(samples.returns)
    own = jax.nn.one_hot(samples.seat, samples.n_seats) * counted[..., None]  # [N, S, P]
    mean = jnp.sum(own * returns[..., None], axis=(0, 1)) / jnp.maximum(jnp.sum(own, axis=(0, 1)), 1.0)
    average = returns >= mean[samples.seat] - 1e-5 * jnp.abs(mean[samples.seat])  # all, if all returns are equal
    return counted & ((advantages > 0) | ((advantages == 0) & average))


class Signal(NamedTuple):
    """Shares of each policy's completions, float32 [n]; 1 for a policy without completions.

    Attributes:
        informative: Completions of informative groups, among all completions.
        strength: The same among completions that are informative or worth keeping.
    """

    informative: jax.Array
    strength: jax.Array


def signal(policy: Policy, sampled: Samples, prepared: Samples) -> Signal:
    """Measure how much of a batch an update learns from.

    Args:
        policy: The policy.
        sampled: The samples before advantages were computed, with the loss weights of all completions.
        prepared: The same rows after that. Without groups, every completion is informative.
    """
    if prepared.informative is None:
        return Signal(jnp.ones(_n(policy)), jnp.ones(_n(policy)))
    counted = sampled.loss_weights > 0  # [N, S]
    informative = counted & prepared.informative

    def share(among):
        own = _own(policy, sampled)[..., None]  # [n, N, 1]
        total, count = (jnp.sum(own & x, axis=(1, 2)) for x in (among, informative))
        return jnp.where(total > 0, count / jnp.maximum(total, 1), 1.0)

    return Signal(share(counted), share(informative | worth_keeping(prepared, counted)))


def signal_scale(strength: jax.Array, full_at: float) -> jax.Array:
    """Compute the factor on the learning rate from `Signal.strength`.

    The variance of a mean over n completions falls with 1/n, so the step may grow with the square root of n.

    Args:
        strength: float32 [n].
        full_at: Strength from which the full rate applies (`algo.signal_frac`); 0 always gives 1.
    """
    return jnp.sqrt(jnp.clip(strength / full_at, 0.0, 1.0)) if full_at else jnp.ones_like(strength)


@dataclasses.dataclass(frozen=True)
class UpdateGuard:
    """Completions by which an update is judged.

    Attributes:
        policy: The policy.
        rows: Conversations from all groups, the same number for each policy.
        weight: float32 [n, R, S], 1 for the completions that count for a policy.
        logps: float32 [R, X], their log-probabilities before the update.
        limit: Mean drop in the log-probability of a completion, in nats, above which an update is rejected.
        parts: Number of parts in which the rows are scored, so that they need no more memory than the update.
    """

    policy: Policy
    rows: Samples
    weight: jax.Array
    logps: jax.Array
    limit: float
    parts: int

    @classmethod
    def before(
        cls, policy: Policy, state: TrainState, sampled: Samples, prepared: Samples, algo: LearnerSettings
    ) -> UpdateGuard | None:
        """Score some completions before an update; return None if `algo` has no guard.

        Args:
            policy: The policy.
            state: The train state before the update.
            sampled: The samples before advantages were computed, with the loss weights of all completions.
            prepared: The first of these rows after that. PPO drops its lookahead rows, which come last.
            algo: Settings of the algorithm.
        """
        if not is_guarded(policy, algo):
            return None
        sampled = rows(sampled, slice(prepared.n))
        samples = sampled.replace(advantages=prepared.advantages, returns=prepared.returns)
        count = -(-min(algo.guard_completions, samples.n) // num_shards("B", samples.n)) * num_shards("B", samples.n)
        kept = worth_keeping(samples, samples.loss_weights > 0) & samples.recorded()
        own = _own(policy, samples) & jnp.any(kept, axis=1)  # [n, N]
        # Each policy's rows are picked at equal distances, so that they come from many groups.
        first = jnp.argsort(~own, axis=1, stable=True)
        place = jnp.arange(count) * jnp.sum(own, axis=1, keepdims=True) // count
        picked = jnp.take_along_axis(first, place, axis=1).reshape(-1)
        chosen = rows(samples, picked)
        weight = own[:, picked, None] & kept[picked]
        # A row counts only for the policy it was picked for. A policy without rows picks those of others.
        slot = jnp.repeat(jnp.arange(len(own)), count)
        weight &= (slot == jnp.arange(len(own))[:, None])[..., None]
        parts = _parts(chosen.n, samples.n, algo)
        logps = _score(policy, state, chosen, parts)
        return cls(policy, chosen, weight.astype(jnp.float32), logps, algo.guard_drop, parts)

    def drop(self, state: TrainState) -> jax.Array:
        """Compute the mean drop in the log-probability of a completion, float32 [n].

        Gains of some completions do not offset losses of others.
        """
        logps = _score(self.policy, state, self.rows, self.parts)
        lost = jnp.maximum(self.rows.to_completions((self.logps - logps) * self.rows.mask()), 0.0)  # [R, S]
        lost = jnp.where(self.weight > 0, lost, 0.0)  # [n, R, S]; unscored completions may hold anything
        return jnp.sum(lost, axis=(1, 2)) / jnp.maximum(jnp.sum(self.weight, axis=(1, 2)), 1.0)

    def check(self, old: TrainState, new: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
        """Return the state to continue from, with its learning-rate factors, and metrics.

        A policy whose completions have lost more than `limit` keeps the weights and moments of `old`.
        """
        assert old.lr_factor is not None
        drop = self.drop(new)
        accepted = drop <= self.limit  # False for NaN
        factor = jnp.where(accepted, jnp.minimum(old.lr_factor * REGROW, 1.0), old.lr_factor * SHRINK)
        state = dataclasses.replace(
            new,
            trained=where_policies(accepted, new.trained, old.trained),
            optimizer=where_policies(accepted, new.optimizer, old.optimizer),
            lr_factor=factor,
        )
        return state, {"completion_drop": drop, "rejected": (~accepted).astype(jnp.float32)}


def is_guarded(policy: Policy, algo: LearnerSettings) -> bool:
    """Return whether updates of a policy are checked.

    "auto" checks updates of adapters, of which a copy is small.
    """
    return algo.guard == "on" or (algo.guard == "auto" and policy.lora is not None)


def _parts(n_rows: int, batch: int, algo: LearnerSettings) -> int:
    """Return the number of equal parts, none larger than those of the update.

    Args:
        n_rows: Number of rows to score.
        batch: Number of rows of an update.
        algo: Settings of the algorithm.
    """
    size = max(1, batch // (algo.minibatches * algo.grad_accum_steps))
    most = n_rows // num_shards("B", n_rows)
    return next((parts for parts in range(-(-n_rows // size), most) if most % parts == 0), most)


def _score(policy: Policy, state: TrainState, samples: Samples, parts: int) -> jax.Array:
    """Compute log-probabilities of the completion tokens in parts, float32 [N, X]."""
    logps = lambda part: scoring.answer_logps(policy, state.weights, part)  # noqa: E731
    return logps(samples) if parts == 1 else in_parts(logps, samples, parts)


def _n(policy: Policy) -> int:
    """Return the number of policies."""
    return 1 if policy.lora is None else policy.lora.n


def _own(policy: Policy, samples: Samples) -> jax.Array:
    """Return the rows of each policy, bool [n, N]."""
    numbers = jnp.arange(_n(policy))[:, None]
    return samples.policy == numbers if policy.lora is not None else (samples.policy >= 0)[None]
