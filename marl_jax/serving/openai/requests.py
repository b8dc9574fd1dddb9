"""Requests and responses of OpenAI's API.

Fields that would change the completion but are not supported are rejected. Other fields (`user`, `store`, `metadata`,
…) are ignored, because clients send many of them. In addition to OpenAI's fields, `top_k`, `repetition_penalty` and
`chat_template_kwargs` are supported.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marl_jax.sampling.settings import LEAST_TEMPERATURE, LEAST_TOP_P, Constraint, Sampling
from marl_jax.serving.http.errors import ApiError
from marl_jax.serving.http.guard import Limits
from marl_jax.serving.openai.messages import read_messages
from models.renderer import Message

MOST_SAMPLES = 128
MOST_STOPS = 16
LONGEST_STOP = 1024  # streams compare the end of a text with every prefix of every stop string
MOST_TOP_LOGPROBS = 20
MOST_TOOLS = 128
MOST_LEVELS = 64
MOST_SCHEMA = 1 << 16  # characters; larger ones take seconds to compile
DEFAULT_LIMITS = Limits()
encode = json.JSONEncoder(ensure_ascii=False).encode
RESERVED = ("self", "messages", "tools", "documents", "template", "bos_token", "eos_token", "add_generation_prompt")
"""Names of variables that the server passes to chat templates, and of parameters on the way to them."""


@dataclasses.dataclass(frozen=True)
class CompletionRequest:
    """A validated request.

    Attributes:
        model: Name of the model.
        messages: Messages of a chat; empty for a text completion.
        prompts: Prompts of a text completion, as strings or token ids; empty for a chat. `calls.encode_prompts`
            replaces strings by ids.
        tools: Tools that the model may call.
        forced: Name of the tool that it must call, "" for any tool, or None if it need not call one.
        n: Number of completions.
        stream: Whether to stream the completions.
        include_usage: Whether a stream ends with the token usage.
        logprobs: Whether to return log-probs.
        top_logprobs: Number of most likely tokens to return at each position.
        temperature: Sampling temperature.
        top_p: Probability mass of nucleus sampling.
        top_k: Number of tokens to sample from; 0 means all.
        repetition_penalty: Penalty on tokens that have already occurred.
        stops: Stop strings.
        seed: Seed of the client, or None.
        max_tokens: Maximum number of tokens of a completion; None means the server's limit.
        echo: Whether a text completion includes its prompt.
        template: Options of the chat template.
        schema: JSON schema that the completion must follow, or None.
        images: URLs of the images in the messages, in order.
    """

    model: str
    messages: tuple[Message, ...] = ()
    prompts: tuple[str | list[int], ...] = ()
    tools: tuple[dict, ...] = ()
    forced: str | None = None
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    stops: tuple[str, ...] = ()
    seed: int | None = None
    max_tokens: int | None = None
    echo: bool = False
    template: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    schema: dict | None = None
    images: tuple[str, ...] = ()

    def sampling(
        self, seed: int, budget: int, stop_ids: Sequence[int], constraint: Callable[[], Constraint] | None = None
    ) -> Sampling:
        """Return the sampler's settings."""
        return Sampling(
            self.temperature, budget, tuple(stop_ids), seed, self.top_k, self.top_p, self.repetition_penalty,
            self.stops, constraint,
        )  # fmt: skip


# --------------------------------------------------------------------------------------------------------- requests


def read_chat(body: dict[str, Any], limits: Limits = DEFAULT_LIMITS) -> CompletionRequest:
    """Parse the request of a chat completion."""
    check_depth(body)
    field = _Fields(body)
    if isinstance(body.get("messages"), list):
        limits.check("messages", len(body["messages"]), "messages")
    tools = field.tools()
    forced = field.tool_choice(tools)
    if body.get("tool_choice") == "none":
        tools = ()
    top = field.whole("top_logprobs", 0, MOST_TOP_LOGPROBS) or 0
    logprobs = field.switch("logprobs")
    if top and not logprobs:
        raise field.refusal("top_logprobs", "0 unless logprobs is true")
    budgets = [n for name in ("max_completion_tokens", "max_tokens") if (n := field.whole(name, 1, 2**31)) is not None]
    schema = field.response_format()
    if schema is not None and (top or forced is not None):
        raise field.refusal("response_format", "text with top_logprobs or a tool_choice that requires a call")
    messages, images = read_messages(body.get("messages"), limits.image_hosts)
    if images and top:
        raise field.refusal("top_logprobs", "0 with images in messages")
    return CompletionRequest(
        messages=tuple(messages), images=tuple(images), tools=tools, forced=forced, logprobs=logprobs,
        top_logprobs=top, max_tokens=min(budgets, default=None), template=field.template_options(),
        schema=schema, **field.common(),
    )  # fmt: skip


