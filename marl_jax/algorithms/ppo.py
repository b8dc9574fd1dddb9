"""PPO in self-play, with a critic and GAE over the turns of each seat."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from marl_jax.agents import scoring
from marl_jax.agents.policy import Policy
from marl_jax.algorithms import ppo_config
from marl_jax.algorithms.algorithm import Algorithm, ClippedObjective, kl_rewards, score_in_parts, with_reference
from marl_jax.algorithms.ppo_config import PPOSettings
from marl_jax.learning import advantages
from marl_jax.rollouts.base import Rollout, RunParts
from marl_jax.rollouts.games import GameRollout
from marl_jax.rollouts.host.rollout import HostRollout
from marl_jax.samples import Samples


def compute_advantages(
    policy: Policy, weights: dict, samples: Samples, algo: PPOSettings
) -> tuple[Samples, dict[str, jax.Array]]:
    """Compute advantages and returns, and drop the lookahead turns."""
    # A batcher evaluates no critic, and sampling with a KV cache does not evaluate a separate one.
    unasked = policy.on_host or (policy.keeps_cache and policy.critic == "separate")
    if algo.tis_clip or algo.gae == "token" or unasked:
        scores = score_in_parts(lambda *part: scoring.score(policy, weights, *part), samples, algo)
        # Completions without room in a row cannot be scored and keep the values from sampling.
        scored = samples.to_tokens(samples.recorded())
        samples = samples.replace(values=jnp.where(scored, scores.values, samples.values))
        if algo.tis_clip:
            samples = samples.replace(old_logps=scores.logps)
    samples = with_reference(policy, weights, samples, algo)

    lam, values = algo.lam, samples.at_first(samples.values)
    if algo.baseline == "seat_ema":  # full returns, compared with the average return of the seat
        lam, values = 1.0, weights["baseline"][samples.seat]
    in_time = samples.in_time
    credit = advantages.gae(
        in_time(samples.rewards), in_time(values), in_time(samples.seat), in_time(samples.ends), algo.gamma, lam,
        tail=samples.lookahead,
    )  # fmt: skip
    advantage, known = samples.from_time(credit.advantages), samples.from_time(credit.known)
    mask = samples.mask()
    if algo.gae == "token":
        paid = kl_rewards(samples, algo)
        result, returns = advantages.token_gae(samples, advantage, values, algo.gamma_token, algo.lam, paid)
    else:
        result = samples.to_tokens(advantage) * mask
        returns = samples.to_tokens(samples.from_time(credit.returns)) * samples.first()
    loss_weights = samples.loss_weights * known
    if algo.whiten != "none":
        counts = samples.to_tokens(loss_weights) * mask
        label, n_labels = _whitened_together(samples, algo.whiten)
        result = advantages.whiten(result, samples.to_tokens(label), counts, n_labels) * mask
    samples = samples.replace(advantages=result, returns=returns, loss_weights=loss_weights)
    usual = enumerate(weights["baseline"]) if algo.baseline == "seat_ema" else ()
    return samples.without_lookahead(), {f"baseline/seat_{seat}": value for seat, value in usual}


def _whitened_together(samples: Samples, whiten: str) -> tuple[jax.Array, int]:
    """Return the labels of completions that are whitened together.

    Returns:
        Labels int32 [N, S], and the number of labels.
    """
    if whiten == "agent":
        return samples.seat, samples.n_seats
    assert samples.completion_at is not None
    turns = samples.completion_at.shape[0]  # upper bound on the turns of a chat
    return samples.seat * turns + samples.turn, samples.n_seats * turns


def rollout(run: RunParts) -> Rollout:
    """Build the rollout: games with opponents, or episodes of a task in time order."""
    if run.task:
        return HostRollout(**run.task.arguments(), time_order=True)
    assert run.game is not None
    return GameRollout(**run.game.arguments, opponents=run.game.opponents())


PPO = Algorithm(
    "ppo",
    PPOSettings,
    rollout,
    compute_advantages,
    ClippedObjective(critic=True),
    critic=True,
    check=ppo_config.check,
)
