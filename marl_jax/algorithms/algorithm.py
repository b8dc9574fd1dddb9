"""What an algorithm is, and the parts that several share.

An algorithm says how it rolls out, how samples get their advantages, what loss they have, which config fields it reads
and what it rejects. It is one file in this folder and one line in the registry; nothing else knows its name.
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
from marl_jax.samples import Samples, split, unsplit
from models.sharding import num_shards


def no_conditions(config: ConfigDict) -> Iterator[str]:
    """For algorithms that accept whatever their fields do."""
    yield from ()


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """One entry of the registry.

    settings   its settings, whose class declares its config fields (`marl_jax/learning/settings.py`)
    rollout    from the parts of a run to the rollout that gathers its samples
    compute_advantages  (policy, weights, samples, algo) -> (samples ready for the update, metrics); runs inside jit
    objective  see `learning.update.Objective`
    check      (config) -> problems of a config with this algorithm
    critic     whether it has one
    heldout_eval  from the parts of a run to a function of the parameters that counts something on held-out games; None
    verifies   whether it trains a verifier, which scores answers and gives none
    """

    name: str
    settings: type[LearnerSettings]
    rollout: Callable[[RunParts], Rollout]
    compute_advantages: Callable[[Policy, dict, Samples, Any], tuple[Samples, dict[str, jax.Array]]]
    objective: Any
    check: Callable[[ConfigDict], Iterator[str]] = no_conditions
    critic: bool = False
    heldout_eval: Callable[[RunParts], Callable[[dict], HeldoutMetrics]] | None = None
    verifies: bool = False

    @property
    def fields(self) -> Fields:
        """The fields of `config.algo`."""
        return fields_of(self.settings)


class HeldoutCount(NamedTuple):
    """How often something was right; of the cases, how many were distinct."""

    right: int
    total: int
    distinct: int


class HeldoutMetrics(NamedTuple):
    """What was counted on held-out games: the name of the row, and counts by metric, the headline first."""

    name: str
    counts: dict[str, HeldoutCount]


def in_parts(function: Callable[[Samples], Any], samples: Samples, parts: int) -> Any:
    """`function` (samples -> tree of [N, …]) over parts of the rows, so that memory stays that of a minibatch."""
    while samples.n % parts:
        parts -= 1
    return unsplit(jax.lax.map(function, split(samples.replace(completion_at=None), parts)))


def score_in_parts(
    function: Callable[[Samples, packing.PackedRows | None], Any], samples: Samples, algo: LearnerSettings
) -> Any:
    """`function` (samples, packed rows or None -> tree of [N, X]) over the parts in which the update reads the rows.

    Rows without an answer are not read where rows are packed, and have zeros.
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
        rows, found = one(i)
        return rows.put(total, found)

    nothing = jax.tree.map(lambda x: jnp.zeros((samples.n, *x.shape[1:]), x.dtype), jax.eval_shape(one, 0)[1])
    return jax.lax.fori_loop(0, -(-places.used() // size), add, nothing)


def with_reference(policy: Policy, weights: dict, samples: Samples, algo: PolicyGradientSettings) -> Samples:
    """The samples with what the update compares them with: log-probabilities of reference and magnet, KL in the reward.

    A KL in the reward is subtracted from what the answering seat was paid, summed over the tokens of the answer.
    """

    def logps(function):
        return score_in_parts(lambda *part: function(policy, weights, *part), samples, algo)

    if algo.magnet_coef:
        samples = samples.replace(magnet_logps=logps(scoring.magnet_logps))
    if algo.kl_coef:
        samples = samples.replace(ref_logps=logps(scoring.reference_logps))
    if algo.kl_coef and algo.kl_in == "reward":
        own = jax.nn.one_hot(samples.seat, samples.n_seats)
        paid = samples.to_completions(kl_rewards(samples, algo))
        samples = samples.replace(rewards=samples.rewards + paid[..., None] * own)
    return samples


def kl_rewards(samples: Samples, algo: PolicyGradientSettings) -> jax.Array:
    """float32 [N, X]: what a KL in the reward pays for every token; zeros where it is not charged there."""
    if not algo.kl_coef or algo.kl_in != "reward":
        return jnp.zeros(samples.targets.shape, jnp.float32)
    assert samples.ref_logps is not None
    counts = samples.mask() * samples.to_tokens(samples.recorded())
    # Of answers without room in a row the reference may mean nothing.
    found = losses.kl(samples.logps, jnp.where(counts > 0, samples.ref_logps, samples.logps), algo.kl_kind)
    return -algo.kl_coef * found * counts


@dataclasses.dataclass(frozen=True)
class ClippedObjective(Objective):
    """PPO's clipped loss with its options, shared by PPO and the GRPO family.

    critic  also fit the critic's values, at the first token of each answer or at every one (`algo.gae`), where there
            is a critic and not an average of returns in its place
    """

    critic: bool

    def fits_values(self, algo: PolicyGradientSettings) -> bool:
        """Whether values are learnt by this loss."""
        return self.critic and algo.baseline == "critic"

    def loss_weights_for(self, samples: Samples, algo: PolicyGradientSettings) -> dict[str, jax.Array]:
        """Weights of the tokens in the policy's loss and in the critic's."""
        weighed = {"policy": losses.token_weights(samples, algo.loss_agg, samples.max_new)}
        if self.fits_values(algo):
            weighed["value"] = losses.token_weights(samples, "token", mask=value_mask(samples, algo.gae))
        return weighed

    def loss(
        self, samples: Samples, weighed: dict, scores: Scores, algo: PolicyGradientSettings, scheduled: Scheduled
    ) -> tuple[jax.Array, dict]:
        """The loss of some rows, and metrics; both are sums over tokens with the minibatch's weights."""
        old = samples.logps if samples.old_logps is None else samples.old_logps
        correction = losses.truncated_importance(old, samples.logps, algo.tis_clip) if algo.tis_clip else 1.0
        # Of answers that do not count (an opponent's, or without room in a row) the scores may mean nothing.
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
            "approx_kl": total(losses.kl(old, logps, "k3")),  # KL(old ‖ new): the tokens were drawn from old
            "log_ratio_max": jnp.max(logps - old, initial=0.0),
            "log_ratio_min": jnp.min(logps - old, initial=0.0),
            "logprob_diff": total(jnp.abs(logps - samples.logps)),
        }
        loss = metrics["policy_loss"]
        if algo.entropy_coef:
            loss -= scheduled.entropy_coef * metrics["entropy"]
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
        """Compute the net advantage of each policy: far from 0, a minibatch pushes all its completions one way."""
        own = (samples.policy == jnp.arange(n_policies)[:, None])[..., None] if n_policies > 1 else jnp.ones((1, 1, 1))
        weights = own * samples.loss_weights  # [n, N, S]
        mean = samples.to_completions(samples.advantages) / jnp.maximum(samples.completion_lengths, 1)
        total = jnp.maximum(jnp.sum(weights, axis=(1, 2)), 1e-8)
        return {"net_advantage": jnp.sum(weights * mean, axis=(1, 2)) / total}

    def summary(self, samples: Samples, algo: PolicyGradientSettings) -> dict[str, jax.Array]:
        """How well the critic had foreseen the returns."""
        if not self.fits_values(algo):
            return {}
        asked = value_mask(samples, algo.gae) * samples.to_tokens(samples.loss_weights)
        count = jnp.maximum(jnp.sum(asked), 1e-8)
        return {
            "explained_variance": losses.explained_variance(samples.values, samples.returns, asked),
            "value": jnp.sum(samples.values * asked) / count,
            "return": jnp.sum(samples.returns * asked) / count,
        }


def value_mask(samples: Samples, gae: str) -> jax.Array:
    """float32 [N, X]: where the critic is asked. Over turns, before the first token; over tokens, before each."""
    return samples.mask() if gae == "token" else samples.first()
