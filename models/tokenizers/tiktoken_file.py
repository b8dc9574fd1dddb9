"""Qwen's `qwen.tiktoken`: one line per token, its bytes in base64 and its rank, from which the merges follow."""

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
# The file holds the byte pairs only; the special tokens behind them are those of the generation.
SPECIAL = {
    "qwen2.5": (_CONTROL, _USER),
    "qwen3": (_CONTROL, (*_USER, "<tool_response>", "</tool_response>", "<think>", "</think>")),
}


def from_tiktoken(path: str | Path, generation: str = "qwen2.5") -> Tokenizer:
    """The tokenizer in a `.tiktoken` file, with the special tokens and the chat template of a Qwen generation."""
    if generation not in SPECIAL:
        raise ValueError(f"generation is {generation!r}, but must be one of: {', '.join(SPECIAL)}")
    ranks = _read_ranks(Path(path))
    letters = byte_characters()

    def spell(token: bytes) -> str:
        return "".join([letters[b] for b in token])

    ordered = sorted(ranks, key=ranks.__getitem__)
    if [ranks[token] for token in ordered] != list(range(len(ordered))):
        raise ValueError(f"{path}: the ranks are not 0..{len(ordered) - 1}, each once")
    if absent := [byte for byte in range(256) if bytes([byte]) not in ranks]:  # without it a text could not be written
        raise ValueError(f"{path}: {len(absent)} of the 256 single bytes are missing, the first is {absent[0]:#04x}")
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
    ranks = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise ValueError(f"{path}: line {number} is {line[:40]!r}; expected base64 and a rank: {error}") from error
    return ranks


def _halves(token: bytes, ranks: dict[bytes, int], path) -> tuple[bytes, bytes]:
    """The last merge that makes `token`: what the merges before its own leave of its bytes."""
    parts, limit = [token[i : i + 1] for i in range(len(token))], ranks[token]
    while len(parts) > 2:
        rank, at = min((ranks.get(parts[i] + parts[i + 1], limit), i) for i in range(len(parts) - 1))
        if rank >= limit:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    if len(parts) != 2:
        raise ValueError(f"{path}: the token {token!r} cannot be made from two earlier ones")
    return parts[0], parts[1]
