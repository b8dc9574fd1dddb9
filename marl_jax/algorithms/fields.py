"""The config fields of the algorithms: `config.algo` holds the name of one and exactly its fields."""

from __future__ import annotations

import re
from collections.abc import Sequence

from marl_jax.fields import (
    SWITCH,
    TEXT,
    TEXTS,
    Field,
    Rule,
    choice,
    distinct_integers,
    integer,
    number,
    off_or,
    with_defaults,
)  # fmt: skip

BATCHES = {
    "minibatches": Field(4, integer(1, 1 << 20), "updates per pass over the samples of a rollout"),
    "grad_accum_steps": Field(
        1, integer(1, 1 << 20), "parts of a minibatch whose gradients are summed; more where memory is short"
    ),
}

COMMON = {  # of every policy gradient
    "clip_low": Field(0.2, number(0, 1, above=True), "the ratio is clipped below 1 minus this"),
    "clip_high": Field(0.2, number(0, above=True), "the ratio is clipped above 1 plus this"),
    "dual_clip": Field(0.0, off_or(number(1, above=True)), "bound on the loss of negative advantages; 0 is off"),
    "kl_coef": Field(0.0, number(0), "weight of the KL to the policy that the run starts with"),
    "kl_kind": Field("k3", choice("k1", "k2", "k3"), "estimator of both KLs; in the loss, k1 has no gradient"),
    "kl_in": Field("loss", choice("loss", "reward"), "where the KL to the start is charged"),
    "magnet_coef": Field(0.0, number(0), "weight of the KL to a slow copy of the policy; 0 keeps no copy"),
    "magnet_decay": Field(0.98, number(0, 1), "per step, the share that the slow copy keeps of itself"),
    "entropy_coef": Field(0.01, number(0), "weight of the entropy bonus"),
    "entropy_ratio": Field(1.0, number(0, 1), "the last entropy_coef as a share of the first; it falls linearly"),
    "epochs": Field(2, integer(1, 1000), "passes over the samples of a rollout"),
    **BATCHES,
    "loss_agg": Field(
        "token",
        choice("token", "sequence", "constant"),
        "token: mean over tokens; sequence: mean of means; constant: sum over a fixed length",
    ),
    "ratio": Field(
        "token",
        choice("token", "sequence", "product"),
        "importance ratio per token; of a whole answer, the geometric mean (sequence, GSPO) or the product (RLOO)",
    ),
    "tis_clip": Field(2.0, off_or(number(1)), "bound on the importance weight of stale samples; 0 is off"),
    "ratio_mask": Field(
        "none",
        choice("none", "probability", "sequence"),
        "tokens without a gradient; probability: those whose probability changed by more than ratio_mask_limit; "
        "sequence: completions with a negative advantage and a mean KL per token above it",
    ),
    "ratio_mask_limit": Field(0.2, number(0, above=True), "limit of ratio_mask"),
    "guard": Field(
        "auto",
        choice("auto", "on", "off"),
        "check that rejects updates after which good completions are much less likely, and lowers the learning rate; "
        "auto: with adapters; on: also with full weights, which needs a second copy of them",
    ),
    "guard_drop": Field(
        1.0,
        number(0, above=True),
        "mean drop in log-probability of the good completions, in nats, that rejects an update",
    ),
    "guard_completions": Field(32, integer(1, 1 << 16), "conversations per policy that the guard scores"),
    "overlong": Field(
        "none", choice("none", "mask", "penalty"), "free answers that reach the limit of tokens: mask gives no loss"
    ),
    "overlong_buffer": Field(2, integer(1, 1 << 17), "tokens before the limit in which the penalty grows from 0 to 1"),
    "train_turns": Field((), distinct_integers(0), "tasks: turns of a chat that learn, counted from 0; (): all"),
    "turn_block": Field(
        0, integer(0), "tasks: steps for which one of train_turns learns before the next does; 0: all of them at once"
    ),
}

_PACK = {"pack": Field(0, integer(0, 1024), "short free answers share rows of this many times the longest; 0 is off")}

