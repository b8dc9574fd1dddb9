"""Step sizes that follow the signal, and a guard that rejects harmful updates.

Adam's step does not depend on how many completions a gradient comes from. Near the end of training, when almost all
groups are solved, a handful of completions therefore moves the policy as far as a full batch does, and nothing in the
loss protects the solved ones. Two remedies act per policy. Both look at the completions that are worth keeping: those
with a positive advantage, and those of groups without a signal whose return is at least the average. Completions of
groups that failed as a whole are not among them, because a policy that improves has to move away from these.

- `signal_scale` lowers the learning rate when few completions are informative and many others are worth keeping.
- `UpdateGuard` scores completions worth keeping, of all groups, before and after an update. When they lose too much
  probability, the weights and the moments of before are restored, and a factor on the learning rate is halved. The
  factor recovers with every accepted update.
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
from marl_jax.samples import Samples, rows
from models.sharding import num_shards

SHRINK = 0.5
"""Factor on the learning rate of a policy whose update was rejected."""

REGROW = 1.05
"""Factor by which a lowered learning rate recovers with every accepted update, up to 1."""


def worth_keeping(samples: Samples, counted: jax.Array) -> jax.Array:
    """Return the completions that an update should not make less likely, bool [N, S].

    Args:
      samples: samples with advantages and returns.
      counted: bool [N, S], the completions of the learner, over which returns are averaged for each seat.
    """
    advantages, returns = samples.to_completions(samples.advantages), samples.at_first(samples.returns)
    own = jax.nn.one_hot(samples.seat, samples.n_seats) * counted[..., None]  # [N, S, P]
    mean = jnp.sum(own * returns[..., None], axis=(0, 1)) / jnp.maximum(jnp.sum(own, axis=(0, 1)), 1.0)
    average = returns >= mean[samples.seat] - 1e-5 * jnp.abs(mean[samples.seat])  # all, where all returns are equal
    return counted & ((advantages > 0) | ((advantages == 0) & average))


class Signal(NamedTuple):
    """Shares of each policy's completions, float32 [n]; 1 where there are none.

    informative  those whose groups have different rewards, among all completions
    strength     the same among those that are informative or worth keeping
    """

    informative: jax.Array
    strength: jax.Array


def signal(policy: Policy, sampled: Samples, prepared: Samples) -> Signal:
    """Measure how much of a batch an update learns from.

    Args:
      sampled: the samples before advantages were computed, with the loss weights of all completions.
      prepared: the same rows after that. Without groups, every completion is informative.
    """
    if prepared.informative is None:
        return Signal(jnp.ones(_n(policy)), jnp.ones(_n(policy)))
    counted = sampled.loss_weights > 0  # [N, S]
    informative = counted & prepared.informative

    def share(among):
        own = _own(policy, sampled)[..., None]  # [n, N, 1]
        total, found = (jnp.sum(own & x, axis=(1, 2)) for x in (among, informative))
        return jnp.where(total > 0, found / jnp.maximum(total, 1), 1.0)

    return Signal(share(counted), share(informative | worth_keeping(prepared, counted)))


def signal_scale(strength: jax.Array, full_at: float) -> jax.Array:
    """Compute the factor on the learning rate from `Signal.strength`.

    The variance of a mean over n completions falls with 1/n, so the step may grow with the square root of n.

    Args:
      strength: float32 [n].
      full_at: strength from which the full rate applies (`algo.signal_frac`); 0 always gives 1.
    """
    return jnp.sqrt(jnp.clip(strength / full_at, 0.0, 1.0)) if full_at else jnp.ones_like(strength)


@dataclasses.dataclass(frozen=True)
class UpdateGuard:
    """Completions by which an update is judged.

    rows    conversations from all groups, the same number for each policy
    weight  float32 [n, R, S], 1 for the completions that count for a policy
    logps   float32 [R, X], their log-probabilities before the update
    limit   mean drop in the log-probability of a completion, in nats, above which an update is rejected
    """

    policy: Policy
    rows: Samples
    weight: jax.Array
    logps: jax.Array
    limit: float

    @classmethod
    def before(
        cls, policy: Policy, state: TrainState, sampled: Samples, prepared: Samples, algo: LearnerSettings
    ) -> UpdateGuard | None:
        """Score some completions before an update; None where `algo` has no guard.

        Args:
          sampled: the samples before advantages were computed, with the loss weights of all completions.
          prepared: the first of these rows after that; PPO drops the rows of its lookahead, which come last.
        """
        if not is_guarded(policy, algo):
            return None
        sampled = rows(sampled, slice(prepared.n))
        samples = sampled.replace(advantages=prepared.advantages, returns=prepared.returns)
        count = -(-min(algo.guard_completions, samples.n) // num_shards("B", samples.n)) * num_shards("B", samples.n)
        kept = worth_keeping(samples, samples.loss_weights > 0) & samples.recorded()
        own = _own(policy, samples) & jnp.any(kept, axis=1)  # [n, N]
        # Every policy gets rows at equal distances among its own, and thereby completions of many groups.
        first = jnp.argsort(~own, axis=1, stable=True)
        place = jnp.arange(count) * jnp.sum(own, axis=1, keepdims=True) // count
        picked = jnp.take_along_axis(first, place, axis=1).reshape(-1)
        chosen = rows(samples, picked)
        weight = own[:, picked, None] & kept[picked]
        # A row may be picked for one policy only; where a policy has none, its rows are another's.
        slot = jnp.repeat(jnp.arange(len(own)), count)
        weight &= (slot == jnp.arange(len(own))[:, None])[..., None]
        logps = scoring.answer_logps(policy, state.weights, chosen)
        return cls(policy, chosen, weight.astype(jnp.float32), logps, algo.guard_drop)

    def drop(self, state: TrainState) -> jax.Array:
        """Compute the mean loss of log-probability of a completion, float32 [n]; gains do not offset losses."""
        logps = scoring.answer_logps(self.policy, state.weights, self.rows)
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
    """Return whether updates of a policy are checked; "auto" means those of adapters, whose copies are small."""
    return algo.guard == "on" or (algo.guard == "auto" and policy.lora is not None)


def _n(policy: Policy) -> int:
    return 1 if policy.lora is None else policy.lora.n


def _own(policy: Policy, samples: Samples) -> jax.Array:
    """bool [n, N]: the rows of each policy; without adapters, all rows of the model."""
    numbers = jnp.arange(_n(policy))[:, None]
    return samples.policy == numbers if policy.lora is not None else (samples.policy >= 0)[None]
