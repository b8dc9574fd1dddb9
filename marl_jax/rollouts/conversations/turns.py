"""Recorded turns of games, their conversion to samples, and their metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from envs.games.game import Reward
from marl_jax.agents.answering import Decision
from marl_jax.samples import Samples, from_prompts


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Turn:
    """One turn of B games, each with K candidate completions of one prompt.

    Attributes:
        prompts: int32 [B, T]. Prompts without the common prefix; None if conversations are recorded elsewhere.
        lengths: int32 [B]. Lengths of the prompts, or None.
        skip: int32 [B]. Length of the common prefix, or None.
        seat: int32 [B]. See `Samples`.
        policy: int32 [B]. See `Samples`.
        episode: int32 [B]. See `Samples`.
        turn: int32 [B]. See `Samples`.
        decision: Decisions [B·K, …].
        legal: bool [B, A]. Legal actions.
        rewards: float32 [B·K, P]. Reward of the candidate's step for every seat: the weighted sum of the reward levels.
        ends: bool [B·K]. Whether the episode ends.
        counts: float32 [B·K]. Weight of the completion in the loss.
        central: Input of a central critic, or None.
        media: [B, C]. Codes of the media in the prompts or prompts of speakers, or None.
        action_values: float32 [B, A]. Values of all actions, or None.
    """

    prompts: jax.Array | None
    lengths: jax.Array | None
    skip: jax.Array | None
    seat: jax.Array
    policy: jax.Array
    episode: jax.Array
    turn: jax.Array
    decision: Decision
    legal: jax.Array
    rewards: jax.Array
    ends: jax.Array
    counts: jax.Array
    central: tuple[jax.Array, jax.Array] | None = None
    media: jax.Array | None = None
    action_values: jax.Array | None = None


def to_samples(turns: Turn, candidates: int = 1, tokens: int = 0, **more: Any) -> Samples:
    """Convert turns [R, B, …] to rows of a prompt with its candidates.

    Rows are ordered by turn, so that a batch sharded over a mesh stays sharded.

    Args:
        turns: Turns of the rollout.
        candidates: Number of candidates per prompt, K.
        tokens: Maximum row length, or 0 for no limit. Completions of longer prompts cannot be scored and have weight 0.
        **more: Other fields of `Samples`. `group` and `member` [R, B·K] replace the default groups.
    """
    assert turns.prompts is not None and turns.lengths is not None and turns.skip is not None
    turns_, games = turns.seat.shape
    n = turns_ * games

    def rows(x):
        return x.reshape(n, *x.shape[2:])

    def answers(x):
        return x.reshape(n, candidates, *x.shape[2:])

    def each(x):
        return jnp.broadcast_to(rows(x)[:, None], (n, candidates, *x.shape[2:]))

    decision = turns.decision
    fields: dict[str, Any] = dict(
        policy=rows(turns.policy),
        seat=each(turns.seat),
        episode=each(turns.episode),
        turn=each(turns.turn),
        ends=answers(turns.ends),
        loss_weights=answers(turns.counts),
        rewards=answers(turns.rewards),
        action=answers(decision.action),
        truncated=answers(decision.truncated),
        legal=each(turns.legal),
        values=answers(decision.values),
        central=None if turns.central is None else tuple(map(each, turns.central)),
        media=None if turns.media is None else rows(turns.media),
        action_values=None if turns.action_values is None else each(turns.action_values),
        completion_at=jnp.arange(n, dtype=jnp.int32).reshape(turns_, games) if candidates == 1 else None,
    )
    fields |= {name: answers(more.pop(name)) for name in ("group", "member") if name in more}
    prompts, lengths, fits = rows(turns.prompts), rows(turns.lengths), None
    if tokens and tokens < prompts.shape[1]:
        fits = rows(has_room(turns, tokens))[:, None]
        prompts, lengths = prompts[:, :tokens], jnp.minimum(lengths, tokens)
        fields["loss_weights"] *= fits
    samples = from_prompts(
        prompts, lengths, answers(decision.answers), answers(decision.lengths),
        answers(decision.logps), skip=rows(turns.skip), **{**fields, **more},
    )  # fmt: skip
    return samples if fits is None else samples.replace(context_len=samples.context_len * fits)


def has_room(turns: Turn, tokens: int) -> jax.Array:
    """Return whether each prompt and its completion fit in `tokens` tokens, bool [R, B].

    The last token of a completion is not read and needs no slot.
    """
    assert turns.lengths is not None
    return turns.lengths + turns.decision.answers.shape[-1] - 1 <= tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Finished:
    """Results of the games that ended, arrays [R, B, …].

    Attributes:
        ended: bool. Whether a game ended with this turn. The other fields are only valid where it did.
        total: Sum of the rewards of the game, by level.
        length: int32. Number of moves of the game.
        seat: int32. Seat of the learner.
        dropped: int32. Number of completions of this turn with a loss weight that did not fit in their row; None if all
            fit.
        level: int32. Level of the game, `state.level`; None for games without levels.
    """

    ended: jax.Array
    total: Reward
    length: jax.Array
    seat: jax.Array
    dropped: jax.Array | None = None
    level: jax.Array | None = None


def game_metrics(
    finished: Finished, seats: Sequence[str], competitive: bool, solvable: bool = False
) -> dict[str, jax.Array]:
    """Compute scalar metrics of the games that ended; means are over games.

    Args:
        finished: Results of the games.
        seats: Names of the seats.
        competitive: Whether seats play against each other.
        solvable: Whether games are puzzles, which are solved if they reward the team. AT-GRPO continues with the best
            candidate, so its `success` is higher than that of the policy alone.
    """
    ended = finished.ended
    count = jnp.maximum(jnp.sum(ended), 1)

    def mean(x):
        return jnp.sum(jnp.where(ended, x, 0)) / count

    agent = finished.total.agent
    metrics = {
        "games": jnp.sum(ended),
        "game_length": mean(finished.length),
        "reward/team": mean(finished.total.team),
        "reward/process": mean(jnp.mean(finished.total.process, axis=-1)),
    }
    for seat, name in enumerate(seats):
        metrics[f"reward/{name}"] = mean(agent[..., seat])
    if competitive:
        metrics["draws"] = mean(jnp.all(agent == 0, axis=-1))
    if solvable:
        metrics["success"] = mean(finished.total.team > 0)
    return metrics


def answer_metrics(samples: Samples, dropped: jax.Array | None = None) -> dict[str, jax.Array]:
    """Compute scalar metrics of all completions except those of lookahead turns.

    Args:
        samples: Samples of the rollout.
        dropped: See `Finished.dropped`.
    """
    assert samples.action is not None
    played = samples.completion_lengths > 0
    if samples.lookahead:
        assert samples.completion_at is not None
        turns = samples.completion_at.shape[0]
        kept = jnp.broadcast_to((jnp.arange(turns) < turns - samples.lookahead)[:, None], samples.completion_at.shape)
        played &= samples.from_time(kept)
    count = jnp.maximum(jnp.sum(played), 1)

    def total(x):
        return jnp.sum(jnp.where(played, x, 0))

    failed = (samples.action < 0) & (samples.policy >= 0)[:, None]
    lost = {}
    if dropped is not None:
        n_dropped = jnp.sum(dropped)
        lost = {"dropped_completions": n_dropped / jnp.maximum(n_dropped + total(samples.loss_weights > 0), 1)}
    # A conversation is read once, a self-contained prompt once for each completion.
    tokens = (
        total(samples.context_len + samples.completion_lengths)
        if samples.segment is None
        else jnp.sum(samples.segment >= 0)
    )
    return {
        "completions": total(samples.loss_weights > 0),
        "tokens": tokens,
        "prompt_length": total(samples.context_len) / jnp.maximum(total(samples.recorded()), 1),
        "completion_length": total(samples.completion_lengths) / count,
        "parse_failure_rate": total(failed) / count,
        **lost,
    }
