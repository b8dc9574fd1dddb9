"""Speed of `transformers` on the shapes of our benchmarks, as one JSON line per case.

    python -m benchmarks.peers --models=qwen2.5-0.5b --cases=generate
    python -m benchmarks.peers --models=qwen2.5-vl-3b --cases=generate,update --rows=64 --new=128

Needs torch and `transformers`. Weights are random with published shapes. A model with a vision tower reads one picture
per row (`benchmarks.pictured`).

generate    `generate` at temperature 1 in bfloat16; the rate includes the prompt
update      a policy-gradient step of all weights on `--update_rows` rows of `--tokens` predicted tokens: float32
            weights and moments, bfloat16 arithmetic, clipped gradients, fused AdamW
"""

from __future__ import annotations

import argparse
import inspect

import numpy as np
import torch
import transformers

from benchmarks import pictured
from benchmarks.sampler import median_seconds, report
from models import registry
from models.config import ModelConfig
from models.hf_config import to_dict

GIB = 2**30


def build(cfg: ModelConfig, dtype: torch.dtype, device: str):
    """Return a model of transformers with random weights."""
    config = transformers.AutoConfig.for_model(**to_dict(cfg))
    kind = transformers.AutoModelForCausalLM if cfg.vision is None else transformers.AutoModelForImageTextToText
    with torch.device(device):
        return kind.from_config(config, dtype=dtype)


def inputs_for(model, cfg: ModelConfig, rows: int, prompt: int, device: str) -> dict[str, torch.Tensor]:
    """Return prompts of `prompt` tokens, each with a picture if the model reads them."""
    rng = np.random.default_rng(0)
    ids = torch.tensor(pictured.prompts(cfg, rows, prompt, rng), device=device)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if cfg.vision is None:
        return given
    patches, grid = pictured.patches(cfg, rows, rng)
    given["pixel_values"] = torch.tensor(patches, device=device).flatten(0, 1)
    given["image_grid_thw"] = torch.tensor([[1, *grid]] * rows, device=device)
    if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
        given["mm_token_type_ids"] = (ids == cfg.vision.image_id).int()
    return given


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def generate(name: str, rows: int, prompt: int, new: int, cache: str, repeats: int, device: str) -> None:
    """Measure `generate`."""
    cfg = registry.get(name).config
    model = build(cfg, torch.bfloat16, device).eval()
    given = inputs_for(model, cfg, rows, prompt, device)
    implementation = None if cache == "dynamic" else cache

    def run():
        model.generate(
            **given, max_new_tokens=new, min_new_tokens=new, do_sample=True, top_k=0,
            cache_implementation=implementation,
        )  # fmt: skip
        synchronize(device)

    run()
    seconds = median_seconds(run, repeats)
    report(
        case=f"transformers generate, {cache} cache", model=name, rows=rows, prompt=prompt, new=new,
        with_prefill_tokens_per_s=rows * new / seconds, seconds=seconds,
    )  # fmt: skip


def update(name: str, rows: int, tokens: int, repeats: int, device: str) -> None:
    """Measure a policy-gradient step."""
    cfg = registry.get(name).config
    model = build(cfg, torch.float32, device).train()
    before = pictured.shortest_prompt(cfg)
    given = inputs_for(model, cfg, rows, before + tokens, device)
    if "mm_token_type_ids" in given:
        given["mm_token_type_ids"][:, before:] = 0
    targets = given["input_ids"][:, before:]
    advantages = torch.randn(rows, 1, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=device == "cuda")

    def run():
        with torch.autocast(device, torch.bfloat16):
            logits = model(**given, logits_to_keep=tokens + 1, use_cache=False).logits[:, :-1]
        logps = -torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
        loss = -(advantages * logps.view(rows, tokens)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        synchronize(device)

    run()
    seconds = median_seconds(run, repeats)
    peak = torch.cuda.max_memory_allocated() / GIB if device == "cuda" else 0.0
    report(
        case="transformers update", model=name, rows=rows, tokens=rows * (before + tokens - 1), ms=seconds * 1e3,
        tokens_per_s=rows * (before + tokens - 1) / seconds, peak_gib=peak,
    )  # fmt: skip


def main():
    """Run all cases."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    gpu = device == "cuda"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="qwen2.5-0.5b")
    parser.add_argument("--cases", default="generate,update")
    parser.add_argument("--caches", default="dynamic", help="Caches of generate: dynamic,static")
    parser.add_argument("--rows", type=int, default=256 if gpu else 2)
    parser.add_argument("--prompt", type=int, default=256 if gpu else 96)
    parser.add_argument("--new", type=int, default=256 if gpu else 4)
    parser.add_argument("--update_rows", type=int, default=16 if gpu else 2)
    parser.add_argument("--tokens", type=int, default=512 if gpu else 32)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    for name in args.models.split(","):
        if "generate" in args.cases.split(","):
            for cache in args.caches.split(","):
                generate(name, args.rows, args.prompt, args.new, cache, args.repeats, device)
        if "update" in args.cases.split(","):
            update(name, args.update_rows, args.tokens, args.repeats, device)


if __name__ == "__main__":
    main()
