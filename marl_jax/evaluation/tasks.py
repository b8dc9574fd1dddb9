"""Evaluation on tasks: `eval.samples` episodes per example of a split.

    python launch.py --workdir=runs/mine --mode=eval
    python launch.py --workdir=runs/mine --mode=eval --config.eval.samples=16 --config.eval.temperature=0.7

During training a run is evaluated on the validation split, and on the test split too if `eval.test` says so;
`--mode=eval` uses `eval.split`, by default the test split.
At most `eval.games` examples are played, chosen by `eval.seed`. Sampling is greedy by default; several samples per
example need a temperature. `task_scores` defines the metrics. If all episodes failed, there are no metrics, and the log
says why. Every episode is written to `answers/SPLIT_STEP.jsonl` with prompts, completions, verdicts and their reasons,
and the results of verifiers and tools.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envs.tasks.data import fingerprint_of, order
from marl_jax.errors import RunError
from marl_jax.evaluation import intervals, task_records, task_scores
from marl_jax.rollouts.host import metrics as episode_metrics
from marl_jax.rollouts.host.conversation import REPLY, TokenChat
from marl_jax.rollouts.host.episodes import END, Episode, EpisodeRunner, Job
from marl_jax.rollouts.host.journal import Journal
from marl_jax.running import processes
from marl_jax.running.metrics import replace_text
from marl_jax.running.private_files import make_private_folder
from marl_jax.serving.remote_speaker import remote_speaker
from marl_jax.setup.tasks import TaskSetup

log = logging.getLogger(__name__)

LONGEST_CALL = 20_000  # maximum number of characters to write of the result of a verifier or tool


class TaskEvaluation:
    """Evaluation episodes of a task, divided among processes.

    evaluation = TaskEvaluation(setup, "validation")
    rows = evaluation(weights)     # one dict like those of games, with opponent "self"
    evaluation.write(workdir, step)
    """

    def __init__(self, setup: TaskSetup, part: str):
        self._setup, self._part, self._config = setup, part, setup.config.eval
        self._task = setup.evaluated_task
        self._runner = setup.runner(self._config.temperature, self._config.seed, task=self._task)
        examples = self._task.examples(part)
        if not len(examples):
            raise RunError(f"the task has no examples in the split {part!r}")
        n = len(examples)
        chosen = sorted(order(self._config.seed, 0, i, n) for i in range(min(self._config.games, n)))
        self._jobs = [Job(0, i, sample, examples[i]) for i in chosen for sample in range(self._config.samples)]
        self._records: list[dict[str, Any]] = []

    def __call__(self, weights: dict, baselines: bool = False) -> list[dict[str, Any]]:
        """Evaluate the run and return its row.

        With `baselines`, each remote model of `eval.opponents` is also evaluated, in all roles. Every call uses the
        same examples and seeds, so that evaluations differ only by the policy.
        """
        self._setup.sampler.publish(weights, version=0)
        rows = []
        for name in self._config.opponents if baselines else ():
            speaker = remote_speaker(name, self._runner.speakers[0].sampling, self._setup.remote_models)
            runner = self._setup.runner(
                self._config.temperature,
                self._config.seed,
                task=self._task,
                speakers=[speaker],
                seating=lambda seat, turn: 0,
            )
            with contextlib.closing(runner):
                rows.append(self._row(name, runner)[0])
        row, self._records = self._row("self", self._runner)  # last, because `write` writes its episodes
        return [row, *rows]

    def _row(self, name: str, runner: EpisodeRunner) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Play all episodes with one player and return its metrics and the episodes."""
        number, count = self._setup.process
        journal = Journal(None)
        episodes = runner.play(self._jobs[number::count], journal)
        calls: dict[str, dict[str, Any]] = collections.defaultdict(dict)
        for (id_, call), entry in journal.entries.items():
            if call != END and not call.startswith(REPLY):
                calls[id_][call] = _short(entry)
        played = [record(episode, tuple(self._task.roles), calls[episode.job.id]) for episode in episodes]
        everything = [one for part in processes.gather(played) for one in part]
        records = sorted(everything, key=lambda one: (one["example"], one["sample"]))
        row = {"opponent": name, "part": self._part, **task_scores.row(records, self._config.confidence)}
        if number == 0:
            self._report(row, records)
        return row, records

    def _report(self, row: Mapping[str, Any], records: Sequence[task_scores.Record]) -> None:
        """Log the result of an evaluation, or why it has none."""
        log.info("evaluation on %s: %s (%d episodes of %d examples)", self._part, intervals.describe(row), row["games"],
                 row["distinct"])  # fmt: skip
        if row["failed"] == row["games"]:
            who = "" if row["opponent"] == "self" else f", {row['opponent']}"
            log.warning("evaluation on %s%s: every episode failed, so there is no success rate. The first error: %s",
                        self._part, who, records[0]["error"])  # fmt: skip

    def write(self, workdir: Path, step: int) -> None:
        """Write the episodes of the last call, in process 0."""
        if self._setup.process[0]:
            return
        path = workdir / task_scores.FOLDER / f"{self._part}_{step:08d}.jsonl"
        make_private_folder(path.parent)
        replace_text(path, "".join(json.dumps({"step": step, **one}) + "\n" for one in self._records), private=True)

    def everyone(self, workdir: Path, weights: dict) -> dict[str, Any]:
        """Return {}; a task has no round robin."""
        return {}

    def close(self) -> None:
        """Stop the verifier processes."""
        self._runner.close()


def record(episode: Episode, roles: tuple[str, ...], calls: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an episode to a JSON value.

    The reward is that of the team plus the mean of the agents.

    Args:
        episode: The episode.
        roles: Names of the seats.
        calls: Results of verifiers and tools.
    """
    job, outcome = episode.job, episode.outcome
    turns = [_turn(chat, i, roles[chat.seat]) for chat, i in task_records.turns(episode)]
    result = {
        "example": job.position, "sample": job.sample, "id": fingerprint_of([job.example])[:12],
        "success": 0.0, "reward": 0.0, "answer": None, "score": None, "reason": "", "metrics": {},
        "failed": episode.failed, "error": episode.error, "turns": turns, "calls": dict(calls),
    }  # fmt: skip
    if episode.failed:
        return result
    assert outcome is not None
    rewards = episode_metrics.rewards(episode, roles)
    agents = [rewards[f"reward/{role}"] for role in roles]
    said = [len(answer.tokens) for chat in episode.chats for one in chat.said for answer in one.answers]
    own = {name: float(value) for name, value in outcome.metrics.items()}
    return result | {
        "success": float(outcome.success),
        "reward": rewards["reward/team"] + float(np.mean(agents)),
        "answer": outcome.answer,
        "score": None if outcome.score is None else float(outcome.score),
        "reason": outcome.reason,
        "metrics": {"completion_length": float(np.mean(said)) if said else 0.0, **own},
    }


def _turn(chat: TokenChat, i: int, role: str) -> dict[str, Any]:
    """Convert a turn to a JSON value, with the kept one of several candidates.

    `context` is the number of tokens of the conversation before the completion.
    """
    said = chat.said[i]
    reply = said.replies[said.kept or 0]
    return {
        "role": role, "turn": said.turn, "label": said.label, "prompt": task_records.prompt(chat, i),
        "text": reply.text, "finish": reply.finish, "tokens": len(reply.tokens), "context": said.start,
        "verdict": reply.verdict,
        "rewards": dataclasses.asdict(reply.rewards),
    }  # fmt: skip


def _short(entry: Any) -> Any:
    text = json.dumps(entry)
    return entry if len(text) <= LONGEST_CALL else {"cut": text[:LONGEST_CALL]}
