"""Makes `parity_<case>.npz`: what transformers computes for a tiny random model of every family.

    python tests/models/golden/make_parity.py

Needs torch and transformers and no network. A file holds `config` (config.json as `save_pretrained` writes it),
`weights/<Hugging Face name>` (float16; the forward pass ran on exactly these values in float32), `tokens` int32
[B, T], `hidden` float32 [L, B, T, D] (the output of each layer, through the last norm) and `logits` float32 [B, T, V].
Norm weights and biases are random too and the norms' epsilon is large, so that forgetting one shows.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

BATCH, TIME = 2, 20

COMMON = dict(
    vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=44, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    attn_implementation="eager", initializer_range=0.2, rms_norm_eps=0.01,
)  # fmt: skip


def cases() -> dict:
    """Case -> (config class, model class, config fields)."""
    import transformers as tf

    llama = (tf.LlamaConfig, tf.LlamaForCausalLM)
    # 16 channels a head and 32 original positions: some channels are kept, some blended, some stretched.
    llama3 = dict(rope_type="llama3", rope_theta=10_000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=32)  # fmt: skip
    slow = dict(rope_type="default", rope_theta=300.0)
    return {
        "llama": (*llama, COMMON),
        "llama3": (*llama, COMMON | dict(head_dim=16, rope_parameters=llama3)),
        "smollm2": (*llama, COMMON | dict(hidden_size=24, num_attention_heads=3, num_key_value_heads=1,
                                          tie_word_embeddings=True)),
        "mistral": (tf.MistralConfig, tf.MistralForCausalLM, COMMON | dict(sliding_window=7, rope_parameters=slow)),
        "phi3": (tf.Phi3Config, tf.Phi3ForCausalLM, COMMON | dict(sliding_window=6)),
        "qwen2": (tf.Qwen2Config, tf.Qwen2ForCausalLM, COMMON | dict(tie_word_embeddings=True)),
        "qwen3": (tf.Qwen3Config, tf.Qwen3ForCausalLM, COMMON | dict(head_dim=12)),
        "gpt2": (tf.GPT2Config, tf.GPT2LMHeadModel, dict(
            vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.2, bos_token_id=1,
            eos_token_id=2, pad_token_id=0, layer_norm_epsilon=0.01, attn_implementation="eager")),
    }  # fmt: skip


def make(case: str, seed: int) -> dict[str, np.ndarray]:
    """A random model of a case and what it computes, as the arrays of a golden file."""
    import torch

    torch.manual_seed(seed)
    config_class, model_class, fields = cases()[case]
    model = model_class(config_class(**fields)).eval().float()
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            bias = name.endswith("bias")
            weight.data = 0.3 * torch.randn_like(weight) + (0.0 if bias else 1.0)
        weight.data = weight.data.half().float()
    tokens = torch.randint(0, model.config.vocab_size, (BATCH, TIME))

    body = model.transformer if case == "gpt2" else model.model
    layers, norm = (body.h, body.ln_f) if case == "gpt2" else (body.layers, body.norm)
    states = []
    for layer in layers:
        layer.register_forward_hook(lambda _, __, out: states.append(out[0] if isinstance(out, tuple) else out))
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits
        hidden = torch.stack([norm(x) for x in states])

    names = {tensor.data_ptr(): None for tensor in model.state_dict().values()}
    arrays = {}
    for name, tensor in model.state_dict().items():  # tied tensors are written once, as `save_pretrained` does
        if names.pop(tensor.data_ptr(), "seen") is None:
            arrays[f"weights/{name}"] = tensor.numpy().astype(np.float16)
    return arrays | {
        "config": np.array(json.dumps(_config_json(model.config))),
        "tokens": tokens.numpy().astype(np.int32),
        "hidden": hidden.numpy(),
        "logits": logits.numpy(),
    }


def _config_json(config) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return json.loads((Path(folder) / "config.json").read_text())


def main() -> None:
    folder = Path(__file__).parent
    for seed, case in enumerate(cases()):
        path = folder / f"parity_{case}.npz"
        np.savez_compressed(path, **make(case, seed))
        sys.stdout.write(f"{path.name}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
