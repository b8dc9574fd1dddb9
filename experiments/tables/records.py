"""Results in the folders of runs: metrics, evaluations and episodes.

`marl_jax.running.metrics` and `marl_jax.evaluation.task_scores` do the same for runs, but experiments only import
configs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.tables.intervals import Rate

Record = Mapping[str, Any]
"""An episode of an evaluation (`answers/test_STEP.jsonl`)."""
KEPT = ("role", "turn", "label", "tokens", "context", "verdict")
"""Fields of turns that tables use; prompts and texts would need much memory."""


MEASURING = "before"
"""Label of turns that only measure and count as no cost (`envs/tasks/exchange.py`)."""


class Damaged(ValueError):
    """A file of a run that cannot be read, and what to do about it."""


def read_json(path: Path) -> Any:
    """Read a JSON file, or raise Damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Damaged(f"{path} is missing; copy it from the run, or run it again") from None
    except ValueError:
        raise Damaged(f"{path} is not JSON; copy it again, or delete it to run it again") from None


def lines_of(path: Path, fields: Sequence[str]) -> list[dict[str, Any]]:
    """Read the lines of a JSONL file; none if there is no file.

    A last line that was cut short by a crash is skipped.

    Raises:
        Damaged: Another line is not a JSON object with the fields.
    """
    rows = []
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line else None
        except ValueError:
            row = None if number == len(lines) else "?"
        if row is not None:
            if not isinstance(row, dict) or any(field not in row for field in fields):
                raise Damaged(
                    f"{path}, line {number} must be JSON with {', '.join(fields)}; copy or make the file again"
                )
            rows.append(row)
    return rows


# ---------------------------------------------------------------------------------------------------------- training


class Spent(NamedTuple):
    """Number of generated tokens and of completions."""

    tokens: float
    completions: float

    def parts(self) -> tuple[str, str]:
        """Format both numbers."""
        tokens = f"{self.tokens / 1e6:.2f} million" if self.tokens >= 1e5 else f"{self.tokens:,.0f}"
        return tokens, f"{self.completions:,.0f}"


def spent(folder: Path) -> dict[int, Spent]:
    """Return tokens and completions of training until every step; empty if they were not counted."""
    steps = {row["step"]: row for row in lines_of(folder / "metrics.jsonl", ("step",))}
    total, last = {}, Spent(0.0, 0.0)
    for step, row in sorted(steps.items()):
        if "completions" not in row:
            return {}
        n = row["completions"]
        total[step] = last = Spent(last.tokens + n * row.get("completion_length", 0.0), last.completions + n)
    return total


def equal_tokens(ours: Mapping[int, float], baseline: Mapping[int, float]) -> tuple[int, int]:
    """Return a step of each run such that both have generated about as many tokens.

    The run with fewer tokens in total has its last step, the other one the step nearest to it.

    Args:
        ours: Number of tokens until each step that can be tested.
        baseline: The same of the baseline.
    """
    budget = min(max(ours.values()), max(baseline.values()))
    first, second = (min(run, key=lambda step: (abs(run[step] - budget), -step)) for run in (ours, baseline))
    return first, second


def checkpoints(folder: Path) -> list[int]:
    """Return the steps of complete checkpoints, in order."""
    return sorted(int(path.parent.name) for path in (folder / "checkpoints").glob("[0-9]*/seal.json"))


def solved_at(folder: Path) -> int | None:
    """Return the step at which `stop_when` ended a run, or None."""
    events = lines_of(folder / "events.jsonl", ("step", "kind"))
    return max((event["step"] for event in events if event["kind"] == "solved"), default=None)


def trained(steps: int) -> Callable[[Path], bool]:
    """Return a function: whether a run has made its updates or met `stop_when`."""

    def done(folder: Path) -> bool:
        newest = max(checkpoints(folder), default=-1)
        return newest >= steps or (newest > 0 and newest == solved_at(folder))

    return done


# -------------------------------------------------------------------------------------------------------- evaluations


def evaluated(folder: Path) -> bool:
    """Return whether a folder has the results of `--mode=eval`."""
    return (folder / "evaluation.json").exists()


def evaluations(folder: Path) -> list[dict[str, Any]]:
    """Read the rows of a run's evaluations, those of `--mode=eval` if there are no others."""
    rows = lines_of(folder / "eval.jsonl", ("step", "opponent"))
    if not rows and evaluated(folder):
        result = read_json(folder / "evaluation.json")
        rows = [{"step": result["step"], **row} for row in result["rows"]]
    return rows