def read_completion(body: dict[str, Any], limits: Limits = DEFAULT_LIMITS) -> CompletionRequest:
    """Parse the request of a text completion."""
    field = _Fields(body)
    prompt = body.get("prompt")
    prompts: tuple[Any, ...] = (prompt,)
    if isinstance(prompt, list) and not all(_is_id(x) for x in prompt):
        prompts = tuple(prompt)
        limits.check("completions", len(prompts) * (field.whole("n", 1, MOST_SAMPLES) or 1), "prompt")
    for one in prompts:
        if not (isinstance(one, str) and one) and not (isinstance(one, list) and one and all(map(_is_id, one))):
            raise field.refusal("prompt", "a non-empty string, a non-empty list of token ids, or a list of these")
    if body.get("suffix"):
        raise field.refusal("suffix", "null, because it is not supported")
    top = field.whole("logprobs", 0, MOST_TOP_LOGPROBS)
    limit = field.whole("max_tokens", 1, 2**31)
    return CompletionRequest(
        prompts=prompts, logprobs=top is not None, top_logprobs=top or 0, max_tokens=16 if limit is None else limit,
        echo=field.switch("echo"), **field.common(),
    )  # fmt: skip


def check_depth(body: Any) -> None:
    """Reject values that are nested deeper than any request needs.

    Functions that walk through them may be recursive.
    """
    here = [body]
    for _ in range(MOST_LEVELS):
        inner = (x.values() if isinstance(x, dict) else x for x in here)
        here = [item for items in inner for item in items if isinstance(item, (dict, list))]
        if not here:
            return
    raise ApiError(400, f"the body has more than {MOST_LEVELS} levels of nesting")


