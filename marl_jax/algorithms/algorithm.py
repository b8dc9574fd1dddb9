"""Interface of algorithms, and parts that several of them share.

An algorithm defines its rollout, its advantages, its loss, its config fields and the configs that it rejects. It is one
module in this package and one line in the registry; no other code refers to it by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from marl_jax.agents import packing, scoring
from marl_jax.agents.policy import Policy
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms.common_config import PolicyGradientSettings
from marl_jax.fields import Fields
from marl_jax.learning import losses
from marl_jax.learning.settings import LearnerSettings, fields_of
from marl_jax.learning.update import Objective, Scheduled
from marl_jax.rollouts.base import Rollout, RunParts
from marl_jax.samples import Samples, in_parts
from models.sharding import num_shards


def no_conditions(config: ConfigDict) -> Iterator[str]:
    """Accept every config whose fields are valid."""
    yield from ()


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """An entry of the registry.

    Attributes:
        name: Name in the registry.
        settings: Settings class, which declares the config fields (see `marl_jax/learning/settings.py`).
        rollout: Builds the rollout from the parts of a run.
        compute_advantages: Maps (policy, weights, samples, algo) to (samples for the update, metrics). It runs inside
            jit.
        objective: Loss; see `learning.update.Objective`.
        check: Yields the problems of a config with this algorithm.
        critic: Whether the algorithm has a critic.
        heldout_eval: Maps the parts of a run to a function that evaluates parameters on held-out games, or None.
        verifies: Names of the rows in the evaluation of a verifier, which scores completions and samples none; () if it
            trains a policy.
    """

    name: str
    settings: type[LearnerSettings]
    rollout: Callable[[RunParts], Rollout]
    compute_advantages: Callable[[Policy, dict, Samples, Any], tuple[Samples, dict[str, jax.Array]]]
    objective: Any
    check: Callable[[ConfigDict], Iterator[str]] = no_conditions
    critic: bool = False
    heldout_eval: Callable[[RunParts], Callable[[dict], HeldoutMetrics]] | None = None
    verifies: tuple[str, ...] = ()

    @property
    def fields(self) -> Fields:
        """Fields of `config.algo`."""
        return fields_of(self.settings)


class HeldoutCount(NamedTuple):
    """Number of right cases, of all cases and of distinct cases."""

    right: int
    total: int
    distinct: int


class HeldoutMetrics(NamedTuple):
    """Counts of an evaluation on held-out games.

    Attributes:
        name: Name of the row in the evaluation.
        counts: Counts by metric, most important first.
    """

    name: str
    counts: dict[str, HeldoutCount]


def score_in_parts(
    function: Callable[[Samples, packing.PackedRows | None], Any], samples: Samples, algo: LearnerSettings
) -> Any:
    """Map a function over the rows in the parts in which the update reads them.

    If rows are packed, rows without a completion are not read and get zeros.

    Args:
        function: Maps samples and packed rows (or None) to a tree of arrays [N, X].
        samples: Samples to score.
        algo: Settings of the algorithm.
    """
    samples, parts = samples.replace(completion_at=None), algo.minibatches * algo.grad_accum_steps
    if not algo.pack:
        return in_parts(lambda s: function(s, None), samples, parts)
    answered = jnp.any(samples.completion_lengths > 0, axis=1)
    places = packing.plan(samples, algo.pack, answered, parts * num_shards("B", samples.n))
    size = len(places.table) // parts

    def one(i):
        rows = places.cut(i * size, size)
        return rows, function(rows.pick(samples), rows)

    def add(i, total):
        rows, scores = one(i)
        return rows.put(total, scores)

    nothing = jax.tree.map(lambda x: jnp.zeros((samples.n, *x.shape[1:]), x.dtype), jax.eval_shape(one, 0)[1])
    return jax.lax.fori_loop(0, -(-places.used() // size), add, nothing)


def with_reference(policy: Policy, weights: dict, samples: Samples, algo: PolicyGradientSettings) -> Samples:
    """Add log-probabilities of reference and magnet, and the KL in the reward.

    With `kl_in="reward"`, the KL summed over the tokens of a completion is subtracted from the reward of its seat.
    """

    def logps(function):
        return score_in_parts(lambda *part: function(policy, weights, *part), samples, algo)

    if algo.magnet_coef:
        samples = samples.replace(magnet_logps=logps(scoring.magnet_logps))
    if algo.kl_coef:
        samples = samples.replace(ref_logps=logps(scoring.reference_logps))
    if algo.kl_coef and algo.kl_in == "reward":
        own = jax.nn.one_hot(samples.seat, samples.n_seats)
        penalty = samples.to_completions(kl_rewards(samples, algo))
        samples = samples.replace(rewards=samples.rewards + penalty[..., None] * own)
    return samples


def kl_rewards(samples: Samples, algo: PolicyGradientSettings) -> jax.Array:
    """Return the KL penalty in the reward of each token, float32 [N, X], or zeros."""
    if not algo.kl_coef or algo.kl_in != "reward":
        return jnp.zeros(samples.targets.shape, jnp.float32)
    assert samples.ref_logps is not None
    counts = samples.mask() * samples.to_tokens(samples.recorded())
    # The reference is undefined for completions without room in a row.
    divergence = losses.kl(samples.logps, jnp.where(counts > 0, samples.ref_logps, samples.logps), algo.kl_kind)
    return -algo.kl_coef * divergence * counts


@dataclasses.dataclass(frozen=True)
class ClippedObjective(Objective):
    """PPO's clipped loss with its options, shared by PPO and the GRPO family.

    Attributes:
        critic: Whether to fit the values of a critic, at the first token of each completion or at every token
            (`algo.gae`), unless an average of returns replaces it.
    """

    critic: bool

    def fits_values(self, algo: PolicyGradientSettings) -> bool:
        """Return whether this loss trains a critic."""
        return self.critic and algo.baseline == "critic"

    def loss_weights_for(self, samples: Samples, algo: PolicyGradientSettings) -> dict[str, jax.Array]:
        """Return the token weights of the policy loss and of the value loss."""
        weighed = {"policy": losses.token_weights(samples, algo.loss_agg, samples.max_new)}
        if self.fits_values(algo):
            weighed["value"] = losses.token_weights(samples, "token", mask=value_mask(samples, algo.gae))
        return weighed

    def loss(
        self, samples: Samples, weighed: dict, scores: Scores, algo: PolicyGradientSettings, scheduled: Scheduled
    ) -> tuple[jax.Array, dict]:
        """Compute the loss of some rows and metrics, as weighted sums over tokens.

        The weights are those of the minibatch.
        """
        old = samples.logps if samples.old_logps is None else samples.old_logps
        correction = losses.truncated_importance(old, samples.logps, algo.tis_clip) if algo.tis_clip else 1.0
        # Scores are undefined for completions with weight 0 (of an opponent, or without room in a row).
        logps = jnp.where(weighed["policy"] > 0, scores.logps, old)
        if algo.ratio_mask != "none":
            correction *= losses.ratio_mask(samples, logps, old, algo.ratio_mask, algo.ratio_mask_limit)
        clip = losses.policy_loss(
            samples, logps, old, clip_low=algo.clip_low, clip_high=algo.clip_high, dual_clip=algo.dual_clip,
            ratio=algo.ratio, correction=correction,
        )  # fmt: skip

        def total(x):
            return jnp.sum(weighed["policy"] * x)

        metrics = {
            "policy_loss": total(clip.loss),
            "entropy": total(scores.entropy),
            "ratio": total(clip.ratio),
            "clip_frac_low": total(clip.clip_frac_low),
            "clip_frac_high": total(clip.clip_frac_high),
            "approx_kl": total(losses.kl(old, logps, "k3")),  # KL(old ‖ new), because the tokens were sampled from old
            "log_ratio_max": jnp.max(logps - old, initial=0.0),
            "log_ratio_min": jnp.min(logps - old, initial=0.0),
            "logprob_diff": total(jnp.abs(logps - samples.logps)),
        }
        loss = metrics["policy_loss"]
        if algo.entropy_coef:
            loss -= scheduled.entropy_coef * metrics["entropy"]
        if algo.legal_coef:
            assert scores.legal is not None
            legal = jnp.where(weighed["policy"] > 0, scores.legal, 0.0)
            metrics["legal_prob"] = total(jnp.exp(legal))
            loss -= algo.legal_coef * total(legal)
        if self.fits_values(algo):
            value = losses.value_loss(scores.values, samples.values, samples.returns, algo.value_clip)
            metrics["value_loss"] = jnp.sum(weighed["value"] * value)
            loss += algo.value_coef * metrics["value_loss"]
        if algo.kl_coef:
            assert samples.ref_logps is not None
            ref = jnp.where(weighed["policy"] > 0, samples.ref_logps, logps)
            metrics["kl"] = total(losses.kl(logps, ref, algo.kl_kind))
            loss += algo.kl_coef * metrics["kl"] if algo.kl_in == "loss" else 0.0
        if algo.magnet_coef:
            assert samples.magnet_logps is not None
            slow = jnp.where(weighed["policy"] > 0, samples.magnet_logps, logps)
            metrics["magnet_kl"] = total(losses.kl(logps, slow, algo.kl_kind))
            loss += algo.magnet_coef * metrics["magnet_kl"]
        return loss, {**metrics, "loss": loss}

    def minibatch_metrics(self, samples: Samples, n_policies: int) -> dict[str, jax.Array]:
        """Compute the net advantage of each policy.

        If it is far from 0, a minibatch changes the probability of all its completions in the same direction.
        """
        own = (samples.policy == jnp.arange(n_policies)[:, None])[..., None] if n_policies > 1 else jnp.ones((1, 1, 1))
        weights = own * samples.loss_weights  # [n, N, S]
        mean = samples.to_completions(samples.advantages) / jnp.maximum(samples.completion_lengths, 1)
        total = jnp.maximum(jnp.sum(weights, axis=(1, 2)), 1e-8)
        return {"net_advantage": jnp.sum(weights * mean, axis=(1, 2)) / total}

    def summary(self, samples: Samples, algo: PolicyGradientSettings) -> dict[str, jax.Array]:
        """Compute how well the critic predicted the returns."""
        if not self.fits_values(algo):
            return {}
        weights = value_mask(samples, algo.gae) * samples.to_tokens(samples.loss_weights)
        count = jnp.maximum(jnp.sum(weights), 1e-8)
        return {
            "explained_variance": losses.explained_variance(samples.values, samples.returns, weights),
            "value": jnp.sum(samples.values * weights) / count,
            "return": jnp.sum(samples.returns * weights) / count,
        }


def value_mask(samples: Samples, gae: str) -> jax.Array:
    """Return float32 [N, X] with 1 where the critic predicts a value.

    These are the first tokens of completions, or all tokens if `gae` is "token".
    """
    return samples.mask() if gae == "token" else samples.first()
