"""Tokenizers: one class around the Rust `tokenizers` library, and a reader for each kind of file that holds one.

load("tiny")                      bytes, for models trained from scratch
load("some/folder")               a Hugging Face folder: tokenizer.json, vocab.json + merges.txt, or tokenizer.model
load("model.gguf")                the vocabulary inside a GGUF file
load("qwen.tiktoken")             Qwen's own file
load("qwen2.5-0.5b-instruct")     a registered model, from where `python -m models.fetch` put it
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
    """The tokenizer called `source` or stored there; `chat` replaces its template (a built-in style or Jinja text)."""
    if str(source).lower() in ("bytes", "tiny"):
        tokenizer = ByteTokenizer()
    elif Path(source).exists():
        tokenizer = _read(Path(source))
    else:
        entry = _entry(str(source))
        tokenizer = _read(_fetched(entry.name))
        if tokenizer.template == BUILTIN["plain"]:  # the files have no template, the registry may know one
            chat = chat or entry.chat
    return tokenizer if chat is None else tokenizer.with_template(chat)


def _read(path: Path) -> Tokenizer:
    with refuse_malformed(TokenizerError, path):
        if path.is_dir():
            return from_folder(path)
        if path.suffix not in _READERS:
            raise ValueError(
                f"{path}: not a tokenizer, but must be a folder, or a file ending in {', '.join(_READERS)}"
            )
        return _READERS[path.suffix](path)


def _entry(name: str) -> registry.Entry:
    from models import registry  # late: shapes of models bring JAX along, which a tokenizer does not need

    try:
        return registry.get(name)
    except ValueError as error:
        raise ValueError(f"tokenizer is {name!r}: no such file or folder, and no such model: {error}") from error


def _fetched(name: str) -> Path:
    """Where a registered model lies; an error that says how to get it when it lies nowhere."""
    from models import fetch

    path = fetch.locate(name)
    if path is None:
        raise FileNotFoundError(
            f"tokenizer of {name}: nothing in {fetch.folder(name)}; run `python -m models.fetch {name}` or put it there"
        )
    return path
