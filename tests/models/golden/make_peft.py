"""Makes `peft_<case>.npz`: random LoRA adapters as `peft` writes them, and what the adapted model computes.

    python tests/models/golden/make_peft.py

Needs torch, transformers and peft and no network. A file holds the base model (`base_config`: config.json,
`base/<name>`: tensors), the adapter (`adapter_config`: adapter_config.json, `adapter/<name>`: tensors), `tokens` int32
[B, T] and `logits` float32 [B, T, V]. Tensors are float16; the forward pass ran on exactly these values in float32.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import make_parity
import numpy as np

FOLDER = Path(__file__).parent
TARGETS = {
    "qwen2": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "gpt2": ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"],
}


def make(case: str) -> dict[str, np.ndarray]:
    """One adapted model, as the arrays of a golden file."""
    import torch
    from peft import LoraConfig, get_peft_model
    from safetensors.numpy import load_file, save_file
    from transformers import AutoModelForCausalLM

    made = make_parity.make(case, seed=7)
    weights = {name.removeprefix("weights/"): x for name, x in made.items() if name.startswith("weights/")}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(str(made["config"]))
        full = {name: x.astype(np.float32) for name, x in weights.items()}
        save_file(full, Path(folder) / "model.safetensors", {"format": "pt"})
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = LoraConfig(
        r=4, lora_alpha=6, target_modules=TARGETS[case], task_type="CAUSAL_LM", fan_in_fan_out=case == "gpt2"
    )
    model = get_peft_model(base, config).eval()
    for name, weight in model.named_parameters():
        if "lora_" in name:
            weight.data = (0.3 * torch.randn_like(weight)).half().float()
    with torch.no_grad():
        logits = model(torch.from_numpy(made["tokens"].astype(np.int64))).logits.numpy()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        written = json.loads((Path(folder) / "adapter_config.json").read_text())
        tensors = load_file(Path(folder) / "adapter_model.safetensors")
    written["base_model_name_or_path"] = None  # it was a temporary folder
    return {
        "base_config": made["config"],
        **{f"base/{name}": x for name, x in weights.items()},
        "adapter_config": np.array(json.dumps(written)),
        **{f"adapter/{name}": x.astype(np.float16) for name, x in tensors.items()},
        "tokens": made["tokens"],
        "logits": logits,
    }


def main() -> None:
    for case in TARGETS:
        path = FOLDER / f"peft_{case}.npz"
        np.savez_compressed(path, **make(case))
        sys.stdout.write(f"{path.name}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
