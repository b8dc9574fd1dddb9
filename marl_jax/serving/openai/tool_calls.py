"""Tool calls in the text of an answer: one way of writing them for each family of chat templates.

    Hermes (Qwen and most others)   <tool_call>\\n{"name": "add", "arguments": {"a": 1}}\\n</tool_call>
    LLaMA 3                         {"name": "add", "parameters": {"a": 1}}          the whole answer

For models whose template has no tools, the system text describes them in Hermes' format, which answers then use.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A call as the model wrote it; `arguments` is JSON text, if the model wrote JSON."""

    name: str
    arguments: str


class Hermes:
    """Calls between tags, after any text."""

    closing = "</tool_call>"
    _call = re.compile(r"<tool_call>\s*(\{.*?\})\s*(?:</tool_call>|\Z)", re.DOTALL)

    def prefix(self, name: str | None) -> str:
        """How an answer begins that calls a tool: the named one, or any."""
        return '<tool_call>\n{"name": "' + (f'{name}", "arguments": ' if name else "")

    def held_from(self, text: str) -> int:
        """Where in an unfinished answer a call may begin; what is before it may be shown."""
        start = text.find("<tool_call>")
        return start if start >= 0 else len(text) - _overlap(text, "<tool_call>")

    def parse(self, text: str, names: Collection[str]) -> tuple[str, list[ToolCall]]:
        """The text around the calls, and the calls of these tools; anything else stays text."""
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
    """A call is the whole answer, a JSON object; several are separated by semicolons."""

    closing = ""

    def prefix(self, name: str | None) -> str:
        """How an answer begins that calls a tool: the named one, or any."""
        return '{"name": "' + (f'{name}", "parameters": ' if name else "")

    def held_from(self, text: str) -> int:
        """Where in an unfinished answer a call may begin."""
        return 0 if not text.strip() or text.lstrip().startswith(("{", "<")) else len(text)

    def parse(self, text: str, names: Collection[str]) -> tuple[str, list[ToolCall]]:
        """No text and the calls of these tools, or the text alone."""
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
    """The way in which models of a chat template call tools."""
    return Llama3() if "<|start_header_id|>" in template and "<tool_call>" not in template else Hermes()


def forced(parser: Parser, name: str, text: str) -> ToolCall:
    """The call of a tool that the request names, also where the model did not write JSON; `text` has no prefix."""
    _, calls = parser.parse(parser.prefix(name) + text, {name})
    if calls:
        return calls[0]
    rest = text.strip().removesuffix(parser.closing).rstrip() if parser.closing else text.strip()
    return ToolCall(name, rest.removesuffix("}") if rest.count("}") > rest.count("{") else rest)


def in_words(messages: Sequence[dict[str, Any]], tools: Sequence[dict]) -> list[dict[str, Any]]:
    """Messages for a template that knows nothing of tools: these, their calls and their results become texts."""
    found: list[dict[str, Any]] = []
    for message in messages:
        role, text = message["role"], message["content"]
        if role == "tool":
            result = f"<tool_response>\n{text}\n</tool_response>"
            if found and found[-1].get("results"):  # results of calls made together are one turn
                found[-1]["content"] += f"\n{result}"
            else:
                found.append({"role": "user", "content": result, "results": True})
            continue
        for call in message.get("tool_calls", ()):
            written = json.dumps(call["function"], ensure_ascii=False)
            text += f"{chr(10) if text else ''}<tool_call>\n{written}\n</tool_call>"
        found.append({"role": role, "content": text})
    found = [{"role": m["role"], "content": m["content"]} for m in found]
    if not tools:
        return found
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    words = (
        f"You may call these tools, given as JSON:\n{lines}\n\nTo call one, write\n<tool_call>\n"
        '{"name": NAME, "arguments": OBJECT}\n</tool_call>'
    )
    if found and found[0]["role"] == "system":
        return [{"role": "system", "content": f"{found[0]['content']}\n\n{words}"}, *found[1:]]
    return [{"role": "system", "content": words}, *found]


def _read(text: str, names: Collection[str]) -> ToolCall | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    arguments = found.get("arguments", found.get("parameters", {}))
    if not isinstance(found.get("name"), str) or found["name"] not in names or not isinstance(arguments, dict):
        return None
    return ToolCall(found["name"], json.dumps(arguments, ensure_ascii=False))


def _overlap(text: str, word: str) -> int:
    """The length of the longest end of the text with which the word begins."""
    return next((n for n in range(min(len(word), len(text)), 0, -1) if text.endswith(word[:n])), 0)
