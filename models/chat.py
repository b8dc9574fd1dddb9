"""Chat templates: rendering them safely, and cutting a template into its fixed strings.

A template is Jinja text that usually arrives with someone else's weights, so it runs in Jinja's immutable sandbox: no
way to Python's internals, to files or to other templates, with limits on its steps, its output and everything that it
makes on the way (`models/chat_limits.py`). It sees the names that Hugging Face templates expect.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError

from models.chat_limits import LimitedSandbox, limits
from models.errors import ModelFileError

ROLES = ("system", "user", "assistant", "tool")
# Some templates write "today" into the prompt. A run must not depend on the day it was started, so this is today.
TODAY = datetime.date(2024, 7, 26)
LONGEST_MESSAGE = 500  # characters of an error that a template words itself
# What a template can raise by what is written in it.
_FAILURES = (
    jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, SyntaxError,
    TypeError, ValueError,
)  # fmt: skip


class ChatTemplateError(ModelFileError):
    """A chat template that fails, asks for too much, or cannot be cut into parts.

    problem  the message without `source`, the file that holds the template
    """

    def __init__(self, problem: str, source: str = ""):
        super().__init__(f"{source}: {problem}" if source else problem)
        self.problem = problem


# ---------------------------------------------------------------------------------------------------- rendering


class _Namespace(jinja2.utils.Namespace):
    """`namespace(...)` that stores no name with a leading underscore, the way to Python's internals."""

    def __init__(self, **names):
        _refuse_private(names)
        super().__init__(**names)

    def __setitem__(self, name, value):
        _refuse_private([name])
        super().__setitem__(name, value)


def _refuse_private(names: Iterable[str]) -> None:
    if private := [name for name in names if name.startswith("_")]:
        raise SecurityError(f"the template stores {', '.join(private)} in a namespace")


