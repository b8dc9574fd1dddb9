"""Makes `vision.npz`: what transformers computes for a tiny random Qwen2.5-VL.

    python tests/models/golden/make_vision.py

Needs torch and transformers and no network. The file holds `config` (config.json as `save_pretrained` writes it),
`weights/<Hugging Face name>` (float16; everything else ran on exactly these values in float32), `tokens` int32 [B, T],
`grids` int32 [I, 2] (rows and columns of patches, in the order of the images in the rows), `images` int32 [B] (number
of images of each row), `patches` float16 [sum of patches, P], `embeddings` [sum of patches / 4, D], `positions`
int32 [3, B, T], `deltas` int32 [B], `logits` [B, T, V] and `generated` int32 [B, 5], greedy tokens.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

IMAGE, START, END = 58, 56, 57
# Rows of turns: the grid of an image in patches, or a number of text tokens. Windows have 4 × 4 patches.
ROWS = [[2, (6, 10), 5, (2, 2), 3], [1, (2, 12), 1, (10, 4), 2, (2, 2), 7]]

TEXT = dict(
    vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
    intermediate_size=28, max_position_embeddings=128, bos_token_id=1, eos_token_id=None, rms_norm_eps=0.01,
    initializer_range=0.2, rope_theta=300.0, rope_scaling=dict(type="mrope", mrope_section=[2, 3, 3]),
)  # fmt: skip
VISION = dict(
    depth=2, hidden_size=16, intermediate_size=20, num_heads=2, patch_size=2, window_size=8, out_hidden_size=32,
    fullatt_block_indexes=[1], initializer_range=0.2,
)  # fmt: skip


def model_of(seed: int, tied: bool = False):
    """A tiny model with random weights, all of which float16 can hold."""
    import torch
    import transformers as tf

    torch.manual_seed(seed)
    config = tf.Qwen2_5_VLConfig(
        **TEXT, tie_word_embeddings=tied, vision_config=VISION, image_token_id=IMAGE, video_token_id=59,
        vision_start_token_id=START, vision_end_token_id=END, attn_implementation="eager",
    )  # fmt: skip
    model = tf.Qwen2_5_VLForConditionalGeneration(config).eval().float()
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            weight.data = 0.3 * torch.randn_like(weight) + (0.0 if name.endswith("bias") else 1.0)
        weight.data = weight.data.half().float()
    return model


def inputs_of(rows, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Tokens of rows of turns, padded with text to one length, and random patches."""
    grids = [part for row in rows for part in row if not isinstance(part, int)]
    tokens = []
    for row in rows:
        parts = []
        for part in row:
            if isinstance(part, int):
                parts.append(rng.integers(0, START, part))
            else:
                parts += [np.array([START]), np.full(part[0] * part[1] // 4, IMAGE), np.array([END])]
        tokens.append(np.concatenate(parts))
    longest = max(map(len, tokens)) + 3
    tokens = [np.concatenate([row, rng.integers(0, START, longest - len(row))]) for row in tokens]
    total, size = sum(r * c for r, c in grids), 3 * 2 * VISION["patch_size"] ** 2
    return {
        "tokens": np.stack(tokens).astype(np.int32),
        "grids": np.array(grids, np.int32),
        "images": np.array([sum(not isinstance(part, int) for part in row) for row in rows], np.int32),
        "patches": rng.standard_normal((total, size)).astype(np.float16),
    }


def make(seed: int, rows=ROWS, tied: bool = False) -> dict[str, np.ndarray]:
    """A random model and what it computes, as the arrays of the golden file."""
    import torch

    model = model_of(seed, tied)
    inputs = inputs_of(rows, np.random.default_rng(seed))
    tokens = torch.tensor(inputs["tokens"]).long()
    given = dict(
        pixel_values=torch.tensor(inputs["patches"]).float(),
        image_grid_thw=torch.tensor([[1, *grid] for grid in inputs["grids"].tolist()]),
    )
    kinds = (tokens == IMAGE).int()
    with torch.no_grad():
        positions, deltas = model.model.get_rope_index(
            tokens, mm_token_type_ids=kinds, image_grid_thw=given["image_grid_thw"]
        )
        embeddings = model.model.get_image_features(**given).pooler_output
        out = model(tokens, mm_token_type_ids=kinds, use_cache=False, **given)
        generated = model.generate(
            input_ids=tokens, mm_token_type_ids=kinds, attention_mask=torch.ones_like(tokens), max_new_tokens=5,
            do_sample=False, pad_token_id=0, **given,
        )  # fmt: skip
    names = {tensor.data_ptr(): None for tensor in model.state_dict().values()}
    arrays = {}
    for name, tensor in model.state_dict().items():  # tied tensors are written once, as `save_pretrained` does
        if names.pop(tensor.data_ptr(), "seen") is None:
            arrays[f"weights/{name}"] = tensor.numpy().astype(np.float16)
    return arrays | {
        "config": np.array(json.dumps(_config_json(model.config))),
        **inputs,
        "embeddings": torch.cat(tuple(embeddings)).numpy(),
        "positions": positions.numpy().astype(np.int32),
        "deltas": deltas.reshape(-1).numpy().astype(np.int32),
        "logits": out.logits.numpy(),
        "generated": generated[:, tokens.shape[1] :].numpy().astype(np.int32),
    }


def _config_json(config) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return json.loads((Path(folder) / "config.json").read_text())


def main() -> None:
    path = Path(__file__).parent / "vision.npz"
    np.savez_compressed(path, **make(0))
    sys.stdout.write(f"{path.name}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
