"""Qwen's `qwen.tiktoken` file.

It has one line per token with its bytes in base64 and its rank. The merges follow from the ranks.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from models.tokenizers.bpe import CONTROL, NORMAL, USER_DEFINED, byte_characters, byte_level_bpe
from models.tokenizers.tokenizer import Tokenizer, build

_CONTROL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
_USER = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
    "<|file_sep|>",
)  # fmt: skip
# The file has the byte pairs only. The special tokens that follow depend on the generation.
SPECIAL = {
    "qwen2.5": (_CONTROL, _USER),
    "qwen3": (_CONTROL, (*_USER, "<tool_response>", "</tool_response>", "<think>", "</think>")),
}


def from_tiktoken(path: str | Path, generation: str = "qwen2.5") -> Tokenizer:
    """Read a `.tiktoken` file, with special tokens and chat template of a Qwen generation."""
    if generation not in SPECIAL:
        raise ValueError(f"generation is {generation!r}, but must be one of: {', '.join(SPECIAL)}")
    ranks = _read_ranks(Path(path))
    letters = byte_characters()

    def spell(token: bytes) -> str:
        """Return a token in the characters of byte-level BPE."""
        return "".join([letters[b] for b in token])

    ordered = sorted(ranks, key=ranks.__getitem__)
    if [ranks[token] for token in ordered] != list(range(len(ordered))):
        raise ValueError(f"{path}: the ranks must be 0 to {len(ordered) - 1}, each once")
    if absent := [byte for byte in range(256) if bytes([byte]) not in ranks]:  # texts with it could not be encoded
        raise ValueError(f"{path}: {len(absent)} of the 256 single bytes are missing, first {absent[0]:#04x}")
    merges = [_halves(token, ranks, path) for token in ordered if len(token) > 1]
    control, user = SPECIAL[generation]
    tokens = [*map(spell, ordered), *control, *user]
    types = [NORMAL] * len(ordered) + [CONTROL] * len(control) + [USER_DEFINED] * len(user)
    rust = byte_level_bpe(tokens, types, [(spell(left), spell(right)) for left, right in merges], "qwen2")
    return build(
        generation,
        rust,
        None,
        eos_id=rust.token_to_id("<|im_end|>"),
        pad_id=rust.token_to_id("<|endoftext|>"),
    )


def _read_ranks(path: Path) -> dict[bytes, int]:
    """Return the rank of each token."""
    ranks = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise ValueError(
                f"{path}: line {number} is {line[:40]!r}, but must be base64 and a rank: {error}"
            ) from error
    return ranks


def _halves(token: bytes, ranks: dict[bytes, int], path) -> tuple[bytes, bytes]:
    """Return the two tokens of the last merge that forms `token`.

    They remain after all merges of a lower rank have been applied to its bytes.
    """
    parts, limit = [token[i : i + 1] for i in range(len(token))], ranks[token]
    while len(parts) > 2:
        rank, at = min((ranks.get(parts[i] + parts[i + 1], limit), i) for i in range(len(parts) - 1))
        if rank >= limit:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    if len(parts) != 2:
        raise ValueError(f"{path}: the token {token!r} does not consist of two earlier ones")
    return parts[0], parts[1]