class _Generation(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}`, with which templates mark the assistant's words, as a plain block."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise(message: str):
    raise jinja2.TemplateError(str(message))


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    # Jinja's own filter escapes for HTML, which would change the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.lru_cache(maxsize=32)
def _compile(template: str) -> jinja2.Template:
    sandbox = LimitedSandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
        loader=jinja2.DictLoader({}),  # nothing to include or import
    )
    for name in ("lipsum", "cycler", "joiner"):
        del sandbox.globals[name]
    sandbox.set_filter("tojson", _to_json)
    sandbox.globals.update(raise_exception=_raise, strftime_now=TODAY.strftime, namespace=_Namespace)
    return sandbox.from_string(template)


def _render(template, messages, names) -> str:
    # Templates written for tools and documents only test for these two.
    with limits():
        return _compile(template).render(messages=messages, **{"tools": None, "documents": None, **names})


@functools.lru_cache(maxsize=32)
def takes_system(template: str) -> bool:
    """Whether a template shows a system message; the others refuse it or drop it without a word."""
    probe = [{"role": "system", "content": "kjqxzv"}, {"role": "user", "content": "u"}]
    try:
        return "kjqxzv" in _render(template, probe, {"bos_token": "", "eos_token": "", "add_generation_prompt": True})
    except _FAILURES:
        return False


def fold_system(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """The same conversation with a leading system text put in front of the first user text, a blank line between."""
    if not messages or messages[0]["role"] != "system":
        return [dict(m) for m in messages]
    if len(messages) < 2 or messages[1]["role"] != "user":
        raise ValueError("messages: the chat template has no system role, so a user message must follow the system one")
    first = dict(messages[1], content=f"{messages[0]['content']}\n\n{messages[1]['content']}")
    return [first, *(dict(m) for m in messages[2:])]


def render(
    template: str,
    messages: Sequence[Mapping[str, str]],
    *,
    bos_token: str = "",
    eos_token: str = "",
    add_generation_prompt: bool = True,
    **options,
) -> str:
    """The text of a conversation under a template; `options` (such as `enable_thinking`) go to the template.

    A system message that the template does not take is folded into the first user message.
    """
    for i, message in enumerate(messages):
        if message.get("role") not in ROLES:
            raise ValueError(f"messages[{i}].role is {message.get('role')!r}, but must be one of: {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str):
            raise ValueError(f"messages[{i}].content is {message.get('content')!r}; expected a string")
    if not messages:
        raise ValueError("messages is empty; a chat needs at least one message")
    messages = [dict(m) for m in messages]
    if messages[0]["role"] == "system" and not takes_system(template):
        messages = fold_system(messages)
    names = {
        "bos_token": bos_token, "eos_token": eos_token, "add_generation_prompt": add_generation_prompt, **options
    }  # fmt: skip
    try:
        return _render(template, messages, names)
    except _FAILURES as error:
        said = str(error)
        said = said if len(said) <= LONGEST_MESSAGE else f"{said[:LONGEST_MESSAGE]} …"
        raise ChatTemplateError(f"the chat template failed: {type(error).__name__}: {said}") from error


# ---------------------------------------------------------------------------------------------------- fixed strings


@dataclasses.dataclass(frozen=True)
class ChatParts:
    """The fixed strings of a chat template, so that a prompt can be tokenised in pieces.

    With a system text S, users' texts U, V and an answer A the conversation up to the second answer reads

        system_open S system_close user_open U user_close_and_reply A reply_close_and_user V user_close_and_reply

    and without a system text it begins `start U ...`, where `start` holds whatever the template puts there by itself,
    a default system text included (`default_system`, None when there is none). Pass an explicit system text to be
    rid of it. Texts are taken as they are: templates that strip them see them stripped already.
    """

    system_open: str
    system_close: str
    user_open: str
    user_close_and_reply: str
    reply_close_and_user: str
    start: str
    default_system: str | None

    def opening(self, system: str | None, text: str) -> str:
        """A conversation up to its first answer; texts must not hold special tokens."""
        start = self.start if system is None else self.system_open + system + self.system_close + self.user_open
        return start + text + self.user_close_and_reply

    def continuation(self, text: str) -> str:
        """What stands between an answer and the next one."""
        return self.reply_close_and_user + text + self.user_close_and_reply


def chat_parts(tokenizer, **options) -> ChatParts:
    """The fixed strings of `tokenizer.chat`, found by rendering marked texts and checked by putting them together.

    The parts describe a conversation that grows by what is really written. Templates show past answers a little
    differently: Qwen3's drops their thoughts, so there the answer keeps what opened it; those of LLaMA 2 and Mistral
    put a space in front, which the model writes by itself.
    """
    s, u, a, v = (f"kjqxzv{i}vzxqjk" for i in range(4))
    system, user, answer, again = (
        {"role": role, "content": text}
        for role, text in (("system", s), ("user", u), ("assistant", a), ("user", v))
    )  # fmt: skip
    with_system = tokenizer.chat([system, user], **options)
    without = tokenizer.chat([user], **options)
    second = tokenizer.chat([user, answer, again], **options)
    ended = tokenizer.chat([user, answer], add_generation_prompt=False, **options)

    cut = functools.partial(_cut, tokenizer.template_source)
    system_open, between, reply = cut(with_system, s, u)
    start, alone = cut(without, u)
    opened, history, reply_close_and_user, last = cut(second, u, a, v)
    if not (reply == alone == last and start == opened and reply.startswith(history.rstrip(" "))):
        problem = (
            f"the chat template of {tokenizer.name} writes turns differently in different places: after a user text "
            f"{reply!r}, {alone!r}, {last!r}, and {history!r} in the history; before the first {start!r} and {opened!r}"
        )
        raise ChatTemplateError(problem, tokenizer.template_source)
    # Where the system turn ends inside `between` matters to readers only: what also closes an answer closes it.
    closed = cut(ended, u, a)[2]
    shared = len(os.path.commonprefix([between, closed]))
    default = None
    if start.startswith(system_open) and start.endswith(between) and len(start) > len(system_open) + len(between):
        default = start[len(system_open) : len(start) - len(between)]
    return ChatParts(system_open, between[:shared], between[shared:], reply, reply_close_and_user, start, default)


def _cut(source: str, text: str, *marks: str) -> list[str]:
    """The pieces of `text` around the marks, each of which stands in it once and in order."""
    pieces = []
    for mark in marks:
        if text.count(mark) != 1:
            times = f"{text.count(mark)} times or out of order"
            raise ChatTemplateError(f"the chat template writes a message {times}, not once", source)
        piece, text = text.split(mark)
        pieces.append(piece)
    return [*pieces, text]
