"""Render the messages of a chat request to token ids with the model's chat template.

A first request is rendered and tokenized as a whole. A request that continues an earlier completion keeps the ids that
were read and sampled before, and tokenizes only the new text. To find it, the completion is replaced by a marker. The
text that the template writes after the marker, including the end of the assistant turn, is new.
"""

from __future__ import annotations

import array
import contextlib
import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from marl_jax.serving.http.errors import ApiError
from marl_jax.serving.openai import tool_calls
from models import chat
from models.tokenizers import Tokenizer
from models.tokenizers.token_bytes import TokenBytes

Message = dict[str, Any]
"""{"role", "content"} with strings, and "tool_calls" if an assistant has called tools, as chat templates expect."""

MARK = "kjqxzv0vzxqjk"
SHORT = 8192
"""Length, in characters, of texts that are tokenized in the event loop. It takes a millisecond or two."""
FEW = 64
"""Number of messages that are rendered in the event loop."""
LONGEST_TOKEN = 256
"""Characters of the longest token of any vocabulary. A text with more per token of the context cannot fit."""
REMEMBERED = 256
"""Number of short texts whose ids are cached. The sessions of a group ask the same question, often repeatedly."""
ROLES = {"developer": "system", "function": "tool"}


class Renderer:
    """Prompts of one model.

    Args:
        tokenizer: Tokenizer with the chat template.
        options: Options of the chat template, such as enable_thinking.
    """

    def __init__(self, tokenizer: Tokenizer, options: Mapping[str, Any] | None = None):
        self.tokenizer, self.options = tokenizer, dict(options or {})
        self.tools_in_template = takes_tools(tokenizer.template)
        self.parser = tool_calls.parser_of(tokenizer.template)
        control = [t.content for t in tokenizer.rust.get_added_tokens_decoder().values() if t.special]
        self._known_ids = functools.lru_cache(REMEMBERED)(lambda text: array.array("i", tokenizer.encode(text)))
        self._control = re.compile("|".join(re.escape(t) for t in sorted(control, key=len, reverse=True)) or "(?!)")

    def opening(self, messages: Sequence[Message], tools: Sequence[dict] = (), options: Mapping | None = None):
        """Return the token ids of a full conversation up to the next completion."""
        return self._ids(self._text(messages, tools, options))

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
        if not mark or MARK in rest:
            problem = "the chat template does not render an earlier completion exactly once"
            raise chat.ChatTemplateError(problem, self.tokenizer.template_source)
        return self._ids(rest)

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
            messages = tool_calls.in_words(messages, self._clean(list(tools)))
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


# ----------------------------------------------------------------------------------------------- messages of a body


def read_messages(value: Any) -> list[Message]:
    """Return the messages of a request in the format that chat templates expect."""
    if not isinstance(value, list) or not value:
        raise _refusal("messages", value, "a list of at least one message")
    return [_read_message(message, f"messages[{i}]") for i, message in enumerate(value)]


def _read_message(value: Any, place: str) -> Message:
    if not isinstance(value, dict):
        raise _refusal(place, value, "an object with role and content")
    given = value.get("role")
    role = ROLES.get(given, given) if isinstance(given, str) else None
    if role not in chat.ROLES:
        raise _refusal(f"{place}.role", given, "one of: " + ", ".join((*chat.ROLES, *ROLES)))
    message: Message = {"role": role, "content": _read_content(value.get("content"), f"{place}.content", role)}
    if role == "assistant" and value.get("tool_calls"):
        message["tool_calls"] = _read_tool_calls(value["tool_calls"], f"{place}.tool_calls")
    return message


def _read_content(value: Any, place: str, role: str) -> str:
    if isinstance(value, str):
        return value
    if value is None and role == "assistant":
        return ""
    if not isinstance(value, list):
        raise _refusal(place, value, "a string or a list of parts of type text")
    texts = []
    for i, part in enumerate(value):
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
        if not isinstance(text, str) or part.get("type") not in ("text", "refusal"):
            raise _refusal(f"{place}[{i}]", part, 'a part {"type": "text", "text": …}')
        texts.append(text)
    return "".join(texts)


def _read_tool_calls(value: Any, place: str) -> list[dict]:
    calls = []
    for i, call in enumerate(value if isinstance(value, list) else [value]):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _refusal(f"{place}[{i}]", call, 'an object {"function": {"name", "arguments"}}')
        arguments = function.get("arguments", "{}")
        if isinstance(arguments, str):  # templates serialize them again
            with contextlib.suppress(ValueError, RecursionError):
                arguments = json.loads(arguments or "{}")
        calls.append({"type": "function", "function": {"name": function["name"], "arguments": arguments}})
    return calls


def _refusal(place: str, value: Any, expected: str) -> ApiError:
    return ApiError(400, f"{place} is {_short(value)}, but must be {expected}", param=place.partition("[")[0])


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]}…"
