"""Turns as they are played, and the samples they become."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from envs.games.game import Reward
from marl_jax.agents.answering import Decision
from marl_jax.samples import Samples, from_prompts


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Turn:
    """One turn of B games, each with K candidate answers to one prompt.

    prompts   int32 [B, T], of lengths int32 [B], behind a common prefix of `skip` int32 [B] tokens; None where
              conversations are written down elsewhere
    seat, policy, episode, turn  int32 [B]
    decision  `Decision` of [B·K, …]
    legal     bool [B, A]
    rewards   float32 [B·K, P], what each candidate's step paid to every seat, levels weighed and added
    ends      bool [B·K]
    counts    float32 [B·K], the weight of each answer in the loss
    central   what a central critic reads, or None
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


def to_samples(turns: Turn, candidates: int = 1, tokens: int = 0, **more: Any) -> Samples:
    """Turns [R, B, …] as rows of a prompt and its candidates, turn by turn, so that a batch split over a mesh stays so.

    tokens  of a row at most; answers to longer prompts are not learned from, and cannot be scored; 0: no limit
    more    fields of `Samples`; `group` and `member` [R, B·K] where answers are to be compared otherwise
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
        legal=each(turns.legal),
        values=answers(decision.values),
        central=None if turns.central is None else tuple(map(each, turns.central)),
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
    """bool [R, B]: whether a prompt and the tokens of an answer that are read fit into a row of so many."""
    assert turns.lengths is not None
    return turns.lengths + turns.decision.answers.shape[-1] - 1 <= tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Finished:
    """What became of the games that ended, arrays [R, B, …].

    ended     bool           a game of this row ended with this turn; the rest counts only where it did
    total     Reward         what it paid in all, by level
    length    int32          its moves
    seat      int32          the learner's seat
    dropped   int32          answers of this turn to be learned from for which a conversation's row had no room; None
                             where every prompt stands alone
    """

    ended: jax.Array
    total: Reward
    length: jax.Array
    seat: jax.Array
    dropped: jax.Array | None = None


def game_metrics(finished: Finished, competitive: bool, solvable: bool = False) -> dict[str, jax.Array]:
    """Compute scalar metrics of the games that ended; means are over games.

    Args:
      solvable: whether games are puzzles, which are solved if they reward the team. With AT-GRPO, which continues with
        the best candidate, `success` is therefore higher than that of the policy alone.
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
    for seat in range(agent.shape[-1]):
        metrics[f"reward/agent_{seat}"] = mean(agent[..., seat])
    if competitive:
        metrics["draws"] = mean(jnp.all(agent == 0, axis=-1))
    if solvable:
        metrics["success"] = mean(finished.total.team > 0)
    return metrics


def answer_metrics(samples: Samples, dropped: jax.Array | None = None) -> dict[str, jax.Array]:
    """Of all answers but those of turns that look ahead; `dropped` as in `Finished`."""
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
    # A conversation is read once, prompts that stand alone once for each answer.
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
