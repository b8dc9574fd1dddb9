"""The tokenizer in a GGUF file.

GGUF stores it in the key-value header before the tensors, so only the header is read, in one pass over a memory map.
This takes a fraction of a second for 150,000 tokens.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from models.tokenizers.bpe import NORMAL, byte_level_bpe, sentencepiece_bpe
from models.tokenizers.tokenizer import Tokenizer, build

_SCALARS = dict(enumerate("BbHhIif?", start=0)) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def from_gguf(path: str | Path) -> Tokenizer:
    """Read the tokenizer of a GGUF file: byte-level BPE (`gpt2`) or SentencePiece (`llama`)."""
    header = read_header(path)

    def get(key: str, default: Any = None) -> Any:
        """Return a field of the tokenizer."""
        return header.get(f"tokenizer.ggml.{key}", default)

    kind, tokens = get("model"), get("tokens")
    if kind not in ("gpt2", "llama") or not tokens:
        raise ValueError(
            f"{path}: tokenizer.ggml.model is {kind!r} with {len(tokens or ())} tokens, but must be 'gpt2' (byte-level "
            "BPE) or 'llama' (SentencePiece) with at least one token"
        )
    ids = {key: get(f"{key}_token_id") for key in ("bos", "eos", "padding", "eot", "eom")}
    for key, value in ids.items():
        if value is not None and value >= len(tokens):
            raise ValueError(
                f"{path}: tokenizer.ggml.{key}_token_id is {value}, but there are only {len(tokens)} tokens"
            )
    types = get("token_type") or [NORMAL] * len(tokens)
    pre = get("pre") or _PRE_OF_ARCHITECTURE.get(header.get("general.architecture", ""))
    # Qwen has no bos token; converters write the id of <|endoftext|> instead.
    bos_id = None if pre == "qwen2" else ids["bos"]
    add_bos = bool(get("add_bos_token", kind == "llama")) and bos_id is not None
    bos = tokens[bos_id] if add_bos else None
    try:
        if kind == "llama":
            scores = get("scores") or [0.0] * len(tokens)
            rust = sentencepiece_bpe(tokens, types, scores, prefix_space=get("add_space_prefix", True), bos=bos)
        else:
            merges = [tuple(merge.split(" ", 1)) for merge in get("merges", [])]
            rust = byte_level_bpe(tokens, types, merges, pre, bos=bos)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return build(
        Path(path).stem,
        rust,
        header.get("tokenizer.chat_template"),
        bos_id=bos_id,
        eos_id=ids["eos"],
        pad_id=ids["padding"],
        stop_ids=(ids["eot"], ids["eom"]),
        add_bos=add_bos,
        template_source=f"{path} (tokenizer.chat_template)",
    )


# For files from before `tokenizer.ggml.pre` was introduced.
_PRE_OF_ARCHITECTURE = {"qwen2": "qwen2", "gpt2": "gpt-2"}


def read_header(path: str | Path) -> dict[str, Any]:
    """Return the key-value header of a GGUF file: scalars, strings, and lists of them."""
    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file: it does not begin with 'GGUF'")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read_pairs(data)
            except (struct.error, UnicodeDecodeError, KeyError, RecursionError) as error:
                raise ValueError(f"{path} has a damaged or truncated GGUF header: {error!r}") from error
            except _GGUFError as error:
                raise ValueError(f"{path}: {error}") from error


class _GGUFError(ValueError):
    """An invalid GGUF header."""

    pass


def _read_pairs(data: mmap.mmap) -> dict[str, Any]:
    """Return the pairs of the header."""
    version, _, count = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise _GGUFError(f"GGUF version is {version}, but must be 2 or 3 (little-endian)")
    at, pairs = 24, {}
    for _ in range(count):
        key, at = _read_string(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        pairs[key], at = _read_value(data, at + 4, kind)
    return pairs


def _read_value(data: mmap.mmap, at: int, kind: int) -> tuple[Any, int]:
    """Return a value of the given type and the offset after it."""
    if kind == _STRING:
        return _read_string(data, at)
    if kind != _ARRAY:
        code = "<" + _SCALARS[kind]
        return struct.unpack_from(code, data, at)[0], at + struct.calcsize(code)
    kind, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if count > len(data):
        raise _GGUFError(f"damaged GGUF header: a list of {count} values in a file of {len(data)} bytes")
    if kind in _SCALARS:
        code = f"<{count}{_SCALARS[kind]}"
        return list(struct.unpack_from(code, data, at)), at + struct.calcsize(code)
    values = []
    for _ in range(count):
        value, at = _read_value(data, at, kind)
        values.append(value)
    return values, at


def _read_string(data: mmap.mmap, at: int) -> tuple[str, int]:
    """Return a string and the offset after it."""
    (length,) = struct.unpack_from("<Q", data, at)
    end = at + 8 + length
    if end > len(data):
        raise _GGUFError(f"damaged or truncated GGUF header: a string of {length} bytes at byte {at}")
    return data[at + 8 : end].decode("utf-8"), end
