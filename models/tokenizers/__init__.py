"""Tokenizers, built on the Rust library `tokenizers`, with a reader for each file format.

load("tiny")                      bytes, for models trained from scratch
load("some/folder")               a Hugging Face folder: tokenizer.json, vocab.json + merges.txt, or tokenizer.model
load("model.gguf")                the vocabulary in a GGUF file
load("qwen.tiktoken")             Qwen's format
load("qwen2.5-0.5b-instruct")     a registered model, downloaded by `python -m models.fetch`
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from models.chat_templates import BUILTIN
from models.errors import TokenizerError, refuse_malformed
from models.tokenizers.byte import ByteTokenizer
from models.tokenizers.files import from_folder, from_json
from models.tokenizers.gguf_vocab import from_gguf
from models.tokenizers.sentencepiece_file import from_sentencepiece
from models.tokenizers.tiktoken_file import from_tiktoken
from models.tokenizers.tokenizer import Tokenizer, check_fits

if TYPE_CHECKING:
    from models import registry

__all__ = ["ByteTokenizer", "Tokenizer", "TokenizerError", "check_fits", "load"]

_READERS = {".gguf": from_gguf, ".json": from_json, ".model": from_sentencepiece, ".tiktoken": from_tiktoken}


def load(source: str | Path, *, chat: str | None = None) -> Tokenizer:
    """Load a tokenizer by name or path.

    Args:
        source: Name of a registered model, or path of a file or folder.
        chat: Chat template that replaces its own: the name of a built-in style, or Jinja source.
    """
    if str(source).lower() in ("bytes", "tiny", "tiny-vl", "tiny-media", "tiny-media-cross"):
        tokenizer = ByteTokenizer()
    elif Path(source).exists():
        tokenizer = _read(Path(source))
    else:
        entry = _entry(str(source))
        tokenizer = _read(_fetched(entry.name))
        if tokenizer.template == BUILTIN["plain"]:  # the files have no template, but the registry may have one
            chat = chat or entry.chat
    return tokenizer if chat is None else tokenizer.with_template(chat)


def _read(path: Path) -> Tokenizer:
    """Read a tokenizer from a file or folder."""
    with refuse_malformed(TokenizerError, path):
        if path.is_dir():
            return from_folder(path)
        if path.suffix not in _READERS:
            raise ValueError(
                f"{path} is not a tokenizer; it must be a folder, or a file that ends in one of: {', '.join(_READERS)}"
            )
        return _READERS[path.suffix](path)


def _entry(name: str) -> registry.Entry:
    """Return the registry entry of a model."""
    from models import registry  # imported here because it imports JAX, which tokenizers do not need

    try:
        return registry.get(name)
    except ValueError as error:
        raise ValueError(f"tokenizer is {name!r}, but there is no such file, folder or model: {error}") from error


def _fetched(name: str) -> Path:
    """Return the local files of a registered model, or raise FileNotFoundError."""
    from models import fetch

    path = fetch.locate(name)
    if path is None:
        raise FileNotFoundError(
            f"the tokenizer of {name} is not in {fetch.folder(name)}; run `python -m models.fetch {name}`"
        )
    return path
