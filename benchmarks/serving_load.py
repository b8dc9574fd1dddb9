"""Client processes for the load test in `serving.py`, and their results."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import dataclasses
import json
import multiprocessing
import random
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

WORDS = ["river", "stone", "cloud", "green", "seven", "lamp", "quiet", "door", "winter", "glass", "paper", "field"]


def question(i: int, args) -> list[dict]:
    """Return the messages of request i; there are `--questions` different ones."""
    words = random.Random(i % args.questions).choices(WORDS, k=4 + i % args.questions % 8)
    return [{"role": "user", "content": f"{i % args.questions}: {' '.join(words)}"}]


def follow_up(turn: int) -> dict:
    """Return the user message of a session after a turn."""
    return {"role": "user", "content": f"and {turn}?"}


# --------------------------------------------------------------------------------------------------------- one client


class Client(asyncio.Protocol):
    """A client with one persistent connection and minimal work per chunk."""

    def __init__(self, port: int, key: str = "none-needed"):
        self.port, self.key = port, key
        self._parts: list[tuple[float, bytes]] = []
        self._arrived: asyncio.Future | None = None
        self._closed = False

    async def __aenter__(self) -> Client:
        self._loop = asyncio.get_running_loop()
        self._transport, _ = await self._loop.create_connection(lambda: self, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Record data and its time of arrival."""
        self._parts.append((time.perf_counter(), data))
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake up the waiting request."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        """Wake up the waiting request."""
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def send(self, path: str, body: dict) -> dict[str, str]:
        """Send a request and return the response headers, with the status under ""."""
        text = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        )
        self._data, self._marks = b"", []
        self._parts.clear()
        self._transport.write(head.encode() + text)
        while (end := self._data.find(b"\r\n\r\n")) < 0:
            await self._more()
        lines = self._data[:end].decode("latin-1").split("\r\n")
        self._start = end + 4
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        return headers | {"": lines[0].split()[1]}

    async def _more(self) -> None:
        """Wait for more of the response and record its time of arrival."""
        if not self._parts:
            if self._closed:
                raise OSError("the server closed the connection")
            self._arrived = self._loop.create_future()
            await self._arrived
        for at, part in self._parts:
            self._data += part
            self._marks.append((at, len(self._data)))
        self._parts.clear()

    async def _exchange(self, path: str, body: dict) -> tuple[dict[str, str], bytes, list[tuple[float, int]]]:
        """Send a request and return the response.

        Returns:
            The headers, the body, and (time, bytes received so far) of every arrival.
        """
        head = await self.send(path, body)
        length, start = head.get("content-length"), self._start
        while len(self._data) < start + int(length) if length else not self._data.endswith(b"\r\n0\r\n\r\n"):
            await self._more()
        return head, self._data[start:], [(at, size - start) for at, size in self._marks]

    async def ask(self, path: str, body: dict) -> dict:
        """Send a request and return the JSON response."""
        while True:
            head, data, _ = await self._exchange(path, body)
            if head[""] != "429":
                break
            await asyncio.sleep(float(head["retry-after"]))
        if head[""] != "200":
            raise RuntimeError(f"{head['']}: {data.decode()}")
        return json.loads(data)

    async def stream(self, body: dict) -> tuple[str, list[float], int]:
        """Send a streaming request.

        Returns:
            The text, the times of its chunks in seconds from the request, and the number of tokens.
        """
        began, text, times, tokens = time.perf_counter(), "", [], 0
        more = {"stream": True, "stream_options": {"include_usage": True}}
        head, data, marks = await self._exchange("/v1/chat/completions", body | more)
        if head[""] != "200":
            raise RuntimeError(f"{head['']}: {data.decode()}")
        at, arrived, buffer = 0, iter(marks), b""
        moment, upto = next(arrived)
        while size := int(data[at : (line := data.index(b"\r\n", at))], 16):
            buffer += data[line + 2 : line + 2 + size]
            at = line + 4 + size
            while upto < at:
                moment, upto = next(arrived)
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
                        times.append(moment - began)
        return text, times, tokens


# -------------------------------------------------------------------------------------------------------------- cases


@dataclasses.dataclass
class Seen:
    """The results of the clients.

    Attributes:
        began: Start, from time.perf_counter(), which all processes share.
        ended: End.
        seconds: Durations of requests or sessions.
        first: Seconds to the first chunk of a stream.
        between: Seconds between two chunks.
        answers: Responses by request.
        memory: Samples of (time, MiB of the serving process).
        tokens: Number of tokens.
        lost: Number of requests without a response.
    """

    began: float
    ended: float = 0.0
    seconds: list[float] = dataclasses.field(default_factory=list)
    first: list[float] = dataclasses.field(default_factory=list)
    between: list[float] = dataclasses.field(default_factory=list)
    answers: dict[tuple, list[str]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    memory: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    tokens: int = 0
    lost: int = 0

    def add(self, other: Seen) -> None:
        """Add the results of other clients."""
        self.began, self.ended = min(self.began, other.began), max(self.ended, other.ended)
        for name in ("seconds", "first", "between", "tokens", "lost"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for request, texts in other.answers.items():
            self.answers[request] += texts
        self.memory = sorted(self.memory + other.memory)


class Load:
    """The requests of one client process, number `part` of `args.processes`."""

    def __init__(self, args, part: int):
        self.args, self.part, self.seen = args, part, Seen(time.perf_counter())

    def body(self, i: int) -> dict:
        """Return request i; its question determines its seed."""
        seed = i % self.args.questions
        return {"model": "served", "messages": question(i, self.args), "seed": seed, "max_tokens": self.args.new}

    async def whole(self, client: Client, i: int) -> None:
        """Send a request without streaming."""
        body, path = self.body(i), "/v1/chat/completions"
        if i % 2:
            body["prompt"], path = body.pop("messages")[0]["content"], "/v1/completions"
        response = await client.ask(path, body)
        choice = response["choices"][0]
        said = choice["text"] if i % 2 else choice["message"]["content"]
        self.seen.answers[path, i % self.args.questions].append(said)
        self.seen.tokens += response["usage"]["completion_tokens"]

    async def streams(self, client: Client, i: int) -> None:
        """Send a streaming request."""
        self.seen.answers["stream", i % self.args.questions].append(await self._streamed(client, self.body(i)))

    async def sessions(self, client: Client, i: int) -> None:
        """Run a conversation of several turns in a new session."""
        opened = await client.ask("/v1/sessions", {"seed": i % self.args.questions})
        messages = question(i, self.args)
        async with Client(urlsplit(opened["base_url"]).port, opened["key"]) as own:
            for turn in range(self.args.turns):
                said = await self._streamed(own, self.body(i) | {"messages": messages})
                self.seen.answers[turn, i % self.args.questions].append(said)
                messages = [*messages, {"role": "assistant", "content": said}, follow_up(turn)]
            await own.ask("/v1/sessions/current/reward", {"reward": 1.0})
            await own.ask("/v1/sessions/current/end", {})

    async def _streamed(self, client: Client, body: dict) -> str:
        """Send a streaming request, record its times, and return the text."""
        text, times, tokens = await client.stream(body)
        self.seen.tokens += tokens
        self.seen.first += times[:1]
        self.seen.between += [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
        return text

    async def run(self, case: str) -> Seen:
        """Send all requests of a case."""
        args, seen = self.args, self.seen
        requests = args.clients if case == "sessions" else args.requests
        waiting = collections.deque(range(self.part, requests, args.processes))

        async def work() -> None:
            async with Client(args.port) as client:
                while waiting:
                    i, began = waiting.popleft(), time.perf_counter()
                    try:
                        await getattr(self, case)(client, i)
                    except (RuntimeError, OSError) as error:
                        print(f"request {i}: {error}", file=sys.stderr)
                        seen.lost += 1
                    seen.seconds.append(time.perf_counter() - began)
                    if len(seen.seconds) % max(requests // args.processes // 40, 1) == 0:
                        seen.memory.append((time.perf_counter(), _resident_mib(args.server)))

        await asyncio.gather(*(work() for _ in range(self.part, args.clients, args.processes)))
        seen.ended = time.perf_counter()
        return seen


def _resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


# ---------------------------------------------------------------------------------------------------------- processes


class ClientProcesses:
    """`args.processes` processes that send requests concurrently."""

    def __init__(self, args):
        context = multiprocessing.get_context("spawn")
        self._args, barrier = args, context.Barrier(args.processes)
        self._pool = concurrent.futures.ProcessPoolExecutor(args.processes, context, _remember, (barrier,))

    def run(self, case: str, **changes) -> Seen:
        """Send all requests of a case; `changes` override arguments."""
        args = type(self._args)(**vars(self._args) | changes)
        parts = [self._pool.submit(_run_part, args, part, case) for part in range(args.processes)]
        first, *others = (part.result() for part in parts)
        for other in others:
            first.add(other)
        return first

    def close(self) -> None:
        """Stop the processes."""
        self._pool.shutdown()


def _remember(barrier) -> None:
    """Store the barrier in this process."""
    global _begin
    _begin = barrier


def _run_part(args, part: int, case: str) -> Seen:
    """Send the requests of one process."""
    _begin.wait()  # waits until each process has a part
    return asyncio.run(Load(args, part).run(case))
