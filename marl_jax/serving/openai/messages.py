"""Reading of the messages of a chat request."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection
from typing import Any

from marl_jax.serving.http.errors import ApiError
from marl_jax.serving.openai import images
from models import chat
from models.renderer import IMAGE, Message

ROLES = {"developer": "system", "function": "tool"}


def read_messages(value: Any, hosts: Collection[str] = ()) -> tuple[list[Message], list[str]]:
    """Return the messages in the format of chat templates, and their images' URLs.

    Args:
        value: Messages of the request.
        hosts: Hosts from which images may be fetched.
    """
    if not isinstance(value, list) or not value:
        raise _refusal("messages", value, "a list of at least one message")
    urls: list[str] = []
    messages = [_read_message(message, f"messages[{i}]", urls) for i, message in enumerate(value)]
    for url in urls:
        images.check_url(url, hosts)
    return messages, urls


def _read_message(value: Any, place: str, urls: list[str]) -> Message:
    if not isinstance(value, dict):
        raise _refusal(place, value, "an object with role and content")
    given = value.get("role")
    role = ROLES.get(given, given) if isinstance(given, str) else None
    if role not in chat.ROLES:
        raise _refusal(f"{place}.role", given, "one of: " + ", ".join((*chat.ROLES, *ROLES)))
    message: Message = {"role": role, "content": _read_content(value.get("content"), f"{place}.content", role, urls)}
    if role == "assistant" and value.get("tool_calls"):
        message["tool_calls"] = _read_tool_calls(value["tool_calls"], f"{place}.tool_calls")
    return message


def _read_content(value: Any, place: str, role: str, urls: list[str]) -> str:
    if isinstance(value, str):
        return value
    if value is None and role == "assistant":
        return ""
    if not isinstance(value, list):
        raise _refusal(place, value, "a string or a list of parts of type text or image_url")
    texts = []
    for i, part in enumerate(value):
        if isinstance(part, dict) and part.get("type") == "image_url" and role == "user":
            image = part.get("image_url")
            if not isinstance(image, dict) or not isinstance(image.get("url"), str):
                raise _refusal(f"{place}[{i}].image_url", image, 'an object {"url": "data:image/png;base64,…"}')
            urls.append(image["url"])
            texts.append(IMAGE)
            continue
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
        if not isinstance(text, str) or part.get("type") not in ("text", "refusal"):
            raise _refusal(f"{place}[{i}]", part, 'a part {"type": "text", "text": …}, or an image_url of a user')
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
