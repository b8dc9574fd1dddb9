r"""How a server bears many clients at once, as one JSON line per case; exits with 1 if an answer was lost or mixed up.

    python -m benchmarks.serving                                          # `tiny` on a CPU: 2,000 requests, 200 clients
    python -m benchmarks.serving --cases=sessions --clients=256 --turns=3 --rows=256 --new=128 --max-length=1024 \
        --model=random:qwen2.5-0.5b-instruct --dtype=bfloat16             # one H200

Cases, `--cases=whole,streams,sessions`:

whole     requests whose answer comes in one piece, half of them at `/v1/completions`
streams   the same answers as streams
sessions  a session for each client, which asks `--turns` times for a stream and sends the whole conversation each time

This process serves as `launch.py --mode=serve` does, and another one asks over one connection per client. Every prompt
has a seed, and answers to the same prompt must be the same: `mixed_up` counts those that are not those of most, `lost`
requests without an answer. Before that, the same requests, or conversations, go to the same batcher directly:
`raw_tokens_per_s` is its throughput, the best of three, and `of_raw` the share of it that clients got. `first_…` is the
time to the first piece of a stream, `between_…` that between two pieces, and `token_…` the same per token of a chunk.
`growth_mib` is what the memory of the serving process grew by from the first quarter of a case to its end.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
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

from benchmarks.sampler import report
from configs import defaults
from marl_jax.modes.serve import make_endpoint
from marl_jax.modes.served_models import load_models
from marl_jax.sampling.settings import Sampling
from marl_jax.serving import server
from marl_jax.serving.calls import ServedModel
from marl_jax.serving.guard import Limits
from marl_jax.serving.keys import Keys
from marl_jax.serving.traces import TraceFile

CHUNK = 16  # tokens of a piece: the batcher's decoding steps between two looks
WORDS = ["river", "stone", "cloud", "green", "seven", "lamp", "quiet", "door", "winter", "glass", "paper", "field"]


def question(i: int, args) -> list[dict]:
    """The messages of request i; there are `--questions` different ones."""
    words = random.Random(i % args.questions).choices(WORDS, k=4 + i % args.questions % 8)
    return [{"role": "user", "content": f"{i % args.questions}: {' '.join(words)}"}]


def follow_up(turn: int) -> dict:
    """What a session asks after the answer of a turn."""
    return {"role": "user", "content": f"and {turn}?"}


# --------------------------------------------------------------------------------------------------------- one client


class Client:
    """One connection that is kept open."""

    def __init__(self, port: int, key: str = "none-needed"):
        self.port, self.key = port, key

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_) -> None:
        self.writer.close()

    async def send(self, path: str, body: dict) -> dict[str, str]:
        """Sends a request and reads the head of the answer; its status is under ""."""
        text = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        )
        self.writer.write(head.encode() + text)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        return found | {"": lines[0].split()[1]}

    async def ask(self, path: str, body: dict) -> dict:
        """The JSON value of an answer."""
        while True:
            head = await self.send(path, body)
            found = json.loads(await self.reader.readexactly(int(head["content-length"])))
            if head[""] != "429":
                break
            await asyncio.sleep(float(head["retry-after"]))
        if head[""] != "200":
            raise RuntimeError(f"{head['']}: {found}")
        return found

    async def stream(self, body: dict) -> tuple[str, list[float], int]:
        """The text of a streamed answer, when its pieces came, in seconds from the request, and its tokens."""
        began, text, times, tokens = time.perf_counter(), "", [], 0
        more = {"stream": True, "stream_options": {"include_usage": True}}
        head = await self.send("/v1/chat/completions", body | more)
        if head[""] != "200":
            raise RuntimeError(head[""])
        buffer = b""
        while size := int((await self.reader.readline()).strip(), 16):
            buffer += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
            *events, buffer = buffer.split(b"\n\n")
            for event in events:
                if event == b"data: [DONE]":
                    continue
                chunk = json.loads(event.removeprefix(b"data: "))
                if "error" in chunk:
                    raise RuntimeError(chunk["error"])
                if chunk.get("usage"):
                    tokens = chunk["usage"]["completion_tokens"]
                for choice in chunk["choices"]:
                    if piece := choice["delta"].get("content"):
                        text += piece
                        times.append(time.perf_counter() - began)
        await self.reader.readline()
        return text, times, tokens


# -------------------------------------------------------------------------------------------------------------- cases


class Load:
    """Requests from many clients, and what came of them."""

    def __init__(self, args, port: int, server: int):
        self.args, self.port, self.server = args, port, server
        self.seconds: list[float] = []
        self.first: list[float] = []
        self.between: list[float] = []
        self.answers: dict[tuple, list[str]] = collections.defaultdict(list)
        self.tokens = self.lost = 0
        self.memory: list[float] = []

    def body(self, i: int) -> dict:
        """Request i; its question decides its seed."""
        seed = i % self.args.questions
        return {"model": "served", "messages": question(i, self.args), "seed": seed, "max_tokens": self.args.new}

    async def whole(self, client: Client, i: int) -> None:
        """An answer in one piece."""
        body, path = self.body(i), "/v1/chat/completions"
        if i % 2:
            body["prompt"], path = body.pop("messages")[0]["content"], "/v1/completions"
        found = await client.ask(path, body)
        choice = found["choices"][0]
        self.answers[path, i % self.args.questions].append(choice["text"] if i % 2 else choice["message"]["content"])
        self.tokens += found["usage"]["completion_tokens"]

    async def streams(self, client: Client, i: int) -> None:
        """An answer in pieces."""
        self.answers["stream", i % self.args.questions].append(await self._streamed(client, self.body(i)))

    async def sessions(self, client: Client, i: int) -> None:
        """A conversation of several turns in a session of its own."""
        opened = await client.ask("/v1/sessions", {"seed": i % self.args.questions})
        messages = question(i, self.args)
        async with Client(self.port, opened["key"]) as own:
            for turn in range(self.args.turns):
                said = await self._streamed(own, self.body(i) | {"messages": messages})
                self.answers[turn, i % self.args.questions].append(said)
                messages = [*messages, {"role": "assistant", "content": said}, follow_up(turn)]
            await own.ask("/v1/sessions/current/reward", {"reward": 1.0})
            await own.ask("/v1/sessions/current/end", {})

    async def _streamed(self, client: Client, body: dict) -> str:
        text, times, tokens = await client.stream(body)
        self.tokens += tokens
        self.first += times[:1]
        self.between += np.diff(times).tolist()
        return text

    async def run(self, case: str) -> dict:
        """All requests of a case."""
        requests = self.args.clients if case == "sessions" else self.args.requests
        waiting = collections.deque(range(requests))

        async def work() -> None:
            async with Client(self.port) as client:
                while waiting:
                    i, began = waiting.popleft(), time.perf_counter()
                    try:
                        await getattr(self, case)(client, i)
                    except (RuntimeError, OSError, asyncio.IncompleteReadError) as error:
                        print(f"request {i}: {error}", file=sys.stderr)
                        self.lost += 1
                    self.seconds.append(time.perf_counter() - began)
                    if len(self.seconds) % max(requests // 40, 1) == 0:
                        self.memory.append(_resident_mib(self.server))

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(self.args.clients)))
        wall = time.perf_counter() - began
        counts = [collections.Counter(texts) for texts in self.answers.values()]
        found = {
            "case": case, "requests": requests, "clients": self.args.clients, "lost": self.lost,
            "mixed_up": sum(sum(c.values()) - max(c.values()) for c in counts), "wall_s": wall,
            "requests_per_s": requests / wall, "tokens_per_s": self.tokens / wall,
            "latency_p50_s": np.percentile(self.seconds, 50), "latency_p99_s": np.percentile(self.seconds, 99),
            "growth_mib": max(self.memory[-1] - self.memory[len(self.memory) // 4], 0.0) if self.memory else 0.0,
        }  # fmt: skip
        per_token = [seconds / CHUNK for seconds in self.between]
        for name, times in (("first", self.first), ("between", self.between), ("token", per_token)):
            if times:
                found |= {f"{name}_p50_s": np.percentile(times, 50), f"{name}_p99_s": np.percentile(times, 99)}
        return found


def _resident_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


# ------------------------------------------------------------------------------------------------------------- server


def raw_tokens_per_s(args, model: ServedModel, case: str) -> float:
    """Throughput of the batcher where the same requests, or the conversations of sessions, come to it directly."""
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


def serve_and_ask(args, argv: list[str]) -> int:
    """Serves in this process while another one asks; its exit code."""
    config = defaults.get_config()
    config.model.dtype = args.dtype
    limits = Limits(concurrent=4 * args.clients)
    config.serve.update(dict(models=(f"served={args.model}",), rows=args.rows, max_length=args.max_length))
    (source,) = load_models(config, Path("."))
    raw, batcher = {}, source.sampler._batcher
    if jax.default_backend() == "cpu":  # elsewhere it has begun to
        batcher.compile()
    batcher.wait_until_compiled()
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(source.sampler):
        for case in args.cases.split(","):
            raw[case] = max(raw_tokens_per_s(args, source.models["served"], case) for _ in range(3))
        traces = TraceFile(Path(folder) / "traces.jsonl")
        endpoint = make_endpoint([source], Keys(required=False), limits, traces)
        with contextlib.closing(traces), server.in_thread(endpoint.application()) as url:
            port = url.rpartition(":")[2]
            command = [sys.executable, "-m", "benchmarks.serving", *argv, f"--port={port}", f"--raw={json.dumps(raw)}"]
            return subprocess.run(command, env=dict(os.environ) | {"JAX_PLATFORMS": "cpu"}, check=False).returncode


def ask(args) -> int:
    """Asks the server of the parent process; 1 where answers were lost or mixed up."""
    raw, failed = json.loads(args.raw), 0
    for case in args.cases.split(","):
        asyncio.run(Load(args, args.port, os.getppid()).run(case))  # compiles what a case needs
        found = asyncio.run(Load(args, args.port, os.getppid()).run(case))
        shares = dict(raw_tokens_per_s=raw[case], of_raw=found["tokens_per_s"] / raw[case])
        report(**found, **shares, model=args.model, rows=args.rows, new=args.new, cores=os.cpu_count())
        failed += found["lost"] + found["mixed_up"]
    return 1 if failed else 0


def main() -> int:
    """Runs the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="whole,streams,sessions")
    parser.add_argument("--model", default="random:tiny", help="as in serve.models")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--raw", help=argparse.SUPPRESS)
    args = parser.parse_args()
    return serve_and_ask(args, sys.argv[1:]) if args.port is None else ask(args)


if __name__ == "__main__":
    sys.exit(main())
