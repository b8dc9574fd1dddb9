"""Host overhead of a host rollout, measured with a sampler that replays gold solutions.

    MARL_JAX_DATA=../shared/data python -m benchmarks.host_rollout --tokenizer=FOLDER           # GSM8K and MBPP
    MARL_JAX_DATA=../shared/data python -m benchmarks.host_rollout --cases=mbpp --hanging=6 --profile

Episodes, chats, tokenizer, verifiers, sandbox, journal, collation and `BatcherThread` are those of a run. `Replay`
replaces the batcher: it completes every prompt with the dataset's solution, in chunks that take as long as on a GPU,
and sleeps meanwhile. A rollout therefore takes at least `device_s`. The rest is host overhead:

    start_s    until the device has its first rows
    late_s     the device thread was awake, but another thread had the interpreter
    between_s  between two chunks, while the device would have been idle
    tail_s     from the last completion to the end of the rollout: grading and collation
    idle       fraction of the rollout in which the device would have been idle

The first table has the CPU seconds per 1,000 episodes of each thread of this process, which share one interpreter. With
`--profile`, another rollout under cProfile shows the CPU seconds of the event loop by cause. It is slower, so only the
proportions count. `--hanging` is the number of completions in code tasks with programs that never end.
"""

from __future__ import annotations

import argparse
import collections
import cProfile
import json
import tempfile
import time
from collections.abc import Sequence

from benchmarks.replay import Replay, causes, thread_seconds
from envs.tasks import make_task
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.rollouts.host.episodes import EpisodeRunner, Job
from marl_jax.rollouts.host.rollout import HostRollout
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.settings import Sampling
from models import tokenizers

CASES = {
    "gsm8k": ("math", dict(dataset="gsm8k", answer="final")),
    "mbpp": ("code", dict(dataset="mbpp", form="single", turns=1, seconds=1.0)),
}
CAUSES = {  # prefixes of file paths relative to the repository or the library, and their purpose
    "marl_jax/rollouts/host/collate": "collation",
    "marl_jax/rollouts/host/journal": "journal",
    "marl_jax/line_writer": "journal",
    "marl_jax/rollouts/host/metrics": "metrics",
    "marl_jax/rollouts/host/": "episodes",
    "marl_jax/sampling/": "requests",
    "models/": "tokenizer",
    "envs/tasks/workers": "calls of verifiers",
    "envs/tasks/sandbox": "sandbox",
    "envs/tasks/": "the task",
    "asyncio/": "asyncio",
    "json/": "JSON",
}


def gold(task, example, number: int, hanging: int) -> str:
    """Return a right completion; the first `hanging` code tasks get endless programs."""
    if hasattr(task, "gold_reply"):
        return task.gold_reply(example)
    program = "def f():\n    pass\nwhile True: pass" if number < hanging else example["solution"]
    cases = [f"assert {test['call']} == {test['expect']}" for test in example["tests"] if "expect" in test]
    return f"```python\n{program}\n```\n```tests\n{chr(10).join(cases)}\n```"


def measure(name: str, args) -> None:
    """Print the JSON lines and the tables of one case."""
    tokenizer = tokenizers.load(args.tokenizer)
    kind, params = CASES[name]
    task = make_task(kind, **params)
    getattr(task, "prepare", lambda: None)()
    replies: collections.deque[list[int]] = collections.deque()  # in the order of the jobs
    replay = Replay(lambda ids, sampling: replies.popleft(), args.rows, args.chunk, args.rate, args.floor)
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
            replies.extend(answers(task, tokenizer, jobs, args.hanging))
            replay.first = replay.last = replay.late = replay.between = 0.0
            before, usage, spent = thread_seconds(), replay.usage, time.process_time()
            profile = cProfile.Profile(time.thread_time) if repeat > args.repeats else None
            began = time.perf_counter()
            if profile:
                profile.enable()
            _, state, metrics = rollout({}, state)
            if profile:
                profile.disable()
            seconds = time.perf_counter() - began
            if repeat == 0:  # the first one starts the workers
                continue
            per_thousand = 1000 / len(jobs)
            device = replay.usage.device - usage.device
            line = dict(
                case=name, episodes=len(jobs), success=metrics["success"], seconds=seconds, device_s=device,
                start_s=replay.first - began, late_s=replay.late, between_s=replay.between,
                tail_s=began + seconds - replay.last, idle=1 - device / seconds,
                cpu_s=time.process_time() - spent, profiled=bool(profile),
            )  # fmt: skip
            print(json.dumps({key: round(x, 3) if isinstance(x, float) else x for key, x in line.items()}), flush=True)
            after = thread_seconds()
            if profile:
                table("event loop by cause, profiled", causes(profile, CAUSES), per_thousand)
            else:
                spent = {key: after[key] - before.get(key, 0.0) for key in after}
                table("CPU by thread", dict(sorted(spent.items(), key=lambda item: -item[1])), per_thousand)
        rollout.close()


def answers(task, tokenizer, jobs: Sequence[Job], hanging: int) -> list[list[int]]:
    """Return the ids of the completions of jobs, encoding equal ones once."""
    texts = [gold(task, job.example, number, hanging) for number, job in enumerate(jobs)]
    encoded = {text: [*tokenizer.encode(text), tokenizer.stop_ids[0]] for text in set(texts)}
    return [encoded[text] for text in texts]


def table(title: str, seconds: dict[str, float], scale: float) -> None:
    """Print the seconds per 1,000 episodes of entries above a millisecond."""
    print(f"  {title}, s per 1,000 episodes:")
    for name, value in seconds.items():
        if value * scale >= 0.001:
            print(f"    {name:24}{value * scale:8.3f}", flush=True)


def main():
    """Run the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="gsm8k,mbpp")
    parser.add_argument("--tokenizer", default="bytes", help="Folder of a tokenizer, or bytes")
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--examples", type=int, default=128)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--rate", type=float, default=100_000.0, help="Tokens per second of all rows together")
    parser.add_argument("--floor", type=float, default=0.001, help="Minimum seconds per step")
    parser.add_argument("--hanging", type=int, default=0, help="Number of programs that never end")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    for name in args.cases.split(","):
        measure(name, args)


if __name__ == "__main__":
    main()
