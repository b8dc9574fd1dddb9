"""Histories of a session: find the earlier completion that a call continues."""

from __future__ import annotations

import collections
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from marl_jax.serving.openai.calls import Call
from marl_jax.serving.openai.prompts import Message
from marl_jax.serving.openai.requests import CompletionRequest

_sorted = json.JSONEncoder(sort_keys=True).encode
THOUGHTS = re.compile(r"<think>.*?</think>|^.*?</think>", re.DOTALL)

Answered = tuple[Call, int]
"""A call and the index of its choice."""


class Histories:
    """Completions that can be continued, by a digest of their messages with and without reasoning."""

    def __init__(self):
        self._known: dict[str, list[tuple[Call, int, str]]] = collections.defaultdict(list)
        self._thoughtless: set[str] = set()

    def find(self, call: Call) -> tuple[Answered | None, str | None]:
        """Return the completion that a conversation continues, and the reason for a fork.

        The first is None if there is no such completion. The second is None if it is the last assistant message.
        """
        messages, tools, fork = call.asked.messages, _tools_key(call.asked), None
        ends = [i + 1 for i, message in enumerate(messages) if message["role"] == "assistant"]
        for end in reversed(ends):  # a foreign assistant message may follow one of this session
            reason = "edited"
            for earlier, k, offered in reversed(self._known.get(_digest(messages[:end]), [])):
                if earlier.model is call.model and offered == tools:
                    return (earlier, k), fork
                reason = "model" if earlier.model is not call.model else "tools"
            if reason == "edited" and _digest(messages[:end], thoughts=False) in self._thoughtless:
                reason = "reasoning"
            fork = fork or reason
        return None, fork

    def remember(self, call: Call) -> None:
        """Add the completions of a chat, so that later calls can continue them."""
        for k, choice in enumerate(call.choices):
            said: Message = {"role": "assistant", "content": choice.text}
            if choice.calls:
                said["tool_calls"] = [
                    {"function": {"name": one.name, "arguments": one.arguments}} for one in choice.calls
                ]
            history = [*call.asked.messages, said]
            digest = _digest(history)
            self._known[digest].append((call, k, _tools_key(call.asked)))
            thought = any("</think>" in message["content"] for message in history)
            self._thoughtless.add(_digest(history, thoughts=False) if thought else digest)


def continued_ids(call: Call, earlier_calls: Iterable[Call]) -> Answered | None:
    """Return the longest earlier completion whose ids the prompt of a text completion starts with."""
    prompt, longest_match, longest = call.asked.prompts[0], None, 0
    if isinstance(prompt, str):
        prompt = call.model.speaker.tokenizer.encode(prompt)
    for earlier in earlier_calls:
        for k, content in enumerate(earlier.contents if earlier.answers is not None else ()):
            whole = earlier.ids + content
            if earlier.model is call.model and longest < len(whole) < len(prompt) and prompt[: len(whole)] == whole:
                longest_match, longest = (earlier, k), len(whole)
    return longest_match


def _tools_key(request: CompletionRequest) -> str:
    """Return the parts of a prompt other than its messages as a string."""
    return _sorted([request.tools, request.template]) if request.tools or request.template else ""


def _digest(messages: Sequence[Message], thoughts: bool = True) -> str:
    """Return a digest of messages.

    Outer white space and the JSON spelling of tool calls do not matter.

    Args:
        messages: Messages of a conversation.
        thoughts: Whether the reasoning of assistants counts.
    """
    canonical = []
    for message in messages:
        words = message["content"]
        if not thoughts and message["role"] == "assistant" and "</think>" in words:
            words = THOUGHTS.sub("", words)
        used = [[one["function"]["name"], _arguments(one["function"])] for one in message.get("tool_calls", ())]
        canonical.append([message["role"], words.strip(), used])
    return hashlib.sha256(_sorted(canonical).encode()).hexdigest()


def _arguments(function: Mapping[str, Any]) -> Any:
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            return json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
    return arguments
