"""The llama2.c checkpoint format (`stories260K.bin`), turned into a GGUF file for the project's own reader.

Seven int32 (D, F, L, N, K, V, context), then float32 matrices, each kind stacked over the layers: embedding,
attention norm, q, k, v, o, feed-forward norm, gate, down, up, last norm. Like GGUF, it keeps the two halves of a
rotated head interleaved.
"""

from pathlib import Path

import gguf
import numpy as np


def to_gguf(source: Path, target: Path) -> None:
    """Writes the model in `source` as a float32 GGUF file; only tied embeddings are known to it."""
    raw = source.read_bytes()
    d, f, layers, n, k, v, context = np.frombuffer(raw[:28], "<i4").tolist()
    numbers = np.frombuffer(raw[28:], "<f4")
    kv = d // n * k
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(d)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(f)
    writer.add_head_count(n)
    writer.add_head_count_kv(k)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    at = 0

    def take(*shape):
        nonlocal at
        size = int(np.prod(shape))
        at += size
        return numbers[at - size : at].reshape(shape).copy()

    writer.add_tensor("token_embd.weight", take(v, d))
    for name, shape in (
        ("attn_norm", (d,)), ("attn_q", (d, d)), ("attn_k", (kv, d)), ("attn_v", (kv, d)), ("attn_output", (d, d)),
        ("ffn_norm", (d,)), ("ffn_gate", (f, d)), ("ffn_down", (d, f)), ("ffn_up", (f, d)),
    ):  # fmt: skip
        for i, tensor in enumerate(take(layers, *shape)):
            writer.add_tensor(f"blk.{i}.{name}.weight", tensor)
    writer.add_tensor("output_norm.weight", take(d))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
