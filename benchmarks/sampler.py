"""Throughput of the sampler, as one JSON line per case.

    python -m benchmarks.sampler                      # all cases that fit this machine
    python -m benchmarks.sampler --models=qwen2.5-0.5b --rows=256         # next to it: benchmarks.peers
    python -m benchmarks.sampler --models=qwen2.5-vl-3b --rows=64 --new=128 --continuous=0

Weights are random with published shapes. Each row prefills `--prompt` tokens and generates `--new` tokens at
temperature 1, in bfloat16 on accelerators. `tokens_per_s` is generated tokens over decoding time, and
`with_prefill_tokens_per_s` over the time of the call. `floor_share` is the time that bytes and operations alone would
take (weights and filled cache slots read once, logits written and read once, at the copy bandwidth and matrix rate
measured on an H200) over the actual time. `memory_ratio` is the memory that the compiler allocates for a decoding chunk
over weights + cache + logits. Rows of a model with a vision tower have one picture each and go through the batcher.
"""

from __future__ import annotations

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import pictured
from marl_jax.sampling import decode
from marl_jax.sampling.batch_settings import settings_for
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.engine import Engine
from marl_jax.sampling.settings import Sampling
from models import cache as kv
from models import registry
from models.config import ModelConfig
from models.model import build

BYTES_PER_S, FLOPS_PER_S = 4.3e12, 790e12  # measured on one H200: copy of a large array, large bf16 matrix product


def random_params(model, dtype):
    """Return random weights for decoding.

    They are created unstacked, so that the peak memory is that of the weights.
    """
    shapes = jax.eval_shape(lambda p: model.unstack(p, dtype), model.abstract(dtype))
    leaves, tree = jax.tree.flatten(shapes)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    draw = jax.jit(lambda k, s: (jax.random.normal(k, s, jnp.float32) * 0.02).astype(dtype), static_argnums=1)
    return jax.tree.unflatten(tree, [draw(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)])


def floor_seconds(cfg: ModelConfig, rows: int, prompt: int, new: int) -> float:
    """Return the minimum time for the decoding steps of one batch."""
    steps = 0.0
    for length in range(prompt, prompt + new):
        weights = max(2 * cfg.n_params / BYTES_PER_S, 2 * cfg.n_params * rows / FLOPS_PER_S)
        cache = kv.nbytes(cfg, rows, length) / BYTES_PER_S
        logits = 2 * 4 * rows * cfg.vocab_size / BYTES_PER_S
        steps += weights + cache + logits
    return steps


