"""How a server bears many clients at once, as one JSON line per case; exits with 1 if an answer was lost or mixed up.

    python -m benchmarks.serving                                          # `tiny` on a CPU: 2,000 requests, 200 clients
    python -m benchmarks.serving --model=random:smollm2-135m --clients=8 --requests=64
    python -m benchmarks.serving --cases=sessions --clients=256 --turns=3

Cases, `--cases=whole,streams,sessions`:

whole     requests whose answer comes in one piece, half of them at `/v1/completions`
streams   the same answers as streams, with the time to the first piece and between pieces
sessions  a session for each client, in which it asks `--turns` times and sends the whole conversation each time

A process serves (`launch.py --mode=serve`), this one asks over one connection per client. Every prompt has a seed, and
answers to the same prompt must be the same: `mixed_up` counts those that are not those of most, `lost` requests without
an answer. Before the server starts, the same requests go to a batcher directly; `of_raw` is the share of its throughput
that clients got. `growth_mib` is what the server's memory grew by from the first quarter of a case to its end.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from benchmarks.sampler import random_params, report
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.engine import Engine
from marl_jax.sampling.settings import Sampling
from models import registry, tokenizers
from models.model import build

ROOT = Path(__file__).resolve().parents[1]
WORDS = ["river", "stone", "cloud", "green", "seven", "lamp", "quiet", "door", "winter", "glass", "paper", "field"]


def question(i: int, args) -> list[dict]:
    """The messages of request i; there are `--questions` different ones."""
    words = random.Random(i % args.questions).choices(WORDS, k=4 + i % args.questions % 8)
    return [{"role": "user", "content": f"{i % args.questions}: {' '.join(words)}"}]


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

    async def stream(self, body: dict) -> tuple[str, list[float]]:
        """The text of a streamed answer, and when its pieces came, in seconds from the request."""
        began, text, times = time.perf_counter(), "", []
        head = await self.send("/v1/chat/completions", body | {"stream": True})
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
                piece = json.loads(event.removeprefix(b"data: "))["choices"][0]["delta"].get("content")
                if piece:
                    text += piece
                    times.append(time.perf_counter() - began)
        await self.reader.readline()
        return text, times


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
        text, times = await client.stream(self.body(i))
        self.answers["stream", i % self.args.questions].append(text)
        self.tokens += self.args.new
        self.first += times[:1]
        self.between += np.diff(times).tolist()

    async def sessions(self, client: Client, i: int) -> None:
        """A conversation of several turns in a session of its own."""
        opened = await client.ask("/v1/sessions", {"seed": i % self.args.questions})
        messages = question(i, self.args)
        async with Client(self.port, opened["key"]) as own:
            for turn in range(self.args.turns):
                found = await own.ask("/v1/chat/completions", self.body(i) | {"messages": messages})
                said = found["choices"][0]["message"]
                self.answers[turn, i % self.args.questions].append(said["content"])
                self.tokens += found["usage"]["completion_tokens"]
                messages = [*messages, {"role": "assistant", "content": said["content"]},
                            {"role": "user", "content": f"and {turn}?"}]  # fmt: skip
            await own.ask("/v1/sessions/current/reward", {"reward": 1.0})
            await own.ask("/v1/sessions/current/end", {})

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
        for name, times in (("first", self.first), ("between", self.between)):
            if times:
                found |= {f"{name}_p50_s": np.percentile(times, 50), f"{name}_p99_s": np.percentile(times, 99)}
        return found


def _resident_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


# ------------------------------------------------------------------------------------------------- servers and batchers


def raw_tokens_per_s(args) -> float:
    """Throughput of a batcher that is given the same chats directly."""
    name = args.model.removeprefix("random:")
    model, tokenizer = build(registry.get(name).config), tokenizers.load(name)
    dtype = jnp.dtype(args.dtype)
    engine = Engine(model, random_params(model, dtype), dtype=dtype)
    batcher = Batcher(engine, rows=args.rows, max_length=args.max_length)

    def run(count: int) -> float:
        for i in range(count):
            ids = tokenizer.encode(tokenizer.chat(question(i, args)))
            batcher.submit(ids, Sampling(seed=i % args.questions, max_new_tokens=args.new))
        began, before = time.perf_counter(), batcher.usage.generated
        batcher.run()
        return (batcher.usage.generated - before) / (time.perf_counter() - began)

    run(2 * args.rows)
    return run(args.requests)


def start_server(args, folder: str) -> tuple[subprocess.Popen, int]:
    """A server in a process of its own, once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "serve.models": f"('served={args.model}',)", "serve.port": port, "serve.rows": args.rows,
        "serve.max_length": args.max_length, "serve.max_requests": 4 * args.clients, "model.dtype": args.dtype,
    }  # fmt: skip
    command = [sys.executable, "launch.py", "--mode=serve", f"--workdir={folder}", "--compilation_cache=off"]
    process = subprocess.Popen([*command, *(f"--config.{k}={v}" for k, v in settings.items())], cwd=ROOT)
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process, port
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server did not start")


def main() -> int:
    """Runs the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="whole,streams,sessions")
    parser.add_argument("--model", default="random:tiny", help="as in serve.models; the raw batcher has random weights")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--new", type=int, default=32)
    args = parser.parse_args()
    raw = raw_tokens_per_s(args)
    report(case="raw", tokens_per_s=raw)
    with tempfile.TemporaryDirectory() as folder:
        process, port = start_server(args, folder)
        try:
            asyncio.run(Load(args, port, process.pid).run("whole"))  # compiles
            failed = 0
            for case in args.cases.split(","):
                found = asyncio.run(Load(args, port, process.pid).run(case))
                report(**found, of_raw=found["tokens_per_s"] / raw, cores=os.cpu_count())
                failed += found["lost"] + found["mixed_up"]
        finally:
            process.terminate()
            process.wait(60)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