def evaluation(folder: Path, opponent: str, first: bool = False) -> Rate | None:
    """Return the success rate of a run's first or newest evaluation.

    Returns None if there is no such evaluation, or if all of its episodes failed.
    """
    rows = [row for row in evaluations(folder) if row["opponent"] == opponent and (row["step"] == 0 or not first)]
    if not rows or "success" not in rows[-1]:
        return None
    return Rate(*(rows[-1][f"success{end}"] for end in ("", "_low", "_high")))


def tested_steps(folder: Path) -> list[int]:
    """Return the steps that `--mode=eval` has tested in a folder."""
    return sorted(int(path.stem.partition("_")[2]) for path in (folder / "answers").glob("test_*.jsonl"))


def episodes(folder: Path, step: int | None = None) -> Sequence[Record]:
    """Read the episodes of an evaluation on the test split, the newest by default.

    The list is empty if there is no evaluation, or if all episodes failed.

    Raises:
        Damaged: The file is missing or cannot be read.
    """
    steps = tested_steps(folder)
    if not steps and not evaluated(folder):
        return []
    if not steps:
        raise Damaged(f"{folder}/answers/test_*.jsonl is missing; copy it, or delete evaluation.json to run it again")
    path = folder / "answers" / f"test_{steps[-1] if step is None else step:08d}.jsonl"
    some = lines_of(path, ("id", "success", "failed", "turns"))
    for episode in some:
        episode["turns"] = [{key: turn.get(key) for key in KEPT} for turn in episode["turns"]]
    return some if any(not episode["failed"] for episode in some) else []


def by_example(some: Sequence[Record]) -> dict[str, list[Record]]:
    """Group episodes by example."""
    groups: dict[str, list[Record]] = {}
    for record in some:
        groups.setdefault(record["id"], []).append(record)
    return groups


def success(some: Sequence[Record]) -> dict[str, float]:
    """Return the mean success of every example."""
    return {id_: _mean([record["success"] for record in group]) for id_, group in by_example(some).items()}


def cost(some: Sequence[Record], samples: int | None = None) -> Spent:
    """Return the mean cost of an episode, or of an example with `samples` episodes."""
    groups = [group[:samples] for group in by_example(some).values()] if samples else [[record] for record in some]
    turns = [turn for group in groups for record in group for turn in record["turns"] if turn.get("label") != MEASURING]
    return Spent(sum(turn["tokens"] for turn in turns) / len(groups), len(turns) / len(groups))


# ---------------------------------------------------------------------------------------------- independent samples


def samples_at(some: Sequence[Record], tokens: float) -> int:
    """Return how many samples of an example generate about `tokens` tokens, at least 1."""
    most = max(map(len, by_example(some).values()))
    return min(range(1, most + 1), key=lambda n: abs(cost(some, n).tokens - tokens))


def majority(group: Sequence[Record]) -> float:
    """Return how right the most common answer is; a tie gives the mean."""
    return _heaviest([(record, 1.0) for record in _played(group)])


def weighted_vote(group: Sequence[Record]) -> float:
    """Return how right the answer with the highest sum of scores is."""
    return _heaviest([(record, score_of(record) or 0.0) for record in _played(group)])


def best(group: Sequence[Record]) -> float:
    """Return how right the episode with the highest score is; a tie gives the mean.

    Episodes without an answer count only if there are no others.
    """
    played = _played(group)
    played = [record for record in played if record["answer"] is not None] or played
    top = max((score_of(record) or 0.0 for record in played), default=0.0)
    return _mean([record["success"] for record in played if (score_of(record) or 0.0) == top])


def score_of(record: Record) -> float | None:
    """Return a verifier's score of the last completion, or the task's score of the episode."""
    verdict = record["turns"][-1]["verdict"] if record["turns"] else None
    return (verdict or {}).get("score", record.get("score"))


def has_answers(some: Sequence[Record]) -> bool:
    """Return whether episodes have answers that can be counted."""
    return any(record.get("answer") is not None for record in some)


def has_scores(some: Sequence[Record]) -> bool:
    """Return whether all episodes have scores, and these differ."""
    scores = {score_of(record) for record in _played(some)}
    return len(scores) > 1 and None not in scores


def _heaviest(votes: Sequence[tuple[Record, float]]) -> float:
    totals: dict[str, tuple[float, list[float]]] = {}
    for record, weight in votes:
        if record["answer"] is not None:
            total, right = totals.setdefault(record["answer"], (0.0, []))
            totals[record["answer"]] = total + weight, [*right, record["success"]]
    top = max((total for total, _ in totals.values()), default=0.0)
    return _mean([_mean(right) for total, right in totals.values() if total == top])


def _played(group: Sequence[Record]) -> list[Record]:
    return [record for record in group if not record["failed"]]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
