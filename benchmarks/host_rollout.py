"""What a host rollout costs the host: the sampler is a replay of gold answers at the speed of a GPU, without JAX.

    MARL_JAX_DATA=../shared/data python -m benchmarks.host_rollout --tokenizer=FOLDER           # GSM8K and MBPP
    MARL_JAX_DATA=../shared/data python -m benchmarks.host_rollout --cases=mbpp --hanging=6 --profile

Episodes, chats, tokenizer, verifiers, sandbox, journal, collation and `BatcherThread` are those of a run. Behind the
thread, `Replay` takes the place of the batcher: it answers every prompt with the dataset's solution, in chunks of
decoding that take as long as a device would, and sleeps meanwhile. So a rollout can be no shorter than `device_s`. What
it takes beyond that is the host:

    late_s     the sampler's thread woke up and another thread had the interpreter
    between_s  the thread handed out answers and took requests, while the device would have waited
    tail_s     from the last answer to the end of the rollout: grading, and the batch put together
    idle       the share of the rollout in which the device would have waited

The first table has the CPU seconds of each thread of this process per 1,000 episodes; they share one interpreter. With
`--profile`, another rollout under cProfile says what the event loop's thread does, by cause, in CPU seconds; it runs
slower, so only the shares count. `--hanging` lets that many answers of code tasks be programs that never end.
"""

from __future__ import annotations

import argparse
import collections
import cProfile
import dataclasses
import json
import os
import pstats
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from envs.tasks import TASKS
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.rollouts.host.episodes import EpisodeRunner, Job
from marl_jax.rollouts.host.rollout import HostRollout
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.conversation import Answer
from marl_jax.sampling.requests import Usage
from marl_jax.sampling.settings import Sampling
from models import tokenizers

CASES = {
    "gsm8k": ("math", dict(dataset="gsm8k", answer="final")),
    "mbpp": ("code", dict(dataset="mbpp", form="single", turns=1, seconds=1.0)),
}
CAUSES = (  # the beginning of a file's path below the repository or the library, and what it does
    ("marl_jax/rollouts/host/collate", "collation"),
    ("marl_jax/rollouts/host/journal", "journal"),
    ("marl_jax/line_writer", "journal"),
    ("marl_jax/rollouts/host/metrics", "metrics"),
    ("marl_jax/rollouts/host/", "episodes"),
    ("marl_jax/sampling/", "requests"),
    ("models/", "tokenizer"),
    ("envs/tasks/workers", "calls of verifiers"),
    ("envs/tasks/sandbox", "sandbox"),
    ("envs/tasks/", "the task"),
    ("asyncio/", "asyncio"),
    ("json/", "JSON"),
)


class Replay:
    """A `Batcher` in outline, for `BatcherThread`: answers are known, and only their time passes.

    rows   answers that are written at once
    chunk  steps between refills
    rate   tokens a second with all rows; a step takes `floor` seconds at least
    """

    def __init__(self, rows: int, chunk: int, rate: float, floor: float):
        self.rows, self.chunk, self.rate, self.floor = rows, chunk, rate, floor
        self.replies: collections.deque[list[int]] = collections.deque()
        self.updating, self.next_deadline = set(), None
        self._waiting: collections.deque[tuple[int, list[int]]] = collections.deque()
        self._active: dict[int, list] = {}
        self._done: list[tuple[int, list[Answer]]] = []
        self._ids, self._usage = 0, Usage(versions=(0,))
        self.late = self.between = self.last = 0.0

    def check_request(self, ids, sampling, policy=0, n=1):
        """All are fine."""

    def submit(self, ids, sampling, policy=0, n=1, deadline=None) -> int:
        """Requests are answered in the order in which episodes are known to ask: that of the jobs."""
        self._ids += 1
        self._waiting.append((self._ids, self.replies.popleft()))
        return self._ids

    def cancel(self, request: int) -> None:
        """Nothing is cancelled here."""

    def expire(self) -> None:
        """Nothing has a deadline."""

    def close(self) -> None:
        """Nothing to end."""

    def results(self):
        """What has finished since the last call."""
        done, self._done = self._done, []
        return done

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._active)

    @property
    def usage(self) -> Usage:
        return dataclasses.replace(self._usage)

    def step(self) -> None:
        """One chunk."""
        began = time.perf_counter()
        if self._active and self.last:
            self.between += began - self.last
        while self._waiting and len(self._active) < self.rows:
            request, tokens = self._waiting.popleft()
            self._active[request] = [tokens, len(tokens)]
        asked = self.chunk * max(self.floor, len(self._active) / self.rate)
        time.sleep(asked)
        woke = time.perf_counter()
        self.late += woke - began - asked
        for request, row in list(self._active.items()):
            row[1] -= self.chunk
            if row[1] <= 0:
                del self._active[request]
                tokens = np.asarray(row[0], np.int32)
                answer = Answer(tokens, np.zeros(len(tokens), np.float32), "stop", np.zeros_like(tokens))
                self._done.append((request, [answer]))
                self._usage.generated += len(tokens)
        self._usage.waited += asked
        self.last = time.perf_counter()
        self._usage.seconds += self.last - began


