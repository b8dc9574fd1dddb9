"""Prompts with tools, and formats of tool calls, each against a simpler implementation."""

import dataclasses
import json
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_jax.schema.run_fields import TASK
from models import tool_calls
from models.chat_templates import BUILTIN
from models.renderer import MARK, Renderer, takes_tools
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
    messages = [
        {"role": "user", "content": "U"}, {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "three"},
        {"role": "tool", "tool_call_id": "2", "content": "4"},
    ]  # fmt: skip
    text = renderer.tokenizer.decode(renderer.continuation(messages, 1, TOOLS))
    assert "three" in text and text.index("three") < text.index("4") and "add" not in text
    whole = renderer.tokenizer.decode(renderer.opening(messages, TOOLS))
    assert whole.endswith(text) and '"a": 1' in whole


def test_templates_that_know_tools_are_told_apart():
    assert takes_tools(published("qwen2.5")) and takes_tools(published("qwen3"))
    assert not any(takes_tools(template) for template in BUILTIN.values())
    assert isinstance(tool_calls.parser_of(published("qwen2.5")), tool_calls.Hermes)
    assert isinstance(tool_calls.parser_of(BUILTIN["llama3"]), tool_calls.Llama3)


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


FENCED = tool_calls.Fenced()
ADD = '{"name": "add", "arguments": {"a": 1}}'
SUB = '{"name": "sub", "arguments": {"text": "```<tool_call>"}}'


@pytest.mark.parametrize(("text", "names", "rest"), [  # as Qwen2.5-Coder writes them
    (f"```json\n{ADD}\n```", ["add"], ""),
    (f"I add.\n```json\n{ADD}\n```\nThen I wait.", ["add"], "I add.\n\nThen I wait."),
    (f"```\n{ADD}\n```\n```json\n{ADD}\n```", ["add", "add"], ""),
    (f"```json\n[{ADD}, {ADD}]\n```", ["add", "add"], ""),
    (f"```json\n{ADD}\n{ADD}\n", ["add", "add"], ""),
    (f"```tool_call\n{SUB}\n```", ["sub"], ""),
    (ADD, ["add"], ""),
    (f"{ADD}\n{ADD}", ["add", "add"], ""),
    (f"<tool_call>\n{ADD}\n</tool_call>", ["add"], ""),
    (f'```json\n{{"answer": 3}}\n```\n```json\n{ADD}\n```', ["add"], '```json\n{"answer": 3}\n```'),
    ('```json\n{"name": "Ana", "age": 5}\n```', [], None),
    ('{"name": "Ana", "age": 5}', [], None),
    (f"The JSON is {ADD}", [], None),
    (f"```python\n{ADD}\n```", [], None),
    ("```json\n```", [], None),
])  # fmt: skip
def test_fenced_and_bare_json_is_read(text, names, rest):
    found, calls = FENCED.parse(text, {"add", "sub"})
    assert [call.name for call in calls] == names
    assert found.strip() == (text if rest is None else rest)
    assert all(0 <= FENCED.held_from(text[:i]) <= i for i in range(len(text) + 1))


@pytest.mark.parametrize(("parser", "text", "names", "problem"), [
    (HERMES, '<tool_call>{"name": "add", "arguments": {"a": 1}', ["add"], "the call is not valid JSON"),
    (HERMES, f"<tool_call>{ADD} and</tool_call>", ["add"], "there is text after the JSON: 'and'"),
    (HERMES, "<tool_call>add(1)</tool_call>", [""], "the call is not valid JSON"),
    (HERMES, "<tool_call>[]</tool_call>", [""], "must be a JSON object"),
    (HERMES, "<tool_call>" + "[" * 5000, [""], "nested too deeply"),
    (HERMES, '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}', ["add"], "the arguments are a string, but"),
    (HERMES, '<tool_call>{"name": "add", "arguments": [1]}', ["add"], r"the arguments are \[1\], but must be"),
    (HERMES, '<tool_call>{"name": "add", "arguments": {"a": NaN}}', ["add"], "NaN is not JSON"),
    (HERMES, '<tool_call>{"name": "add", "arguments": {"a": 1' + "0" * 5000 + "}}", ["add"], "not valid JSON"),
    (tool_calls.Llama3(), '{"name": "add", "parameters": {"a": 1}', ["add"], "the call is not valid JSON"),
    (tool_calls.Llama3(), '{"name": "add", "parameters": "1"}', ["add"], "the arguments are a string"),
    (FENCED, '```json\n{"name": "add", "arguments": {"a": }}\n```', ["add"], "the call is not valid JSON"),
    (FENCED, '{"name": "add", "arguments": {"a": 1}', ["add"], "the call is not valid JSON"),
])  # fmt: skip
def test_calls_that_cannot_be_read_are_attempts_with_a_problem(parser, text, names, problem):
    attempts = [attempt.call for attempt in parser.attempts(text)]
    assert [call.name for call in attempts] == names
    assert re.search(problem, attempts[0].problem)
    assert parser.parse(text, {"add", ""}) == (text, [])


