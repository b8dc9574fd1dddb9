"""Messages of a chat request as token ids, by the chat template of the model.

A first request is rendered and tokenised as a whole. One that continues an earlier answer keeps the ids that were read
and sampled before, and only what is new is tokenised: the answer's place in the template is marked, and what the
template writes behind the mark, beginning with whatever closes an answer, is the new text.
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
"""{"role", "content"} with texts, and "tool_calls" where an assistant has called tools: what templates expect."""

MARK = "kjqxzv0vzxqjk"
SHORT = 8192
"""Characters that are rendered and tokenised at once, in a millisecond or two; longer texts do not hold up others."""
REMEMBERED = 256
"""Short texts whose ids are kept: the sessions of a group ask the same question, and often the same again."""
ROLES = {"developer": "system", "function": "tool"}


class Renderer:
    """The prompts of one model.

    options  of its chat template, such as enable_thinking
    """

    def __init__(self, tokenizer: Tokenizer, options: Mapping[str, Any] | None = None):
        self.tokenizer, self.options = tokenizer, dict(options or {})
        self.tools_in_template = takes_tools(tokenizer.template)
        self.parser = tool_calls.parser_of(tokenizer.template)
        control = [t.content for t in tokenizer.rust.get_added_tokens_decoder().values() if t.special]
        self._known_ids = functools.lru_cache(REMEMBERED)(lambda text: array.array("i", tokenizer.encode(text)))
        self._control = re.compile("|".join(re.escape(t) for t in sorted(control, key=len, reverse=True)) or "(?!)")

    def opening(self, messages: Sequence[Message], tools: Sequence[dict] = (), options: Mapping | None = None):
        """The ids of a whole conversation up to the next answer."""
        return self._ids(self._text(messages, tools, options))

    def continuation(
        self, messages: Sequence[Message], known: int, tools: Sequence[dict] = (), options: Mapping | None = None
    ) -> list[int]:
        """The ids behind an answer up to the next one; `known` is the number of the answer's message."""
        marked = [*messages[:known], {"role": "assistant", "content": MARK}, *messages[known + 1 :]]
        before, mark, rest = self._text(marked, tools, options).partition(MARK)
        if not mark or MARK in rest:
            problem = "the chat template does not write an earlier answer once"
            raise chat.ChatTemplateError(problem, self.tokenizer.template_source)
        return self._ids(rest)

    @functools.cached_property
    def token_bytes(self) -> TokenBytes:
        """The bytes of every token; control tokens, which are not part of texts, have none."""
        return self.tokenizer.token_bytes(skip_special=True)

    def content(self, ids: list[int]) -> list[int]:
        """The ids of an answer without the stop token at its end."""
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
        """A JSON value without control tokens in its texts, so that no text can forge a turn."""
        if isinstance(value, str):
            while (clean := self._control.sub("", value)) != value:
                value = clean
            return value
        if isinstance(value, list):
            return [self._clean(item) for item in value]
        return {key: self._clean(item) for key, item in value.items()} if isinstance(value, dict) else value


@functools.lru_cache(maxsize=32)
def takes_tools(template: str) -> bool:
    """Whether a template shows the tools of a request; for others they are described in the system text."""
    tool = {"type": "function", "function": {"name": MARK, "description": "", "parameters": {}}}
    try:
        return MARK in chat.render(template, [{"role": "user", "content": "u"}], tools=[tool])
    except (chat.ChatTemplateError, ValueError):
        return False


# ----------------------------------------------------------------------------------------------- messages of a body


def read_messages(found: Any) -> list[Message]:
    """The messages of a request in the form that templates expect; what is no message is refused with its place."""
    if not isinstance(found, list) or not found:
        raise _refusal("messages", found, "a list of at least one message")
    return [_read_message(message, f"messages[{i}]") for i, message in enumerate(found)]


def _read_message(found: Any, place: str) -> Message:
    if not isinstance(found, dict):
        raise _refusal(place, found, "an object with role and content")
    given = found.get("role")
    role = ROLES.get(given, given) if isinstance(given, str) else None
    if role not in chat.ROLES:
        raise _refusal(f"{place}.role", given, ", ".join((*chat.ROLES, *ROLES)))
    message: Message = {"role": role, "content": _read_content(found.get("content"), f"{place}.content", role)}
    if role == "assistant" and found.get("tool_calls"):
        message["tool_calls"] = _read_tool_calls(found["tool_calls"], f"{place}.tool_calls")
    return message


def _read_content(found: Any, place: str, role: str) -> str:
    if isinstance(found, str):
        return found
    if found is None and role == "assistant":
        return ""
    if not isinstance(found, list):
        raise _refusal(place, found, "a text, or a list of parts of type text")
    texts = []
    for i, part in enumerate(found):
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
        if not isinstance(text, str) or part.get("type") not in ("text", "refusal"):
            raise _refusal(f"{place}[{i}]", part, 'a part {"type": "text", "text": …}')
        texts.append(text)
    return "".join(texts)


def _read_tool_calls(found: Any, place: str) -> list[dict]:
    calls = []
    for i, call in enumerate(found if isinstance(found, list) else [found]):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _refusal(f"{place}[{i}]", call, 'an object {"function": {"name", "arguments"}}')
        arguments = function.get("arguments", "{}")
        if isinstance(arguments, str):  # templates write them as JSON again
            with contextlib.suppress(ValueError, RecursionError):
                arguments = json.loads(arguments or "{}")
        calls.append({"type": "function", "function": {"name": function["name"], "arguments": arguments}})
    return calls


def _refusal(place: str, found: Any, expected: str) -> ApiError:
    return ApiError(400, f"{place} is {_short(found)}; expected {expected}", param=place.partition("[")[0])


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]}…"
