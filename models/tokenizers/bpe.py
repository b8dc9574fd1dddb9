"""Rust tokenizers from plain lists: byte-level BPE with merges, and SentencePiece BPE with scores."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

# Types of tokens, numbered as in SentencePiece and GGUF files.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Contractions, words with one leading symbol, digits, symbols with one leading space, line breaks, other whitespace.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(use_regex: bool):
    """Return a byte-level pre-tokenizer."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _split(digits: str):
    """Return a pre-tokenizer that splits words and digits by a pattern."""
    pattern = Regex(_WORDS.format(digits=digits))
    return pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"), _byte_level(False)])


# The supported pre-tokenizers: (normalizer, pre-tokenizer, whether complete words take precedence over merges).
_PRE = {
    "whole": lambda: (None, _byte_level(False), False),
    "gpt-2": lambda: (None, _byte_level(True), False),
    "smollm": lambda: (
        None, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level(True)]), False
    ),
    "qwen2": lambda: (normalizers.NFC(), _split(r"\p{N}"), False),
    "llama-bpe": lambda: (None, _split(r"\p{N}{1,3}"), True),
}  # fmt: skip
_ALIASES = {
    "llama3": "llama-bpe", "llama-v3": "llama-bpe", "starcoder": "smollm", "refact": "smollm", "codeshell": "smollm",
    "gpt2": "gpt-2", "phi-2": "gpt-2", "olmo": "gpt-2", "jais": "gpt-2",
}  # fmt: skip


def byte_characters() -> list[str]:
    """Return the character that byte-level BPE uses for each byte.

    That is the byte's own character if it is printable, and otherwise the next one from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [b for b in range(256) if b not in printable]
    return [chr(b) if b in printable else chr(0x100 + others.index(b)) for b in range(256)]


def byte_level_bpe(
    tokens: Sequence[str],
    types: Sequence[int],
    merges: Sequence[tuple[str, ...]],
    pre: str | None,
    *,
    bos: str | None = None,
) -> tokenizers.Tokenizer:
    """Return a byte-level BPE tokenizer.

    Args:
        tokens: Token of each id.
        types: Type of each token, see `NORMAL`.
        merges: Pairs of tokens, in order of priority.
        pre: Name of the pre-tokenizer, which splits a text into words.
        bos: Token that precedes a text if special tokens are requested, as in `transformers`.
    """
    pre = _ALIASES.get(pre or "", pre)
    if pre not in _PRE:
        accepted = sorted({*_PRE, *_ALIASES} - {"whole"})
        raise ValueError(f"pre-tokenizer is {pre!r}, but must be one of: {', '.join(accepted)}")
    normalizer, pre_tokenizer, ignore_merges = _PRE[pre]()
    vocab = _vocab(tokens, types)
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        if len(merge) != 2 or not (merge[0] in vocab and merge[1] in vocab and "".join(merge) in vocab):
            raise ValueError(f"the merge {' '.join(merge)!r} does not combine two tokens into a third")
        pairs.append(merge)
    rust = tokenizers.Tokenizer(BPE(vocab, pairs, ignore_merges=ignore_merges))
    if normalizer is not None:
        rust.normalizer = normalizer
    rust.pre_tokenizer = pre_tokenizer
    rust.decoder = decoders.ByteLevel()
    return _finish(rust, tokens, types, bos)


def sentencepiece_bpe(
    tokens: Sequence[str],
    types: Sequence[int],
    scores: Sequence[float],
    *,
    prefix_space: bool = True,
    squeeze_spaces: bool = False,
    charsmap: bytes = b"",
    bos: str | None = None,
) -> tokenizers.Tokenizer:
    """Return a SentencePiece BPE tokenizer.

    It merges the pair with the best-scoring result first, and encodes unknown text as bytes.

    Args:
        tokens: Token of each id.
        types: Type of each token, see `NORMAL`.
        scores: Score of each token.
        prefix_space: Whether to prepend a space to a text.
        squeeze_spaces: Whether to remove outer and repeated spaces.
        charsmap: SentencePiece's compiled normalizer.
        bos: Token that precedes a text if special tokens are requested.
    """
    vocab = _vocab(tokens, types)
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    model = BPE(vocab, _merges(tokens, types, scores), unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in types)
    rust = tokenizers.Tokenizer(model)
    squeeze = [normalizers.Replace(Regex(r"\A +|[ ▁]+\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    rust.normalizer = normalizers.Sequence([
        *([normalizers.Precompiled(charsmap)] if charsmap else []),
        *(squeeze if squeeze_spaces else []),
        *([normalizers.Prepend("▁")] if prefix_space else []),
        normalizers.Replace(" ", "▁"),
    ])  # fmt: skip
    rust.decoder = decoders.Sequence([
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        *([decoders.Strip(" ", 1, 0)] if prefix_space else []),
    ])  # fmt: skip
    return _finish(rust, tokens, types, bos)


def _vocab(tokens: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    """Return token -> id without unused tokens, which only pad the rows of a model."""
    if len(tokens) != len(types):
        raise ValueError(f"the vocabulary has {len(tokens)} tokens, but {len(types)} token types")
    vocab: dict[str, int] = {}
    for i, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind != UNUSED and vocab.setdefault(token, i) != i:
            raise ValueError(f"the vocabulary has the token {token!r} twice, as {vocab[token]} and {i}")
    return vocab


def _merges(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return all pairs that form a token, best score first, then lowest ids."""
    pieces = {t: i for i, (t, kind) in enumerate(zip(tokens, types, strict=True)) if kind in (NORMAL, USER_DEFINED)}
    ranked: list[tuple[float, int, int, int]] = []
    for token, i in pieces.items():
        for cut in range(1, len(token)):
            left, right = pieces.get(token[:cut]), pieces.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[i], i, left, right))
    return [(tokens[left], tokens[right]) for _, _, left, right in sorted(ranked)]


def _finish(rust: tokenizers.Tokenizer, tokens, types, bos: str | None) -> tokenizers.Tokenizer:
    """Add the special tokens and the bos token."""
    special = {UNKNOWN: True, CONTROL: True, USER_DEFINED: False}
    for token, kind in zip(tokens, types, strict=True):
        if kind in special:
            rust.add_tokens([AddedToken(token, normalized=False, special=special[kind])])
    if bos is not None:
        rust.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, rust.token_to_id(bos))]
        )
    return rust
