"""The bytes of every token: what programs need that read text inside jit, where there are no strings.

    table = tokenizer.token_bytes()
    table.join(tokenizer.encode("café"))        # b"caf\xc3\xa9"

The bytes of some tokens, one behind the other, are the UTF-8 of what `decode` makes of them wherever they are valid
UTF-8. Elsewhere `decode` writes U+FFFD; with SentencePiece's byte tokens it does so for a whole run of them.
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

    store         uint8 [total], those of all tokens in order
    starts        int64 [V + 1]: token i has store[starts[i] : starts[i + 1]]; ids that no token has are empty
    strips_space  a text loses the space that it begins with, as SentencePiece decodes
    """

    store: np.ndarray
    starts: np.ndarray
    strips_space: bool

    def __len__(self) -> int:
        return len(self.starts) - 1

    def of(self, token_id: int) -> bytes:
        """The bytes of one token; none for an id outside the vocabulary."""
        if not 0 <= token_id < len(self):
            return b""
        return self.store[self.starts[token_id] : self.starts[token_id + 1]].tobytes()

    def join(self, ids: Iterable[int]) -> bytes:
        """The bytes of a text."""
        text = b"".join(self.of(int(i)) for i in ids)
        return text[1:] if self.strips_space and text.startswith(b" ") else text


def read_token_bytes(rust: tokenizers.Tokenizer, skip_special: bool) -> TokenBytes:
    """The table of a Rust tokenizer, as its decoder spells tokens; skipped special tokens are empty."""
    spell, strips_space = _decoder(rust)
    skipped = {t.content for t in rust.get_added_tokens_decoder().values() if t.special} if skip_special else set()
    vocab = {i: token for token, i in rust.get_vocab(with_added_tokens=True).items()}
    spelled = [spell(vocab[i]) if i in vocab and vocab[i] not in skipped else b"" for i in range(max(vocab) + 1)]
    starts = np.cumsum([0, *map(len, spelled)], dtype=np.int64)
    return TokenBytes(np.frombuffer(b"".join(spelled), np.uint8), starts, strips_space)


def _decoder(rust: tokenizers.Tokenizer) -> tuple[Callable[[str], bytes], bool]:
    """How one token is spelled, and whether a space at the beginning of a text goes."""
    found: dict[str, Any] = json.loads(rust.decoder.__getstate__()) if rust.decoder is not None else {"type": None}
    steps = found["decoders"] if found["type"] == "Sequence" else [found]
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
            f"the decoder of the tokenizer is {json.dumps(found)}, but must be ByteLevel, or SentencePiece's Replace, "
            "ByteFallback, Fuse and Strip of one leading space"
        )
    replacements = [(step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"]
    fallback = "ByteFallback" in kinds

    def spell(token: str) -> bytes:
        for old, new in replacements:
            token = token.replace(old, new)
        byte = _BYTE_TOKEN.fullmatch(token) if fallback else None
        return bytes([int(byte[1], 16)]) if byte else token.encode()

    return spell, strips


_BYTE_OF = {character: byte for byte, character in enumerate(byte_characters())}


def _spell_byte_level(token: str) -> bytes:
    """A token in the byte alphabet; one with any other character, as added tokens may have, stands for itself."""
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()
