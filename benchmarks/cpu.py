"""Decoding speed of the batcher on a CPU compared with `transformers`, as JSON lines.

    python -m benchmarks.cpu                                  # SmolLM2-135M, 1 and 8 rows, at most 256 and 2,560 tokens
    python -m benchmarks.cpu --rows=8 --lengths=2560 --peer=0

Weights are random, in float32. Every row has a prompt of `--prompt` tokens and generates `--new` tokens. Runs of both
alternate, and the median of `--repeats` is reported: `tokens_per_s` including prefill, and its ratio to that of
`transformers.generate` with a dynamic cache. The comparison needs torch, which the project itself does not.
"""

from __future__ import annotations

import argparse
import time

import jax.numpy as jnp
import numpy as np

from benchmarks.sampler import random_params, report
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.engine import Engine
from marl_jax.sampling.settings import Sampling
from models import registry
from models.model import build


def batcher_run(engine: Engine, rows: int, length: int, prompts: list[list[int]], new: int):
    """Return a function that completes all prompts, after compiling everything."""
    batcher = Batcher(engine, rows=rows, max_length=length)

    def run(seed: int) -> None:
        for i, prompt in enumerate(prompts):
            shifted = [(token + seed) % 1000 for token in prompt]  # so that no prefix is reused
            batcher.submit(shifted, Sampling(max_new_tokens=new, seed=i))
        batcher.run()

    run(0)
    return run


def transformers_run(name: str, prompts: list[list[int]], new: int):
    """Return the same for `transformers`, with as many threads as XLA has."""
    import torch
    import transformers

    from models.hf_config import to_dict

    config = transformers.AutoConfig.for_model(**to_dict(registry.get(name).config))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    ids = torch.tensor(prompts)

    def run(seed: int) -> None:
        torch.manual_seed(seed)
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=True, top_k=0,
            pad_token_id=0,
        )  # fmt: skip

    run(0)
    return run


def main():
    """Run all cases and print their JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rows", default="1,8")
    parser.add_argument("--lengths", default="256,2560")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer", type=int, default=1, help="Set to 0 to skip transformers")
    args = parser.parse_args()
    model = build(registry.get(args.model).config)
    engine = Engine(model, random_params(model, jnp.float32), dtype=jnp.float32)
    for rows in map(int, args.rows.split(",")):
        prompts = np.random.default_rng(0).integers(0, 1000, (rows, args.prompt)).tolist()
        runs = {
            f"length {length}": batcher_run(engine, rows, length, prompts, args.new)
            for length in map(int, args.lengths.split(","))
        }
        if args.peer:
            runs["transformers"] = transformers_run(args.model, prompts, args.new)
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for repeat in range(args.repeats):
            for name, run in runs.items():
                start = time.perf_counter()
                run(repeat + 1)
                seconds[name].append(time.perf_counter() - start)
        rates = {name: rows * args.new / float(np.median(s)) for name, s in seconds.items()}
        for name, rate in rates.items():
            ratio = rate / rates["transformers"] if args.peer else None
            report(case=name, model=args.model, rows=rows, tokens_per_s=rate, ratio=ratio)


if __name__ == "__main__":
    main()
