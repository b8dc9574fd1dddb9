"""Speed of one decode step of attention on a GPU, as JSON lines.

    python -m benchmarks.decode_attention
    python -m benchmarks.decode_attention --models=qwen2.5-1.5b --rows=256 --lengths=400 --kernels=mosaic,cudnn

Every kernel rotates the queries and the new key, writes the new key and value to the cache, and attends.

    triton        `models.decode_kernel` on a contiguous cache
    triton_paged  the same with a page table
    cudnn         cuDNN's paged attention, with rotation and writes by XLA
    mosaic        `models.mosaic_decode`

`us` is the time per call, the median of several runs of a program with many calls that cycle through several caches, so
that none stays in L2. `gb_per_s` counts the filled keys and values read once, and `share` is that over the measured
copy bandwidth of an H200. `diff` is the largest difference from attention in float32 over a few rows, and `miswritten`
is the number of wrong elements in the cache.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import json
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from models.decode_kernel import decode_attention as triton_attention

BYTES_PER_S = 4.3e12  # copy bandwidth measured on one H200
MODELS = {"qwen2.5-0.5b": (14, 2, 64), "qwen2.5-1.5b": (12, 2, 128), "smollm2-135m": (9, 3, 64)}  # N, K, H
SLOTS = 2048  # the longest row
CACHES, ROUNDS, REPEATS = 3, 30, 5
CHECKED = 4  # rows compared with float32


class Case(NamedTuple):
    """A kernel and a shape; `page` is the page size, or SLOTS if contiguous."""

    kernel: str
    model: str
    rows: int
    page: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(N, K, H) of the model."""
        return MODELS[self.model]

    @property
    def pool(self) -> tuple[int, ...]:
        """Shape of the cache; cuDNN needs at least rows × pages of the longest row."""
        _, kv, size = self.sizes
        return self.rows * SLOTS // self.page, self.page, kv, size


class Step(NamedTuple):
    """The inputs of a step other than the cache."""

    qkv: jax.Array
    cos: jax.Array
    sin: jax.Array
    table: jax.Array
    starts: jax.Array
    going: jax.Array


def rotate(x, cos, sin):
    """Apply rotary positions."""
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def triton(step: Step, k, v, heads, table=None):
    """Attend with the Triton kernel."""
    options = {} if table is None else {"table": table}
    return triton_attention(step.qkv, step.cos, step.sin, k, v, step.starts, step.going, heads=heads, **options)


def triton_paged(step: Step, k, v, heads):
    """Attend with the Triton kernel and a page table."""
    return triton(step, k, v, heads, step.table)


def mosaic(step: Step, k, v, heads, **options):
    """Attend with the Mosaic kernel."""
    from models.mosaic_decode import decode_attention

    inputs = step.qkv, step.cos, step.sin, k, v, step.starts, step.going
    return decode_attention(*inputs, heads=heads, table=step.table, **options)


