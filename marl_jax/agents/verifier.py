"""Verifiers: the probability that the answer at the end of a chat is right, read at the answer's last token.

A verifier is a policy whose critic is a head. Training puts the label on tokens of the answer, the last one among them
(`marl_jax/algorithms/verifier.py`); the score is the sigmoid of the head's value at that token, and nowhere else. Both
read a chat with `read_chat`, so that what is scored is tokenised as what was learnt.
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
TOKEN_UNIT = 64  # lengths of rows are this times 1, 2, 4, …


class ChatError(ValueError):
    """A chat that cannot be scored; the message says why."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """A chat as token ids, up to the last token of its last answer; `start` tokens stand before that answer."""

    tokens: tuple[int, ...]
    start: int

    @property
    def completion_length(self) -> int:
        """Tokens of the answer; 0 for an empty one, which has no place for a score."""
        return len(self.tokens) - self.start


def read_chat(tokenizer: Tokenizer, messages: Sequence[Message], max_length: int) -> Reading:
    """The tokens of [system,] user, assistant, …, assistant; special tokens in texts are dropped.

    Each answer is tokenised by itself, as it is while a chat is sampled.
    """
    system, turns = _check(messages)
    parts, clean = _parts(tokenizer), tokenizer.strip_special
    tokens: list[int] = []
    start = 0
    for i in range(0, len(turns), 2):
        asked = clean(turns[i])
        text = parts.continuation(asked) if i else parts.opening(None if system is None else clean(system), asked)
        tokens += tokenizer.encode(text)
        start = len(tokens)
        tokens += tokenizer.encode(clean(turns[i + 1]))
    if len(tokens) > max_length:
        raise ChatError(f"the chat has {len(tokens)} tokens; {max_length} is the limit")
    return Reading(tuple(tokens), start)


def _check(messages: Sequence[Message]) -> tuple[str | None, list[str]]:
    """The system text, and the texts of user and assistant in turn."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise ChatError(f"a chat is {type(messages).__name__}; expected a list of messages")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            raise ChatError(f"message {i} is not an object with a role and a text in content")
    texts = [message["content"] for message in messages]
    roles = [message.get("role") for message in messages]
    system = texts.pop(0) if roles[:1] == ["system"] else None
    roles = roles[1:] if system is not None else roles
    if not roles or roles != ["user", "assistant"] * (len(roles) // 2):
        found = ", ".join(map(str, roles[:8])) or "nothing"
        raise ChatError(f"the roles are {found}; expected user and assistant in turn, the answer last")
    return system, texts


@functools.lru_cache(maxsize=8)
def _parts(tokenizer: Tokenizer) -> templates.ChatParts:
    return templates.chat_parts(tokenizer)


class Scorer:
    """Scores chats in batches of similar length.

    policy      with a head
    weights     its weights, head included; others may take their place
    max_length  tokens of a chat at most
    max_tokens  tokens of a batch, padding included; of the longest chats at least one fits
    mesh        on which the weights lie; None: that of the caller. Another thread than the one that made it needs it
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
            raise RunError("these are weights of a policy without a head; expected those of a verifier")
        self.tokenizer, self.max_length = tokenizer, max_length
        self._max_tokens, self._mesh, self.weights = max_tokens, mesh, weights
        self._program = jax.jit(functools.partial(probabilities, policy))

    def __call__(self, chats: Sequence[Sequence[Message]]) -> list[float]:
        """The probability of each chat's last answer to be right, in their order."""
        return self.score([self.read(chat) for chat in chats])

    def read(self, messages: Sequence[Message]) -> Reading:
        """A chat as the verifier reads it; `ChatError` if it cannot."""
        return read_chat(self.tokenizer, messages, self.max_length)

    def score(self, readings: Sequence[Reading]) -> list[float]:
        """The same for chats that were read; an empty answer is never right, its score is 0."""
        scores = np.zeros((len(readings),))
        for picked, tokens, lengths in self._batches(readings):
            with contextlib.nullcontext() if self._mesh is None else jax.set_mesh(self._mesh):
                found = np.asarray(self._program(self.weights, tokens, lengths), np.float64)[: len(picked)]
            if not np.isfinite(found).all():
                raise RunError("the verifier's scores are not finite; its weights are damaged")
            scores[picked] = found
        return scores.tolist()

    def _batches(self, readings: Sequence[Reading]):
        """(numbers, tokens int32 [N, T], lengths int32 [N]) from short to long; N and T take few values."""
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
    """float32 [N]: the scores at the last tokens of rows int32 [N, T] of lengths int32 [N]."""
    adapters = policy.adapters(weights, jnp.zeros((len(tokens),), jnp.int32))
    hidden, _ = policy.model.forward(weights["model"], tokens, lengths=lengths, adapters=adapters, dtype=policy.dtype)
    scores = jax.nn.sigmoid(critics.read(weights["critic"], at(hidden, lengths - 1)))
    return sharding.whole(scores)  # every process reads all of them


def version_of(weights: Mapping, model: str) -> str:
    """A checksum of all weights and the name of the model: equal for verifiers that score alike."""
    digest = hashlib.sha256(model.encode())
    for path, leaf in jax.tree.leaves_with_path(dict(weights)):
        array = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()[:16]


def _next(n: int, factor: int, unit: int = 1) -> int:
    """The first of unit, unit · factor, unit · factor² … that holds n."""
    size = unit
    while size < n:
        size *= factor
    return size
