r"""Conversations of frameworks as they went over HTTP, so that tests can repeat them without the frameworks.

    python -m benchmarks.drift_record ag2 llamaindex --out=tests/marl_jax/serving/golden \
        --python=ag2:ENVIRONMENT/bin/python --python=llamaindex:ENVIRONMENT/bin/python

The client of `benchmarks/drift_clients.py` talks to a server, as in `benchmarks.drift`, and every request is kept with
the text of its answer, in OUT/drift_FRAMEWORK.jsonl:

    {"framework", "versions": {package: version}}
    {"talk": "whole" | "streams", "conversations"}         how many an ideal merge would make of the calls that follow
    {"body", "answer"}                                     a request as it was sent, and the text that was sampled

Answers follow a script with calls of tools and thoughts. Requests repeat earlier answers, so whoever sends them again
has to be answered with the same texts: `Replayed` does that.
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
    """A sampler that gives the answers of a recording in turn, a token for each letter, and streams each token."""

    def __init__(self, answers: list[str]):
        self._left = iter(answers)

    async def answer(self, ids, sampling, policy=0, n=1, deadline=None, on_tokens=None) -> list[Completion]:
        """As `BatcherThread.answer`."""
        tokenizer = drift.tokenizer_of(TEMPLATE)
        tokens = [i for letter in next(self._left) for i in tokenizer.encode(letter)] + [tokenizer.stop_ids[0]]
        logps = -np.random.default_rng(sampling.seed).random(len(tokens)).astype(np.float32)
        found = Completion(np.asarray(tokens, np.int32), logps, "stop", np.zeros(len(tokens), np.int32))
        for t in range(len(tokens) - 1 if on_tokens is not None else 0):
            on_tokens(0, Completion(found.tokens[t : t + 1], logps[t : t + 1], "going", found.versions[t : t + 1]))
            await asyncio.sleep(0)
        return [found]


class Bodies:
    """An application around another one that keeps the JSON bodies of chats, in order."""

    def __init__(self, app):
        self._app, self.found = app, []

    async def __call__(self, scope, receive, send) -> None:
        """As ASGI wants it."""
        body = b""

        async def watched():
            nonlocal body
            message = await receive()
            if message["type"] == "http.request" and scope["path"].endswith("/chat/completions"):
                body += message.get("body", b"")
                if not message.get("more_body"):
                    self.found.append(json.loads(body))
            return message

        await self._app(scope, watched, send)


def script(seed: int) -> list[str]:
    """Answers enough for a recording: a call of the tool, sometimes two in a row, and then a text."""
    rng, found = random.Random(seed), []
    for text in ("so it is 42", " the answer\n", "<think>\nhm, ab\n</think>\n\nin the end: 42", "naïve 漢", "abba") * 4:
        for _ in range(rng.randint(0, 2)):
            call = f'<tool_call>\n{{"name":  "add", "arguments": {{"b": {rng.randint(0, 9)}, "a":1}}}}\n</tool_call>'
            found.append(rng.choice(("Let me see.\n", "")) + call)
        found.append(text)
    return found


async def record(framework: str, python: str) -> list[dict[str, Any]]:
    """A talk with tools in whole answers, and one in streams."""
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
        lines += [{"body": body, "answer": answer} for body, answer in zip(app.found, answers, strict=False)]
    return lines


def read(path: Path) -> dict[str, tuple[int, list[dict[str, Any]]]]:
    """The talks of a recording by name: (conversations, calls)."""
    found: dict[str, tuple[int, list[dict[str, Any]]]] = {}
    for line in path.read_text().splitlines()[1:]:
        one = json.loads(line)
        if "talk" in one:
            found[one["talk"]] = (one["conversations"], calls := [])
        else:
            calls.append(one)
    return found


def _versions(framework: str, python: str) -> dict[str, str]:
    code = "import sys, importlib.metadata as m; print(*map(m.version, sys.argv[1:]))"
    names = PACKAGES[framework]
    found = subprocess.run([python, "-c", code, *names], check=True, capture_output=True, text=True).stdout.split()
    return dict(zip(names, found, strict=True))


def main() -> None:
    """Records the frameworks that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("frameworks", nargs="+", choices=list(PACKAGES))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--python", action="append", default=[], help="FRAMEWORK:INTERPRETER, if it is not this one")
    args = parser.parse_args()
    pythons = dict(one.split(":", 1) for one in args.python)
    for framework in args.frameworks:
        found = asyncio.run(record(framework, pythons.get(framework, sys.executable)))
        lines = (json.dumps(one, ensure_ascii=False) + "\n" for one in found)
        (args.out / f"drift_{framework}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main()