PPO = {
    **COMMON,
    **_PACK,
    "gamma": Field(1.0, number(0, 1), "discount per turn of the agent"),
    "gamma_token": Field(1.0, number(0, 1), "discount per token, where gae is token"),
    "lam": Field(0.95, number(0, 1), "GAE's trade of bias for variance"),
    "gae": Field("turn", choice("turn", "token"), "turn: one advantage for all tokens of a turn; token: GAE over them"),
    "critic": Field(
        "head",
        choice("head", "separate", "central", "role"),
        "a head on the policy, a model of its own, one for all seats; role: none, an average of each seat's returns",
    ),
    "critic_reads": Field(
        "chat", choice("chat", "answer"), "tasks: the whole chat before a token, or its question and this answer alone"
    ),
    "role_decay": Field(0.95, number(0, 1), "per step, the share that an average of returns keeps; for critic=role"),
    "value_clip": Field(0.2, number(0), "values are clipped around those of the rollout; 0 is off"),
    "value_coef": Field(0.5, number(0), "weight of the value loss"),
    "whiten": Field(
        "agent",
        choice("none", "agent", "turn"),
        "advantages are standardised per agent, or (tasks) per agent and turn",
    ),
}

GRPO = {
    **with_defaults(COMMON, epochs=1, loss_agg="sequence", entropy_coef=0.0),
    **_PACK,
    "group_size": Field(8, integer(2, 1 << 16), "samples that are compared with each other"),
    "group_std": Field(True, SWITCH, "group advantages are divided by their standard deviation; False is Dr.GRPO"),
    "group_baseline": Field("mean", choice("mean", "leave_one_out"), "leave_one_out is RLOO"),
    "normalise": Field(
        "group",
        choice("group", "agent", "batch"),
        "standard deviation per group, per agent (Dr. MAS) or over all informative groups of the batch (ScaleRL)",
    ),
    "std_ddof": Field(0, integer(0, 1), "the variance of a group is divided by K (0) or by K - 1 (1, as torch does)"),
    "filter_zero_std_groups": Field(True, SWITCH, "groups whose rewards are all equal do not contribute to the loss"),
    "signal_frac": Field(
        0.5,
        number(0, 1),
        "share of informative completions, among these and the solved ones, from which the full learning rate "
        "applies; below it, the rate falls with the square root of the share; 0 is off",
    ),
    "minibatch_groups": Field(True, SWITCH, "keep the completions of a group in one minibatch"),
    "refill": Field(
        0, integer(0), "maximum number of extra rollouts per update that replace groups whose rewards are all equal"
    ),
}

AT_GRPO = {
    **with_defaults({name: field for name, field in GRPO.items() if name not in _PACK}, group_size=4),
    "continuation": Field("best", choice("best", "random", "first"), "the candidate with which an episode continues"),
    "team_term": Field(
        "immediate", choice("immediate", "lookahead"), "team reward of a candidate: of its step, or of what follows"
    ),
}

_KIND_WEIGHT = re.compile(r"(\w+)=(\d+(?:\.\d+)?)")
_KIND_WEIGHTS = Rule(
    "a tuple of texts KIND=WEIGHT, e.g. ('play=2',)",
    lambda x: TEXTS.holds(x) and all(_KIND_WEIGHT.fullmatch(text) for text in x),
)


def kind_weights(texts: Sequence[str]) -> dict[str, float]:
    """Weights by the names of kinds, from texts like "play=2"."""
    return {kind: float(weight) for kind, weight in (_KIND_WEIGHT.fullmatch(text).groups() for text in texts)}


SFT = {
    "epochs": Field(1, integer(1, 1000), "passes over the demonstrations of a step"),
    **BATCHES,
    "bot": Field("", TEXT, "the bot that is imitated; '' is the best of the game"),
    "noise": Field(0.1, number(0, 0.9), "share of moves played at random, so that unusual positions are seen too"),
    "kind_weights": Field((), _KIND_WEIGHTS, "weights in the loss of kinds of moves, ('play=2',); the others have 1"),
}

VERIFIER = {
    "epochs": Field(1, integer(1, 1000), "passes over the answers of a step"),
    **with_defaults(BATCHES, minibatches=1),
    "critic": Field("head", choice("head"), "the score is a head on the model"),
    "data": Field("", TEXT, "folder of the run that labelled the answers; '' is the run's own"),
    "questions": Field(2000, integer(1, 1 << 24), "questions of the train part to label at most"),
    "held_out": Field(256, integer(1, 1 << 24), "questions of validation and of test to label at most, of each"),
    "samples": Field(16, integer(2, 1 << 12), "answers to sample to each question"),
    "per_side": Field(4, integer(1, 1 << 12), "right answers to learn from of each question, and as many wrong ones"),
    "balanced": Field(True, SWITCH, "as many right as wrong answers of each question; False: as they were sampled"),
    "gold": Field(False, SWITCH, "the dataset's own solution may take the place of one missing right answer"),
    "answers": Field(64, integer(1, 1 << 20), "answers of a step"),
    "label_tokens": Field("last_half", choice("last_half", "all", "last"), "tokens of an answer that carry its label"),
}
