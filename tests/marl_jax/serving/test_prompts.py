"""Prompts, texts and tool calls of served models, each against a simpler implementation."""

import dataclasses
import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_jax.serving.http.errors import ApiError
from marl_jax.serving.openai import tool_calls
from marl_jax.serving.openai.prompts import Renderer, read_messages, takes_tools
from marl_jax.serving.openai.text import TextStream, tokens_within, visible
from models.chat_templates import BUILTIN
from tests.conftest import shared_data
from tests.marl_jax.tiny_host import merging_tokenizer

TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "sub", "parameters": {"type": "object"}}},
]
HERMES = tool_calls.Hermes()
WORDS = st.text("ab <>_tolcE{}\n\u20ac\U0001f642", max_size=20)


def with_template(template):
    return dataclasses.replace(merging_tokenizer(), template=template)


def published(name):
    """Return the published chat template of a model."""
    return json.loads(shared_data(f"tokenizers/{name}_tokenizer_config.json").read_text())["chat_template"]


TEMPLATES = ("chatml", "smollm2", "qwen2.5", "llama3", "phi3", "published qwen2.5", "published qwen3")


def template_of(name):
    return published(name.split()[1]) if name.startswith("published") else BUILTIN[name]


# ------------------------------------------------------------------------------------------------------------ prompts


@given(st.lists(WORDS.filter(str.strip), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_ids_that_are_remembered_are_those_of_the_text(texts):
    tokenizer = merging_tokenizer()
    renderer = Renderer(tokenizer)
    for text in texts * 2:
        messages = [{"role": "user", "content": text}]
        ids = renderer.opening(messages)
        assert ids == tokenizer.encode(renderer._text(messages, (), None))
        ids.clear()  # the caller owns the list


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [(), TOOLS])
def test_what_follows_an_answer_is_what_the_template_writes_there(name, tools):
    """Prompt, completion and continuation together equal the full rendering if texts need no cleaning."""
    renderer = Renderer(with_template(template_of(name)))
    decode = renderer.tokenizer.decode
    first = [{"role": "system", "content": "S"}, {"role": "user", "content": "U ab"}]
    answer = {"role": "assistant", "content": "A ba"}
    later = [{"role": "user", "content": "V"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "W"}]
    for new in (later[:1], later):
        messages = [*first, answer, *new]
        whole = decode(renderer.opening(messages, tools))
        parts = renderer.opening(first, tools), renderer.continuation(messages, 2, tools)
        assert decode(parts[0]) + "A ba" + decode(parts[1]) == whole
        assert ('"add"' in whole) == bool(tools)


@pytest.mark.parametrize("name", TEMPLATES)
def test_results_of_tools_follow_the_call_as_it_was_written(name):
    renderer = Renderer(with_template(template_of(name)))
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = read_messages([
        {"role": "user", "content": "U"}, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "three"},
        {"role": "tool", "tool_call_id": "2", "content": "4"},
    ])  # fmt: skip
    text = renderer.tokenizer.decode(renderer.continuation(messages, 1, TOOLS))
    assert "three" in text and text.index("three") < text.index("4") and "add" not in text
    whole = renderer.tokenizer.decode(renderer.opening(messages, TOOLS))
    assert whole.endswith(text) and '"a": 1' in whole


def test_templates_that_know_tools_are_told_apart():
    assert takes_tools(published("qwen2.5")) and takes_tools(published("qwen3"))
    assert not any(takes_tools(template) for template in BUILTIN.values())
    assert isinstance(tool_calls.parser_of(published("qwen2.5")), tool_calls.Hermes)
    assert isinstance(tool_calls.parser_of(BUILTIN["llama3"]), tool_calls.Llama3)


def test_messages_are_read_as_clients_write_them():
    messages = read_messages([
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "name": "critic", "content": "u"},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"x": [1]}'}}]},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{broken"}}]},
        {"role": "tool", "content": "r", "tool_call_id": "1"},
    ])  # fmt: skip
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "assistant", "tool"]
    assert [m["content"] for m in messages] == ["ab", "u", "", "", "r"]
    arguments = [m["tool_calls"][0]["function"]["arguments"] for m in messages[2:4]]
    assert arguments == [{"x": [1]}, "{broken"]
    for wrong in (None, [], [1], [{}], [{"role": "user"}], [{"role": "user", "content": 1}], [{"role": ["user"]}]):
        with pytest.raises(ApiError):
            read_messages(wrong)


