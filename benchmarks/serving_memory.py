"""Memory of a server over many requests, as one JSON line for every `--every` requests.

    python -m benchmarks.serving_memory --requests=20000
    MALLOC_ARENA_MAX=2 python -m benchmarks.serving_memory --requests=20000     # fewer allocator arenas

Server, sampler and clients are threads of one process, so that a leak in any of them shows. Requests with and without
streaming and sessions of two turns alternate. Every request has a new prompt and a new connection.

requests     completed requests
rss_mib      resident memory of the process
malloc_mib   memory in use according to the C allocator; the rest is freed but kept by it, or allocated elsewhere
objects      objects tracked by Python's garbage collector, after a collection
sessions     sessions that the server remembers, at most 1,024 after their end
arrays_mib   live JAX arrays
programs     compiled programs in JAX's caches
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
from pathlib import Path
from urllib.parse import urlsplit

import jax
import jax.numpy as jnp

from benchmarks.sampler import random_params, report
from benchmarks.serving_load import Client
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.engine import Engine
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.http.server import in_thread
from marl_jax.serving.openai.calls import ServedModel
from marl_jax.serving.openai.endpoint import Endpoint
from models import registry, tokenizers
from models.model import build


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def malloc_mib() -> float | None:
    """Return the MiB in use by the C allocator, or None if unknown."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is None:
        return None
    function.restype = _MallInfo
    info = function()
    return (info.uordblks + info.hblkhd) / 2**20


def memory(endpoint: Endpoint, answered: int) -> dict:
    """Return the figures of a line."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    sessions = endpoint.sessions
    return {
        "requests": answered, "rss_mib": int(status.split("VmRSS:")[1].split()[0]) / 1024, "malloc_mib": malloc_mib(),
        "objects": len(gc.get_objects()), "sessions": len(sessions.open_sessions) + len(sessions._ended),
        "arrays_mib": sum(array.nbytes for array in jax.live_arrays()) / 2**20,
        "programs": jax._src.pjit._infer_params_cached.cache_info().currsize,
    }  # fmt: skip


async def ask(port: int, first: int, count: int, args) -> None:
    """Send `count` requests from `--clients` concurrent clients."""
    waiting = iter(range(first, first + count))

    def body(i: int) -> dict:
        messages = [{"role": "user", "content": f"number {i}"}]
        return {"model": "one", "messages": messages, "seed": i, "max_tokens": args.new}

    async def work() -> None:
        for i in waiting:
            async with Client(port) as client:  # one connection per request
                if i % 3 == 0:
                    await client.stream(body(i))
                elif i % 3 == 1:
                    await client.ask("/v1/chat/completions", body(i))
                else:
                    opened = await client.ask("/v1/sessions", {"seed": i})
                    async with Client(port, opened["key"]) as own:
                        said = (await own.ask("/v1/chat/completions", body(i)))["choices"][0]["message"]
                        more = [*body(i)["messages"], said, {"role": "user", "content": "and?"}]
                        await own.ask("/v1/chat/completions", body(i) | {"messages": more})
                        await own.ask("/v1/sessions/current/end", {})

    await asyncio.gather(*(work() for _ in range(args.clients)))


def main() -> None:
    """Send the requests and report the memory."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--new", type=int, default=8)
    args = parser.parse_args()
    model, tokenizer = build(registry.get("tiny").config), tokenizers.load("tiny")
    engine = Engine(model, random_params(model, jnp.float32), dtype=jnp.float32)
    batcher = Batcher(engine, rows=32, max_length=256, tokenizer=tokenizer)
    with BatcherThread(batcher) as sampler:
        speaker = Speaker(sampler, tokenizer, Sampling(max_new_tokens=args.new), 256)
        endpoint = Endpoint({"one": ServedModel.of("one", speaker)})
        with in_thread(endpoint.application()) as url:
            for first in range(0, args.requests, args.every):
                asyncio.run(ask(urlsplit(url).port, first, args.every, args))
                report(**memory(endpoint, first + args.every))


if __name__ == "__main__":
    main()
