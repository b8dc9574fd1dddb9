"""Texts and messages of served models, each against a simpler implementation."""

import dataclasses

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_jax.serving.http.errors import ApiError
from marl_jax.serving.openai.messages import read_messages
from marl_jax.serving.openai.text import TextStream, tokens_within, visible
from tests.conftest import examples
from tests.marl_jax.tiny_host import merging_tokenizer


def test_messages_are_read_as_clients_write_them():
    messages, urls = read_messages([
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "name": "critic", "content": "u"},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"x": [1]}'}}]},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{broken"}}]},
        {"role": "tool", "content": "r", "tool_call_id": "1"},
    ])  # fmt: skip
    assert not urls and [m["role"] for m in messages] == ["system", "user", "assistant", "assistant", "tool"]
    assert [m["content"] for m in messages] == ["ab", "u", "", "", "r"]
    arguments = [m["tool_calls"][0]["function"]["arguments"] for m in messages[2:4]]
    assert arguments == [{"x": [1]}, "{broken"]
    for wrong in (None, [], [1], [{}], [{"role": "user"}], [{"role": "user", "content": 1}], [{"role": ["user"]}]):
        with pytest.raises(ApiError):
            read_messages(wrong)


@settings(max_examples=examples(200), deadline=None)
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
