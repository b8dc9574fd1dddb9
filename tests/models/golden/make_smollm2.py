"""Makes `smollm2.json`: greedy continuations by transformers on the dequantised weights of SmolLM2-135M.

    python tests/models/golden/make_smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf

Needs torch and transformers as well as the project. The GGUF file is read by the project, exported as a Hugging Face
folder and continued by transformers in float32, so both sides of the test compute with the same numbers. Each prompt
has `text`, `prompt` (ids), `greedy` (32 ids) and `logprobs` (of those). The first five prompts are kept whose best two
tokens are never so close that rounding could swap them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

KEPT, STEPS = 5, 32
CLEAR = 2e-3  # the least difference in log-probability between the best two tokens

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea,",
    "<|im_start|>user\nName three fruits.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat colour is the sky?<|im_end|>\n<|im_start|>assistant\n",
    "Water boils at",
    "<|im_start|>system\nYou play tic-tac-toe.<|im_end|>\n"
    "<|im_start|>user\nThe board is empty. Which square do you take?<|im_end|>\n<|im_start|>assistant\n",
)


def continue_greedily(model, prompt: list[int]) -> dict | None:
    """32 ids and their log-probs; None where two tokens came too close."""
    import torch

    ids, logprobs, cache = [], [], None
    step = torch.tensor([prompt])
    for _ in range(STEPS):
        with torch.no_grad():
            out = model(step, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        best = torch.topk(torch.log_softmax(out.logits[0, -1].double(), -1), 2)
        if float(best.values[0] - best.values[1]) < CLEAR:
            return None
        ids.append(int(best.indices[0]))
        logprobs.append(round(float(best.values[0]), 6))
        step = best.indices[None, :1]
    return {"greedy": ids, "logprobs": logprobs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gguf", type=Path)
    path = parser.parse_args().gguf
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

    import torch
    from transformers import AutoModelForCausalLM

    from models import tokenizers, weights

    tokenizer = tokenizers.load(path)
    cfg, params = weights.load(path)
    with tempfile.TemporaryDirectory() as folder:
        exported = weights.export(Path(folder) / "model", cfg, params)
        model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    model.eval()
    rows = []
    for text in PROMPTS:
        prompt = tokenizer.encode(text)
        answer = continue_greedily(model, prompt)
        shown = "too close" if answer is None else repr(tokenizer.decode(answer["greedy"]))
        sys.stdout.write(f"{text!r} -> {shown}\n")
        if answer is not None and len(rows) < KEPT:
            rows.append({"text": text, "prompt": prompt, **answer})
    if len(rows) < KEPT:
        raise SystemExit(f"{len(rows)} prompts are clear; {KEPT} are needed, add more")
    lines = ",\n".join(json.dumps(row) for row in rows)
    (Path(__file__).parent / "smollm2.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
