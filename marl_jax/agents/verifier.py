"""Verifiers: the probability that the final answer of a chat is correct.

A verifier is a policy with a critic head. Training puts the label on tokens of the answer, including the last one
(`marl_jax/algorithms/verifier.py`). The score is the sigmoid of the head's value at the last token. Both tokenize chats
with `read_chat`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from marl_jax.agents import critics
from marl_jax.agents.answering import at
from marl_jax.agents.policy import Policy
from marl_jax.errors import RunError
from models import chat as templates
from models import sharding
from models.tokenizers import Tokenizer

Message = Mapping[str, str]
TOKEN_UNIT = 64  # row lengths are this times 1, 2, 4, …


class ChatError(ValueError):
    """A chat that cannot be scored."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """A chat as token ids, up to the last token of its final answer.

    Attributes:
        tokens: The token ids.
        start: Number of tokens before the final answer.
    """

    tokens: tuple[int, ...]
    start: int

    @property
    def completion_length(self) -> int:
        """Number of tokens of the final answer; an empty one cannot be scored."""
        return len(self.tokens) - self.start


def read_chat(tokenizer: Tokenizer, messages: Sequence[Message], max_length: int) -> Reading:
    """Tokenize a chat of the form [system,] user, assistant, …, assistant.

    Each assistant message is tokenized separately, as in sampling. Special tokens in messages are removed.

    Raises:
        ChatError: The chat has another form or more than `max_length` tokens.
    """
    system, turns = _check(messages)
    parts, clean = _parts(tokenizer), tokenizer.strip_special
    tokens: list[int] = []
    start = 0
    for i in range(0, len(turns), 2):
        user = clean(turns[i])
        text = parts.continuation(user) if i else parts.opening(None if system is None else clean(system), user)
        tokens += tokenizer.encode(text)
        start = len(tokens)
        tokens += tokenizer.encode(clean(turns[i + 1]))
    if len(tokens) > max_length:
        raise ChatError(f"the chat has {len(tokens)} tokens, but must have at most {max_length}")
    return Reading(tuple(tokens), start)


def _check(messages: Sequence[Message]) -> tuple[str | None, list[str]]:
    """Check the messages and return the system text and the texts of all other messages."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise ChatError(f"the chat is of type {type(messages).__name__}, but must be a list of messages")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            raise ChatError(f"message {i} must be an object with a role and a string as content")
    texts = [message["content"] for message in messages]
    roles = [message.get("role") for message in messages]
    system = texts.pop(0) if roles[:1] == ["system"] else None
    roles = roles[1:] if system is not None else roles
    if not roles or roles != ["user", "assistant"] * (len(roles) // 2):
        shown = ", ".join(map(str, roles[:8])) or "empty"
        raise ChatError(f"the roles are {shown}, but must alternate between user and assistant and end with assistant")
    return system, texts


@functools.lru_cache(maxsize=8)
def _parts(tokenizer: Tokenizer) -> templates.ChatParts:
    return templates.chat_parts(tokenizer)


class Scorer:
    """Scores chats in batches of similar length.

    Args:
        policy: A policy with a critic head.
        weights: Its weights, including the head. They may be replaced later.
        tokenizer: The model's tokenizer.
        max_length: Maximum number of tokens of a chat.
        max_tokens: Maximum number of tokens of a batch, including padding. A batch has at least one chat.
        mesh: The mesh of the weights; None for the caller's. Required in other threads than the one that created the
            scorer.
    """

    def __init__(
        self,
        policy: Policy,
        weights: Mapping,
        tokenizer: Tokenizer,
        max_length: int,
        max_tokens: int = 1 << 14,
        mesh: Mesh | None = None,
    ):
        if policy.critic != "head" or "critic" not in weights:
            raise RunError("the weights have no critic head, so they are not those of a verifier")
        self.tokenizer, self.max_length = tokenizer, max_length
        self._max_tokens, self._mesh, self.weights = max_tokens, mesh, weights
        self._program = jax.jit(functools.partial(probabilities, policy))

    def __call__(self, chats: Sequence[Sequence[Message]]) -> list[float]:
        """Return the probability that the final answer of each chat is correct."""
        return self.score([self.read(chat) for chat in chats])

    def read(self, messages: Sequence[Message]) -> Reading:
        """Tokenize a chat, see `read_chat`."""
        return read_chat(self.tokenizer, messages, self.max_length)

    def score(self, readings: Sequence[Reading]) -> list[float]:
        """Score tokenized chats; an empty answer scores 0."""
        scores = np.zeros((len(readings),))
        for picked, tokens, lengths in self._batches(readings):
            with contextlib.nullcontext() if self._mesh is None else jax.set_mesh(self._mesh):
                batch_scores = np.asarray(self._program(self.weights, tokens, lengths), np.float64)[: len(picked)]
            if not np.isfinite(batch_scores).all():
                raise RunError("the verifier's scores are not finite; its weights are damaged")
            scores[picked] = batch_scores
        return scores.tolist()

    def _batches(self, readings: Sequence[Reading]):
        """Yield batches from short to long chats, in few different shapes.

        Yields:
            Indices of the chats, tokens int32 [N, T] and lengths int32 [N].
        """
        order = sorted(
            (i for i, r in enumerate(readings) if r.completion_length), key=lambda i: len(readings[i].tokens)
        )
        while order:
            width = _next(len(readings[order[0]].tokens), 2, TOKEN_UNIT)
            most = max(1, self._max_tokens // width)
            picked = [i for i in order[:most] if len(readings[i].tokens) <= width]
            order = order[len(picked) :]
            rows = min(_next(len(picked), 4), most)
            tokens, lengths = np.zeros((rows, width), np.int32), np.ones((rows,), np.int32)
            for row, i in enumerate(picked):
                ids = readings[i].tokens
                tokens[row, : len(ids)], lengths[row] = ids, len(ids)
            yield picked, tokens, lengths


def probabilities(policy: Policy, weights: dict, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
    """Compute scores at the last tokens, float32 [N].

    Args:
        policy: A policy with a critic head.
        weights: Its weights.
        tokens: int32 [N, T].
        lengths: int32 [N].
    """
    adapters = policy.adapters(weights, jnp.zeros((len(tokens),), jnp.int32))
    hidden, _ = policy.model.forward(weights["model"], tokens, lengths=lengths, adapters=adapters, dtype=policy.dtype)
    scores = jax.nn.sigmoid(critics.read(weights["critic"], at(hidden, lengths - 1)))
    return sharding.whole(scores)  # every process needs all scores


def version_of(weights: Mapping, model: str) -> str:
    """Return a checksum of the weights and the model's name."""
    digest = hashlib.sha256(model.encode())
    for path, leaf in jax.tree.leaves_with_path(dict(weights)):
        array = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()[:16]


def _next(n: int, factor: int, unit: int = 1) -> int:
    """Round n up to unit · factor^k for an integer k >= 0."""
    size = unit
    while size < n:
        size *= factor
    return size
