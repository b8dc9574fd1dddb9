"""One-line explanations of all logged metrics.

A name may contain `*`, which matches one part between slashes or a suffix. With several policies, learner metrics are
also logged per policy, with its name after a slash (`loss/planner`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

TRAINING: dict[str, dict[str, str]] = {
    "Episodes": {
        "games": "Number of games that finished during the rollout",
        "episodes": "Number of task episodes that were started",
        "episodes/finished": "Number of episodes that ended with an outcome",
        "episodes/failed": "Number of episodes that ended without one; they are not trained on",
        "episodes/failed/*": "Number of failed episodes with this cause",
        "episodes/ended/*": "Number of finished episodes that ended for this reason",
        "episodes/seconds": "Mean wall time of an episode in seconds",
        "success": "Share of episodes that solved their task",
        "draws": "Share of games that ended in a draw",
        "game_length": "Mean number of turns of a finished game",
        "reward/team": "Mean reward of the team per episode",
        "reward/process": "Mean process reward per episode: rewards for single turns, such as format rewards",
        "reward/*": "Mean individual reward of this role (`seat_N` if seats have no names) per episode",
        "versus/*": "Mean score against this opponent: 1 for a win, 0.5 for a draw",
        "difficulty": "Mean difficulty level of the curriculum",
        "levels/held": "Number of levels in the buffer of level replay",
        "levels/replayed": "Fraction of turns played on levels of the buffer",
        "levels/success": "Mean success rate of the levels in the buffer",
        "task/judge_p": "Mean probability that the learner's text is better, according to the judge of the run",
        "task/judge_flipped": "Share of comparisons whose verdict changed with the order, which makes them ties",
        "task/judge_failed": "Share of the judge's replies without a verdict, in comparisons with another reply",
        "task/judge_agreement": "Share of comparisons decided by the rule in which the judge agrees; ties count half",
        "task/*": "Mean of a metric that the task reports about its episodes",
        "remote/requests": "Number of requests to remote models, without those answered from the cache or the journal",
        "remote/cached": "Number of requests that were answered from the cache",
        "remote/cost": "Cost of the requests of the step, including reservations without a response",
        "refill/rollouts": "Number of extra rollouts that refilled groups with equal rewards",
        "refill/replaced": "Share of rows that were replaced because all rewards of their group were equal",
        "questions": "Number of labelled questions in the batch",
        "right_share": "Share of right answers among the labelled answers",
    },
    "Completions": {
        "completions": "Number of completions in the rollout",
        "completions_trained": "Number of completions that contribute to the loss",
        "dropped_completions": "Share of completions that did not fit into their row and are not trained on",
        "completion_length": "Mean length of a completion in tokens",
        "prompt_length": "Mean length of a prompt in tokens",
        "parse_failure_rate": "Share of completions that name no legal action",
        "truncated_rate": "Share of completions that reached the token limit",
        "truncated_completions": "Share of completions cut off at the token limit",
        "tokens": "Number of tokens that were read and generated",
    },
    "Groups": {
        "groups": "Number of groups whose rewards are compared",
        "group_reward_std": "Mean standard deviation of the rewards within a group",
        "zero_std_groups": "Share of groups with equal rewards, which give no gradient",
        "informative_share": "Share of completions whose group has different rewards",
        "pairs": "Number of pairs that are compared",
        "tied_pairs": "Share of pairs without a preferred side",
    },
    "Loss": {
        "loss": "Total loss",
        "policy_loss": "Policy-gradient part of the loss",
        "value_loss": "Value part of the loss",
        "entropy": "Mean entropy of the sampling distribution in nats",
        "legal_prob": "Mean unmasked probability of the tokens that continue a legal name (`algo.legal_coef`)",
        "kl": "KL divergence from the initial policy",
        "magnet_kl": "KL divergence from the slowly moving copy of the policy",
        "value": "Mean predicted value",
        "return": "Mean return that the critic is trained on",
        "gain": "Mean value of a move relative to the bot's; summed over a game, the difference in score",
        "explained_variance": "Share of the variance of returns that the critic explains",
        "td_error": "Mean absolute difference between the values of joint actions and their targets",
        "baseline/*": "Moving average of the returns of this seat",
        "accuracy": "SFT: share of demonstrated actions that are most likely. Verifier: share of right verdicts. "
        "Reward model: share of pairs whose chosen side scores higher",
        "probability": "Mean probability of the demonstrated actions",
        "preference_accuracy": "Share of pairs whose preferred side has the larger log-ratio to the reference",
        "preference_margin": "Mean difference of the log-ratios of preferred and other sides, times `algo.beta`",
        "preferred_log_ratio": "Mean log-ratio of preferred sides to the reference",
        "completion_kl": "Mean log-ratio of full completions to the reference; a KL estimate if they were sampled",
        "mean_score": "Mean score of the verifier",
        "last_token_loss": "Loss of the verifier at the last token",
    },
    "Update": {
        "ratio": "Mean probability ratio of new and old policy",
        "approx_kl": "Schulman's k3 estimate of KL(old ‖ new)",
        "log_ratio_max": "Largest log ratio of a token; one outlier shows here and hardly in `approx_kl`",
        "log_ratio_min": "Smallest log ratio of a token",
        "clip_frac_high": "Share of tokens clipped at 1 + `algo.clip_high`",
        "clip_frac_low": "Share of tokens clipped at 1 - `algo.clip_low`",
        "logprob_diff": "Mean absolute difference of the sampler's and the learner's log-probs before the first step",
        "net_advantage_min": "Mean advantage of the most negative minibatch",
        "net_advantage_max": "Mean advantage of the most positive minibatch",
        "grad_norm": "Norm of the gradient before clipping",
        "learning_rate": "Learning rate after schedule, signal scale, guard and rollbacks",
        "optimizer_steps": "Number of optimizer steps that were finite and had a signal",
        "completion_drop": "Mean drop in log-probability of good completions, as measured by the guard, in nats",
        "train_turn": "Turn that this step trains (`algo.turn_block`)",
        "train_seat": "Number of the seat that this step trains (`algo.seat_block`)",
        "rejected": "1 if the guard rejected the update",
        "skipped": "Number of optimizer steps that were skipped because a gradient was not finite",
        "skipped_in_a_row": "Number of consecutive updates that were skipped",
    },
    "Time": {
        "step": "Number of updates so far",
        "time": "Unix time in seconds",
        "seconds/*": "Seconds spent in this phase of the step",
        "games_per_s": "Games per second of rollout and update",
        "episodes_per_s": "Episodes per second of rollout and update",
        "tokens_per_s": "Tokens per second of rollout and update",
        "device_idle": "Share of rollout and update time in which the device had no work",
    },
}
"""Metrics of `metrics.jsonl` by topic."""

EVALUATION: dict[str, str] = {
    "opponent": "Opponent, or `self` where the team plays alone",
    "games": "Number of games or episodes",
    "score": "Mean score: wins plus half the draws in zero-sum games, otherwise the return of the team",
    "win_rate": "Share of games won",
    "draw_rate": "Share of games drawn",
    "loss_rate": "Share of games lost",
    "win_rate_seat_*": "Share of games won from this seat",
    "payoff": "Mean payoff per game",
    "success": "Share of episodes that solved their task; pass@1 with several samples per example",
    "reward": "Mean reward of the team and its roles per episode",
    "pass@*": "Share of examples with at least one right sample among this many",
    "maj@*": "Success of the most common answer among this many samples",
    "best_by_score@*": "Success of the sample with the highest score of the task",
    "best_by_reward@*": "Success of the sample with the highest reward",
    "right/*/*": "Share of right completions of this role at this turn",
    "accuracy": "Share of held-out demonstrations, or of verdicts, that are right",
    "margin": "Mean score of the chosen minus that of the rejected completions of held-out pairs",
    "accuracy/*": "The same for one kind of move",
    "precision/*": "Share of the moves of this kind that the expert makes, too",
    "distinct": "Number of distinct games or examples, which decides the width of intervals",
    "failed": "Number of episodes that ended without an outcome",
    "failed/*": "Number of failed episodes with this cause",
    "nash_conv": "Sum of the gains of best responses in all seats, computed over the full game tree",
    "payoff_seat_*": "Expected payoff of this seat if all seats play the policy, computed over the full game tree",
    "game_length": "Mean number of turns",
    "exploitability": "Mean gain of best responses to both seats of the policy, computed over the full game tree",
    "*_low": "Lower end of the confidence interval (`eval.confidence`)",
    "*_high": "Upper end of the confidence interval",
}
"""Metrics of `eval.jsonl`."""


def explain(name: str, known: Mapping[str, str] | None = None) -> str | None:
    """Return the explanation of a metric, with or without the name of a policy.

    Args:
        name: Name of the metric.
        known: Explanations by name, such as `EVALUATION`; None for training metrics.
    """
    groups = TRAINING.values() if known is None else (known,)
    for candidate in (name, name.rpartition("/")[0]):
        for group in groups:
            for pattern, text in group.items():
                if re.fullmatch(re.escape(pattern).replace(r"\*", "[^/]+"), candidate):
                    return text
    return None