def test_a_bad_call_does_not_hide_the_next_one():
    text = f"<tool_call>\n{{bad}}\n</tool_call>\n<tool_call>\n{ADD}\n<tool_call>\n{SUB}\n</tool_call> end"
    assert [bool(attempt.call.problem) for attempt in HERMES.attempts(text)] == [True, False, False]
    rest, calls = HERMES.parse(text, {"add", "sub"})
    assert [call.name for call in calls] == ["add", "sub"]
    assert json.loads(calls[1].arguments) == {"text": "```<tool_call>"} and rest.endswith("</tool_call>\n end")


@given(st.lists(st.sampled_from([
    "<tool_call>", "</tool_call>", "```", "```json\n", "{", "}", "[", "]", '"name": "add"', '"arguments": {}', ",", ";",
    " ",
    "a", '"', ADD, "\n", "<|python_tag|>",
]), max_size=12).map("".join))  # fmt: skip
def test_attempts_are_parts_of_the_text_in_order(text):
    for parser in (HERMES, tool_calls.Llama3(), FENCED):
        at = 0
        for attempt in parser.attempts(text):
            assert at <= attempt.start < attempt.end <= len(text)
            at = attempt.end
            if not attempt.call.problem:
                assert isinstance(json.loads(attempt.call.arguments), dict) and attempt.call.name == "add"
        assert 0 <= parser.held_from(text) <= len(text)


@pytest.mark.parametrize("parser", [HERMES, tool_calls.Llama3(), FENCED])
def test_long_completions_are_read_in_linear_time(parser):
    pieces = ("<tool_call>{", "```json\n", "``` ", '<tool_call>{"', "```{", '{"name":', "[[", "```json" + " " * 50)
    started = time.monotonic()
    for piece in pieces:
        list(parser.attempts(piece * (100_000 // len(piece))))
    assert time.monotonic() - started < 5


def test_formats():
    hermes = published("qwen2.5")
    assert [type(tool_calls.parser_of(hermes, name)).__name__ for name in tool_calls.FORMATS] == [
        "Hermes", "Hermes", "Llama3", "Fenced",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="tool_format is 'xml', but must be one of: auto, hermes, llama3, fenced"):
        tool_calls.parser_of(hermes, "xml")
    assert TASK["tool_format"].rule.accepted == "one of: " + ", ".join(tool_calls.FORMATS)


@pytest.mark.parametrize("name", tool_calls.PARSERS)
def test_a_template_without_tools_describes_the_format_that_is_read(name):
    renderer = Renderer(with_template(BUILTIN["chatml"]), tool_format=name)
    prompt = renderer.tokenizer.decode(renderer.opening([{"role": "user", "content": "U"}], TOOLS))
    example = prompt.partition("To call one, write\n")[2].partition("<|im_end|>")[0]
    written = example.replace("NAME", '"add"').replace("OBJECT", '{"a": 1}')
    assert renderer.parser.parse(written, {"add"})[1] == [tool_calls.ToolCall("add", '{"a": 1}')]
    assert renderer.parser.prefix("add").startswith(example.partition("NAME")[0])


def test_a_result_with_the_marker_is_only_text():
    renderer = Renderer(with_template(BUILTIN["chatml"]))
    text = renderer.tokenizer.decode(renderer.results([f"a {MARK} b", "c"]))
    assert text.count(MARK) == 1 and text.startswith("<|im_end|>\n<|im_start|>user")


def test_a_call_that_was_cut_short_is_no_call():
    assert HERMES.parse('<tool_call>\n{"name": "add", "arg', {"add"})[1] == []
    assert HERMES.parse('<tool_call>\n{"name": "add", "arguments": {}}', {"add"})[1][0].name == "add"
