"""Chat and text completions in OpenAI's format, complete or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from marl_jax.serving.openai import requests
from marl_jax.serving.openai.calls import Call
from marl_jax.serving.openai.text import TextStream, tokens_within, visible
from models.renderer import Renderer

LEAST = -9999.0  # replaces a log-prob of minus infinity, which JSON cannot represent


def version(call: Call) -> int:
    """Return the version of the weights that generated the last token of a call."""
    newest = 0
    for answer in call.answers or [shown[-1] for shown in call.shown if shown]:
        if len(answer.versions):
            newest = max(newest, int(answer.versions[-1]))
    return newest


def chat_completion(call: Call, tops: Sequence[Any] | None = None) -> dict[str, Any]:
    """Return a complete chat completion."""
    choices = []
    for k, choice in enumerate(call.choices):
        logprobs = {"content": _entries(call, k, tops), "refusal": None} if call.asked.logprobs else None
        message = choice.message()
        choices.append({"index": k, "message": message, "logprobs": logprobs, "finish_reason": choice.finish})
    return requests.envelope("chat.completion", call, version(call), choices, usage=total([call]))


def completion(calls: Sequence[Call], tops: Sequence[Sequence[Any] | None] | None = None) -> dict[str, Any]:
    """Return a complete text completion of one or more prompts."""
    choices = []
    for i, call in enumerate(calls):
        for k, choice in enumerate(call.choices):
            logprobs = _columns(_entries(call, k, tops and tops[i])) if call.asked.logprobs else None
            text = (call.model.speaker.tokenizer.decode(call.ids) if call.asked.echo else "") + choice.text
            choices.append({
                "index": i * call.asked.n + k, "text": text, "logprobs": logprobs, "finish_reason": choice.finish
            })  # fmt: skip
    return requests.envelope("text_completion", calls[0], version(calls[0]), choices, usage=total(calls))


def total(calls: Sequence[Call]) -> dict[str, int]:
    """Return the token usage of all prompts and completions; n completions share one prompt."""
    written = sum(len(answer.tokens) for call in calls for answer in call.answers or ())
    return requests.usage(sum(len(call.ids) for call in calls), written)


class Pieces:
    """The chunks of a streamed completion as server-sent events in OpenAI's format."""

    def __init__(self, call: Call):
        self.call, self.chat = call, bool(call.asked.messages)
        holds: Callable[[str], int] | None = call.model.renderer.parser.held_from if call.asked.tools else None
        if call.asked.forced is not None:  # the complete text is a tool call
            holds = _hold_all
        tokenizer, n = call.model.speaker.tokenizer, call.asked.n
        self._streams = [TextStream(tokenizer, call.asked.stops, holds) for _ in range(n)]
        self._read = [0] * n  # number of pieces of `call.shown` already read
        self._logprobs: list[list[float]] = [[] for _ in range(n)]
        self._listed = [0] * n  # number of tokens whose log-probs were sent
        self._envelopes: dict[int, tuple[bytes, bytes]] = {}  # bytes around a choice, by version
        self._frames: dict[tuple[int, int], tuple[bytes, bytes]] = {}  # bytes around a text, by choice and version

    def begin(self) -> Iterator[bytes]:
        """Yield the first chunk of every choice."""
        for k in range(self.call.asked.n if self.chat else 0):
            yield self._event(k, {"role": "assistant", "content": ""})

    def more(self) -> Iterator[bytes]:
        """Yield the text that can be shown since the last call.

        With `top_logprobs` nothing is shown before the end, because they are computed from complete completions.
        """
        if self.call.asked.top_logprobs:
            return
        for k, stream in enumerate(self._streams):
            new = self.call.shown[k][self._read[k] :]
            self._read[k] += len(new)
            text = "".join(stream.add(one.tokens.tolist()) for one in new)
            if self.call.asked.logprobs:
                self._logprobs[k] += [x for one in new for x in one.logps.tolist()]
                if text:
                    yield self._event(k, {"content": text}, logprobs=self._new_entries(k))
            elif text:
                yield self._text_event(k, text)

    def end(self, tops: Sequence[Any] | None = None) -> Iterator[bytes]:
        """Yield the rest of every choice and its finish reason."""
        for k, (stream, choice) in enumerate(zip(self._streams, self.call.choices, strict=True)):
            assert self.call.answers is not None
            answer = self.call.answers[k]
            stream.ids = list(self.call.contents[k])
            self._logprobs[k] = answer.logps.tolist()
            text = stream.end(choice.text)
            entries = self._new_entries(k, last=True, tops=tops)
            if text or (entries and entries["content" if self.chat else "tokens"]):
                yield self._event(k, {"content": text}, logprobs=entries)
            for i, (id_, call) in enumerate(zip(choice.ids, choice.calls, strict=True)):
                function = {"name": call.name, "arguments": call.arguments}
                delta = {"index": i, "id": id_, "type": "function", "function": function}
                yield self._event(k, {"tool_calls": [delta]})
            yield self._event(k, {}, finish=choice.finish)
        if self.call.asked.include_usage:
            yield requests.event(self._envelope([], usage=total([self.call])))
        yield requests.event("[DONE]")

    def _new_entries(self, k: int, last: bool = False, tops: Sequence[Any] | None = None) -> dict | None:
        """Return the log-probs of tokens whose text has been shown since the last call."""
        if not self.call.asked.logprobs:
            return None
        stream, begin = self._streams[k], self._listed[k]
        if last:
            entries = _entries(self.call, k, tops)[begin:]
        else:
            upto = tokens_within(self.call.model.speaker.tokenizer, stream.ids, stream.shown)
            entries = [
                _entry(self.call.model.renderer, i, logp)
                for i, logp in zip(stream.ids[begin:upto], self._logprobs[k][begin:upto], strict=True)
            ]
        self._listed[k] = begin + len(entries)
        return {"content": entries, "refusal": None} if self.chat else _columns(entries)

    def _text_event(self, k: int, text: str) -> bytes:
        """Return the event of a text without log-probs, reusing the bytes around the text."""
        key = k, version(self.call)
        if key not in self._frames:
            before, _, after = self._event(k, {"content": "\0"}).rpartition(b'"\\u0000"')
            self._frames[key] = before, after
        before, after = self._frames[key]
        return before + requests.encode(text).encode() + after

    def _event(self, k: int, delta: dict, finish: str | None = None, logprobs: dict | None = None) -> bytes:
        choice: dict[str, Any] = {"index": k, "finish_reason": finish, "logprobs": logprobs}
        choice |= {"delta": delta} if self.chat else {"text": delta.get("content", "")}
        key = version(self.call)
        if key not in self._envelopes:
            before, _, after = requests.event(self._envelope(["\0"])).rpartition(b'"\\u0000"')
            self._envelopes[key] = before, after
        before, after = self._envelopes[key]
        return before + requests.encode(choice).encode() + after

    def _envelope(self, choices: list, usage: dict[str, int] | None = None) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        more = {"usage": usage} if self.call.asked.include_usage else {}
        return requests.envelope(kind, self.call, version(self.call), choices, **more)


