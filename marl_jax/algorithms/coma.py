"""COMA: policy gradients with a counterfactual baseline for each agent.

    A_i(s, u) = Q(s, u) − Σ_a π_i(a | o_i) Q(s, (u_−i, a))

The critic reads the views of all seats and the actions that the others took, and values all own actions in one pass.
The baseline averages over the own action only, so it does not change the expected gradient.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from marl_jax.agents import critics, scoring
from marl_jax.agents.answers import Constrained
from marl_jax.agents.policy import Policy
from marl_jax.algorithms import coma_config
from marl_jax.algorithms.algorithm import Algorithm, ClippedObjective, score_in_parts, with_reference
from marl_jax.algorithms.coma_config import COMASettings
from marl_jax.errors import ConfigError
from marl_jax.learning import advantages, rounds
from marl_jax.rollouts.base import Rollout, RunParts
from marl_jax.rollouts.games import GameRollout
from marl_jax.samples import Samples


def compute_advantages(
    policy: Policy, weights: dict, samples: Samples, algo: COMASettings
) -> tuple[Samples, dict[str, jax.Array]]:
    """Compute counterfactual advantages and the critic's targets, and drop the lookahead turns."""
    samples = with_others_actions(policy, samples)
    scores = score_in_parts(lambda *part: scoring.score(policy, weights, *part), samples, algo)
    if algo.tis_clip:
        samples = samples.replace(old_logps=scores.logps)
    samples = with_reference(policy, weights, samples, algo)
    slow = {**weights, **weights["target"]}
    targets = score_in_parts(lambda part, _: scoring.central_action_values(policy, slow, part), samples, algo)
    credit = returns_from(samples, scoring.value_taken(targets, samples), algo)
    advantage = counterfactual(scores.action_values, scores.action_logps, samples)
    samples = samples.replace(
        values=scores.values,
        advantages=samples.to_tokens(advantage) * samples.mask(),
        returns=samples.to_tokens(samples.from_time(credit.returns)) * samples.first(),
        loss_weights=samples.loss_weights * samples.from_time(credit.known),
    )
    return samples.without_lookahead(), {}


def counterfactual(of_actions: jax.Array, logps: jax.Array, samples: Samples) -> jax.Array:
    """Compute the value of each action relative to the policy's average: float32 [N, S].

    Args:
        of_actions: float32 [N, S, A], values of all own actions, given those of the others.
        logps: float32 [N, S, A], the policy's log-probabilities.
        samples: The samples, with the actions that were taken.
    """
    return scoring.value_taken(of_actions, samples) - expected(of_actions, logps)


def expected(of_actions: jax.Array, logps: jax.Array) -> jax.Array:
    """Average the values of actions [..., A] over the policy: float32 [...]."""
    return jnp.sum(jnp.exp(logps) * of_actions, axis=-1)


def returns_from(samples: Samples, values: jax.Array, algo) -> advantages.Credit:
    """Compute λ-returns over the turns of each seat from values [N, S]."""
    in_time = samples.in_time
    return advantages.gae(
        in_time(samples.rewards), in_time(values), in_time(samples.seat), in_time(samples.ends), algo.gamma, algo.lam,
        tail=samples.lookahead,
    )  # fmt: skip


def with_others_actions(policy: Policy, samples: Samples) -> Samples:
    """Append the others' actions of a simultaneous round to the input of the critic.

    In other games the other seats pass, so there is nothing to append.
    """
    if not policy.simultaneous:
        return samples
    assert samples.central is not None and isinstance(policy.answers, Constrained)
    choices = policy.answers.choices
    central = (samples.central[0][:, 0], samples.central[1][:, 0])
    joined = critics.with_actions(central, jnp.maximum(choices.ids, 0), choices.lengths, rounds.others(samples))
    return samples.replace(central=(joined[0][:, None], joined[1][:, None]))


def rollout(run: RunParts) -> Rollout:
    """Build the rollout of a game whose action names have one token each."""
    check_one_token(run)
    assert run.game is not None
    return GameRollout(**run.game.arguments)


def check_one_token(run: RunParts) -> None:
    """Raise a `ConfigError` if the name of an action has several tokens."""
    assert run.game is not None
    for backbone in run.game.arguments["team"].backbones:
        if (width := backbone.policy.width) > 1:
            raise ConfigError(
                [
                    f"config.env.text is {run.config.env.text!r}, in which names of actions have up to {width} tokens, "
                    f"but algo.name {run.config.algo.name!r} needs the probabilities of all actions after one pass. "
                    "Use a text or a tokenizer with names of one token, such as env.text 'brief'"
                ]
            )


COMA = Algorithm(
    "coma",
    COMASettings,
    rollout,
    compute_advantages,
    ClippedObjective(critic=True),
    critic=True,
    check=coma_config.check,
)
