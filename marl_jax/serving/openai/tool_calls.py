r"""Parsers of the tool calls in completions, one for each family of chat templates.

    Hermes (Qwen and most others)   <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>
    LLaMA 3                         {"name": "add", "parameters": {"a": 1}}          the complete text

For models whose chat template has no tools, the system message describes them in the format of Hermes.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A tool call of a model.

    Attributes:
        name: Name of the tool.
        arguments: Arguments as JSON, if the model wrote valid JSON.
    """

    name: str
    arguments: str


class Hermes:
    """Parser of tool calls between tags, after any text."""

    closing = "</tool_call>"
    _call = re.compile(r"<tool_call>\s*(\{.*?\})\s*(?:</tool_call>|\Z)", re.DOTALL)

    def prefix(self, name: str | None) -> str:
        """Return the beginning of a completion that calls the named tool, or any tool."""
        return '<tool_call>\n{"name": "' + (f'{name}", "arguments": ' if name else "")

    def held_from(self, text: str) -> int:
        """Return the index in an unfinished completion from which text may belong to a call."""
        start = text.find("<tool_call>")
        return start if start >= 0 else len(text) - _overlap(text, "<tool_call>")

    def parse(self, text: str, names: Collection[str]) -> tuple[str, list[ToolCall]]:
        """Return the text around the calls, and the calls of known tools.

        Anything else stays text.
        """
        calls: list[ToolCall] = []

        def take(match: re.Match) -> str:
            call = _read(match[1], names)
            if call is None:
                return match[0]
            calls.append(call)
            return ""

        rest = self._call.sub(take, text)
        return (rest.strip() if calls else text), calls


class Llama3:
    """Parser of completions that are JSON objects, one for each call, separated by semicolons."""

    closing = ""

    def prefix(self, name: str | None) -> str:
        """Return the beginning of a completion that calls the named tool, or any tool."""
        return '{"name": "' + (f'{name}", "parameters": ' if name else "")

    def held_from(self, text: str) -> int:
        """Return the index in an unfinished completion from which text may belong to a call."""
        return 0 if not text.strip() or text.lstrip().startswith(("{", "<")) else len(text)

    def parse(self, text: str, names: Collection[str]) -> tuple[str, list[ToolCall]]:
        """Return an empty text and the calls of known tools, or only the text."""
        decoder, rest, calls = json.JSONDecoder(), text.strip().removeprefix("<|python_tag|>").strip(), []
        while rest.startswith("{"):
            try:
                _, end = decoder.raw_decode(rest)
            except (ValueError, RecursionError):
                break
            call = _read(rest[:end], names)
            if call is None:
                break
            calls.append(call)
            rest = rest[end:].lstrip().removeprefix(";").lstrip()
        return ("", calls) if calls and not rest else (text, [])


Parser = Hermes | Llama3


def parser_of(template: str) -> Parser:
    """Return the parser for the tool calls of a chat template."""
    return Llama3() if "<|start_header_id|>" in template and "<tool_call>" not in template else Hermes()


def forced(parser: Parser, name: str, text: str) -> ToolCall:
    """Return the call of a required tool, even if the model wrote invalid JSON.

    Args:
        parser: Parser of the model's tool calls.
        name: Name of the required tool.
        text: Completion without the forced prefix.
    """
    _, calls = parser.parse(parser.prefix(name) + text, {name})
    if calls:
        return calls[0]
    rest = text.strip().removesuffix(parser.closing).rstrip() if parser.closing else text.strip()
    return ToolCall(name, rest.removesuffix("}") if rest.count("}") > rest.count("{") else rest)


def in_words(messages: Sequence[dict[str, Any]], tools: Sequence[dict]) -> list[dict[str, Any]]:
    """Describe tools, tool calls and results as text, for a chat template without tools."""
    rewritten: list[dict[str, Any]] = []
    for message in messages:
        role, text = message["role"], message["content"]
        if role == "tool":
            result = f"<tool_response>\n{text}\n</tool_response>"
            if rewritten and rewritten[-1].get("results"):  # results of simultaneous calls form one turn
                rewritten[-1]["content"] += f"\n{result}"
            else:
                rewritten.append({"role": "user", "content": result, "results": True})
            continue
        for call in message.get("tool_calls", ()):
            written = json.dumps(call["function"], ensure_ascii=False)
            text += f"{chr(10) if text else ''}<tool_call>\n{written}\n</tool_call>"
        rewritten.append({"role": role, "content": text})
    rewritten = [{"role": m["role"], "content": m["content"]} for m in rewritten]
    if not tools:
        return rewritten
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    words = (
        f"You may call these tools, given as JSON:\n{lines}\n\nTo call one, write\n<tool_call>\n"
        '{"name": NAME, "arguments": OBJECT}\n</tool_call>'
    )
    if rewritten and rewritten[0]["role"] == "system":
        return [{"role": "system", "content": f"{rewritten[0]['content']}\n\n{words}"}, *rewritten[1:]]
    return [{"role": "system", "content": words}, *rewritten]


def _read(text: str, names: Collection[str]) -> ToolCall | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(value.get("name"), str) or value["name"] not in names or not isinstance(arguments, dict):
        return None
    return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False))


def _overlap(text: str, word: str) -> int:
    """Return the length of the longest suffix of `text` that starts `word`."""
    return next((n for n in range(min(len(word), len(text)), 0, -1) if text.endswith(word[:n])), 0)
