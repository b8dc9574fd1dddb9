"""Settings and checks that several algorithms share. Importing this does not import JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ml_collections import ConfigDict

from marl_jax.fields import choice, distinct_integers, integer, number, off_or
from marl_jax.learning.settings import LearnerSettings, redefault, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyGradientSettings(LearnerSettings):
    """Settings of every policy gradient."""

    clip_low: float = setting(0.2, number(0, 1, above=True), "the ratio is clipped below 1 minus this")
    clip_high: float = setting(0.2, number(0, above=True), "the ratio is clipped above 1 plus this")
    dual_clip: float = setting(0.0, off_or(number(1, above=True)), "bound on the loss of negative advantages; 0 is off")
    kl_coef: float = setting(0.0, number(0), "weight of the KL to the policy that the run starts with")
    kl_kind: str = setting("k3", choice("k1", "k2", "k3"), "estimator of both KLs; in the loss, k1 has no gradient")
    kl_in: str = setting("loss", choice("loss", "reward"), "where the KL to the start is charged")
    magnet_coef: float = setting(0.0, number(0), "weight of the KL to a slow copy of the policy; 0 keeps no copy")
    magnet_decay: float = setting(0.98, number(0, 1), "per step, the share that the slow copy keeps of itself")
    entropy_coef: float = setting(0.01, number(0), "weight of the entropy bonus")
    entropy_ratio: float = setting(
        1.0, number(0, 1), "the last entropy_coef as a share of the first; it falls linearly"
    )
    epochs: int = redefault(LearnerSettings, "epochs", 2)
    loss_agg: str = setting(
        "token",
        choice("token", "sequence", "constant"),
        "token: mean over tokens; sequence: mean of means; constant: sum over a fixed length",
    )
    ratio: str = setting(
        "token",
        choice("token", "sequence", "product"),
        "importance ratio per token; of a whole answer, the geometric mean (sequence, GSPO) or the product (RLOO)",
    )
    tis_clip: float = setting(2.0, off_or(number(1)), "bound on the importance weight of stale samples; 0 is off")
    ratio_mask: str = setting(
        "none",
        choice("none", "probability", "sequence"),
        "tokens without a gradient; probability: those whose probability changed by more than ratio_mask_limit; "
        "sequence: completions with a negative advantage and a mean KL per token above it",
    )
    ratio_mask_limit: float = setting(0.2, number(0, above=True), "limit of ratio_mask")
    guard: str = setting(
        "auto",
        choice("auto", "on", "off"),
        "check that rejects updates after which good completions are much less likely, and lowers the learning rate; "
        "auto: with adapters; on: also with full weights, which needs a second copy of them",
    )
    guard_drop: float = setting(
        1.0,
        number(0, above=True),
        "mean drop in log-probability of the good completions, in nats, that rejects an update",
    )
    guard_completions: int = setting(32, integer(1, 1 << 16), "conversations per policy that the guard scores")
    overlong: str = setting(
        "none", choice("none", "mask", "penalty"), "free answers that reach the limit of tokens: mask gives no loss"
    )
    overlong_buffer: int = setting(
        2, integer(1, 1 << 17), "tokens before the limit in which the penalty grows from 0 to 1"
    )
    train_turns: tuple[int, ...] = setting(
        (), distinct_integers(0), "tasks: turns of a chat that learn, counted from 0; (): all"
    )
    turn_block: int = setting(
        0, integer(0), "tasks: steps for which one of train_turns learns before the next does; 0: all of them at once"
    )


def pack_setting() -> int:
    """Declare `pack`, for algorithms that can score packed rows."""
    return setting(0, integer(0, 1024), "short free answers share rows of this many times the longest; 0 is off")


def check_no_other_players(c: ConfigDict, why: str) -> Iterator[str]:
    """Refuse opponents: the algorithm plays all seats itself."""
    o = c.opponents
    if o.self_play_frac < 1 or o.bot_frac > 0 or o.pool_size:
        yield (
            f"config.opponents has other players than the learner with algo.name {c.algo.name!r}, {why}; "
            "accepted: self_play_frac 1, bot_frac 0 and pool_size 0"
        )


def has_free_answers(c: ConfigDict) -> bool:
    """Return whether completions are free text."""
    return bool(c.task.name) or c.rollout.completion == "free"


def check_overlong(c: ConfigDict) -> Iterator[str]:
    """Refuse a penalty that every completion would get."""
    field, longest = (
        ("task.max_new_tokens", c.task.max_new_tokens)
        if c.task.name
        else ("rollout.max_new_tokens", c.rollout.max_new_tokens)
    )
    if c.algo.overlong == "penalty" and has_free_answers(c) and c.algo.overlong_buffer >= longest:
        yield (
            f"config.algo.overlong_buffer is {c.algo.overlong_buffer} with {field} {longest}, so that every answer "
            "would be over-long; accepted: less than the limit"
        )


def check_train_turns(c: ConfigDict) -> Iterator[str]:
    """Refuse a choice of turns where there are none to choose."""
    if c.algo.train_turns and not c.task.name:
        yield f"config.algo.train_turns is {c.algo.train_turns!r} with env.name {c.env.name!r}; accepted: (), or a task"
    if c.algo.turn_block and len(c.algo.train_turns) < 2:
        yield (
            f"config.algo.turn_block is {c.algo.turn_block} with algo.train_turns {c.algo.train_turns!r}, so that no "
            "turns take turns; accepted: 0, or two turns and more"
        )


def check_packing(c: ConfigDict) -> Iterator[str]:
    """Refuse packing where it cannot work."""
    if not c.algo.pack:
        return
    found = f"config.algo.pack is {c.algo.pack} with"
    if not has_free_answers(c):
        yield (
            f"{found} rollout.completion {c.rollout.completion!r}, whose samples are of one length; accepted: 0, "
            "or 'free'"
        )
    if c.algo.grad_accum_steps < 2:
        yield f"{found} algo.grad_accum_steps 1: no parts to leave out; accepted: 0, or algo.grad_accum_steps from 2 up"
    if c.model.lora.rank and len(c.policies) > 1:
        yield f"{found} an adapter for each of {len(c.policies)} policies; accepted: 0, or one policy"
