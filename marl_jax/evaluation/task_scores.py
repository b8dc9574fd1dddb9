"""Success rates of an evaluation with their intervals, from one or several samples of every example.

With k samples of each of n examples:

    success              mean over all samples: pass@1, also called avg@k
    pass@k               share of examples with a right sample
    maj@k                the answer that most samples give; of answers that tie, the mean
    best_by_score@k      the sample that the task itself holds to be best (`Outcome.score`); where a task has no score,
    best_by_reward@k     the one with the highest reward, which knows the right answer
    right/ROLE/turn_T    share of right replies of a role at a turn, where the task judges replies

An episode that failed (a timeout, an exception) counts as no success with a reward of 0, and it has no vote. If every
episode failed, nothing was measured: the row has the counts only, and no rate. Only examples are independent of each
other, so intervals are as wide as for n of them: Wilson's for shares of examples, the bootstrap over examples for means
of several samples.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from marl_jax.evaluation import intervals as stats
from marl_jax.evaluation.intervals import Interval

FOLDER = "answers"
"""Where in a run's folder the episodes of its evaluations lie, one file for each part and step."""

Record = Mapping[str, Any]
"""An episode of an evaluation, as `task_evaluation.record` writes it."""


def row(records: Sequence[Record], confidence: float) -> dict[str, Any]:
    """Compute all metrics of an evaluation.

    Returns:
        The counts `games` and `distinct`, NAME, NAME_low and NAME_high of every metric with an interval, the other
        metrics, and how many episodes `failed`, also by reason. Only the counts if every episode failed.
    """
    groups = list(by_example(records).values())
    failed = collections.Counter(record["failed"] for record in records if record["failed"])
    found: dict[str, Any] = {"games": len(records), "distinct": len(groups)}
    if failed.total() < len(records):
        measured = _measured(records, groups, confidence)
        found |= {name: value for name, value in measured.items() if name not in found}
    return found | {"failed": failed.total(), **{f"failed/{reason}": n for reason, n in sorted(failed.items())}}


def _measured(records: Sequence[Record], groups: Sequence[Sequence[Record]], confidence: float) -> dict[str, float]:
    """Compute everything that needs an episode that did not fail, metrics with an interval first."""
    intervals = {
        "success": _mean([[r["success"] for r in group] for group in groups], confidence),
        "reward": stats.bootstrap(sorted(np.mean([r["reward"] for r in group]) for group in groups), confidence),
        **dict(_of_several(groups, confidence)),
        **dict(_of_turns(records, confidence)),
    }
    found: dict[str, float] = {}
    for name, interval in intervals.items():
        found |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    values = collections.defaultdict(list)
    for record in records:
        for name, value in record["metrics"].items():
            values[name].append(value)
        for turn in record["turns"]:
            values[f"reward/{turn['role']}/turn_{turn['turn'] + 1}"].append(sum(turn["rewards"].values()))
    return found | {name: float(np.mean(those)) for name, those in sorted(values.items()) if name not in found}


def by_example(records: Sequence[Record]) -> dict[int, list[Record]]:
    """The samples of every example."""
    groups: dict[int, list[Record]] = collections.defaultdict(list)
    for record in records:
        groups[record["example"]].append(record)
    return dict(groups)


def majority(group: Sequence[Record]) -> float:
    """The success of the answer that most samples give."""
    votes = collections.defaultdict(list)
    for record in group:
        if record["answer"] is not None and not record["failed"]:
            votes[record["answer"]].append(record["success"])
    most = max(map(len, votes.values()), default=0)
    return float(np.mean([np.mean(v) for v in votes.values() if len(v) == most])) if votes else 0.0


def best(group: Sequence[Record], by: str) -> float:
    """The success of the sample with the highest "score" or "reward"; of several such, the mean."""
    played = [record for record in group if not record["failed"]]
    top = max((record[by] for record in played), default=None)
    return float(np.mean([r["success"] for r in played if r[by] == top])) if played else 0.0


def _of_several(groups: Sequence[Sequence[Record]], confidence: float) -> Iterator[tuple[str, Interval]]:
    k = max(map(len, groups))
    if k == 1:
        return

    def share(values):
        values = list(values)
        return stats.wilson(min(sum(values), len(values)), len(values), confidence)  # thirds may add up to a bit more

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
    for (role, turn), found in sorted(judged.items()) if len(judged) > 1 else ():
        examples, right = zip(*found, strict=True)
        share = stats.wilson(sum(right), len(right), confidence, distinct=len(set(examples)))
        yield f"right/{role}/turn_{turn + 1}", share


def _mean(groups: Sequence[Sequence[float]], confidence: float) -> Interval:
    """The mean of all values; resampled by example where these have several, and Wilson's where that says nothing."""
    means = sorted(float(np.mean(group)) for group in groups)
    if max(map(len, groups)) > 1 and means[0] < means[-1]:
        return stats.bootstrap(means, confidence)
    return stats.wilson(min(sum(means), len(means)), len(means), confidence)
