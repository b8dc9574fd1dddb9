r"""Stalls of streams when a served model gets new weights, as JSON lines.

    python -m benchmarks.serving_updates                                                   # `tiny` on a CPU
    python -m benchmarks.serving_updates --model=qwen2.5-0.5b-instruct --dtype=bfloat16 --rows=256 --clients=256 \
        --max-length=1024 --new=256                                                        # one H200

Every client follows one stream at a time, and new weights arrive every `--every` seconds. With in-flight updates, rows
prefill their prompt and completion again under the new weights. Otherwise completions finish with the old weights, and
new requests wait for them. Server, sampler and clients are threads of one process.

updates             number of updates
between_p50_s, …    time between two chunks of a stream
stalled_p50_s, …    the same if an update came in between
update_p50_s, …     time from submitting new weights until the sampler has them
first_p50_s, …      time to the first chunk
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from urllib.parse import urlsplit

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.sampler import random_params, report
from benchmarks.serving_load import Client
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.engine import Engine
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.http.guard import Limits
from marl_jax.serving.http.server import in_thread
from marl_jax.serving.openai.calls import ServedModel
from marl_jax.serving.openai.endpoint import Endpoint
from models import registry, tokenizers
from models.model import build


async def follow(port: int, args, sampler: BatcherThread, weights: dict):
    """Run the clients and the updates.

    Returns:
        The times of the chunks of every stream, and (begin, end) of every update, from time.perf_counter().
    """
    streams, updates, end = [], [], time.perf_counter() + args.seconds

    async def client(number: int) -> None:
        async with Client(port) as own:
            for i in itertools.count():
                if time.perf_counter() > end:
                    return
                began = time.perf_counter()
                body = {"model": "one", "messages": [{"role": "user", "content": f"{number}, {i}: " + "words " * 8}]}
                _, times, _ = await own.stream(body | {"seed": i, "max_tokens": args.new})
                streams.append([began, *(began + t for t in times)])

    async def update() -> None:
        for version in itertools.count(1):
            await asyncio.sleep(args.every)
            if time.perf_counter() > end:
                return
            began = time.perf_counter()
            await asyncio.wrap_future(sampler.submit_weights(0, weights, version))
            updates.append((began, time.perf_counter()))

    await asyncio.gather(update(), *map(client, range(args.clients)))
    return streams, updates


def quantiles(name: str, seconds: list[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the maximum, or {} without values."""
    if not seconds:
        return {}
    figures = dict(p50=np.percentile(seconds, 50), p99=np.percentile(seconds, 99), max=max(seconds))
    return {f"{name}_{key}_s": value for key, value in figures.items()}


def main() -> None:
    """Measure with and without in-flight updates."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="tiny", help="Model with the shape to use; weights are random")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--new", type=int, default=192)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=1.0, help="Seconds between updates")
    args = parser.parse_args()
    model, tokenizer, dtype = build(registry.get(args.model).config), tokenizers.load(args.model), jnp.dtype(args.dtype)
    weights = jax.tree.map(lambda x: 0.02 * jnp.ones(x.shape, dtype), model.abstract(dtype))
    for in_flight in (True, False):
        engine = Engine(model, random_params(model, dtype), dtype=dtype)
        batcher = Batcher(engine, rows=args.rows, max_length=args.max_length, in_flight_updates=in_flight)
        batcher.compile()
        batcher.wait_until_compiled()
        with BatcherThread(batcher) as sampler:
            speaker = Speaker(sampler, tokenizer, Sampling(max_new_tokens=args.new), args.max_length)
            endpoint = Endpoint({"one": ServedModel.of("one", speaker)}, limits=Limits(concurrent=4 * args.clients))
            with in_thread(endpoint.application()) as url:
                for _ in range(2):  # the first run compiles the conversion of weights
                    streams, updates = asyncio.run(follow(urlsplit(url).port, args, sampler, weights))
        gaps = [pair for times in streams for pair in itertools.pairwise(times[1:])]
        stalled = [any(a < done <= b for _, done in updates) for a, b in gaps]
        report(
            in_flight=in_flight, model=args.model, rows=args.rows, clients=args.clients, streams=len(streams),
            updates=len(updates), **quantiles("first", [times[1] - times[0] for times in streams if times[1:]]),
            **quantiles("between", [b - a for (a, b), late in zip(gaps, stalled, strict=True) if not late]),
            **quantiles("stalled", [b - a for (a, b), late in zip(gaps, stalled, strict=True) if late]),
            **quantiles("update", [done - began for began, done in updates]),
        )  # fmt: skip


if __name__ == "__main__":
    main()