def cudnn(step: Step, k, v, heads):
    """Attend with cuDNN."""
    from jax._src.cudnn.fused_attention_stablehlo import MaskType, paged_attention

    page, kv, size = k.shape[1:]
    turned = rotate(step.qkv[:, : heads + kv], step.cos, step.sin)
    owner = jnp.take_along_axis(step.table, step.starts[:, None] // page, axis=1)[:, 0]
    where = jnp.where(step.going > 0, owner, len(k)), step.starts % page
    k = k.at[where].set(turned[:, heads:], mode="drop", unique_indices=True)
    v = v.at[where].set(step.qkv[:, heads + kv :], mode="drop", unique_indices=True)
    table = step.table[:, None, :, None]
    out = paged_attention(
        turned[:, None, :heads], k, v, jnp.ones_like(step.starts), step.starts + 1, table, table,
        scale=size**-0.5, mask_type=MaskType.PADDING,
    )  # fmt: skip
    return out[:, 0], k, v


KERNELS = {
    "triton": triton, "triton_paged": triton_paged, "cudnn": cudnn, "mosaic": mosaic,
    "mosaic_2_stages": functools.partial(mosaic, stages=2), "mosaic_4_stages": functools.partial(mosaic, stages=4),
}  # fmt: skip


def program(case: Case):
    """Return a program that steps on several caches in turn, ROUNDS times.

    It maps (step, flat caches) to (output on the first cache, sum of outputs, caches).
    """
    heads, _, size = case.sizes
    attend = jax.jit(functools.partial(KERNELS[case.kernel], heads=heads))  # traced once rather than once per cache

    def run(step: Step, caches):
        def one(_, carry):
            _, total, caches = carry
            outs, after = [], []
            for flat in caches:
                out, *new = attend(step, *(x.reshape(case.pool) for x in flat))
                outs.append(out)
                after.append(tuple(x.reshape(-1) for x in new))
            return outs[0], total + sum(outs), tuple(after)  # the sum keeps calls from being optimized away

        zero = jnp.zeros((case.rows, heads, size), step.qkv.dtype)
        out, total, caches = jax.lax.fori_loop(0, ROUNDS, one, (zero, zero, caches))
        return out, total, caches

    return jax.jit(run, donate_argnums=1)


def make_step(case: Case, length: int) -> Step:
    """Return a random step for rows of `length` tokens, plus or minus a quarter."""
    heads, kv, size = case.sizes
    rng = np.random.default_rng(length)
    angles = jnp.asarray(rng.uniform(0, 6, (case.rows, size // 2)), jnp.float32)
    pages = case.pool[0]
    order = np.arange(pages) if case.page == SLOTS else rng.permutation(pages)
    return Step(
        qkv=jnp.asarray(rng.standard_normal((case.rows, heads + 2 * kv, size)), jnp.bfloat16),
        cos=jnp.cos(angles),
        sin=jnp.sin(angles),
        table=jnp.asarray(order.reshape(case.rows, -1), jnp.int32),
        starts=jnp.asarray(rng.integers(length * 3 // 4, length * 5 // 4, case.rows), jnp.int32),
        going=jnp.ones((case.rows,), jnp.int32),
    )


@functools.partial(jax.jit, static_argnums=(0, 1))
def draw(count: int, size: int):
    """Return `count` random flat caches of `size` elements, keys and values."""
    keys = jax.random.split(jax.random.key(0), 2 * count)
    drawn = [jax.random.normal(key, (size,), jnp.bfloat16) for key in keys]
    return tuple(zip(drawn[::2], drawn[1::2], strict=True))


def check(case: Case, step: Step, before, out, after) -> dict:
    """Compare some outputs with float32, and the complete cache with the expected one."""
    heads, kv, size = case.sizes
    turned = rotate(step.qkv[:, : heads + kv], step.cos, step.sin)
    owner = jnp.take_along_axis(step.table, step.starts[:, None] // case.page, axis=1)[:, 0]
    new = turned[:, heads:], step.qkv[:, heads + kv :]
    pools = [x.reshape(case.pool).at[owner, step.starts % case.page].set(y) for x, y in zip(before, new, strict=True)]
    rounding = 1 / 100  # fused products may round differently
    wrong = sum(
        jnp.sum(~(jnp.abs(x.reshape(-1) - y) <= rounding * (1 + jnp.abs(y)))) for x, y in zip(pools, after, strict=True)
    )
    diff = 0.0
    for row in range(min(CHECKED, case.rows)):
        count = int(step.starts[row]) + 1
        k, v = (np.asarray(x[step.table[row]], np.float32).reshape(SLOTS, kv, size)[:count] for x in pools)
        q = np.asarray(turned[row, :heads], np.float32).reshape(kv, heads // kv, size)
        scores = np.einsum("kgh,skh->kgs", q, k) * size**-0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        exact = np.einsum("kgs,skh->kgh", weights / weights.sum(-1, keepdims=True), v).reshape(heads, size)
        diff = max(diff, float(np.abs(exact - np.asarray(out[row], np.float32)).max()))
    return {"diff": diff, "miswritten": int(wrong)}


def measure(case: Case, length: int, compiled) -> dict:
    """Run a compiled program and return its errors and its time per call."""
    _, kv, size = case.sizes
    step = make_step(case, length)
    caches = draw(CACHES, int(np.prod(case.pool)))
    before = tuple(jnp.copy(x) for x in caches[0])
    out, _, caches = jax.block_until_ready(compiled(step, caches))
    figures = check(case, step, before, out, caches[0])
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        out, _, caches = compiled(step, caches)
        jax.block_until_ready(out)
        times.append(time.perf_counter() - start)
    seconds = float(np.median(times)) / (ROUNDS * CACHES)
    rate = float(jnp.sum(step.starts + 1)) * 2 * kv * size * 2 / seconds
    return {"us": seconds * 1e6, "gb_per_s": rate / 1e9, "share": rate / BYTES_PER_S, **figures}


def compile_case(case: Case, length: int):
    """Compile the program of a case."""
    flat = jax.ShapeDtypeStruct((int(np.prod(case.pool)),), jnp.bfloat16)
    step = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), make_step(case, length))
    return program(case).lower(step, ((flat, flat),) * CACHES).compile()


def report(**figures):
    """Print a JSON line."""
    print(json.dumps({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in figures.items()}), flush=True)


def main(argv=None) -> None:
    """Compile all cases concurrently, then measure them one after the other.

    A case that fails is reported with its error.
    """
    split = lambda kind: lambda text: [kind(x) for x in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=split(str), default=list(MODELS))
    parser.add_argument("--rows", type=split(int), default=[256, 512])
    parser.add_argument("--lengths", type=split(int), default=[400, 1500])
    parser.add_argument("--pages", type=split(int), default=[16, 32])
    parser.add_argument("--kernels", type=split(str), default=["triton", "triton_paged", "cudnn", "mosaic"])
    parser.add_argument("--seconds", type=float, default=85, help="Time limit in seconds for starting cases")
    args = parser.parse_args(argv)
    begun = time.perf_counter()
    cases = [
        Case(kernel, model, rows, page)
        for model in args.models
        for rows in args.rows
        for kernel in args.kernels
        for page in ([SLOTS] if kernel == "triton" else args.pages)
    ]
    pool = concurrent.futures.ThreadPoolExecutor()
    waiting = {case: pool.submit(compile_case, case, args.lengths[0]) for case in cases}
    concurrent.futures.wait(waiting.values(), timeout=args.seconds * 0.7)  # compiling disturbs the timing
    for case, future in waiting.items():
        for length in args.lengths:
            left = args.seconds - (time.perf_counter() - begun)
            try:
                if left < 0:
                    raise TimeoutError(f"not started within {args.seconds:.0f} seconds")
                report(**case._asdict(), length=length, **measure(case, length, future.result(timeout=left)))
            except Exception as error:  # report any error of a backend and continue with the other cases
                text = f"{type(error).__name__}: {error}".splitlines()[0]
                report(**case._asdict(), length=length, error=text[:300])
    pool.shutdown(wait=False, cancel_futures=True)


if __name__ == "__main__":
    main()
