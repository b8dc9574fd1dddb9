r"""Recordings of framework conversations over HTTP, which tests replay without the frameworks.

    python -m benchmarks.drift_record ag2 llamaindex --out=tests/marl_jax/serving/golden \
        --python=ag2:ENVIRONMENT/bin/python --python=llamaindex:ENVIRONMENT/bin/python

The client of `benchmarks/drift_clients.py` calls a server as in `benchmarks.drift`. Every request is stored with the
text of its completion in OUT/drift_FRAMEWORK.jsonl:

    {"framework", "versions": {package: version}}
    {"talk": "whole" | "streams", "conversations"}         number of conversations after an ideal merge
    {"body", "answer"}                                     body of a request, and the sampled text

Completions follow a script with tool calls and thoughts. Requests contain earlier completions, so replaying them needs
the same completions, which `Replayed` provides.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import drift
from envs.tasks.program import process
from envs.tasks.program.task import environment
from marl_jax.sampling.conversation import Completion
from marl_jax.serving.http.server import in_loop
from marl_jax.serving.openai.endpoint import Endpoint

TEMPLATE, AGENTS, TURNS = "qwen2.5", 2, 4
PACKAGES = {
    "openai": ["openai"], "autogen": ["autogen-agentchat", "openai"], "langgraph": ["langgraph", "langchain-openai"],
    "llamaindex": ["llama-index-core", "llama-index-llms-openai-like", "openai"], "ag2": ["ag2", "openai"],
}  # fmt: skip


class Replayed:
    """A sampler that returns recorded completions in order and streams each token.

    Completions have one token per letter.
    """

    def __init__(self, answers: list[str]):
        self._left = iter(answers)

    async def answer(self, ids, sampling, policy=0, n=1, deadline=None, on_tokens=None) -> list[Completion]:
        """Return the next completion. See `BatcherThread.answer`."""
        tokenizer = drift.tokenizer_of(TEMPLATE)
        tokens = [i for letter in next(self._left) for i in tokenizer.encode(letter)] + [tokenizer.stop_ids[0]]
        logps = -np.random.default_rng(sampling.seed).random(len(tokens)).astype(np.float32)
        completion = Completion(np.asarray(tokens, np.int32), logps, "stop", np.zeros(len(tokens), np.int32))
        for t in range(len(tokens) - 1 if on_tokens is not None else 0):
            on_tokens(
                0, Completion(completion.tokens[t : t + 1], logps[t : t + 1], "going", completion.versions[t : t + 1])
            )
            await asyncio.sleep(0)
        return [completion]


class Bodies:
    """An ASGI application that wraps another one and records the JSON bodies of chat requests."""

    def __init__(self, app):
        self._app, self.bodies = app, []

    async def __call__(self, scope, receive, send) -> None:
        """Handle a connection as an ASGI application."""
        body = b""

        async def watched():
            nonlocal body
            message = await receive()
            if message["type"] == "http.request" and scope["path"].endswith("/chat/completions"):
                body += message.get("body", b"")
                if not message.get("more_body"):
                    self.bodies.append(json.loads(body))
            return message

        await self._app(scope, watched, send)


def script(seed: int) -> list[str]:
    """Return enough completions for a recording: tool calls alternate with texts."""
    rng, completions = random.Random(seed), []
    for text in ("so it is 42", " the answer\n", "<think>\nhm, ab\n</think>\n\nin the end: 42", "naïve 漢", "abba") * 4:
        for _ in range(rng.randint(0, 2)):
            call = f'<tool_call>\n{{"name":  "add", "arguments": {{"b": {rng.randint(0, 9)}, "a":1}}}}\n</tool_call>'
            completions.append(rng.choice(("Let me see.\n", "")) + call)
        completions.append(text)
    return completions


async def record(framework: str, python: str) -> list[dict[str, Any]]:
    """Record one run with tools and complete responses, and one with streams."""
    lines: list[dict[str, Any]] = [{"framework": framework, "versions": _versions(framework, python)}]
    for stream in (False, True):
        answers = script(seed=int(stream))
        endpoint = Endpoint(drift.served("recorded", Replayed(answers)))
        app, model = Bodies(endpoint.application()), f"recorded/{TEMPLATE}"
        settings = dict(framework=framework, model=model, agents=AGENTS, turns=TURNS, tools=True, stream=stream, seed=0)
        async with in_loop(app) as url:
            session = await endpoint.sessions.open(seed=0, models=[model])
            ended = await process.run(
                [python, str(drift.CLIENTS)], json.dumps(settings).encode() + b"\n",
                environment(f"{url}/v1", session.key, model),
            )  # fmt: skip
        if ended.code:
            raise SystemExit(f"{settings} failed: {ended.errors[-2000:]}")
        lines.append({"talk": "streams" if stream else "whole", **json.loads(ended.output.splitlines()[-1])})
        lines += [{"body": body, "answer": answer} for body, answer in zip(app.bodies, answers, strict=False)]
    return lines


def read(path: Path) -> dict[str, tuple[int, list[dict[str, Any]]]]:
    """Return the runs of a recording by name: (conversations, calls)."""
    runs: dict[str, tuple[int, list[dict[str, Any]]]] = {}
    for line in path.read_text().splitlines()[1:]:
        one = json.loads(line)
        if "talk" in one:
            runs[one["talk"]] = (one["conversations"], calls := [])
        else:
            calls.append(one)
    return runs


def _versions(framework: str, python: str) -> dict[str, str]:
    """Return the versions of a framework's packages."""
    code = "import sys, importlib.metadata as m; print(*map(m.version, sys.argv[1:]))"
    names = PACKAGES[framework]
    versions = subprocess.run([python, "-c", code, *names], check=True, capture_output=True, text=True).stdout.split()
    return dict(zip(names, versions, strict=True))


def main() -> None:
    """Record the given frameworks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("frameworks", nargs="+", choices=list(PACKAGES))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--python", action="append", default=[], help="FRAMEWORK:INTERPRETER, if it differs from this one"
    )
    args = parser.parse_args()
    pythons = dict(one.split(":", 1) for one in args.python)
    for framework in args.frameworks:
        entries = asyncio.run(record(framework, pythons.get(framework, sys.executable)))
        lines = (json.dumps(one, ensure_ascii=False) + "\n" for one in entries)
        (args.out / f"drift_{framework}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main()
