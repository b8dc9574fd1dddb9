r"""The bytes of every token, for jitted programs that read text.

    table = tokenizer.token_bytes()
    table.join(tokenizer.encode("café"))        # b"caf\xc3\xa9"

The concatenated bytes of some tokens are the UTF-8 of their `decode` wherever they are valid UTF-8. Elsewhere `decode`
writes U+FFFD; for SentencePiece's byte tokens it does so for a complete run of them.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tokenizers

from models.tokenizers.bpe import byte_characters

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclasses.dataclass(frozen=True, eq=False)
class TokenBytes:
    """The bytes of the V tokens of a vocabulary.

    Attributes:
        store: uint8 [total], the bytes of all tokens in order.
        starts: int64 [V + 1]. Token i has store[starts[i] : starts[i + 1]], which is empty for unused ids.
        strips_space: Whether a text loses its leading space, as in SentencePiece.
    """

    store: np.ndarray
    starts: np.ndarray
    strips_space: bool

    def __len__(self) -> int:
        return len(self.starts) - 1

    def of(self, token_id: int) -> bytes:
        """Return the bytes of one token, or none for an id outside the vocabulary."""
        if not 0 <= token_id < len(self):
            return b""
        return self.store[self.starts[token_id] : self.starts[token_id + 1]].tobytes()

    def join(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of a text."""
        text = b"".join(self.of(int(i)) for i in ids)
        return text[1:] if self.strips_space and text.startswith(b" ") else text


def read_token_bytes(rust: tokenizers.Tokenizer, skip_special: bool) -> TokenBytes:
    """Return the bytes of all tokens as the decoder of a Rust tokenizer spells them.

    If `skip_special` is set, special tokens are empty.
    """
    spell, strips_space = _decoder(rust)
    skipped = {t.content for t in rust.get_added_tokens_decoder().values() if t.special} if skip_special else set()
    vocab = {i: token for token, i in rust.get_vocab(with_added_tokens=True).items()}
    spelled = [spell(vocab[i]) if i in vocab and vocab[i] not in skipped else b"" for i in range(max(vocab) + 1)]
    starts = np.cumsum([0, *map(len, spelled)], dtype=np.int64)
    return TokenBytes(np.frombuffer(b"".join(spelled), np.uint8), starts, strips_space)


def _decoder(rust: tokenizers.Tokenizer) -> tuple[Callable[[str], bytes], bool]:
    """Return a function that spells a token, and whether texts lose a leading space."""
    decoder: dict[str, Any] = json.loads(rust.decoder.__getstate__()) if rust.decoder is not None else {"type": None}
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _spell_byte_level, False
    strips = kinds[-2:] == ["Fuse", "Strip"]
    known = all(
        kind in ("ByteFallback", "Fuse")
        or (kind == "Replace" and "String" in step["pattern"])
        or (strips and step is steps[-1] and (step["content"], step["start"], step["stop"]) == (" ", 1, 0))
        for kind, step in zip(kinds, steps, strict=True)
    )
    if not known or "Fuse" not in kinds or "Replace" in kinds[kinds.index("Fuse") :]:
        raise ValueError(
            f"the decoder of the tokenizer is {json.dumps(decoder)}, but must be ByteLevel, or SentencePiece's "
            "Replace, ByteFallback, Fuse and Strip of one leading space"
        )
    replacements = [(step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"]
    fallback = "ByteFallback" in kinds

    def spell(token: str) -> bytes:
        """Return the bytes of a token."""
        for old, new in replacements:
            token = token.replace(old, new)
        byte = _BYTE_TOKEN.fullmatch(token) if fallback else None
        return bytes([int(byte[1], 16)]) if byte else token.encode()

    return spell, strips


_BYTE_OF = {character: byte for byte, character in enumerate(byte_characters())}


def _spell_byte_level(token: str) -> bytes:
    """Return the bytes of a token in the byte alphabet.

    Added tokens may have other characters. Such a token is encoded as UTF-8.
    """
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()
