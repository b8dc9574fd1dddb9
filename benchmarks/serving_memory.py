"""What a server's memory is made of while it answers many requests, as one JSON line for every `--every` of them.

    python -m benchmarks.serving_memory --requests=20000
    MALLOC_ARENA_MAX=2 python -m benchmarks.serving_memory --requests=20000     # fewer arenas of the allocator

Server, sampler and clients are threads of one process, so that everything can be counted: a leak in any of them shows.
Streams, whole answers and sessions of two turns take turns; every prompt is another one, and so is every connection.

requests     answered so far
rss_mib      memory of the process
malloc_mib   of it, what is in use in the C allocator's books; the rest is freed and kept by the allocator, or not its
objects      that Python's garbage collector knows, after a collection
sessions     that the server remembers, at most 1,024 after their end
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
    """MiB in use by the C allocator; None where it does not tell."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is None:
        return None
    function.restype = _MallInfo
    found = function()
    return (found.uordblks + found.hblkhd) / 2**20


def memory(endpoint: Endpoint, answered: int) -> dict:
    """One line."""
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
    """So many requests from `--clients` clients at once."""
    waiting = iter(range(first, first + count))

    def body(i: int) -> dict:
        messages = [{"role": "user", "content": f"number {i}"}]
        return {"model": "one", "messages": messages, "seed": i, "max_tokens": args.new}

    async def work() -> None:
        for i in waiting:
            async with Client(port) as client:  # a connection each
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
    """Asks, and reports."""
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
