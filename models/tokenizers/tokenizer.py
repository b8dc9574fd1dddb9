"""The tokenizer class."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import tokenizers

from models import chat, chat_templates
from models.config import ModelConfig
from models.errors import TokenizerError
from models.tokenizers.token_bytes import TokenBytes, read_token_bytes

# Tokens that end a turn if they are special tokens, in the order of `stop_ids`.
END_OF_TURN = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|eos|>", "</s>"
)  # fmt: skip
# Exercises the normalizer and the pre-tokenizer. Its ids are part of the fingerprint.
_PROBE = "I'll  pay 1234.5€ in caf\u00e9/cafe\u0301,\n\n\tOK?  \r\n ½ 二十 \U0001f642\u200d\n<|im_end|> x </s>y"


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
    """A tokenizer with the special ids and the chat template of a model.

    Attributes:
        name: Name for messages.
        rust: The underlying tokenizer.
        template: Chat template, Jinja source.
        bos_id: Id of the token that begins a sequence.
        eos_id: Id of the token that ends a sequence.
        pad_id: Id of the padding token.
        stop_ids: Ids that end a turn.
        add_bos: Whether the model was trained with the bos token before every text. `encode` never adds it.
        template_source: File that contains the template.
    """

    name: str
    rust: tokenizers.Tokenizer = dataclasses.field(repr=False)
    template: str = dataclasses.field(repr=False)
    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None
    stop_ids: tuple[int, ...] = ()
    add_bos: bool = False
    template_source: str = dataclasses.field(default="", repr=False)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text.

        Special tokens in the text are recognized, and none are added.
        """
        return self.rust.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Return the text of ids.

        Invalid UTF-8 becomes U+FFFD, and unused ids are dropped.
        """
        return self.rust.decode(list(ids), skip_special_tokens=skip_special)

    def token_bytes(self, *, skip_special: bool = False) -> TokenBytes:
        """Return the bytes of every token; skipped special tokens have none."""
        return read_token_bytes(self.rust, skip_special)

    def chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True, **options) -> str:
        """Render a conversation with the chat template.

        Args:
            messages: Messages with "role" and "content".
            add_generation_prompt: Whether to append the beginning of an assistant message.
            **options: Variables for the template.
        """
        try:
            return chat.render(
                self.template,
                messages,
                bos_token=self.token(self.bos_id),
                eos_token=self.token(self.eos_id),
                add_generation_prompt=add_generation_prompt,
                **options,
            )
        except chat.ChatTemplateError as error:
            raise chat.ChatTemplateError(error.problem, self.template_source) from error

    def token(self, token_id: int | None) -> str:
        """Return the token of an id in the vocabulary, or "" for None."""
        return "" if token_id is None else self.rust.id_to_token(token_id) or ""

    def strip_special(self, text: str) -> str:
        """Return the text without special tokens, so that it cannot forge a turn."""
        while (clean := self._special_pattern.sub("", text)) != text:
            text = clean
        return text

    @functools.cached_property
    def vocab_size(self) -> int:
        """Largest id + 1; a model may have more rows than this, but not fewer."""
        return max(self.rust.get_vocab(with_added_tokens=True).values()) + 1

    @functools.cached_property
    def special_tokens(self) -> dict[str, int]:
        """Tokens that are matched in the text before anything else, with their ids."""
        return {token.content: i for i, token in sorted(self.rust.get_added_tokens_decoder().items())}

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of everything that determines ids and prompts.

        It is the same for the same tokenizer read from another file.
        """
        model = json.loads(self.rust.to_str())["model"]
        merges = [m.split(" ") if isinstance(m, str) else list(m) for m in model.get("merges", [])]
        specials = (self.bos_id, self.eos_id, self.pad_id, sorted(self.stop_ids), self.special_tokens)
        vocab = sorted(self.rust.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
        parts = (vocab, merges, specials, self.template, self.encode(_PROBE))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def with_template(self, style: str) -> Tokenizer:
        """Return this tokenizer with another chat template: a built-in style or Jinja source."""
        template = chat_templates.BUILTIN.get(style, style)
        if "{" not in template:
            raise ValueError(
                f"chat is {style!r}, but must be one of: {', '.join(chat_templates.BUILTIN)}, or a Jinja template"
            )
        return dataclasses.replace(self, template=template, template_source="")

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json` for `load` and `transformers`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": self.token(self.bos_id) or None,
            "eos_token": self.token(self.eos_id) or None,
            "pad_token": self.token(self.pad_id) or None,
            "add_bos_token": self.add_bos,
            "clean_up_tokenization_spaces": False,
            "chat_template": self.template,
        }
        for name, text in (
            ("tokenizer.json", self.rust.to_str(pretty=True)),
            ("tokenizer_config.json", json.dumps(config, indent=2, ensure_ascii=False) + "\n"),
        ):
            part = folder / f"{name}.part"
            part.write_text(text, encoding="utf-8")
            os.replace(part, folder / name)

    @functools.cached_property
    def _special_pattern(self) -> re.Pattern:
        """Pattern that matches any special token."""
        return re.compile("|".join(re.escape(t) for t in sorted(self.special_tokens, key=len, reverse=True)) or "(?!)")


def build(
    name: str,
    rust: tokenizers.Tokenizer,
    template: str | None,
    *,
    bos_id: int | None = None,
    eos_id: int | None = None,
    pad_id: int | None = None,
    stop_ids: Sequence[int | None] = (),
    add_bos: bool | None = None,
    template_source: str = "",
) -> Tokenizer:
    """Return a `Tokenizer`.

    The template, the ids that end a turn, and `add_bos` are inferred from the vocabulary if they are not given.
    """
    # A tokenizer.json may contain padding and truncation settings.
    rust.no_padding()
    rust.no_truncation()
    rust.encode(_PROBE)  # a damaged normalizer fails on first use
    special = {token.content: i for i, token in rust.get_added_tokens_decoder().items()}
    ends = [eos_id, *stop_ids, *(special.get(token) for token in END_OF_TURN)]
    if wrong := [i for i in (bos_id, pad_id, *ends) if i is not None and not (type(i) is int and i >= 0)]:
        raise TokenizerError(f"the tokenizer {name} has the special id {wrong[0]!r}, but ids must be integers >= 0")
    if template is not None and not isinstance(template, str):
        where = template_source or f"the tokenizer {name}"
        raise TokenizerError(f"{where}: the chat template is a {type(template).__name__}, but must be a string")
    if add_bos is None:
        add_bos = bos_id is not None and rust.encode("", add_special_tokens=True).ids[:1] == [bos_id]
    return Tokenizer(
        name=name,
        rust=rust,
        template=template or chat_templates.BUILTIN[chat_templates.guess_style(special)],
        bos_id=bos_id,
        eos_id=eos_id,
        pad_id=pad_id,
        stop_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
        add_bos=add_bos,
        template_source=template_source if template else "",
    )


def check_fits(tokenizer: Tokenizer, cfg: ModelConfig) -> None:
    """Raise TokenizerError if the tokenizer has ids without a row in the model."""
    if tokenizer.vocab_size > cfg.vocab_size:
        raise TokenizerError(
            f"the tokenizer {tokenizer.name} has ids up to {tokenizer.vocab_size - 1} ({tokenizer.vocab_size} tokens), "
            f"but the vocab_size of the model is only {cfg.vocab_size}; use the tokenizer of the model"
        )
