"""Tokenizers from Hugging Face files: `tokenizer.json`, or `vocab.json` with `merges.txt`."""

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
    """Read the tokenizer in a folder, in any of the supported formats."""
    folder = Path(folder)
    if (folder / "tokenizer.json").exists():
        return from_json(folder / "tokenizer.json")
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return from_vocab_and_merges(folder)
    if (folder / "tokenizer.model").exists():
        return from_sentencepiece(folder / "tokenizer.model")
    for pattern, reader in (("*.tiktoken", from_tiktoken), ("*.gguf", from_gguf)):
        files = sorted(folder.glob(pattern))
        if len(files) > 1:
            raise ValueError(f"{folder} has {len(files)} files {pattern}; pass the path of one of them")
        if files:
            return reader(files[0])
    raise FileNotFoundError(
        f"{folder} has no tokenizer; it must have one of: tokenizer.json, vocab.json with merges.txt, tokenizer.model, "
        "*.tiktoken, *.gguf"
    )


def from_json(path: str | Path) -> Tokenizer:
    """Read a `tokenizer.json`, with special tokens and chat template from the files next to it."""
    path = Path(path)
    try:
        rust = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the Rust library raises plain Exception
        raise ValueError(f"{path} is not a valid tokenizer.json: {error}") from error
    return _with_companions(rust, path.parent)


def from_vocab_and_merges(folder: str | Path) -> Tokenizer:
    """Read `vocab.json` and `merges.txt` of GPT-2, the format of DialoGPT."""
    folder = Path(folder)
    vocab = _read_json(folder / "vocab.json")
    if (last := max(vocab.values())) > 2 * len(vocab) + 1024:  # ids have few gaps
        raise ValueError(f"{folder}: vocab.json has the id {last}, but only {len(vocab)} tokens")
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
    """Return a tokenizer with the settings of the config files in its folder."""
    config = _read_json(folder / "special_tokens_map.json") | _read_json(folder / CONFIG)
    _add_tokens(rust, config.get("added_tokens_decoder", {}), folder / CONFIG)

    def special(role: str) -> int | None:
        """Return the id of the bos, eos or pad token."""
        token = config.get(f"{role}_token")
        token = token["content"] if isinstance(token, dict) else token
        if token is None:
            return None
        if (token_id := rust.token_to_id(token)) is None:
            raise ValueError(f"{folder / CONFIG}: {role}_token is {token!r}, which is not in the vocabulary")
        return token_id

    bos_id, eos_id, pad_id = (special(role) for role in ("bos", "eos", "pad"))
    if "eos_token" not in config:  # GPT-2's files, or a tokenizer.json without a config
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


def _stop_ids(eos_token_id: Any, folder: Path) -> list[int | None]:
    """Return the stop ids of `generation_config.json`."""
    stops = eos_token_id if isinstance(eos_token_id, list) else [eos_token_id]
    if not all(i is None or isinstance(i, int) and -1 <= i < 1 << 31 for i in stops):
        path = folder / "generation_config.json"
        raise ValueError(f"{path}: eos_token_id is {eos_token_id!r}, but must be one or several token ids")
    return stops


def _template(config: dict[str, Any], folder: Path) -> tuple[str | None, Path]:
    """Return the chat template, if any, and its file."""
    if (file := folder / "chat_template.jinja").exists():
        return file.read_text(encoding="utf-8"), file
    template = config.get("chat_template")
    if isinstance(template, list):  # several named templates
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template, folder / CONFIG


def _add_tokens(rust: tokenizers.Tokenizer, added: dict[str, dict], path: Path) -> None:
    """Add the tokens that only the config lists, with the ids that it gives them."""
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for token_id, entry in sorted((int(i), entry) for i, entry in added.items()):
        if rust.token_to_id(entry["content"]) is None:
            rust.add_tokens([AddedToken(entry["content"], **{k: entry[k] for k in flags if k in entry})])
        if (vocab_id := rust.token_to_id(entry["content"])) != token_id:
            raise ValueError(f"{path}: {entry['content']!r} has id {token_id}, but {vocab_id} in the vocabulary")


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or {} if the file does not exist."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} contains a {type(value).__name__}, but must contain an object")
    return value
