"""The byte tokenizer, for models that are trained from scratch."""

from __future__ import annotations

from models.chat_templates import BUILTIN
from models.tokenizers.bpe import CONTROL, NORMAL, byte_characters, byte_level_bpe
from models.tokenizers.tokenizer import Tokenizer, build

NAME = "bytes"
SPECIAL = ("<|pad|>", "<|bos|>", "<|im_start|>", "<|im_end|>", "<|eos|>", "<|spare0|>", "<|spare1|>", "<|spare2|>")


def ByteTokenizer() -> Tokenizer:
    """Return a tokenizer for bytes with the ChatML template.

    Ids 0 to 255 are the bytes of UTF-8, followed by pad, bos, im_start, im_end, eos and three spare tokens.
    """
    tokens = [*byte_characters(), *SPECIAL]
    types = [NORMAL] * 256 + [CONTROL] * len(SPECIAL)
    rust = byte_level_bpe(tokens, types, merges=[], pre="whole")
    ids = {token: 256 + i for i, token in enumerate(SPECIAL)}
    tokenizer = build(
        NAME, rust, BUILTIN["chatml"], bos_id=ids["<|bos|>"], eos_id=ids["<|eos|>"], pad_id=ids["<|pad|>"]
    )
    drop_cache(tokenizer)
    return tokenizer


def drop_cache(tokenizer: Tokenizer) -> None:
    """Disable the cache of a byte tokenizer, which pickling enables; others keep theirs.

    Its words are complete texts, which rarely repeat, so every thread would keep ten thousand of them for nothing.
    """
    if tokenizer.name == NAME:
        tokenizer.rust.model._resize_cache(0)
