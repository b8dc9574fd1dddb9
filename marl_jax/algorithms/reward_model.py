"""Training of a reward model: a head on the last token whose differences predict preferences.

    python launch.py --config=experiments/arithmetic.py --workdir=runs/reward --config.algo.name=reward_model …
    python launch.py --workdir=runs/reward --mode=eval
    python launch.py --workdir=runs/reward --mode=serve_reward --config.serve.port=8000

`algo.data` is a file of pairs. The loss is that of Bradley and Terry, -log σ(score of chosen - score of rejected). The
head starts at zero, so the first loss is log 2. The reward server returns the sigmoid of a score.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from marl_jax.agents.policy import Policy
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms import reward_model_config
from marl_jax.algorithms.algorithm import Algorithm
from marl_jax.algorithms.preference import compare_sides, side_weights
from marl_jax.algorithms.reward_model_config import RewardModelSettings
from marl_jax.learning import preferences
from marl_jax.learning.preferences import Sides, join_pairs
from marl_jax.learning.update import Objective, Scheduled
from marl_jax.rollouts import pairs
from marl_jax.rollouts.base import RunParts
from marl_jax.samples import Samples


def compute_advantages(
    policy: Policy, weights: dict, samples: Samples, algo: RewardModelSettings
) -> tuple[Samples, dict[str, jax.Array]]:
    """Put each pair into one row."""
    return join_pairs(compare_sides(samples, "hard")), {}


class BradleyTerry(Objective):
    """The mean over pairs of -log σ of the difference of the scores."""

    def loss_weights_for(self, samples: Samples, algo: RewardModelSettings) -> dict[str, jax.Array]:
        """Return the weights of all sides and of the preferred ones."""
        return side_weights(samples)

    def loss(
        self, samples: Samples, weighed: dict, scores: Scores, algo: RewardModelSettings, scheduled: Scheduled
    ) -> tuple[jax.Array, dict]:
        """Compute the loss of some rows and metrics."""
        own, other = Sides.of(samples).sums(samples.to_completions(scores.values * samples.last()))
        p = 0.5 + samples.at_first(samples.advantages)
        each = preferences.dpo_loss(own, other, p, beta=1.0)
        loss = jnp.sum(weighed["side"] * each)
        metrics = {
            "accuracy": jnp.sum(weighed["preferred"] * (own > other)),
            "preference_margin": jnp.sum(weighed["preferred"] * (own - other)),
            "mean_score": jnp.sum(0.5 * weighed["side"] * jax.nn.sigmoid(own)),
        }
        if algo.center_coef:
            loss += algo.center_coef * jnp.sum(0.5 * weighed["side"] * jnp.square(own))
        return loss, {**metrics, "loss": loss}


def rollout(run: RunParts) -> pairs.PairRollout:
    """Build the rollout, which reads the pairs of the train split."""
    algo = run.algo
    assert isinstance(algo, RewardModelSettings)
    chosen = pairs.split_pairs(pairs.read_pairs(algo.data), "train", algo.held_out)
    return pairs.pair_rollout(run, chosen, algo.n_pairs, scored=True)


REWARD_MODEL = Algorithm(
    "reward_model",
    RewardModelSettings,
    rollout,
    compute_advantages,
    BradleyTerry(),
    critic=True,
    check=reward_model_config.check,
    verifies=("pairs",),
)