def _hold_all(text: str) -> int:
    return 0


def _entries(call: Call, k: int, tops: Sequence[Any] | None) -> list[dict[str, Any]]:
    """Return the log-probs of a completion's tokens up to the end of the visible text."""
    assert call.answers is not None
    ids, answer, tokenizer = call.contents[k], call.answers[k], call.model.speaker.tokenizer
    n = len(ids)
    if call.asked.stops:
        length = len(visible(tokenizer, ids, call.asked.stops))
        if length < len(visible(tokenizer, ids)):
            n = tokens_within(tokenizer, ids, length)
    return [
        _entry(call.model.renderer, i, float(answer.logps[t]), None if tops is None else tops[k][t])
        for t, i in enumerate(ids[:n])
    ]


def _entry(renderer: Renderer, token: int, logp: float, top: Sequence[tuple[int, float]] | None = None) -> dict:
    """Return one token with its log-prob; `top` has the most likely tokens at its position."""
    entry = _token(renderer, token, logp)
    return entry | {"top_logprobs": [_token(renderer, i, p) for i, p in top or ()]}


def _token(renderer: Renderer, token: int, logp: float) -> dict[str, Any]:
    text = renderer.tokenizer.decode([token])
    return {"token": text, "logprob": max(float(logp), LEAST), "bytes": list(renderer.token_bytes.of(token)) or None}


def _columns(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return log-probs in the format of text completions."""
    offsets, at = [], 0
    for entry in entries:
        offsets.append(at)
        at += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [{top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries],
        "text_offset": offsets,
    }
