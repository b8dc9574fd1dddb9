"""Settings and checks that several algorithms share. Importing this does not import JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ml_collections import ConfigDict

from marl_jax.fields import choice, distinct_integers, integer, number, off_or
from marl_jax.learning.settings import LearnerSettings, redefault, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyGradientSettings(LearnerSettings):
    """Settings of all policy gradient algorithms."""

    clip_low: float = setting(
        0.2, number(0, 1, above=True), "Lower clip range; importance ratios are clipped below 1 - clip_low"
    )
    clip_high: float = setting(
        0.2, number(0, above=True), "Upper clip range; importance ratios are clipped above 1 + clip_high"
    )
    dual_clip: float = setting(
        0.0,
        off_or(number(1, above=True)),
        "Upper bound on the loss of negative advantages, as a multiple of |advantage|; 0 disables it",
    )
    kl_coef: float = setting(0.0, number(0), "Weight of the KL divergence from the initial policy")
    kl_kind: str = setting(
        "k3", choice("k1", "k2", "k3"), "Estimator of both KL divergences; k1 has no gradient in the loss"
    )
    kl_in: str = setting(
        "loss",
        choice("loss", "reward"),
        "Whether the KL divergence from the initial policy is added to the loss or subtracted from the reward",
    )
    magnet_coef: float = setting(
        0.0, number(0), "Weight of the KL divergence from a moving average of the policy; 0 disables it"
    )
    magnet_decay: float = setting(0.98, number(0, 1), "Decay per step of the moving average of the policy")
    entropy_coef: float = setting(0.01, number(0), "Weight of the entropy bonus")
    entropy_ratio: float = setting(
        1.0, number(0, 1), "Final entropy_coef as a fraction of the initial one; it decays linearly"
    )
    legal_coef: float = setting(
        0.0,
        number(0),
        "Weight of a loss toward the names of legal actions without the mask, for policies that are exported; 0 "
        "disables it",
    )
    epochs: int = redefault(LearnerSettings, "epochs", 2)
    loss_agg: str = setting(
        "token",
        choice("token", "sequence", "constant"),
        "Loss aggregation; token: mean over tokens; sequence: mean of sequence means; constant: sum / fixed length",
    )
    ratio: str = setting(
        "token",
        choice("token", "sequence", "product"),
        "Importance ratio; token: per token; sequence: geometric mean per completion (GSPO); product: per completion "
        "(RLOO)",
    )
    tis_clip: float = setting(
        2.0, off_or(number(1)), "Upper bound on the importance weight of stale samples; 0 disables the weight"
    )
    ratio_mask: str = setting(
        "none",
        choice("none", "probability", "sequence"),
        "Tokens without a gradient; probability: those with a probability change above ratio_mask_limit; sequence: "
        "completions with a negative advantage and a mean KL per token above it",
    )
    ratio_mask_limit: float = setting(0.2, number(0, above=True), "Limit of ratio_mask")
    guard: str = setting(
        "auto",
        choice("auto", "on", "off"),
        "Whether to reject updates that make good completions much less likely and then lower the learning rate; auto: "
        "with adapters; on: also with full weights, which needs a second copy of them",
    )
    guard_drop: float = setting(
        1.0,
        number(0, above=True),
        "Mean drop in log-probability of good completions, in nats, that rejects an update",
    )
    guard_completions: int = setting(
        32, integer(1, 1 << 16), "Number of conversations per policy that the guard scores"
    )
    overlong: str = setting(
        "none",
        choice("none", "mask", "penalty"),
        "Handling of free completions that a token limit cuts off; mask: no loss; penalty: lower reward",
    )
    overlong_buffer: int = setting(
        2, integer(1, 1 << 17), "Number of tokens before the limit over which the penalty grows from 0 to 1"
    )
    train_turns: tuple[int, ...] = setting(
        (), distinct_integers(0), "Turns of a task conversation to train on, counted from 0; (): all"
    )
    turn_block: int = setting(
        0, integer(0), "Number of steps for which one of train_turns is trained before the next; 0: all at once"
    )

    seat_block: int = setting(
        0,
        integer(0),
        "Number of steps for which one seat of a task is trained before the next, in the order of the roles; 0: all at "
        "once",
    )

    # Options that an algorithm with a critic declares again.
    gae: str = "turn"
    value_clip: float = 0.0
    value_coef: float = 0.0


def pack_setting() -> int:
    """Declare `pack`, for algorithms that can score packed rows."""
    return setting(
        0, integer(0, 1024), "Length of packed rows as a multiple of the longest completion; 0 disables packing"
    )


def check_no_other_players(c: ConfigDict, why: str) -> Iterator[str]:
    """Yield a problem if there are opponents.

    Args:
        c: Config of a run.
        why: Verb phrase that says why the algorithm has no opponents.
    """
    o = c.opponents
    if o.self_play_frac < 1 or o.bot_frac > 0 or o.pool_size:
        yield (
            f"config.opponents has players other than the learner, but algo.name {c.algo.name!r} {why}. "
            "Set self_play_frac to 1, bot_frac to 0 and pool_size to 0"
        )


def has_free_answers(c: ConfigDict) -> bool:
    """Return whether completions are free text."""
    return bool(c.task.name) or c.rollout.completion == "free"


def check_overlong(c: ConfigDict) -> Iterator[str]:
    """Yield a problem if every completion would get the penalty."""
    field, longest = (
        ("task.max_new_tokens", c.task.max_new_tokens)
        if c.task.name
        else ("rollout.max_new_tokens", c.rollout.max_new_tokens)
    )
    if c.algo.overlong == "penalty" and has_free_answers(c) and c.algo.overlong_buffer >= longest:
        yield (
            f"config.algo.overlong_buffer is {c.algo.overlong_buffer}, but must be less than {field} ({longest}), or "
            "every completion gets a penalty"
        )


def check_legal_coef(c: ConfigDict) -> Iterator[str]:
    """Yield a problem if completions are not masked to legal actions."""
    if c.algo.legal_coef and has_free_answers(c):
        given = f"task.name {c.task.name!r}" if c.task.name else "rollout.completion 'free'"
        yield f"config.algo.legal_coef is {c.algo.legal_coef:g} with {given}, but must be 0: nothing is masked"


def check_train_turns(c: ConfigDict) -> Iterator[str]:
    """Yield a problem if turns are selected where there are none to select from."""
    if c.algo.train_turns and not c.task.name:
        yield (
            f"config.algo.train_turns is {c.algo.train_turns!r} with env.name {c.env.name!r}, but must be () for games"
        )
    if c.algo.seat_block and not c.task.name:
        yield f"config.algo.seat_block is {c.algo.seat_block} with env.name {c.env.name!r}, but must be 0 for games"
    if c.algo.turn_block and len(c.algo.train_turns) < 2:
        yield (
            f"config.algo.turn_block is {c.algo.turn_block} with algo.train_turns {c.algo.train_turns!r}, but blocks "
            "need at least two turns. Set turn_block to 0 or add turns to train_turns"
        )


def check_packing(c: ConfigDict) -> Iterator[str]:
    """Yield the problems of packing, where it cannot work."""
    if not c.algo.pack:
        return
    subject = f"config.algo.pack is {c.algo.pack} with"
    if not has_free_answers(c):
        yield (
            f"{subject} rollout.completion {c.rollout.completion!r}, but only free completions differ in length. Set "
            "pack to 0 or rollout.completion to 'free'"
        )
    if c.algo.grad_accum_steps < 2:
        yield (
            f"{subject} algo.grad_accum_steps 1, but packing saves time by skipping parts of a minibatch. Set pack to "
            "0 or grad_accum_steps to 2 or more"
        )
    if c.model.lora.rank and len(c.policies) > 1:
        yield f"{subject} adapters of {len(c.policies)} policies, but must be 0 unless there is one policy"


def check_named_actions(c: ConfigDict) -> Iterator[str]:
    """Yield the problems of a config whose critic values the named actions of a game."""
    from envs.games import registry as games

    subject = f"config.algo.name is {c.algo.name!r} with"
    if c.task.name:
        yield f"{subject} task.name {c.task.name!r}, but values of named actions need a game. Set env.name"
        return
    for field, value, accepted in (
        ("rollout.completion", c.rollout.completion, "constrained"),
        ("env.context", c.env.context, "turn"),
        ("env.symmetry", c.env.symmetry, False),
    ):
        if value != accepted:
            yield f"{subject} {field} {value!r}, but {field} must be {accepted!r}"
    bots = [agent for agent, player in c.agents.items() if player not in c.policies]
    if bots:
        yield f"{subject} agents.{bots[0]} {c.agents[bots[0]]!r}, but every seat must have a policy"
    yield from check_no_other_players(c, "learns from the actions of all seats")
    game = games.make(c.env.name, **c.env.params.to_dict())
    if game.simultaneous and c.rollout.unroll_length % game.n_players:
        yield (
            f"config.rollout.unroll_length is {c.rollout.unroll_length}, but must be a multiple of {game.n_players}, "
            f"the turns of a round of {c.env.name}"
        )


def check_known_bot(c: ConfigDict) -> Iterator[str]:
    """Yield a problem if the game has no bot `algo.bot`."""
    from envs.games.bots import bot_names

    known = bot_names(c.env.name)
    if c.algo.bot and c.algo.bot not in known:
        yield f"config.algo.bot is {c.algo.bot!r}, but must be '' or a bot of {c.env.name}: {', '.join(known)}"


def check_cooperative(c: ConfigDict) -> Iterator[str]:
    """Yield a problem if the seats of the game play against each other."""
    from envs.games import registry as games

    if not c.task.name and games.game_class(c.env.name).competitive:
        yield (
            f"config.algo.name is {c.algo.name!r} with env.name {c.env.name!r}, whose seats play against each other, "
            "but its values need a reward that all seats share. Use a cooperative game, or algo.name 'ppo' or 'maddpg'"
        )


def check_factored(c: ConfigDict) -> Iterator[str]:
    """Yield the problems of a config whose loss mixes the values of seats."""
    yield from check_named_actions(c)
    yield from check_cooperative(c)
    frozen = [name for name, policy in c.policies.items() if policy.frozen]
    if frozen:
        yield f"config.policies.{frozen[0]}.frozen is True, but must be False with algo.name {c.algo.name!r}"
    if len(c.policies) > 1 and (not c.model.lora.rank or any(policy.model for policy in c.policies.values())):
        yield (
            f"config.policies has {len(c.policies)} models, but the loss of algo.name {c.algo.name!r} needs the values "
            "of all seats at once. Use one policy, or adapters of one model (model.lora.rank > 0)"
        )
