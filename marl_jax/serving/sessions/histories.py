"""Histories of a session: find the earlier completion that a call continues."""

from __future__ import annotations

import array
import collections
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marl_jax.serving.openai.calls import Call
from marl_jax.serving.openai.requests import CompletionRequest
from models.renderer import Message

_sorted = json.JSONEncoder(sort_keys=True).encode
THOUGHTS = re.compile(r"<think>.*?</think>|^.*?</think>", re.DOTALL)

Answered = tuple[Call, int]
"""A call and the index of its choice."""


class Histories:
    """Completions that can be continued, by a digest of their messages with and without reasoning."""

    def __init__(self):
        self._known: dict[str, list[tuple[Call, int, str]]] = collections.defaultdict(list)
        self._thoughtless: set[str] = set()
        self._by_ids: dict[tuple[str, bytes], Answered] = {}  # by model and digest of prompt and completion
        self._lengths: set[int] = set()  # lengths of the texts in `_by_ids`
        self._new: list[Call] = []  # calls that are not in `_by_ids` yet

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

    def find_ids(self, model: str, prompt: Sequence[int]) -> Answered | None:
        """Return the longest earlier text of a model that a prompt starts with."""
        for call in self._new:
            for k, content in enumerate(call.contents):
                *_, digest = _prefix_digests(call.ids + content, [len(call.ids) + len(content)])
                self._by_ids.setdefault((call.model.name, digest), (call, k))
                self._lengths.add(len(call.ids) + len(content))
        self._new = []
        lengths = sorted(n for n in self._lengths if n < len(prompt))
        matches = [self._by_ids.get((model, digest)) for digest in _prefix_digests(prompt, lengths)]
        return next(filter(None, reversed(matches)), None)

    def remember(self, call: Call) -> None:
        """Add the completions of a call, so that later calls can continue them."""
        self._new.append(call)
        for k, choice in enumerate(call.choices if call.asked.messages else ()):
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


def _tools_key(request: CompletionRequest) -> str:
    """Return the parts of a prompt other than its messages as a string."""
    return _sorted([request.tools, request.template]) if request.tools or request.template else ""


def _prefix_digests(ids: Sequence[int], lengths: Sequence[int]) -> Iterator[bytes]:
    """Yield the digests of the first n ids, for increasing lengths n."""
    digest, start = hashlib.sha256(), 0
    for end in lengths:
        digest.update(array.array("q", ids[start:end]))
        start = end
        yield digest.digest()


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
