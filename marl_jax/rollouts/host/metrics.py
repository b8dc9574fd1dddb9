"""Metrics of episodes, kept as sums that are added over processes before they become means.

episodes, completions, tokens         numbers of episodes, of completions, and of tokens read and sampled
success, reward/<level> …             means over episodes that did not fail; process rewards also over seats
episodes/failed/<reason> …            numbers of episodes that failed or ended, by reason
completion_length, truncated_rate …   means over completions, including candidates
task/<name>                           metrics of the task
seconds/generating, seconds/device    time of the sampler, and of its device in prefill and decode (`HostRollout`)
refill/rollouts, refill/replaced      extra rollouts of the step, and the share of its examples that they replaced
                                      (`HostRollout`); then `tokens` and seconds count all rollouts, and the other
                                      metrics describe the first one
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from marl_jax.rollouts.host.episodes import Episode

Totals = dict[str, list[float]]
"""Sum and number of values of each metric. If the number is 0, the sum is the metric."""


def totals(episodes: Sequence[Episode], roles: Sequence[str]) -> Totals:
    """Return the sums of all metrics, a JSON value."""
    sums: Totals = {}

    def add(name: str, value: float, count: int = 1) -> None:
        total = sums.setdefault(name, [0.0, 0])
        total[0] += float(value)
        total[1] += count

    for name in ("episodes", "episodes/finished", "episodes/failed", "tokens"):
        add(name, 0, 0)
    for episode in episodes:
        add("episodes", 1, 0)
        if episode.failed:
            add("episodes/failed", 1, 0)
            add(f"episodes/failed/{episode.failed}", 1, 0)
            continue
        assert episode.outcome is not None
        add("episodes/finished", 1, 0)
        add(f"episodes/ended/{episode.outcome.reason}", 1, 0)
        add("success", episode.outcome.success)
        add("episodes/seconds", episode.seconds)
        for name, value in episode.outcome.metrics.items():
            add(f"task/{name}", value)
        for name, value in rewards(episode, roles).items():
            add(name, value)
        for chat in episode.chats:
            for said in chat.said:
                for answer in said.answers:
                    add("completions", 1, 0)
                    add("tokens", said.start + len(answer.tokens), 0)
                    add("prompt_length", said.start)
                    add("completion_length", len(answer.tokens))
                    add("truncated_rate", answer.finish == "length")
    return sums


def rewards(episode: Episode, roles: Sequence[str]) -> dict[str, float]:
    """Return the rewards of an episode: team, process and each seat.

    Rewards of candidates are averaged.
    """
    paid = {"reward/team": 0.0, "reward/process": 0.0, **{f"reward/{role}": 0.0 for role in roles}}
    for chat in episode.chats:
        for said in chat.said:
            for reply in said.replies:
                paid["reward/team"] += reply.rewards.team / len(said.replies)
                paid["reward/process"] += reply.rewards.process / len(said.replies) / len(roles)
                paid[f"reward/{roles[chat.seat]}"] += reply.rewards.agent / len(said.replies)
    return paid


def merge(parts: Iterable[Totals]) -> Totals:
    """Add the sums of several processes."""
    merged: Totals = {}
    for part in parts:
        for name, (total, count) in part.items():
            before = merged.get(name, (0.0, 0))
            merged[name] = [before[0] + total, before[1] + count]
    return merged


def means(sums: Totals) -> dict[str, float]:
    """Convert sums to metrics."""
    return {name: total / count if count else total for name, (total, count) in sums.items()}