def median_seconds(run, repeats: int) -> float:
    """Return the median time of `repeats` calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def report(**figures):
    """Print a JSON line."""
    print(json.dumps({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in figures.items()}), flush=True)


def fixed_batch(name: str, rows: int, prompt: int, new: int, dtype, repeats: int) -> None:
    """Measure a batch of `rows` × (`prompt` + `new`) tokens."""
    model = build(registry.get(name).config)
    cfg = model.cfg
    engine = Engine(model, random_params(model, dtype), dtype=dtype)
    prompts = np.random.default_rng(0).integers(0, cfg.vocab_size, (rows, prompt)).tolist()
    sampling = [Sampling(max_new_tokens=new, seed=i) for i in range(rows)]
    settings = settings_for(sampling, rows, prompts, cfg.vocab_size)

    def decode_all(conversation):
        rows_, *_ = engine._begin(engine.weights, conversation.hidden, conversation.cache, settings)
        for _ in range(-(-(new - 1) // engine.chunk)):
            rows_, *_ = engine._chunk(engine.weights, rows_, settings, conversation.adapter_ids, engine.chunk)
        jax.block_until_ready(rows_)

    start = time.perf_counter()
    decode_all(engine.prefill(prompts, slots=prompt + new))
    compile_s = time.perf_counter() - start
    read = lambda: jax.block_until_ready(engine.prefill(prompts, slots=prompt + new).cache)  # noqa: E731
    prefill_s = median_seconds(read, repeats)
    times = []
    for _ in range(repeats):
        conversation = engine.prefill(prompts, slots=prompt + new)
        jax.block_until_ready(conversation.cache)
        times.append(median_seconds(lambda c=conversation: decode_all(c), 1))
    decode_s = float(np.median(times))
    weights = sum(x.nbytes for x in jax.tree.leaves(engine.weights))
    counted = weights + kv.nbytes(cfg, rows, prompt + new, dtype) + 4 * rows * cfg.vocab_size
    stats = jax.devices()[0].memory_stats() or {}
    report(
        case="fixed",
        model=name,
        rows=rows,
        prompt=prompt,
        new=new,
        device=jax.devices()[0].device_kind,
        tokens_per_s=rows * new / decode_s,
        with_prefill_tokens_per_s=rows * new / (decode_s + prefill_s),
        step_ms=decode_s / new * 1e3,
        prefill_ms=prefill_s * 1e3,
        compile_s=compile_s,
        floor_share=floor_seconds(cfg, rows, prompt, new) / decode_s if jax.default_backend() == "gpu" else None,
        memory_ratio=allocated(engine, rows, prompt + new, settings) / counted,
        peak_gib=stats.get("peak_bytes_in_use", 0) / 2**30,
    )


def allocated(engine: Engine, rows: int, slots: int, settings) -> float:
    """Return the peak bytes of the compiled decoding chunk."""
    cache = jax.eval_shape(lambda: kv.empty(engine.model.cfg, rows, slots, engine.dtype))
    column = jax.ShapeDtypeStruct((rows,), jnp.int32)
    state = decode.Rows(cache, column, column, column)
    memory = engine._chunk.lower(engine.weights, state, settings, column, engine.chunk).compile().memory_analysis()
    return (
        memory.argument_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
    )


def continuous(name: str, rows: int, requests: int, dtype, scale: int) -> None:
    """Measure continuous batching.

    Prompts have 32 to 512 tokens and completions 16 to 512, both divided by `scale`.
    """
    model = build(registry.get(name).config)
    engine = Engine(model, random_params(model, dtype), dtype=dtype)
    rng = np.random.default_rng(0)
    lengths = rng.integers(32, 513, requests) // scale, rng.integers(16, 513, requests) // scale

    batcher = Batcher(engine, rows=rows, max_length=1024 // scale, chunk=16)
    if jax.default_backend() == "gpu":
        batcher.compile()
        batcher.wait_until_compiled()

    def serve():
        before = batcher.usage
        for i, (prompt, new) in enumerate(zip(*lengths, strict=True)):
            batcher.submit(rng.integers(0, model.cfg.vocab_size, prompt), Sampling(max_new_tokens=int(new), seed=i))
        batcher.run()
        after = batcher.usage
        return after.seconds - before.seconds, (after.generated - before.generated) / (after.slots - before.slots)

    start = time.perf_counter()
    serve()
    first = time.perf_counter() - start
    seconds, useful = serve()
    report(
        case="continuous",
        model=name,
        rows=rows,
        requests=requests,
        device=jax.devices()[0].device_kind,
        tokens_per_s=float(lengths[1].sum()) / seconds,
        useful_share=useful,
        seconds=seconds,
        first_run_s=first,
    )


def with_pictures(name: str, rows: int, prompt: int, new: int, dtype, repeats: int) -> None:
    """Measure `rows` requests with a picture each through the batcher; every repetition encodes new pictures."""
    model = build(registry.get(name).config)
    engine = Engine(model, random_params(model, dtype), dtype=dtype)
    batcher = Batcher(engine, rows=rows, max_length=prompt + new, chunk=16)
    rng = np.random.default_rng(0)

    def serve() -> tuple[float, float]:
        """Return the seconds of encoding and of everything after it."""
        start = time.perf_counter()
        held = [engine.hold_image(picture) for picture in pictured.pictures(rows, rng)]
        jax.block_until_ready(engine.images.table)
        encoded = time.perf_counter()
        for i, ids in enumerate(pictured.prompts(model.cfg, rows, prompt, rng)):
            shown = iter(engine.images.ids(held[i]))
            ids = [next(shown) if token == model.cfg.vision.image_id else token for token in ids]
            batcher.submit(ids, Sampling(max_new_tokens=new, seed=i))
        batcher.run()
        for picture in held:
            engine.images.release(picture)
        return encoded - start, time.perf_counter() - encoded

    start = time.perf_counter()
    serve()
    first_s = time.perf_counter() - start
    encode_s, seconds = np.median([serve() for _ in range(repeats)], axis=0)
    stats = jax.devices()[0].memory_stats() or {}
    report(
        case="pictures",
        model=name,
        rows=rows,
        prompt=prompt,
        new=new,
        device=jax.devices()[0].device_kind,
        with_prefill_tokens_per_s=rows * new / (encode_s + seconds),
        encode_ms_per_picture=encode_s / rows * 1e3,
        seconds=encode_s + seconds,
        first_run_s=first_s,
        peak_gib=stats.get("peak_bytes_in_use", 0) / 2**30,
    )


def main():
    """Run all cases."""
    gpu = jax.default_backend() == "gpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="qwen2.5-0.5b,qwen2.5-1.5b,smollm2-135m" if gpu else "tiny")
    parser.add_argument("--rows", default="64,256,1024" if gpu else "8,64")
    parser.add_argument("--prompt", type=int, default=256 if gpu else 64)
    parser.add_argument("--new", type=int, default=256 if gpu else 64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--continuous",
        type=int,
        default=1024 if gpu else 64,
        help="Number of requests for continuous batching; 0 skips it",
    )
    args = parser.parse_args()
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    names, sizes = args.models.split(","), [int(r) for r in args.rows.split(",")]
    for name in names:
        for rows in sizes:
            measure = fixed_batch if registry.get(name).config.vision is None else with_pictures
            measure(name, rows, args.prompt, args.new, dtype, args.repeats)
    if args.continuous:
        continuous(names[0], 512 if gpu else 8, args.continuous, dtype, 1 if gpu else 8)


if __name__ == "__main__":
    main()
