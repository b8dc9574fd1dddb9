"""Tokenizers in Hugging Face files: `tokenizer.json` with its companions, or GPT-2's `vocab.json` and `merges.txt`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from models.tokenizers.bpe import CONTROL, NORMAL, UNUSED, byte_level_bpe
from models.tokenizers.gguf_vocab import from_gguf
from models.tokenizers.sentencepiece_file import from_sentencepiece
from models.tokenizers.tiktoken_file import from_tiktoken
from models.tokenizers.tokenizer import Tokenizer, build

CONFIG = "tokenizer_config.json"


def from_folder(folder: str | Path) -> Tokenizer:
    """The tokenizer in a folder, whichever of the known files holds it."""
    folder = Path(folder)
    if (folder / "tokenizer.json").exists():
        return from_json(folder / "tokenizer.json")
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return from_vocab_and_merges(folder)
    if (folder / "tokenizer.model").exists():
        return from_sentencepiece(folder / "tokenizer.model")
    for pattern, reader in (("*.tiktoken", from_tiktoken), ("*.gguf", from_gguf)):
        found = sorted(folder.glob(pattern))
        if len(found) > 1:
            raise ValueError(f"{folder}: {len(found)} files {pattern}; name the one that is meant")
        if found:
            return reader(found[0])
    raise FileNotFoundError(
        f"{folder}: no tokenizer; looked for tokenizer.json, vocab.json with merges.txt, tokenizer.model, *.tiktoken, "
        "*.gguf"
    )


def from_json(path: str | Path) -> Tokenizer:
    """A `tokenizer.json`, with special tokens and chat template from the files beside it."""
    path = Path(path)
    try:
        rust = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the Rust library raises plain Exception
        raise ValueError(f"{path}: not a readable tokenizer.json: {error}") from error
    return _with_companions(rust, path.parent)


def from_vocab_and_merges(folder: str | Path) -> Tokenizer:
    """GPT-2's pair of files, as DialoGPT publishes them."""
    folder = Path(folder)
    vocab = _read_json(folder / "vocab.json")
    if (last := max(vocab.values())) > 2 * len(vocab) + 1024:  # ids number the tokens, with few gaps
        raise ValueError(f"{folder}: vocab.json has the id {last} among {len(vocab)} tokens")
    tokens = [""] * (last + 1)
    for token, i in vocab.items():
        tokens[i] = token
    types = [UNUSED if not t else CONTROL if t == "<|endoftext|>" else NORMAL for t in tokens]
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    try:
        rust = byte_level_bpe(tokens, types, merges, "gpt-2")
    except ValueError as error:
        raise ValueError(f"{folder}: vocab.json and merges.txt: {error}") from error
    return _with_companions(rust, folder)


def _with_companions(rust: tokenizers.Tokenizer, folder: Path) -> Tokenizer:
    config = _read_json(folder / "special_tokens_map.json") | _read_json(folder / CONFIG)
    _add_tokens(rust, config.get("added_tokens_decoder", {}), folder / CONFIG)

    def special(role: str) -> int | None:
        token = config.get(f"{role}_token")
        token = token["content"] if isinstance(token, dict) else token
        if token is None:
            return None
        if (token_id := rust.token_to_id(token)) is None:
            raise ValueError(f"{folder / CONFIG}: {role}_token is {token!r}, which is not in the vocabulary")
        return token_id

    bos_id, eos_id, pad_id = (special(role) for role in ("bos", "eos", "pad"))
    if "eos_token" not in config:  # GPT-2's files, or a tokenizer.json on its own
        ends = map(rust.token_to_id, ("<|im_end|>", "<|endoftext|>", "</s>"))
        eos_id = next((i for i in ends if i is not None), None)
    if "bos_token" not in config:
        bos_id = rust.token_to_id("<s>")
    stop = _read_json(folder / "generation_config.json").get("eos_token_id", [])
    template, source = _template(config, folder)
    return build(
        folder.resolve().name,
        rust,
        template,
        bos_id=bos_id,
        eos_id=eos_id,
        pad_id=pad_id,
        stop_ids=_stop_ids(stop, folder),
        template_source=str(source),
    )


def _stop_ids(found: Any, folder: Path) -> list[int | None]:
    stops = found if isinstance(found, list) else [found]
    if not all(i is None or isinstance(i, int) and -1 <= i < 1 << 31 for i in stops):
        raise ValueError(f"{folder / 'generation_config.json'}: eos_token_id is {found!r}, but must be ids of tokens")
    return stops


def _template(config: dict[str, Any], folder: Path) -> tuple[str | None, Path]:
    """The chat template, if there is one, and its file."""
    if (file := folder / "chat_template.jinja").exists():
        return file.read_text(encoding="utf-8"), file
    template = config.get("chat_template")
    if isinstance(template, list):  # several, each with a name
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template, folder / CONFIG


def _add_tokens(rust: tokenizers.Tokenizer, added: dict[str, dict], path: Path) -> None:
    """Add the tokens that only the config lists, at the ids that it gives them."""
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for token_id, entry in sorted((int(i), entry) for i, entry in added.items()):
        if rust.token_to_id(entry["content"]) is None:
            rust.add_tokens([AddedToken(entry["content"], **{k: entry[k] for k in flags if k in entry})])
        if (found := rust.token_to_id(entry["content"])) != token_id:
            raise ValueError(f"{path}: {entry['content']!r} has id {token_id} here but {found} in the vocabulary")


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object, {} when the file is not there."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: holds a {type(value).__name__}; expected an object")
    return value
