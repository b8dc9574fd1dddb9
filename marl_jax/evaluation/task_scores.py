"""Metrics of task evaluations with confidence intervals.

With k samples of each of n examples:

    success              mean over all samples: pass@1, also called avg@k
    pass@k               fraction of examples with a correct sample
    maj@k                success of the most common answer; the mean if several are equally common
    best_by_score@k      success of the sample with the highest score of the task (`Outcome.score`); without scores,
    best_by_reward@k     success of the sample with the highest reward, which depends on the correct answer
    right/ROLE/turn_T    fraction of correct completions of a role at a turn, if the task judges them

A failed episode (a timeout or an exception) counts as unsuccessful with a reward of 0 and has no vote. If every episode
failed, the row has the counts only. Samples of an example are not independent, so intervals are those of n examples:
Wilson intervals for fractions of examples, and bootstrap over examples for means of several samples.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from marl_jax.evaluation import intervals as stats
from marl_jax.evaluation.intervals import Interval

FOLDER = "answers"
"""Subfolder of a run with the episodes of its evaluations, one file per split and step."""

Record = Mapping[str, Any]
"""An episode of an evaluation, as returned by `tasks.record`."""


def row(records: Sequence[Record], confidence: float) -> dict[str, Any]:
    """Compute all metrics of an evaluation.

    Returns:
        The counts `games` and `distinct`, NAME, NAME_low and NAME_high of every metric with an interval, the other
        metrics, and how many episodes `failed`, also by reason. Only the counts if every episode failed.
    """
    groups = list(by_example(records).values())
    failed = collections.Counter(record["failed"] for record in records if record["failed"])
    counts: dict[str, Any] = {"games": len(records), "distinct": len(groups)}
    if failed.total() < len(records):
        measured = _measured(records, groups, confidence)
        counts |= {name: value for name, value in measured.items() if name not in counts}
    return counts | {"failed": failed.total(), **{f"failed/{reason}": n for reason, n in sorted(failed.items())}}


def _measured(records: Sequence[Record], groups: Sequence[Sequence[Record]], confidence: float) -> dict[str, float]:
    """Compute the metrics of episodes that did not all fail, those with intervals first."""
    intervals = {
        "success": _mean([[r["success"] for r in group] for group in groups], confidence),
        "reward": stats.bootstrap(sorted(np.mean([r["reward"] for r in group]) for group in groups), confidence),
        **dict(_of_several(groups, confidence)),
        **dict(_of_turns(records, confidence)),
    }
    metrics: dict[str, float] = {}
    for name, interval in intervals.items():
        metrics |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    values = collections.defaultdict(list)
    for record in records:
        for name, value in record["metrics"].items():
            values[name].append(value)
        for turn in record["turns"]:
            values[f"reward/{turn['role']}/turn_{turn['turn'] + 1}"].append(sum(turn["rewards"].values()))
    return metrics | {name: float(np.mean(those)) for name, those in sorted(values.items()) if name not in metrics}


def by_example(records: Sequence[Record]) -> dict[int, list[Record]]:
    """Group the episodes by example."""
    groups: dict[int, list[Record]] = collections.defaultdict(list)
    for record in records:
        groups[record["example"]].append(record)
    return dict(groups)


def majority(group: Sequence[Record]) -> float:
    """Return the success of the most common answer."""
    votes = collections.defaultdict(list)
    for record in group:
        if record["answer"] is not None and not record["failed"]:
            votes[record["answer"]].append(record["success"])
    most = max(map(len, votes.values()), default=0)
    return float(np.mean([np.mean(v) for v in votes.values() if len(v) == most])) if votes else 0.0


def best(group: Sequence[Record], by: str) -> float:
    """Return the mean success of the samples with the highest "score" or "reward"."""
    played = [record for record in group if not record["failed"]]
    top = max((record[by] for record in played), default=None)
    return float(np.mean([r["success"] for r in played if r[by] == top])) if played else 0.0


def _of_several(groups: Sequence[Sequence[Record]], confidence: float) -> Iterator[tuple[str, Interval]]:
    k = max(map(len, groups))
    if k == 1:
        return

    def share(values):
        values = list(values)
        return stats.wilson(min(sum(values), len(values)), len(values), confidence)  # rounding may exceed the maximum

    yield f"pass@{k}", share(max(r["success"] for r in group) for group in groups)
    everyone = [record for group in groups for record in group if not record["failed"]]
    if any(record["answer"] is not None for record in everyone):
        yield f"maj@{k}", share(map(majority, groups))
    by = "score" if everyone and all(record["score"] is not None for record in everyone) else "reward"
    yield f"best_by_{by}@{k}", share(best(group, by) for group in groups)


def _of_turns(records: Sequence[Record], confidence: float) -> Iterator[tuple[str, Interval]]:
    judged = collections.defaultdict(list)
    for record in records:
        for turn in record["turns"]:
            if turn["verdict"] is not None:
                judged[turn["role"], turn["turn"]].append((record["example"], turn["verdict"]["right"]))
    for (role, turn), verdicts in sorted(judged.items()) if len(judged) > 1 else ():
        examples, right = zip(*verdicts, strict=True)
        share = stats.wilson(sum(right), len(right), confidence, distinct=len(set(examples)))
        yield f"right/{role}/turn_{turn + 1}", share


def _mean(groups: Sequence[Sequence[float]], confidence: float) -> Interval:
    """Compute the mean with a bootstrap interval over examples.

    Uses the Wilson interval if examples have one sample each or all have the same mean.
    """
    means = sorted(float(np.mean(group)) for group in groups)
    if max(map(len, groups)) > 1 and means[0] < means[-1]:
        return stats.bootstrap(means, confidence)
    return stats.wilson(min(sum(means), len(means)), len(means), confidence)
