r"""Formats of tool calls in completions: how models write them, and parsers that read them.

    hermes (Qwen and most others)   <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>
    llama3                          {"name": "add", "parameters": {"a": 1}}          the complete text
    fenced                          hermes, or JSON in a fenced code block, or JSON as the complete text

For models whose chat template has no tools, the system message describes them and the format of the calls.
Qwen2.5-Coder has the template of Hermes but writes fenced JSON.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

LONGEST_SHOWN = 80
"""Characters of a completion that a problem shows."""


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A tool call of a model.

    Attributes:
        name: Name of the tool, or "" if it cannot be read.
        arguments: Arguments as a JSON object. If they cannot be read, the text that the model wrote.
        problem: Reason why the call cannot be read, or "".
    """

    name: str
    arguments: str
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A part of a completion that was written as a tool call.

    Attributes:
        start: Index of its first character.
        end: Index after its last character.
        call: The call, possibly with a problem.
    """

    start: int
    end: int
    call: ToolCall


class Parser:
    """Base class of the formats.

    Attributes:
        name: Name of the format in configs.
        opening: Text before the JSON of a call.
        closing: Text after the JSON of a call.
        key: Key of the arguments.
    """

    name: str
    opening = ""
    closing = ""
    key = "arguments"

    def attempts(self, text: str) -> Iterator[Attempt]:
        """Yield the calls in a completion in order, including those that cannot be read."""
        raise NotImplementedError

    def held_from(self, text: str) -> int:
        """Return the index in an unfinished completion from which text may belong to a call."""
        raise NotImplementedError

    def prefix(self, name: str | None) -> str:
        """Return the beginning of a completion that calls the named tool, or any tool."""
        return self.opening + '{"name": "' + (f'{name}", "{self.key}": ' if name else "")

    def instruction(self) -> str:
        """Return how to call a tool, for a chat template without tools."""
        lines = (self.opening.strip(), f'{{"name": NAME, "{self.key}": OBJECT}}', self.closing)
        return "To call one, write\n" + "\n".join(line for line in lines if line)

    def parse(self, text: str, names: Collection[str]) -> tuple[str, list[ToolCall]]:
        """Return the text around the calls, and the calls of known tools.

        Anything else stays text.
        """
        calls, rest, at = [], "", 0
        for attempt in self.attempts(text):
            if not attempt.call.problem and attempt.call.name in names:
                calls.append(attempt.call)
                rest, at = rest + text[at : attempt.start], attempt.end
        return ((rest + text[at:]).strip(), calls) if calls else (text, [])


class Hermes(Parser):
    """Calls between tags, after any text."""

    name = "hermes"
    opening, closing = "<tool_call>\n", "</tool_call>"
    _open, _tag = re.compile(r"<tool_call>\s*"), re.compile(r"</?tool_call>")
    _end = re.compile(r"\s*(?:</tool_call>|\Z|(?=<tool_call>))")

    def held_from(self, text: str) -> int:
        """Return the index of the first, possibly unfinished, tag."""
        start = text.find("<tool_call>")
        return start if start >= 0 else len(text) - _overlap(text, "<tool_call>")

    def attempts(self, text: str) -> Iterator[Attempt]:
        """Yield what follows each opening tag."""
        at = 0
        while (opened := self._open.search(text, at)) is not None:
            call, end = _decode(text, opened.end())
            closed = self._end.match(text, end)
            if call is None or closed is None:
                tag = self._tag.search(text, opened.end())
                end = len(text) if tag is None else tag.start()
                call = _unreadable(text[opened.end() : end])
            at = closed.end() if closed else end + len("</tool_call>") * text.startswith("</tool_call>", end)
            yield Attempt(opened.start(), at, call)


class Llama3(Parser):
    """Completions that are JSON objects, one for each call, separated by semicolons."""

    name = "llama3"
    key = "parameters"
    _open, _separator = re.compile(r"\s*(?:<\|python_tag\|>)?\s*"), re.compile(r"[\s;]*")

    def held_from(self, text: str) -> int:
        """Return 0 if the completion may be a call."""
        return 0 if not text.strip() or text.lstrip().startswith(("{", "<")) else len(text)

    def attempts(self, text: str) -> Iterator[Attempt]:
        """Yield the objects if the text has nothing else.

        Other JSON, such as an answer, is no call.
        """
        at, attempts = _end_of(self._open, text, 0), []
        while text.startswith("{", at):
            call, end = _decode(text, at)
            if call is None:
                call, end = _unreadable(text[at:]), len(text)
            if call.problem and not _looks_like_call(text[at:end]):
                return
            attempts.append(Attempt(at, end := _end_of(self._separator, text, end), call))
            at = end
        if at == len(text):
            yield from attempts


class Fenced(Parser):
    """Calls in fenced code blocks, as the complete text, or between the tags of Hermes."""

    name = "fenced"
    opening, closing = "```json\n", "```"
    _open = re.compile(r"```(?:json|tool_call)?\s*(?:\[\s*)?(?=\{)")
    _separator, _close = re.compile(r"[\s,;\]]*"), re.compile(r"(?:```)?")

    def held_from(self, text: str) -> int:
        """Return the index of the first fence or tag, or 0 for bare JSON."""
        if not text.strip() or text.lstrip().startswith("{"):
            return 0
        fence = text.find("```")
        return min(Hermes().held_from(text), fence if fence >= 0 else len(text) - _overlap(text, "```"))

    def attempts(self, text: str) -> Iterator[Attempt]:
        """Yield calls between tags or in fences, whichever come first, and otherwise bare ones."""
        tag, fence = _index(text, "<tool_call>", 0), _index(text, "```", 0)
        if tag < fence:
            yield from Hermes().attempts(text)
        elif fence < len(text):
            yield from self._in_fences(text)
        else:
            yield from Llama3().attempts(text)

    def _in_fences(self, text: str) -> Iterator[Attempt]:
        """Yield the objects of fenced blocks: one, several or a list.

        Other JSON, such as an answer, is no call.
        """
        at = 0
        while (opened := self._open.search(text, at)) is not None:
            start, at = opened.start(), opened.end()
            while text.startswith("{", at):
                call, end = _decode(text, at)
                if call is None:
                    end = _index(text, "```", at)
                    call = _unreadable(text[at:end])
                is_call = _looks_like_call(text[at:end])
                at = _end_of(self._close, text, _end_of(self._separator, text, end))
                if is_call:
                    yield Attempt(start, at, call)
                start = at


PARSERS: dict[str, type[Parser]] = {parser.name: parser for parser in (Hermes, Llama3, Fenced)}
FORMATS = ("auto", *PARSERS)
"""Values of `task.tool_format`."""


def parser_of(template: str, tool_format: str = "auto") -> Parser:
    """Return the parser for a format; "auto" chooses Hermes or Llama3 by the chat template."""
    if tool_format not in FORMATS:
        raise ValueError(f"tool_format is {tool_format!r}, but must be one of: {', '.join(FORMATS)}")
    if tool_format == "auto":
        return Llama3() if "<|start_header_id|>" in template and "<tool_call>" not in template else Hermes()
    return PARSERS[tool_format]()


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


def in_words(messages: Sequence[dict[str, Any]], tools: Sequence[dict], parser: Parser) -> list[dict[str, Any]]:
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
    words = f"You may call these tools, given as JSON:\n{lines}\n\n{parser.instruction()}"
    if rewritten and rewritten[0]["role"] == "system":
        return [{"role": "system", "content": f"{rewritten[0]['content']}\n\n{words}"}, *rewritten[1:]]
    return [{"role": "system", "content": words}, *rewritten]


# ------------------------------------------------------------------------------------------------------------- reading


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _decode(text: str, start: int) -> tuple[ToolCall | None, int]:
    """Return the call at an index, None if unreadable, and its end."""
    try:
        value, length = _DECODER.raw_decode(text[start:])  # an error counts the lines before it
    except (ValueError, RecursionError):
        return None, start
    end = start + length
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return ToolCall("", text[start:end], 'a call must be a JSON object with "name" and "arguments"'), end
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, dict):
        kind = "a string" if isinstance(arguments, str) else json.dumps(arguments)[:LONGEST_SHOWN]
        return ToolCall(value["name"], text[start:end], f"the arguments are {kind}, but must be a JSON object"), end
    return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False)), end


def _unreadable(text: str) -> ToolCall:
    """Return the call for a text that is not JSON, with the decoder's message."""
    shown = text.strip()
    try:
        _, end = _DECODER.raw_decode(shown)
        problem = f"there is text after the JSON: {shown[end:].strip()[:LONGEST_SHOWN]!r}"
    except RecursionError:
        problem = "the JSON is nested too deeply"
    except ValueError as error:
        problem = f"the call is not valid JSON: {error}"
    name = re.search(r'"name"\s*:\s*"([^"\\]*)"', shown)
    return ToolCall(name[1] if name else "", shown, problem)


def _looks_like_call(text: str) -> bool:
    """Return whether JSON, possibly invalid, has the keys of a call."""
    return re.search(r'"name"\s*:', text) is not None and re.search(r'"(?:arguments|parameters)"\s*:', text) is not None


def _index(text: str, word: str, start: int) -> int:
    """Return the index of a word, or the length of the text."""
    return index if (index := text.find(word, start)) >= 0 else len(text)


def _end_of(pattern: re.Pattern, text: str, start: int) -> int:
    """Return the index after a match of a pattern that matches everywhere."""
    match = pattern.match(text, start)
    return start if match is None else match.end()


def _overlap(text: str, word: str) -> int:
    """Return the length of the longest suffix of `text` that starts `word`."""
    return next((n for n in range(min(len(word), len(text)), 0, -1) if text.endswith(word[:n])), 0)
