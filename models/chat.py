"""Safe rendering of chat templates, and their fixed strings.

A template is Jinja code that usually comes with third-party weights, so it runs in Jinja's immutable sandbox. It has no
access to Python internals, files or other templates, and its steps, its output and all intermediate values are limited
(`models/chat_limits.py`). It sees the names that Hugging Face templates expect.
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
# Some templates write the current date into the prompt. A run must not depend on its start date, so this one is used.
TODAY = datetime.date(2024, 7, 26)
LONGEST_MESSAGE = 500  # characters of an error message from a template
# Errors that the code of a template can raise.
_FAILURES = (
    jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, SyntaxError,
    TypeError, ValueError,
)  # fmt: skip


class ChatTemplateError(ModelFileError):
    """A chat template that fails, exceeds a limit, or cannot be split into parts.

    Attributes:
        problem: The message without `source`, the file that contains the template.
    """

    def __init__(self, problem: str, source: str = ""):
        super().__init__(f"{source}: {problem}" if source else problem)
        self.problem = problem


# ---------------------------------------------------------------------------------------------------- rendering


class _Namespace(jinja2.utils.Namespace):
    """A Jinja namespace that rejects names with a leading underscore, which lead to Python internals."""

    def __init__(self, **names):
        _refuse_private(names)
        super().__init__(**names)

    def __setitem__(self, name, value):
        _refuse_private([name])
        super().__setitem__(name, value)


def _refuse_private(names: Iterable[str]) -> None:
    """Raise SecurityError if a name begins with an underscore."""
    if private := [name for name in names if name.startswith("_")]:
        raise SecurityError(
            f"the template sets {', '.join(private)} in a namespace, but names must not begin with an underscore"
        )


class _Generation(jinja2.ext.Extension):
    """The block `{% generation %} ... {% endgeneration %}`, rendered unchanged.

    Templates use it to mark the assistant's text.
    """

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise(message: str):
    """Raise an error with a message of the template."""
    raise jinja2.TemplateError(str(message))


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """Return a value as JSON."""
    # Jinja's filter escapes HTML, which would change the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.lru_cache(maxsize=32)
def _compile(template: str) -> jinja2.Template:
    """Compile a template in a sandbox."""
    sandbox = LimitedSandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
        loader=jinja2.DictLoader({}),  # no templates to include or import
    )
    for name in ("lipsum", "cycler", "joiner"):
        del sandbox.globals[name]
    sandbox.set_filter("tojson", _to_json)
    sandbox.globals.update(raise_exception=_raise, strftime_now=TODAY.strftime, namespace=_Namespace)
    return sandbox.from_string(template)


def _render(template, messages, names) -> str:
    """Render a template within the limits."""
    # Templates with tools and documents test these two names.
    with limits():
        return _compile(template).render(messages=messages, **{"tools": None, "documents": None, **names})


@functools.lru_cache(maxsize=32)
def takes_system(template: str) -> bool:
    """Return whether a template renders a system message; others raise or drop it."""
    probe = [{"role": "system", "content": "kjqxzv"}, {"role": "user", "content": "u"}]
    try:
        return "kjqxzv" in _render(template, probe, {"bos_token": "", "eos_token": "", "add_generation_prompt": True})
    except _FAILURES:
        return False


def fold_system(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the conversation with a leading system message prepended to the first user message."""
    if not messages or messages[0]["role"] != "system":
        return [dict(m) for m in messages]
    if len(messages) < 2 or messages[1]["role"] != "user":
        raise ValueError(
            "messages must have a user message after the system message, because the chat template has no system role"
        )
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
    """Render a conversation with a template.

    A system message that the template does not support is prepended to the first user message.

    Args:
        template: Jinja source.
        messages: Messages with "role" and "content".
        bos_token: The token that begins a sequence.
        eos_token: The token that ends a sequence.
        add_generation_prompt: Whether to append the beginning of an assistant message.
        **options: Variables for the template, such as `enable_thinking`.
    """
    for i, message in enumerate(messages):
        if message.get("role") not in ROLES:
            raise ValueError(f"messages[{i}].role is {message.get('role')!r}, but must be one of: {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str):
            raise ValueError(f"messages[{i}].content is {message.get('content')!r}, but must be a string")
    if not messages:
        raise ValueError("messages is empty, but must have at least one message")
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
    """The fixed strings of a chat template, for tokenizing a prompt in pieces.

    With a system message S, user messages U and V and a completion A, the conversation up to the second completion
    reads

        system_open S system_close user_open U user_close_and_reply A reply_close_and_user V user_close_and_reply

    Without a system message it begins with `start U ...`, where `start` includes whatever the template adds by itself,
    such as a default system message (`default_system`, or None). Pass an explicit system message to replace it.
    Messages are inserted unchanged: templates that strip them must get stripped messages.
    """

    system_open: str
    system_close: str
    user_open: str
    user_close_and_reply: str
    reply_close_and_user: str
    start: str
    default_system: str | None

    def opening(self, system: str | None, text: str) -> str:
        """Return a conversation up to its first completion; texts must not contain special tokens."""
        start = self.start if system is None else self.system_open + system + self.system_close + self.user_open
        return start + text + self.user_close_and_reply

    def continuation(self, text: str) -> str:
        """Return the text between two completions."""
        return self.reply_close_and_user + text + self.user_close_and_reply


def chat_parts(tokenizer, **options) -> ChatParts:
    """Return the fixed strings of `tokenizer.chat`.

    They are derived from rendered conversations with marked messages, and checked by joining them again. They describe
    a conversation that grows by the tokens that were sampled. Templates render past completions slightly differently:
    Qwen3's drops their thoughts, so there a completion keeps its opening, and those of LLaMA 2 and Mistral prepend a
    space, which the model generates itself.
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
            f"the chat template of {tokenizer.name} renders turns differently in different places: after a user "
            f"message {reply!r}, {alone!r}, {last!r}, and {history!r} in the history; before the first {start!r} and "
            f"{opened!r}"
        )
        raise ChatTemplateError(problem, tokenizer.template_source)
    # The exact end of the system turn inside `between` does not matter. Assume that it ends like a completion.
    closed = cut(ended, u, a)[2]
    shared = len(os.path.commonprefix([between, closed]))
    default = None
    if start.startswith(system_open) and start.endswith(between) and len(start) > len(system_open) + len(between):
        default = start[len(system_open) : len(start) - len(between)]
    return ChatParts(system_open, between[:shared], between[shared:], reply, reply_close_and_user, start, default)


def _cut(source: str, text: str, *marks: str) -> list[str]:
    """Split `text` at the marks, each of which must occur once and in order."""
    pieces = []
    for mark in marks:
        if text.count(mark) != 1:
            times = f"{text.count(mark)} times or out of order"
            raise ChatTemplateError(f"the chat template renders a message {times}, not once", source)
        piece, text = text.split(mark)
        pieces.append(piece)
    return [*pieces, text]
