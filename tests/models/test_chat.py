"""Chat templates: the built-in ones, strangers' ones in the sandbox, and the fixed strings cut out of them."""

import json
from pathlib import Path

import pytest

from models import chat
from models.chat_templates import BUILTIN, guess_style
from models.tokenizers import ByteTokenizer
from tests.conftest import shared_data

pytestmark = pytest.mark.quick

GOLDEN = json.loads((Path(__file__).parent / "golden" / "tokenizers.json").read_text(encoding="utf-8"))
SYSTEM, USER, ANSWER, AGAIN = (
    {"role": role, "content": text}
    for role, text in (("system", "S"), ("user", "U"), ("assistant", "A"), ("user", "V"))
)  # fmt: skip


def render(style: str, messages: list[dict], **options) -> str:
    return chat.render(BUILTIN[style], messages, bos_token="<s>", eos_token="</s>", **options)


def cases(name: str):
    """(messages, whether an answer is asked for, the text that transformers renders) of one golden template."""
    for key, text in GOLDEN["chats"][name].items():
        messages, prompt = key.split("/")
        yield GOLDEN["messages"][messages], prompt == "prompt", text


# ---------------------------------------------------------------------------------------------------- built-in


@pytest.mark.parametrize("style", ["qwen2.5", "qwen3", "smollm2", "zephyr"])
def test_built_in_templates_write_what_the_published_ones_write(style):
    eos = "</s>" if style == "zephyr" else "<|im_end|>"
    for messages, prompt, text in cases(style):
        assert chat.render(BUILTIN[style], messages, eos_token=eos, add_generation_prompt=prompt) == text


def test_qwen3_thinks_unless_told_not_to():
    for messages, prompt, text in cases("qwen3-no-thinking"):
        assert render("qwen3", messages, add_generation_prompt=prompt, enable_thinking=False) == text


@pytest.mark.parametrize("style", ["qwen2.5", "qwen3"])
def test_published_templates_render_as_in_transformers(style):
    config = json.loads(shared_data(f"tokenizers/{style}_tokenizer_config.json").read_text())
    for messages, prompt, text in cases(style):
        assert chat.render(config["chat_template"], messages, add_generation_prompt=prompt) == text


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("plain", "S\nU\nA\nV\n"),
        ("chatml", "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
                   "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n"),
        ("llama2", "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s><s>[INST] V [/INST]"),
        ("llama3", "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
                   "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>"
                   "<|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\n"),
        ("mistral", "<s>[INST] S\n\nU [/INST] A</s>[INST] V [/INST]"),
        ("phi3", "<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\nA<|end|>\n"
                 "<|user|>\nV<|end|>\n<|assistant|>\n"),
        ("dialogpt", "S</s>U</s>A</s>V</s>"),
    ],
)  # fmt: skip
def test_the_other_families_read_as_published(style, expected):
    assert render(style, [SYSTEM, USER, ANSWER, AGAIN]) == expected


def test_default_system_prompts_appear_only_where_the_family_has_one():
    assert render("chatml", [USER], add_generation_prompt=False) == "<|im_start|>user\nU<|im_end|>\n"
    assert "You are Qwen" in render("qwen2.5", [USER]) and "You are Qwen" not in render("qwen2.5", [SYSTEM, USER])
    assert "named SmolLM" in render("smollm2", [USER]) and "named SmolLM" not in render("smollm2", [SYSTEM, USER])


def test_the_style_is_told_by_the_vocabulary():
    qwen25 = {"<|im_start|>": 0, "<|object_ref_start|>": 1}
    assert guess_style(qwen25) == "qwen2.5"
    assert guess_style(qwen25 | {"<think>": 2}) == "qwen3"
    assert guess_style({"<|im_start|>": 0}) == "chatml"
    assert guess_style({"<|start_header_id|>": 0}) == "llama3"
    assert guess_style({"<|end|>": 0}) == "phi3"
    assert guess_style({"<s>": 0}) == "plain"


# ---------------------------------------------------------------------------------------------------- others' templates


def test_helpers_of_hugging_face_templates_are_there():
    template = (
        "{%- set ns = namespace(n=0) -%}"
        "{%- for m in messages -%}{%- if m.role == 'system' -%}{%- continue -%}{%- endif -%}"
        "{%- set ns.n = ns.n + 1 -%}{% generation %}{{ m.content }}{% endgeneration %}{%- endfor -%}"
        "|{{ ns.n }}|{{ {'a': '<é>'} | tojson }}|{{ strftime_now('%d %b %Y') }}|{{ tools is none }}|{{ bos_token }}"
    )
    expected = 'UA|2|{"a": "<é>"}|26 Jul 2024|True|<s>'
    assert chat.render(template, [USER, ANSWER], bos_token="<s>") == expected


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}",
        "{{ ''|attr('__class__') }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__self__ }}",
        "{{ namespace(__x__=1) }}",
        "{% set ns = namespace(a=1) %}{% set ns._x = 2 %}{{ ns }}",
        "{{ messages.append(1) }}",
        "{{ messages.clear() }}",
        "{{ lipsum() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
        "{{ 'a' * 100000000000 }}",
        "{{ 9 ** 99999999 }}",
        "{{ range(1000000000) | list }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 1 / 0 }}{{ 'a' + 1 }}",
    ],
)
def test_a_hostile_template_gets_nowhere(attack):
    messages = [dict(USER)]
    try:
        text = chat.render(attack, messages)
    except ValueError as error:
        text = str(error)
        assert "root:" not in text
    else:  # an attribute that the sandbox hides is undefined, and prints as nothing
        assert "class" not in text and "function" not in text and "object at" not in text, text
    assert messages == [USER]