class _Fields:
    """The fields of a request body.

    Each field is checked when it is read; null counts as absent.
    """

    def __init__(self, body: dict[str, Any]):
        self.body = body

    def common(self) -> dict[str, Any]:
        """Return the fields that chat and text completions share."""
        model = self.body.get("model")
        if not isinstance(model, str):
            raise self.refusal("model", "the name of a model")
        for name in ("frequency_penalty", "presence_penalty"):
            if self.number(name, -2, 2, 0.0):
                raise self.refusal(name, "0; use repetition_penalty instead")
        if self.body.get("logit_bias"):
            raise self.refusal("logit_bias", "null, because it is not supported")
        options = self.object("stream_options") or {}
        seed = self.whole("seed", -(2**63), 2**63 - 1)
        temperature = self.number("temperature", 0, 2, 1.0)
        return dict(
            model=model,
            n=self.whole("n", 1, MOST_SAMPLES) or 1,
            stream=self.switch("stream"),
            include_usage=bool(options.get("include_usage")),
            temperature=temperature if temperature >= LEAST_TEMPERATURE else 0.0,
            top_p=max(self.number("top_p", 0, 1, 1.0), LEAST_TOP_P),
            top_k=max(self.whole("top_k", -1, 2**31 - 1) or 0, 0),
            repetition_penalty=self.number("repetition_penalty", 0.01, 100, 1.0),
            stops=self.stops(),
            seed=None if seed is None else seed % 2**32,
        )

    def whole(self, name: str, low: int, high: int) -> int | None:
        """Return an integer, or None if it is absent."""
        value = self.body.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refusal(name, f"an integer from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float) -> float:
        """Return a number."""
        value = self.body.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.refusal(name, f"a number from {low} to {high}")
        return float(value)

    def switch(self, name: str) -> bool:
        """Return a boolean; False if it is absent."""
        value = self.body.get(name)
        if not isinstance(value, bool | None):
            raise self.refusal(name, "true or false")
        return bool(value)

    def object(self, name: str) -> dict[str, Any] | None:
        """Return an object, or None if it is absent."""
        value = self.body.get(name)
        if not isinstance(value, dict | None):
            raise self.refusal(name, "an object")
        return value

    def template_options(self) -> dict[str, Any]:
        """Return the options of the chat template; reject names that the server sets itself."""
        options = self.object("chat_template_kwargs") or {}
        for name, value in options.items():
            if not name.isidentifier() or name in RESERVED or isinstance(value, dict | list):
                raise self.refusal(
                    "chat_template_kwargs", "an object from option names to strings, numbers or booleans"
                )
        return options

    def stops(self) -> tuple[str, ...]:
        """Return the stop strings."""
        value = self.body.get("stop")
        strings = [] if value is None else [value] if isinstance(value, str) else value
        valid = isinstance(strings, list) and len(strings) <= MOST_STOPS
        if not valid or not all(isinstance(x, str) and 0 < len(x) <= LONGEST_STOP for x in strings):
            strings_rule = f"strings of 1 to {LONGEST_STOP} characters"
            raise self.refusal("stop", f"a string or a list of up to {MOST_STOPS} {strings_rule}")
        return tuple(strings)

    def tools(self) -> tuple[dict, ...]:
        """Return the tools in OpenAI's format."""
        tools = self.body.get("tools") or []
        if not isinstance(tools, list) or len(tools) > MOST_TOOLS:
            raise self.refusal("tools", f"a list of at most {MOST_TOOLS} tools")
        for tool in tools:
            function = tool.get("function") if isinstance(tool, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise self.refusal(
                    "tools", 'a list of objects {"type": "function", "function": {"name", "parameters"}}'
                )
        shown = ("name", "description", "parameters")
        return tuple(
            {"type": "function", "function": {k: tool["function"][k] for k in shown if k in tool["function"]}}
            for tool in tools
        )

    def tool_choice(self, tools: Sequence[dict]) -> str | None:
        """Return the tool that must be called; see `CompletionRequest.forced`."""
        choice = self.body.get("tool_choice")
        names = [tool["function"]["name"] for tool in tools]
        if choice in (None, "none", "auto"):
            return None
        if choice == "required" and names:
            return names[0] if len(names) == 1 else ""
        function = choice.get("function") if isinstance(choice, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if name is None or name not in names:
            offered = ", ".join(names) or "none were given"
            raise self.refusal("tool_choice", f"none, auto, required or one of the tools ({offered})")
        return name

    def response_format(self) -> dict | None:
        """Return the JSON schema of the completion, or None."""
        value = self.object("response_format")
        if value is None or value.get("type") == "text":
            return None
        kind = value.get("type")
        if kind == "json_object":
            return {"type": "object"}
        schema = value.get("json_schema") if kind == "json_schema" else None
        if not isinstance(schema, dict) or not isinstance(schema.get("schema"), dict):
            raise self.refusal("response_format", "an object of type text, json_object, or json_schema with a schema")
        if len(json.dumps(schema["schema"])) > MOST_SCHEMA:
            raise self.refusal("response_format", f"a JSON schema of at most {MOST_SCHEMA} characters")
        return schema["schema"]

    def refusal(self, name: str, rule: str) -> ApiError:
        """Return the error of an invalid field."""
        text = json.dumps(self.body.get(name), ensure_ascii=False)
        return ApiError(400, f"{name} is {text[:80]}, but must be {rule}", param=name)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


# ---------------------------------------------------------------------------------------------------------- responses


def new_id(prefix: str) -> str:
    """Return a random id that cannot be guessed."""
    return f"{prefix}-{secrets.token_hex(12)}"


def usage(prompt: int, completion: int) -> dict[str, int]:
    """Return the numbers of prompt and completion tokens in OpenAI's format."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def envelope(kind: str, call: Any, version: int, choices: list, **more: Any) -> dict[str, Any]:
    """Return a response to a `Call`, or one chunk of it."""
    return {
        "id": call.id, "object": kind, "created": call.created, "model": call.model.name,
        "system_fingerprint": f"v{version}", "choices": choices, **more,
    }  # fmt: skip


def assistant(text: str, calls: Sequence[Any], ids: Sequence[str]) -> dict[str, Any]:
    """Return an assistant message; `ids` are those of its tool calls."""
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
    if calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for id_, call in zip(ids, calls, strict=True)
        ]
    return message


def event(value: Mapping[str, Any] | str) -> bytes:
    """Return a server-sent event."""
    return f"data: {value if isinstance(value, str) else encode(value)}\n\n".encode()
