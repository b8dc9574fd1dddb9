"""DPO, IPO, SPPO and Nash-MD: learning from pairs of completions of one prompt.

    python launch.py --config=experiments/arithmetic.py --workdir=runs/dpo --config.algo.name=dpo

A pair is a group of two: two episodes of an example, two candidates of a turn, or a line of a file. Their rewards
decide which one is preferred. `marl_jax/learning/preferences.py` has the losses.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from marl_jax.agents import scoring
from marl_jax.agents.policy import Policy
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms import preference_config as settings
from marl_jax.algorithms.algorithm import Algorithm, score_in_parts
from marl_jax.algorithms.preference_config import PreferenceSettings
from marl_jax.learning import preferences
from marl_jax.learning.preferences import Sides
from marl_jax.learning.update import Objective, Scheduled
from marl_jax.rollouts.base import Rollout, RunParts
from marl_jax.rollouts.host.rollout import HostRollout
from marl_jax.rollouts.pairs import pair_rollout, read_pairs, split_pairs
from marl_jax.rollouts.tree import TreeRollout
from marl_jax.samples import Samples


def compute_advantages(
    policy: Policy, weights: dict, samples: Samples, algo: PreferenceSettings
) -> tuple[Samples, dict[str, jax.Array]]:
    """Add reference log-probabilities, put each pair into one row and compare its rewards.

    The advantage of a completion is p - ½, where p is the probability that its side of the pair is preferred.
    """
    samples = compare_sides(with_references(policy, weights, samples, algo), algo.labels)
    if algo.data or algo.pairs == "episode":
        samples = preferences.join_pairs(samples)
    sides = Sides.of(samples)
    counts = sides.first & (samples.loss_weights > 0)
    ties = counts & (samples.at_first(samples.advantages) == 0)
    metrics = {
        "pairs": jnp.sum(counts) / 2,
        "tied_pairs": jnp.sum(ties) / jnp.maximum(jnp.sum(counts), 1),
    }
    paired = jnp.any(sides.other, axis=2)
    if algo.drops_ties:
        paired &= samples.at_first(samples.advantages) != 0
    samples = samples.replace(loss_weights=samples.loss_weights * paired)
    if algo.mixture:
        assert samples.old_logps is not None and samples.ref_logps is not None
        _, other = sides.sums(samples.to_completions(samples.old_logps - samples.ref_logps))
        other = preferences.mixture_weights(other, counts, algo.mixture)
        samples = samples.replace(advantages=samples.advantages * samples.to_tokens(other))
    return samples, metrics


def compare_sides(samples: Samples, labels: str) -> Samples:
    """Set advantages to p - ½, where p is the probability of being preferred.

    Args:
        samples: Samples with groups of two, each compared by its rewards.
        labels: See `preferences.win_probability`.
    """
    place, size = (samples.group, samples.member), (samples.n_groups, 2, samples.n_seats)
    returns = jnp.zeros(size).at[place].add(samples.rewards)
    own, other = jnp.stack([returns, returns[:, ::-1]])[:, *place, samples.seat]  # [2, N, S]
    p, mask = preferences.win_probability(own, other, labels), samples.mask()
    return samples.replace(advantages=samples.to_tokens(p - 0.5) * mask, returns=samples.to_tokens(own) * mask)


def side_weights(samples: Samples) -> dict[str, jax.Array]:
    """Return the weights [N, S] of all sides and of the preferred ones.

    The weights of the sides sum to 2, so that a loss of both sides is averaged over pairs, those of the preferred sides
    to 1.
    """
    counts = Sides.of(samples).first & (samples.loss_weights > 0)
    preferred = counts & (samples.at_first(samples.advantages) > 0)
    return {
        "side": counts * 2.0 / jnp.maximum(jnp.sum(counts), 1),
        "preferred": preferred / jnp.maximum(jnp.sum(preferred), 1),
    }


def with_references(policy: Policy, weights: dict, samples: Samples, algo: PreferenceSettings) -> Samples:
    """Add log-probabilities of the reference, and those before the update if they are needed."""

    def logps(function):
        return score_in_parts(lambda *part: function(policy, weights, *part), samples, algo)

    if algo.previous_reference:
        return samples.replace(ref_logps=logps(scoring.answer_logps))
    if algo.mixture:
        samples = samples.replace(old_logps=logps(scoring.answer_logps))
    return samples.replace(ref_logps=logps(scoring.reference_logps))


def log_ratios(
    samples: Samples, sides: Sides, logps: jax.Array, algo: PreferenceSettings
) -> tuple[jax.Array, jax.Array]:
    """Compute log π/π_ref of the own and the other side of each completion.

    Args:
        samples: Samples with `ref_logps`.
        sides: Sides of their pairs.
        logps: float32 [N, X], log-probabilities under π.
        algo: Settings of the algorithm.

    Returns:
        Two arrays float32 [N, S].
    """
    assert samples.ref_logps is not None
    ratios = sides.sums(samples.to_completions(logps - samples.ref_logps))
    if not algo.average_tokens:
        return ratios
    lengths = sides.sums(samples.completion_lengths.astype(jnp.float32))
    return ratios[0] / jnp.maximum(lengths[0], 1.0), ratios[1] / jnp.maximum(lengths[1], 1.0)


class PairObjective(Objective):
    """The mean over pairs of a loss with one term per side."""

    def side_loss(self, own: jax.Array, other: jax.Array, p: jax.Array, logps: jax.Array, algo: Any) -> jax.Array:
        """Compute the loss of one side of each pair, [N, S].

        Args:
            own: float32 [N, S], log-ratio of the side.
            other: float32 [N, S], log-ratio of the other side.
            p: float32 [N, S], ½ + advantage of the side.
            logps: float32 [N, S], log-probability of the side.
            algo: Settings of the algorithm.
        """
        raise NotImplementedError

    def loss_weights_for(self, samples: Samples, algo: PreferenceSettings) -> dict[str, jax.Array]:
        """Return the weights of all sides and of the preferred ones."""
        return side_weights(samples)

    def loss(
        self, samples: Samples, weighed: dict, scores: Scores, algo: Any, scheduled: Scheduled
    ) -> tuple[jax.Array, dict]:
        """Compute the loss of some rows and metrics."""
        assert samples.ref_logps is not None
        sides = Sides.of(samples)
        # Scores are undefined for completions with weight 0.
        counts = samples.to_tokens(samples.loss_weights) * samples.mask() > 0
        logps = jnp.where(counts, scores.logps, samples.ref_logps)
        own, other = log_ratios(samples, sides, logps, algo)
        whole, _ = sides.sums(samples.to_completions(logps))
        p = 0.5 + samples.at_first(samples.advantages)
        loss = jnp.sum(weighed["side"] * self.side_loss(own, other, p, whole, algo))
        difference, _ = sides.sums(samples.to_completions(logps - samples.ref_logps))
        metrics = {
            "loss": loss,
            "preference_accuracy": jnp.sum(weighed["preferred"] * (own > other)),
            "preference_margin": jnp.sum(weighed["preferred"] * algo.beta * (own - other)),
            "preferred_log_ratio": jnp.sum(weighed["preferred"] * own),
            "completion_kl": jnp.sum(0.5 * weighed["side"] * difference),
            "entropy": jnp.sum(0.5 * weighed["side"] * _mean_of_tokens(samples, scores.entropy)),
        }
        return loss, metrics


def _mean_of_tokens(samples: Samples, x: jax.Array) -> jax.Array:
    """Average values [N, X] over the tokens of each completion, [N, S]."""
    return samples.to_completions(x) / jnp.maximum(samples.completion_lengths, 1)


class DPOLoss(PairObjective):
    """-log σ(β (own - other)) of the preferred side."""

    def side_loss(self, own, other, p, logps, algo: settings.DPOSettings):
        """See `preferences.dpo_loss`."""
        return preferences.dpo_loss(own, other, p, algo.beta, algo.label_smoothing)


class IPOLoss(PairObjective):
    """The squared distance of the gap between both log-ratios from 1/(2β)."""

    def side_loss(self, own, other, p, logps, algo: settings.IPOSettings):
        """See `preferences.ipo_loss`."""
        return preferences.ipo_loss(own, other, p, algo.beta)


class SPPOLoss(PairObjective):
    """The squared distance of each log-ratio from (p - ½)/β."""

    def side_loss(self, own, other, p, logps, algo: settings.SPPOSettings):
        """See `preferences.sppo_loss`."""
        return preferences.sppo_loss(own, p, algo.beta)


class NashMDLoss(PairObjective):
    """The policy gradient of the preference against the mixture, minus the KL."""

    def side_loss(self, own, other, p, logps, algo: settings.NashMDSettings):
        """See `preferences.nash_md_loss`; a pair counts the mean of its sides."""
        return 0.5 * preferences.nash_md_loss(logps, own, p - 0.5, algo.beta)


def rollout(run: RunParts) -> Rollout:
    """Build the rollout, which samples pairs or reads them from a file."""
    algo = run.algo
    assert isinstance(algo, PreferenceSettings)
    if isinstance(algo, settings.ContrastiveSettings) and algo.data:
        return pair_rollout(run, split_pairs(read_pairs(algo.data), "train", algo.held_out), algo.n_pairs)
    if run.task and algo.pairs == "episode":
        arguments = run.task.arguments(samples=2)
        return HostRollout(**arguments | {"row_multiple": 2 * arguments["row_multiple"]})
    if run.task:
        return HostRollout(**run.task.arguments(candidates=2))
    assert run.game is not None
    return TreeRollout(**run.game.arguments, candidates=2)


def _algorithm(name: str, settings_class: type[PreferenceSettings], objective: PairObjective) -> Algorithm:
    return Algorithm(name, settings_class, rollout, compute_advantages, objective, check=settings.check)


DPO = _algorithm("dpo", settings.DPOSettings, DPOLoss())
IPO = _algorithm("ipo", settings.IPOSettings, IPOLoss())
SPPO = _algorithm("sppo", settings.SPPOSettings, SPPOLoss())
NASH_MD = _algorithm("nash_md", settings.NashMDSettings, NashMDLoss())
