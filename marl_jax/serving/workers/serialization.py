"""Messages between the process with the models and a worker, as bytes.

A message consists of its length, its kind and a payload. Tokens, which are most of the data, are sent as arrays in
memory layout, because both ends are on one machine. The rest is JSON.

    ASK      number, {sampler, policy, n, deadline, stream, sampling}, ids of the prompt      from a worker
    CANCEL   number: the completions are no longer needed                                     from a worker
    TOKENS   number, k, new tokens of completion k
    ANSWERS  number, all completions
    CALL     number, [name, arguments]                                                        from either
    VALUE    number, a JSON value: the result of a call
    FAILED   number, [kind, message]: the error of a request or a call

Numbers are assigned by the end that sends the request.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from marl_jax.errors import RunError
from marl_jax.sampling.batcher_thread import BatcherClosed, BatcherFailed
from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.settings import Sampling

ASK, CANCEL, TOKENS, ANSWERS, CALL, VALUE, FAILED = range(1, 8)
FINISHES = ("going", "stop", "length", "cancelled", "deadline", "invalid")
ERRORS: dict[str, type[Exception]] = {
    "closed": BatcherClosed, "failed": BatcherFailed, "run": RunError, "value": ValueError, "other": RuntimeError,
}  # fmt: skip
"""Exceptions that can be raised in another process, by kind; the first match counts."""

HEAD = struct.Struct("<IB")  # size of the payload in bytes, kind
NUMBER = struct.Struct("<I")
PAIR = struct.Struct("<II")
TRIPLE = struct.Struct("<III")
LONGEST = 1 << 28  # bytes of a payload; a longer one is invalid
MOST_ID = (1 << 31) - 1

_encode = json.JSONEncoder(ensure_ascii=True).encode


class WireError(Exception):
    """Invalid bytes instead of a message."""


class Messages:
    """A parser that splits a stream of bytes into messages."""

    def __init__(self):
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the kind and the payload of every message that is complete now."""
        self._data += data
        at = 0
        try:
            while len(self._data) - at >= HEAD.size:
                size, kind = HEAD.unpack_from(self._data, at)
                if size > LONGEST or not ASK <= kind <= FAILED:
                    raise WireError(f"invalid message of kind {kind} with {size} bytes")
                begin = at + HEAD.size
                if len(self._data) < begin + size:
                    break
                at = begin + size
                yield kind, bytes(self._data[begin:at])
        finally:
            del self._data[:at]


def message(kind: int, *parts: bytes) -> bytes:
    """Build a message from the parts of its payload."""
    return b"".join((HEAD.pack(sum(map(len, parts)), kind), *parts))


def json_message(kind: int, number: int, value: Any) -> bytes:
    """Build a CALL, VALUE or FAILED message."""
    return message(kind, NUMBER.pack(number), _encode(value).encode())


def read_json(payload: bytes) -> tuple[int, Any]:
    """Return the number and the value of a CALL, VALUE or FAILED message."""
    return NUMBER.unpack_from(payload)[0], json.loads(payload[NUMBER.size :])


def read_number(payload: bytes) -> int:
    """Return the number of any message."""
    return NUMBER.unpack_from(payload)[0]


# ----------------------------------------------------------------------------------------------- requests and results


def ask(number: int, ids: Sequence[int], fields: Mapping[str, Any]) -> bytes:
    """Build a request for completions."""
    if ids and max(ids) > MOST_ID:
        raise ValueError(f"the prompt has the token id {max(ids)}, but ids must be <= {MOST_ID}")
    text = _encode(fields).encode()
    return message(ASK, PAIR.pack(number, len(text)), text, np.asarray(ids, np.int32).tobytes())


def read_ask(payload: bytes) -> tuple[int, dict[str, Any], list[int]]:
    """Return the number, fields and prompt ids of a request for completions."""
    number, size = PAIR.unpack_from(payload)
    begin = PAIR.size + size
    return number, json.loads(payload[PAIR.size : begin]), np.frombuffer(payload, np.int32, offset=begin).tolist()


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """Return settings as a JSON value, with the schema in place of a constraint."""
    fields = {name: value for name, value in vars(sampling).items() if name != "constraint"}
    return fields | {"schema": None if sampling.constraint is None else sampling.constraint.schema}


def read_sampling(fields: Mapping[str, Any], constraint: Any = None) -> Sampling:
    """Return settings from a JSON value, with the given constraint."""
    own: dict[str, Any] = {name: value for name, value in fields.items() if name != "schema"}
    tuples: dict[str, Any] = {name: tuple(own[name]) for name in ("stop_ids", "stop_strings")}
    return Sampling(**own | tuples, constraint=constraint)


def tokens(number: int, k: int, new: Completion) -> bytes:
    """Build a message with new tokens of completion k."""
    return message(TOKENS, TRIPLE.pack(number, k, len(new.tokens)), *_columns(new))


def read_tokens(payload: bytes) -> tuple[int, int, Completion]:
    """Return the number, k and the new tokens."""
    number, k, n = TRIPLE.unpack_from(payload)
    return number, k, _read_columns(payload, TRIPLE.size, n, "going")


def answers(number: int, completions: Sequence[Completion]) -> bytes:
    """Build a message with all completions of a request."""
    parts = [PAIR.pack(number, len(completions))]
    for one in completions:
        parts += [PAIR.pack(len(one.tokens), FINISHES.index(one.finish)), *_columns(one)]
    return message(ANSWERS, *parts)


def read_answers(payload: bytes) -> tuple[int, list[Completion]]:
    """Return the number and the completions."""
    (number, count), at, completions = PAIR.unpack_from(payload), PAIR.size, []
    for _ in range(count):
        n, finish = PAIR.unpack_from(payload, at)
        completions.append(_read_columns(payload, at + PAIR.size, n, FINISHES[finish]))
        at += PAIR.size + 12 * n
    return number, completions


def _columns(answer: Completion) -> tuple[bytes, bytes, bytes]:
    return (
        np.asarray(answer.tokens, np.int32).tobytes(), np.asarray(answer.logps, np.float32).tobytes(),
        np.asarray(answer.versions, np.int32).tobytes(),
    )  # fmt: skip


def _read_columns(payload: bytes, at: int, n: int, finish: str) -> Completion:
    ids = np.frombuffer(payload, np.int32, n, at)
    logps = np.frombuffer(payload, np.float32, n, at + 4 * n)
    return Completion(ids, logps, finish, np.frombuffer(payload, np.int32, n, at + 8 * n))


# -------------------------------------------------------------------------------------------------------------- errors


def error_value(error: BaseException) -> list[str]:
    """Return the kind and message of an error.

    An error of another kind includes the name of its class.
    """
    for kind, cls in ERRORS.items():
        if isinstance(error, cls) and kind != "other":
            return [kind, str(error)]
    return ["other", f"{type(error).__name__}: {error}"]


def read_error(value: Sequence[str]) -> Exception:
    """Return the error from its kind and message."""
    kind, text = value
    return ERRORS[kind](text)