# -------------------------------------------------------------------------------------------------------------- texts


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 262), max_size=30), st.lists(st.sampled_from(["ab", "a", "\n", "ba b", "b"]), max_size=3),
    st.data(),
)  # fmt: skip
def test_pieces_of_a_text_are_the_text(ids, stops, data):
    """Shown text is never retracted, even with multi-byte characters and stop strings."""
    tokenizer = merging_tokenizer()
    ids = [97 + i % 2 if i < 150 else i for i in ids]  # mostly a and b, with some bytes that are not characters
    stream, shown = TextStream(tokenizer, stops), ""
    at = 0
    while at < len(ids):
        step = data.draw(st.integers(1, 5))
        shown += stream.add(ids[at : at + step])
        at += step
    text = visible(tokenizer, ids, stops)
    assert text.startswith(shown)
    assert shown + stream.end(text) == text
    assert not any(stop in text for stop in stops)


@given(st.lists(st.integers(0, 5), max_size=12), st.lists(st.integers(1, 3), min_size=12, max_size=12))
def test_pieces_of_a_text_whose_decoder_drops_the_first_space_are_the_text(ids, sizes):
    words = {"\u2581": 0, "\u2581a": 1, "b": 2, "\u2581\u2581": 3, "</s>": 4, "\u00e9": 5}
    rust = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="b"))
    rust.add_special_tokens(["</s>"])
    rust.decoder = tokenizers.decoders.Sequence([
        tokenizers.decoders.Replace("\u2581", " "), tokenizers.decoders.Fuse(), tokenizers.decoders.Strip(" ", 1, 0),
    ])  # fmt: skip
    tokenizer = dataclasses.replace(merging_tokenizer(), rust=rust)
    stream, shown, at = TextStream(tokenizer), "", 0
    for size in sizes:
        shown += stream.add(ids[at : at + size])
        at += size
    assert shown == visible(tokenizer, ids)


@given(st.lists(st.integers(0, 256), max_size=20), st.integers(0, 25))
def test_tokens_of_the_first_characters(ids, length):
    tokenizer = merging_tokenizer()
    n = tokens_within(tokenizer, ids, length)
    lengths = [len(tokenizer.decode(ids[:i])) for i in range(len(ids) + 1)]
    assert n == next((i for i, found in enumerate(lengths) if found >= length), len(ids))


# --------------------------------------------------------------------------------------------------------- tool calls

ARGUMENTS = st.dictionaries(WORDS, st.recursive(st.integers() | WORDS, lambda x: st.lists(x, max_size=2)), max_size=3)


@given(st.lists(st.tuples(st.sampled_from(["add", "sub"]), ARGUMENTS), min_size=1, max_size=3), WORDS)
def test_calls_are_read_as_they_were_written(calls, text):
    arguments = [json.dumps(a) for _, a in calls]
    if "</tool_call>" in "".join(arguments) or "<tool_call>" in text:
        return
    written = text + "".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {a}}}\n</tool_call>'
        for (name, _), a in zip(calls, arguments, strict=True)
    )
    rest, found = HERMES.parse(written, {"add", "sub"})
    assert rest == text.strip()
    assert [(one.name, json.loads(one.arguments)) for one in found] == calls
    llama = "; ".join(f'{{"name": "{name}", "parameters": {a}}}' for (name, _), a in zip(calls, arguments, strict=True))
    rest, found = tool_calls.Llama3().parse(llama, {"add", "sub"})
    assert rest == "" and [(one.name, json.loads(one.arguments)) for one in found] == calls


@given(WORDS | st.sampled_from(["{", '{"name": 1}', '<tool_call>{"name": []}</tool_call>', "[1]", '{"name": "add"} x']))
def test_what_is_no_call_stays_text(text):
    for parser in (HERMES, tool_calls.Llama3()):
        assert parser.parse(text, {"add"}) == (text, [])
        assert 0 <= parser.held_from(text) <= len(text)


def test_a_call_that_was_cut_short_is_no_call():
    assert HERMES.parse('<tool_call>\n{"name": "add", "arg', {"add"})[1] == []
    assert HERMES.parse('<tool_call>\n{"name": "add", "arguments": {}}', {"add"})[1][0].name == "add"
