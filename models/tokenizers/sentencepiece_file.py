"""SentencePiece `.model` files, which LLaMA and Mistral publish.

Such a file is a protocol buffer of pieces with scores.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.tokenizers.bpe import NORMAL, UNKNOWN, sentencepiece_bpe
from models.tokenizers.tokenizer import Tokenizer, build

# Field numbers of the messages, and the model types.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_MODEL_TYPE, _UNIGRAM, _BPE = 3, 1, 2
_BOS, _EOS, _PAD = 41, 42, 43


def from_sentencepiece(path: str | Path) -> Tokenizer:
    """Read the BPE tokenizer in a `.model` file."""
    try:
        fields = list(_fields(Path(path).read_bytes()))
        trainer = dict(_fields(next((v for n, v in fields if n == _TRAINER), b"")))
        normalizer = dict(_fields(next((v for n, v in fields if n == _NORMALIZER), b"")))
        pieces = [dict(_fields(value)) for number, value in fields if number == _PIECES]
        tokens = [piece[1].decode("utf-8") for piece in pieces]
        scores = [struct.unpack("<f", piece.get(2, bytes(4)))[0] for piece in pieces]
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise ValueError(f"{path} is not a SentencePiece model, or is damaged: {error!r}") from error
    kind = trainer.get(_MODEL_TYPE, _UNIGRAM)
    if not pieces or kind != _BPE:
        raise ValueError(
            f"{path} has {len(pieces)} pieces and model type {kind}, but must have pieces and model type {_BPE} (BPE)"
        )
    types = [piece.get(3, NORMAL) for piece in pieces]
    ids = {
        name: i if 0 <= (i := _signed(trainer.get(number, default))) < len(tokens) and types[i] != UNKNOWN else None
        for name, number, default in (("bos_id", _BOS, 1), ("eos_id", _EOS, 2), ("pad_id", _PAD, -1))
    }
    rust = sentencepiece_bpe(
        tokens,
        types,
        scores,
        prefix_space=bool(normalizer.get(3, 1)),
        squeeze_spaces=bool(normalizer.get(4, 1)),
        charsmap=normalizer.get(2, b""),
        bos=None if ids["bos_id"] is None else tokens[ids["bos_id"]],
    )
    return build(Path(path).stem, rust, None, bos_id=ids["bos_id"], eos_id=ids["eos_id"], pad_id=ids["pad_id"])


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (field number, value) of a protocol buffer message: ints for varints, else bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
        else:
            if wire == 2:
                size, at = _varint(data, at)
            else:
                size = {1: 8, 5: 4}[wire]
            value, at = data[at : at + size], at + size
            if at > len(data):
                raise ValueError(f"field {number} ends after the end of the file")
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint and the offset after it."""
    value = shift = 0
    while True:
        if shift > 63:
            raise ValueError(f"a number has more than 64 bits before byte {at}")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at


def _signed(value: int) -> int:
    """Reinterpret an unsigned 64-bit integer as signed."""
    return value - (1 << 64) if value >> 63 else value
