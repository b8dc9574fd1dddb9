"""Evaluation of tasks: the test part, one episode for each example, with confidence intervals.

    python launch.py --workdir=runs/mine --mode=eval

Answers are greedy by default, so that an example gives one episode; above `eval.temperature` 0 examples are played
again where `eval.games` asks for more episodes than there are. An episode that fails counts as no success.
"""

from __future__ import annotations

import collections
import logging
from pathlib import Path
from typing import Any

import numpy as np

from marl_jax.modes.setup.tasks import TaskSetup
from marl_jax.rollouts.host import metrics as episode_metrics
from marl_jax.rollouts.host.episodes import Episode, Job
from marl_jax.running import processes, stats

log = logging.getLogger(__name__)

PART = "test"


class TaskEvaluation:
    """The episodes of an evaluation; every process plays its share of them.

    evaluation = TaskEvaluation(setup)
    rows = evaluation(weights)     # one dict in the form of those of games, whose opponent is "self"
    """

    def __init__(self, setup: TaskSetup):
        self._setup, self._config = setup, setup.config.eval
        self._runner = setup.runner(self._config.temperature, self._config.seed)
        examples = setup.task.examples(PART)
        games = self._config.games if self._config.temperature > 0 else min(self._config.games, len(examples))
        self._jobs = [Job(0, i, i // len(examples), examples[i % len(examples)]) for i in range(games)]

    def __call__(self, weights: dict, baselines: bool = False) -> list[dict[str, Any]]:
        """One row; there are no baselines. The same episodes at every call, so that two differ by the policy only."""
        self._setup.sampler.publish(weights, version=0)
        number, count = self._setup.process
        played = [_result(episode, self._setup.roles) for episode in self._runner.play(self._jobs[number::count])]
        row = self._row([result for part in processes.gather(played) for result in part])
        log.info("evaluation, %s (%d episodes, %d failed)", stats.describe(row), row["games"], row["failed"])
        return [row]

    def everyone(self, workdir: Path, weights: dict) -> dict[str, Any]:
        """Nothing: a task has no opponents."""
        return {}

    def close(self) -> None:
        """Ends the processes of verifiers."""
        self._runner.close()

    def _row(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        n, confidence = len(results), self._config.confidence
        intervals = {
            "success": stats.wilson(sum(result["success"] for result in results), n, confidence),
            "reward": stats.bootstrap(sorted(result["reward"] for result in results), confidence),
        }
        row: dict[str, Any] = {"opponent": "self", "games": n, "distinct": n}
        for name, interval in intervals.items():
            row |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
        values = collections.defaultdict(list)
        for result in results:
            for name, value in result["metrics"].items():
                values[name].append(value)
        failed = collections.Counter(result["failed"] for result in results if result["failed"])
        row |= {name: float(np.mean(found)) for name, found in sorted(values.items()) if name not in row}
        return row | {"failed": failed.total(), **{f"failed/{reason}": k for reason, k in sorted(failed.items())}}


def _result(episode: Episode, roles: tuple[str, ...]) -> dict[str, Any]:
    """What an evaluation keeps of an episode; a JSON value. Its reward is the team's and the mean of the agents'."""
    if episode.failed:
        return {"success": 0.0, "reward": 0.0, "failed": episode.failed, "metrics": {}}
    paid = episode_metrics.rewards(episode, roles)
    agents = [paid[f"reward/agent_{seat}"] for seat in range(len(roles))]
    said = [len(answer.tokens) for chat in episode.chats for one in chat.said for answer in one.answers]
    own = {name: float(value) for name, value in episode.outcome.metrics.items()}
    return {
        "success": float(episode.outcome.success),
        "reward": paid["reward/team"] + float(np.mean(agents)),
        "failed": None,
        "metrics": {"answer_length": float(np.mean(said)) if said else 0.0, **own},
    }
