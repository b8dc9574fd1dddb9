r"""Load test of the server with many clients, as one JSON line per case.

    python -m benchmarks.serving                                          # `tiny` on a CPU: 2,000 requests, 200 clients
    python -m benchmarks.serving --cases=sessions --clients=256 --turns=3 --rows=256 --new=128 --max-length=1024 \
        --model=random:qwen2.5-0.5b-instruct --dtype=bfloat16             # one H200
    python -m benchmarks.serving --cases=sessions --clients=256 --turns=3 --rows=256 --new=128 --max-length=1024 \
        --replay=FOLDER --profile                                         # host overhead of serving, without a GPU

Cases, `--cases=whole,streams,sessions`:

whole     requests without streaming, half of them at `/v1/completions`
streams   the same requests with streaming
sessions  one session per client, which makes `--turns` streaming requests and sends the full conversation each time

This process serves as `launch.py --mode=serve` does. Other processes (`--processes`) send requests over one connection
per client. Every prompt has a seed, so responses to the same prompt must be equal. `mixed_up` counts responses that
differ from the majority, and `lost` requests without a response. The exit status is 1 if there are any. On an
accelerator responses are equal only up to rounding, and `mixed_up` is null. Before each case, the same requests or
conversations go directly to the batcher: `raw_tokens_per_s` is its throughput, the best of three, and `of_raw` is the
fraction that clients got. `first_…` is the time to the first chunk of a stream, `between_…` the time between two
chunks, and `token_…` the same per token. `growth_mib` is the growth of the serving process's memory from the first
quarter of a case to its end.

With `--workers=N`, N processes handle HTTP for this one, as with `serve.workers`, and clients send the requests of a
session to its `base_url`.

`cpu_s` has the CPU seconds of each thread of the serving process and of its workers. With `--replay`, the folder of a
tokenizer, there is no model: completions are known, and they take as long as on a device that generates `--rate` tokens
per second with all rows. The case is then repeated with completions of half the length. The difference gives the host's
CPU time `ms_per_piece` for a chunk, and the rest is `ms_per_request` for a completion, including its share of the
session. With `--profile`, two further runs under cProfile show the time of the event loop by cause. They are slower, so
only the proportions count.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import cProfile
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse

from benchmarks.replay import Replay, causes, thread_seconds
from benchmarks.sampler import report
from benchmarks.serving_load import WORDS, Client, ClientProcesses, Seen, follow_up, question
from configs import defaults
from marl_jax.modes.serve import make_endpoint
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.http import server
from marl_jax.serving.http.app import Route
from marl_jax.serving.http.guard import Limits
from marl_jax.serving.http.keys import Keys
from marl_jax.serving.openai.calls import ServedModel
from marl_jax.serving.sessions.traces import TraceFile
from marl_jax.serving.workers import pool
from marl_jax.setup.served_models import ModelSource, load_models
from models import tokenizers

CHUNK = 16  # tokens per chunk, the batcher's decoding steps between two updates
CAUSES = {  # prefixes of file paths relative to the repository or the library, and their purpose
    "marl_jax/serving/sessions/traces": "traces",
    "marl_jax/running/line_writer": "traces",
    "marl_jax/serving/openai/text": "text of pieces",
    "marl_jax/serving/openai/choices": "events of pieces",
    "marl_jax/serving/openai/messages": "prompts",
    "marl_jax/serving/sessions/histories": "histories",
    "marl_jax/serving/http/guard": "guard and metrics",
    "marl_jax/serving/http/prometheus": "guard and metrics",
    "marl_jax/serving/http/": "HTTP",
    "marl_jax/serving/": "calls and sessions",
    "marl_jax/sampling/": "from and to the sampler",
    "models/": "prompts",
    "jinja2/": "prompts",
    "starlette/": "Starlette",
    "anyio/": "Starlette",
    "uvicorn/": "HTTP",
    "h11/": "HTTP",
    "asyncio/selector_events": "sockets",
    "asyncio/": "asyncio",
    "selectors": "sockets",
    "json/": "JSON",
}

# ------------------------------------------------------------------------------------------------------------- server


def raw_tokens_per_s(args, model: ServedModel, case: str) -> float:
    """Return the throughput of the batcher when it gets the same requests directly."""
    turns = args.turns if case == "sessions" else 1
    requests = args.clients if case == "sessions" else args.requests
    speaker, waiting, tokens = model.speaker, collections.deque(range(requests)), 0

    async def work() -> None:
        nonlocal tokens
        while waiting:
            i = waiting.popleft()
            messages, seed = question(i, args), i % args.questions
            ids = model.renderer.opening(messages)
            for turn in range(turns):
                (answer,) = await speaker.sampler.answer(ids, Sampling(
                    seed=seed, max_new_tokens=args.new, stop_ids=speaker.tokenizer.stop_ids,
                ))  # fmt: skip
                tokens += len(answer.tokens)
                messages = [*messages, {"role": "assistant", "content": ""}, follow_up(turn)]
                said = model.renderer.content(answer.tokens.tolist())
                ids = ids + said + model.renderer.continuation(messages, len(messages) - 2)

    async def together() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(args.clients)))
        return tokens / (time.perf_counter() - began)

    return asyncio.run(together())


def real_source(args) -> ModelSource:
    """Return the requested model, compiled."""
    config = defaults.get_config()
    config.model.dtype = args.dtype
    config.serve.update(dict(models=(f"served={args.model}",), max_num_seqs=args.rows, max_length=args.max_length))
    (source,) = load_models(config, Path("."))
    batcher = source.sampler.batchers[0]
    if jax.default_backend() == "cpu":  # elsewhere it is already compiling
        batcher.compile()
    batcher.wait_until_compiled()
    return source


def replayed_source(args) -> ModelSource:
    """Return a stand-in without a model.

    The same prompt and seed get the same words, at the speed of a device.
    """
    tokenizer = tokenizers.load(args.replay)
    words = tokenizer.encode(" ".join(random.Random(0).choices(WORDS, k=4096)))[: 4096 - args.new]

    def reply(ids, sampling: Sampling) -> list[int]:
        start = hash((sampling.seed, *ids)) % (len(words) - sampling.max_new_tokens)
        return words[start : start + sampling.max_new_tokens]

    sampler = BatcherThread(Replay(reply, args.rows, CHUNK, args.rate, args.floor))
    speaker = Speaker(sampler, tokenizer, Sampling(max_new_tokens=args.new), args.max_length, number=-1)
    return ModelSource(sampler, {"served": ServedModel.of("served", speaker)})


class Meter:
    """CPU time of the serving process between two requests to `/benchmark`.

    The event loop of the server answers these requests.
    """

    def __init__(self):
        self._before: dict[str, float] = {}
        self._profile: cProfile.Profile | None = None

    def route(self) -> Route:
        """Return the route of the meter."""
        return Route("/benchmark", self._measure, methods=["POST"])

    async def _measure(self, request: Request) -> JSONResponse:
        """Return the CPU seconds since the last request."""
        by_cause = {}
        if self._profile is not None:
            self._profile.disable()
            by_cause = causes(self._profile, CAUSES)
        now = thread_seconds(event_loop="http") | worker_seconds()
        spent = {name: seconds - self._before.get(name, 0.0) for name, seconds in now.items()}
        self._before, self._profile = now, None
        if (await request.json())["profile"]:
            self._profile = cProfile.Profile(time.thread_time)
            self._profile.enable()
        return JSONResponse({"threads": spent, "causes": by_cause})


def worker_seconds() -> dict[str, float]:
    """Return the CPU seconds of every worker of this process."""
    seconds = {}
    for pid in Path("/proc/self/task").glob("*/children"):
        for child in pid.read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            if pool.WORKER in command:
                tasks = Path(f"/proc/{child}/task").glob("*/schedstat")
                number = command[command.index(pool.WORKER) + 1]
                seconds[f"worker {number}"] = sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
    return dict(sorted(seconds.items()))


def serve_and_ask(args, argv: list[str]) -> int:
    """Serve in this process while others send requests, and return their exit code."""
    source = replayed_source(args) if args.replay else real_source(args)
    raw, limits = {}, Limits(concurrent=4 * args.clients)
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(source.sampler):
        for case in args.cases.split(","):
            raw[case] = max(raw_tokens_per_s(args, source.models["served"], case) for _ in range(3))
        traces = TraceFile(Path(folder) / "traces.jsonl")
        endpoint = make_endpoint([source], Keys(required=False), limits, traces)
        endpoint.routes += (Meter().route(),)
        exact = "" if args.replay or jax.default_backend() == "cpu" else jax.default_backend()
        serving = pool.in_thread(endpoint, workers=args.workers) if args.workers else server.in_thread(
            endpoint.application()
        )  # fmt: skip
        with contextlib.closing(traces), serving as url:
            port = url.rpartition(":")[2]
            command = [sys.executable, "-m", "benchmarks.serving", *argv, f"--port={port}", f"--server={os.getpid()}"]
            command += [f"--raw={json.dumps(raw)}", f"--inexact={exact}"]
            return subprocess.run(command, env=dict(os.environ) | {"JAX_PLATFORMS": "cpu"}, check=False).returncode


# ------------------------------------------------------------------------------------------------------------ clients


def ask(args) -> int:
    """Send requests to the parent process; return 1 if responses were lost or mixed up."""
    raw, failed = json.loads(args.raw), 0
    with contextlib.closing(ClientProcesses(args)) as clients:
        for case in args.cases.split(","):
            clients.run(case)  # compiles the programs of the case
            seen, cpu = best(args, clients, case)
            figures = summary(args, case, seen)
            costs = per_piece(args, clients, case, cpu) if args.replay else {}
            shares = dict(raw_tokens_per_s=raw[case], of_raw=figures["tokens_per_s"] / raw[case])
            cpu = {name: round(seconds, 3) for name, seconds in cpu.items() if seconds >= 0.001}
            model = "replay" if args.replay else args.model
            report(**figures, **shares, **costs, cpu_s=cpu, model=model, rows=args.rows, new=args.new,
                   workers=args.workers, processes=args.processes, cores=os.cpu_count())  # fmt: skip
            failed += figures["lost"] + (figures["mixed_up"] or 0)
            if args.profile:
                print_causes(args, clients, case)
    return 1 if failed else 0


def metered(args, clients: ClientProcesses, case: str, profile: bool = False, **changes) -> tuple[Seen, dict, dict]:
    """Run a case and return the clients' results and the server's CPU seconds.

    Returns:
        The results of the clients, the CPU seconds of the serving process by thread, and those by cause under cProfile.
    """

    async def measure(profile: bool) -> dict:
        async with Client(args.port) as client:
            return await client.ask("/benchmark", {"profile": profile})

    asyncio.run(measure(profile))
    seen = clients.run(case, **changes)
    spent = asyncio.run(measure(False))
    return seen, spent["threads"], spent["causes"]


def best(args, clients: ClientProcesses, case: str, **changes) -> tuple[Seen, dict[str, float]]:
    """Return the fastest of several runs, and the CPU seconds of the cheapest.

    Other programs may use the machine at the same time.
    """
    runs = [metered(args, clients, case, **changes)[:2] for _ in range(args.repeats)]
    fastest = min((seen for seen, _ in runs), key=lambda seen: seen.ended - seen.began)
    return fastest, min((cpu for _, cpu in runs), key=lambda cpu: sum(cpu.values()))


def counts(args, case: str, new: int) -> tuple[int, int]:
    """Return the number of completions and the number of chunks."""
    answers = args.clients * args.turns if case == "sessions" else args.requests
    return answers, answers * -(-new // CHUNK)


def split(args, case: str, long: float, short: float) -> tuple[float, float]:
    """Return the seconds per chunk and per request.

    They follow from the seconds for all completions (`long`) and for completions of half the length (`short`).
    """
    answers, pieces = counts(args, case, args.new)
    piece = (long - short) / (pieces - counts(args, case, args.new // 2)[1])
    return piece, (long - piece * pieces) / answers


def per_piece(args, clients: ClientProcesses, case: str, cpu: dict[str, float]) -> dict[str, float]:
    """Return the host's CPU time per chunk and per request over all threads."""
    _, short = best(args, clients, case, new=args.new // 2)
    piece, request = split(args, case, sum(cpu.values()), sum(short.values()))
    return dict(ms_per_piece=1000 * piece, ms_per_request=1000 * request)


def print_causes(args, clients: ClientProcesses, case: str) -> None:
    """Print a table of the event loop's time by cause."""
    _, _, long = metered(args, clients, case, profile=True)
    _, _, short = metered(args, clients, case, profile=True, new=args.new // 2)
    print(f"  event loop by cause, profiled, ms {'a piece':>24}{'a request':>12}{'all, s':>10}")
    for cause, seconds in {**long, "all": sum(long.values())}.items():
        piece, request = split(args, case, seconds, sum(short.values()) if cause == "all" else short.get(cause, 0.0))
        print(f"    {cause:36}{1000 * piece:18.3f}{1000 * request:12.3f}{seconds:10.3f}", flush=True)


def summary(args, case: str, seen: Seen) -> dict:
    """Return the figures of the clients."""
    requests, wall = args.clients if case == "sessions" else args.requests, seen.ended - seen.began
    tallies = [collections.Counter(texts) for texts in seen.answers.values()]
    memory = [mib for _, mib in seen.memory]
    figures = {
        "case": case, "requests": requests, "clients": args.clients, "lost": seen.lost,
        "mixed_up": sum(sum(c.values()) - max(c.values()) for c in tallies), "wall_s": wall,
        "requests_per_s": requests / wall, "tokens_per_s": seen.tokens / wall,
        "latency_p50_s": np.percentile(seen.seconds, 50), "latency_p99_s": np.percentile(seen.seconds, 99),
        "growth_mib": max(memory[-1] - memory[len(memory) // 4], 0.0) if memory else 0.0,
    }  # fmt: skip
    if args.inexact:
        why = f"on a {args.inexact}, batches of different sizes round differently, so responses need not be equal"
        figures |= {"mixed_up": None, "mixed_up_null": why}
    per_token = [seconds / CHUNK for seconds in seen.between]
    for name, times in (("first", seen.first), ("between", seen.between), ("token", per_token)):
        if times:
            figures |= {f"{name}_p50_s": np.percentile(times, 50), f"{name}_p99_s": np.percentile(times, 99)}
    return figures


def main() -> int:
    """Run the cases and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="whole,streams,sessions")
    parser.add_argument("--model", default="random:tiny", help="Model, as in serve.models")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument(
        "--processes", type=int, default=max(1, min(4, (os.cpu_count() or 1) // 4)), help="Number of client processes"
    )
    parser.add_argument("--workers", type=int, default=0, help="Number of HTTP workers, as in serve.workers")
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=1, help="Number of runs per case; the best one counts")
    parser.add_argument("--replay", help="Folder of a tokenizer; replays known completions instead of using a model")
    parser.add_argument("--rate", type=float, default=88_000.0, help="Tokens per second of all rows in a replay")
    parser.add_argument("--floor", type=float, default=0.001, help="Minimum seconds per step in a replay")
    parser.add_argument("--profile", action="store_true", help="Print the event loop's time by cause in a replay")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--server", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--raw", help=argparse.SUPPRESS)
    parser.add_argument("--inexact", help=argparse.SUPPRESS)
    args = parser.parse_args()
    return serve_and_ask(args, sys.argv[1:]) if args.port is None else ask(args)


if __name__ == "__main__":
    sys.exit(main())