def test_a_template_that_fails_says_so():
    with pytest.raises(ValueError, match="the chat template failed: TemplateError: no way"):
        chat.render("{{ raise_exception('no way') }}", [USER])
    with pytest.raises(ValueError, match="the chat template failed: TemplateSyntaxError"):
        chat.render("{% for %}", [USER])


def test_bad_messages_are_refused():
    for messages, reason in (
        ([], "messages is empty"),
        (
            [USER, {"role": "wizard", "content": "x"}],
            r"messages\[1\].role is 'wizard', but must be one of: system, user",
        ),
        ([{"role": "user", "content": None}], r"messages\[0\].content is None, but must be a string"),
        ([{"content": "x"}], r"messages\[0\].role is None"),
    ):
        with pytest.raises(ValueError, match=reason):
            render("chatml", messages)


# A template as models without a system role have it: it refuses, or it drops the system text without a word.
REFUSES = (
    "{%- for m in messages -%}{%- if m.role == 'system' -%}{{ raise_exception('no system') }}{%- endif -%}"
    "{{ '[' + m.role + ']' + m.content + ';' }}{%- endfor -%}{{ '[assistant]' if add_generation_prompt }}"
)
DROPS = REFUSES.replace("{{ raise_exception('no system') }}", "{%- continue -%}")


@pytest.mark.parametrize("template", [REFUSES, DROPS])
def test_a_system_text_is_folded_where_there_is_no_system_role(template):
    assert not chat.takes_system(template)
    assert chat.render(template, [SYSTEM, USER]) == "[user]S\n\nU;[assistant]"
    with pytest.raises(ValueError, match="must have a user message after the system message"):
        chat.render(template, [SYSTEM])
    parts = chat.chat_parts(ByteTokenizer().with_template(template))
    assert parts == chat.ChatParts("[user]", "", "\n\n", ";[assistant]", ";[user]", "[user]", None)


# ---------------------------------------------------------------------------------------------------- fixed strings


@pytest.mark.parametrize("style", BUILTIN)
def test_parts_put_together_are_the_chat(style):
    tokenizer = ByteTokenizer().with_template(style)
    parts = chat.chat_parts(tokenizer)
    head = f"{parts.system_open}S{parts.system_close}{parts.user_open}U{parts.user_close_and_reply}"
    space = " " if style in ("llama2", "mistral") else ""  # written by the model, in front of its answer
    tail = f"{space}A{parts.reply_close_and_user}V{parts.user_close_and_reply}"
    assert head == tokenizer.chat([SYSTEM, USER])
    assert head + tail == tokenizer.chat([SYSTEM, USER, ANSWER, AGAIN])
    assert f"{parts.start}U{parts.user_close_and_reply}{tail}" == tokenizer.chat([USER, ANSWER, AGAIN])


def test_parts_of_chatml():
    parts = chat.chat_parts(ByteTokenizer())
    assert parts == chat.ChatParts(
        system_open="<|im_start|>system\n",
        system_close="<|im_end|>\n",
        user_open="<|im_start|>user\n",
        user_close_and_reply="<|im_end|>\n<|im_start|>assistant\n",
        reply_close_and_user="<|im_end|>\n<|im_start|>user\n",
        start="<|im_start|>user\n",
        default_system=None,
    )


def test_parts_name_the_default_system_text():
    parts = chat.chat_parts(ByteTokenizer().with_template("qwen2.5"))
    assert parts.default_system == "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    assert parts.start == parts.system_open + parts.default_system + parts.system_close + parts.user_open


def test_parts_take_the_options_of_the_template():
    parts = chat.chat_parts(ByteTokenizer().with_template("qwen3"), enable_thinking=False)
    assert parts.user_close_and_reply == "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def test_parts_refuse_a_template_that_cannot_be_cut():
    numbered = "{%- for m in messages -%}{{ loop.index ~ m.content ~ ' ' }}{%- endfor -%}{{ messages|length }}"
    with pytest.raises(ValueError, match="renders turns differently in different places"):
        chat.chat_parts(ByteTokenizer().with_template(numbered))
    twice = "{%- for m in messages -%}{{ m.content + m.content }}{%- endfor -%}"
    with pytest.raises(ValueError, match="renders a message 2 times"):
        chat.chat_parts(ByteTokenizer().with_template(twice))
