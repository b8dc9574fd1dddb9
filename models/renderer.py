"""Rendering of conversations with tools to token ids.

A new conversation is rendered and tokenized as a whole. One that continues an earlier completion keeps the ids that
were read and sampled before, and tokenizes only the new text. To find it, the completion is replaced by a marker. The
text that the template writes after the marker, including the end of the assistant turn, is new.
"""

from __future__ import annotations

import array
import functools
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from models import chat, tool_calls
from models.tokenizers import Tokenizer
from models.tokenizers.token_bytes import TokenBytes

Message = dict[str, Any]
"""{"role", "content"} with strings, and "tool_calls" if an assistant has called tools, as chat templates expect."""

MARK = "kjqxzv0vzxqjk"
IMAGE = f"kjqxz{secrets.token_hex(8)}zxqjk"
"""Text in the place of an image, which no client can know."""
SHORT = 8192
"""Length, in characters, of texts that are tokenized in the event loop. It takes a millisecond or two."""
FEW = 64
"""Number of messages that are rendered in the event loop."""
LONGEST_TOKEN = 256
"""Characters of the longest token of any vocabulary. A text with more per token of the context cannot fit."""
REMEMBERED = 256
"""Number of short texts whose ids are cached. The sessions of a group ask the same question, often repeatedly."""


class Renderer:
    """Prompts of one model.

    Args:
        tokenizer: Tokenizer with the chat template.
        options: Options of the chat template, such as enable_thinking.
        tool_format: Format of the model's tool calls, one of `tool_calls.FORMATS`.
    """

    def __init__(self, tokenizer: Tokenizer, options: Mapping[str, Any] | None = None, tool_format: str = "auto"):
        self.tokenizer, self.options = tokenizer, dict(options or {})
        self.tools_in_template = takes_tools(tokenizer.template)
        self.parser = tool_calls.parser_of(tokenizer.template, tool_format)
        control = [t.content for t in tokenizer.rust.get_added_tokens_decoder().values() if t.special]
        self._known_ids = functools.lru_cache(REMEMBERED)(lambda text: array.array("i", tokenizer.encode(text)))
        self._control = re.compile("|".join(re.escape(t) for t in sorted(control, key=len, reverse=True)) or "(?!)")

    def opening(
        self, messages: Sequence[Message], tools: Sequence[dict] = (), options: Mapping | None = None, image: str = ""
    ) -> list[int]:
        """Return the token ids of a full conversation up to the next completion.

        Args:
            messages: Messages of the conversation, with `IMAGE` in the place of each image.
            tools: Tools in OpenAI's format.
            options: Options of the chat template.
            image: Special tokens of an image, as text; "" without images.
        """
        text = self._text(messages, tools, options)
        return self._ids(text.replace(IMAGE, image) if image else text)

    def continuation(
        self, messages: Sequence[Message], known: int, tools: Sequence[dict] = (), options: Mapping | None = None
    ) -> list[int]:
        """Return the token ids between a completion and the next one.

        Args:
            messages: Messages of the conversation.
            known: Index of the completion's message.
            tools: Tools in OpenAI's format.
            options: Options of the chat template.
        """
        marked = [*messages[:known], {"role": "assistant", "content": MARK}, *messages[known + 1 :]]
        before, mark, rest = self._text(marked, tools, options).partition(MARK)
        later = sum(message["content"].count(MARK) for message in messages[known + 1 :])
        if not mark or rest.count(MARK) != later:
            problem = "the chat template does not render an earlier completion exactly once"
            raise chat.ChatTemplateError(problem, self.tokenizer.template_source)
        return self._ids(rest)

    def results(self, texts: Sequence[str]) -> list[int]:
        """Return the token ids between a completion with tool calls and the next one.

        Args:
            texts: Results of the calls.
        """
        call = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
        return self.continuation([*call, *({"role": "tool", "content": text} for text in texts)], 1)

    @functools.cached_property
    def token_bytes(self) -> TokenBytes:
        """Bytes of every token. Control tokens, which are not part of texts, have none."""
        return self.tokenizer.token_bytes(skip_special=True)

    def content(self, ids: list[int]) -> list[int]:
        """Return the ids of a completion without the stop token at its end."""
        return ids[:-1] if ids and ids[-1] in self.tokenizer.stop_ids else ids

    def _ids(self, text: str) -> list[int]:
        return self._known_ids(text).tolist() if len(text) <= SHORT else self.tokenizer.encode(text)

    def _text(self, messages: Sequence[Message], tools: Sequence[dict], options: Mapping | None) -> str:
        named, messages = self.options | dict(options or {}), self._clean(list(messages))
        if self.tools_in_template:
            named["tools"] = self._clean(list(tools)) or None
        else:
            messages = tool_calls.in_words(messages, self._clean(list(tools)), self.parser)
        return self.tokenizer.chat(messages, **named)

    def _clean(self, value: Any) -> Any:
        """Remove control tokens from all strings of a JSON value.

        Without them no text can forge a turn.
        """
        if isinstance(value, str):
            while (clean := self._control.sub("", value)) != value:
                value = clean
            return value
        if isinstance(value, list):
            return [self._clean(item) for item in value]
        return {key: self._clean(item) for key, item in value.items()} if isinstance(value, dict) else value


@functools.lru_cache(maxsize=32)
def takes_tools(template: str) -> bool:
    """Return whether a chat template renders the tools of a request.

    For other templates the tools are described in the system message.
    """
    tool = {"type": "function", "function": {"name": MARK, "description": "", "parameters": {}}}
    try:
        return MARK in chat.render(template, [{"role": "user", "content": "u"}], tools=[tool])
    except (chat.ChatTemplateError, ValueError):
        return False
