"""The histories of a session: which earlier answer a call continues, judged by its messages or its ids."""

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
"""A call and the number of its answer."""


class Histories:
    """What can be continued, by a digest of the messages: as they were given out, and without thoughts."""

    def __init__(self):
        self._known: dict[str, list[tuple[Call, int, str]]] = collections.defaultdict(list)
        self._thoughtless: set[str] = set()

    def find(self, call: Call) -> tuple[Answered | None, str | None]:
        """The last answer that a chat continues, or None; and why it does not continue the last one it shows."""
        messages, tools, fork = call.asked.messages, _tools_key(call.asked), None
        ends = [i + 1 for i, message in enumerate(messages) if message["role"] == "assistant"]
        for end in reversed(ends):  # an answer that is not ours may stand behind one that is
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
        """Makes the answers of a chat histories that others can continue."""
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
    """For a completion: the longest earlier answer whose ids the prompt begins with."""
    prompt, found, longest = call.asked.prompts[0], None, 0
    if isinstance(prompt, str):
        prompt = call.model.speaker.tokenizer.encode(prompt)
    for earlier in earlier_calls:
        for k, content in enumerate(earlier.contents if earlier.answers is not None else ()):
            whole = earlier.ids + content
            if earlier.model is call.model and longest < len(whole) < len(prompt) and prompt[: len(whole)] == whole:
                found, longest = (earlier, k), len(whole)
    return found


def _tools_key(asked: CompletionRequest) -> str:
    """What of a request besides its messages is part of the prompt."""
    return _sorted([asked.tools, asked.template]) if asked.tools or asked.template else ""


def _digest(messages: Sequence[Message], thoughts: bool = True) -> str:
    """A digest of messages: the ends of texts and the spelling of a tool call's JSON do not matter.

    thoughts  False: neither does what assistants thought
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
    found = function.get("arguments")
    if isinstance(found, str):
        try:
            return json.loads(found)
        except (ValueError, RecursionError):
            return found
    return found