def gold(task, example, number: int, hanging: int) -> str:
    """A right answer; of code tasks, the first few are programs that never end."""
    if hasattr(task, "gold_reply"):
        return task.gold_reply(example)
    program = "def f():\n    pass\nwhile True: pass" if number < hanging else example["solution"]
    cases = [f"assert {test['call']} == {test['expect']}" for test in example["tests"] if "expect" in test]
    return f"```python\n{program}\n```\n```tests\n{chr(10).join(cases)}\n```"


def thread_seconds() -> dict[str, float]:
    """CPU seconds of every thread of this process that Python knows, by name; those of a pool together."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: dict[str, float] = collections.defaultdict(float)
    for task in os.listdir("/proc/self/task"):
        fields = Path(f"/proc/self/task/{task}/schedstat").read_text().split()
        name = names.get(int(task), "others")
        found[{"MainThread": "event loop"}.get(name, name.split("_")[0])] += int(fields[0]) / 1e9
    return found


def causes(profile: cProfile.Profile) -> dict[str, float]:
    """CPU seconds of the event loop's thread by cause."""
    found: dict[str, float] = collections.defaultdict(float)
    for (file, _, _), (_, _, seconds, _, callers) in pstats.Stats(profile).stats.items():
        if file == "~":  # builtins count for who calls them
            for (caller, _, _), (_, _, own, _) in callers.items():
                found[_cause(caller)] += own
        else:
            found[_cause(file)] += seconds
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _cause(file: str) -> str:
    return next((cause for start, cause in CAUSES if f"/{start}" in file), "others")


def measure(name: str, args) -> None:
    """Prints the lines and the tables of one case."""
    tokenizer = tokenizers.load(args.tokenizer)
    kind, params = CASES[name]
    task = TASKS.get(kind)(**params)
    getattr(task, "prepare", lambda: None)()
    replay = Replay(args.rows, args.chunk, args.rate, args.floor)
    samples = args.episodes // args.examples
    with BatcherThread(replay) as sampler, tempfile.TemporaryDirectory() as folder:
        speaker = Speaker(sampler, tokenizer, Sampling(max_new_tokens=300), 1024)
        runner = EpisodeRunner(task, [speaker], time_limit=600)
        rollout = HostRollout(
            runner, n_examples=args.examples, samples=samples, journal=folder, publish=lambda params, step: None
        )
        state = rollout.init(None, None)
        for repeat in range(args.repeats + 1 + args.profile):
            jobs = rollout.jobs(state)
            replay.replies.extend(answers(task, tokenizer, jobs, args.hanging))
            replay.late = replay.between = replay.last = 0.0
            before, usage, spent = thread_seconds(), replay.usage, time.process_time()
            profile = cProfile.Profile(time.thread_time) if repeat > args.repeats else None
            began = time.perf_counter()
            if profile:
                profile.enable()
            _, state, metrics = rollout({}, state)
            if profile:
                profile.disable()
            seconds = time.perf_counter() - began
            if repeat == 0:  # starts the workers
                continue
            per_thousand = 1000 / len(jobs)
            device = replay.usage.waited - usage.waited
            line = dict(
                case=name, episodes=len(jobs), success=metrics["success"], seconds=seconds, device_s=device,
                late_s=replay.late, between_s=replay.between, tail_s=began + seconds - replay.last,
                idle=1 - device / seconds, cpu_s=time.process_time() - spent, profiled=bool(profile),
            )  # fmt: skip
            print(json.dumps({key: round(x, 3) if isinstance(x, float) else x for key, x in line.items()}), flush=True)
            after = thread_seconds()
            if profile:
                table("event loop by cause, profiled", causes(profile), per_thousand)
            else:
                spent = {key: after[key] - before.get(key, 0.0) for key in after}
                table("CPU by thread", dict(sorted(spent.items(), key=lambda item: -item[1])), per_thousand)
        rollout.close()


def answers(task, tokenizer, jobs: Sequence[Job], hanging: int) -> list[list[int]]:
    """The ids of the replies to jobs, equal ones encoded once."""
    texts = [gold(task, job.example, number, hanging) for number, job in enumerate(jobs)]
    encoded = {text: [*tokenizer.encode(text), tokenizer.stop_ids[0]] for text in set(texts)}
    return [encoded[text] for text in texts]


def table(title: str, seconds: dict[str, float], scale: float) -> None:
    """Seconds per 1,000 episodes, those above a millisecond."""
    print(f"  {title}, s per 1,000 episodes:")
    for name, value in seconds.items():
        if value * scale >= 0.001:
            print(f"    {name:24}{value * scale:8.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="gsm8k,mbpp")
    parser.add_argument("--tokenizer", default="bytes", help="folder of a tokenizer, or bytes")
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--examples", type=int, default=128)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--rate", type=float, default=100_000.0, help="tokens a second of all rows")
    parser.add_argument("--floor", type=float, default=0.001, help="seconds of a step at least")
    parser.add_argument("--hanging", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    for name in args.cases.split(","):
        measure(name, args)


if __name__ == "__main__":
    main()
