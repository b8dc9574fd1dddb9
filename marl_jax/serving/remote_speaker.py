"""Remote models as speakers of tasks.

A remote model uses bytes as tokens. Conversations are stored like any other, and a prompt is split into messages again
before it is sent. Its tokens are not trained on and do not reach the learner (`collate`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.remote import RemoteModel
from marl_jax.serving.remote_models import RemoteModels
from models import tokenizers
from models.chat import ChatParts, chat_parts

MOST_BYTES = 1 << 20  # maximum size of a conversation


@dataclasses.dataclass(frozen=True, eq=False)
class RemoteSampler:
    """A sampler whose completions come from a remote model.

    Log-probs are unknown and set to zero.

    Attributes:
        place: URL#MODEL.
        models: Remote models of the run.
    """

    place: str
    models: RemoteModels

    @functools.cached_property
    def codec(self) -> tuple[tokenizers.Tokenizer, ChatParts]:
        """Tokenizer, and the fixed strings of its chat template."""
        tokenizer = tokenizers.load("tiny")
        return tokenizer, chat_parts(tokenizer)

    async def answer(
        self, ids: Sequence[int], sampling: Sampling, policy: int = 0, n: int = 1, deadline: float | None = None
    ) -> list[Completion]:
        """See `BatcherThread.answer`. A failed request fails the episode."""
        tokenizer, parts = self.codec
        completions = await self.models.complete(
            self.place, messages_of(tokenizer.decode(ids), parts), n=n, temperature=sampling.temperature,
            max_tokens=sampling.max_new_tokens, seed=sampling.seed, stop=sampling.stop_strings,
        )  # fmt: skip
        return [self._answer(text, finish) for text, finish in completions]

    def set_weights(self, policy: int, weights: Any, version: int) -> None:
        """Do nothing; the server has the weights."""

    def _answer(self, text: str, finish: str) -> Completion:
        tokenizer, _ = self.codec
        ids = tokenizer.encode(tokenizer.strip_special(text)) + [tokenizer.stop_ids[0]]
        zeros = np.zeros((len(ids),), np.float32)
        finish = "length" if finish == "length" else "stop"
        return Completion(np.asarray(ids, np.int32), zeros, finish, zeros.astype(np.int32))


def remote_speaker(place: str, sampling: Sampling, models: RemoteModels) -> Speaker:
    """Return a speaker for a remote model, which does not learn.

    Args:
        place: URL#MODEL.
        sampling: Temperature and token budget.
        models: Remote models of the run.
    """
    RemoteModel.parse(place)
    sampler = RemoteSampler(place, models)
    return Speaker(sampler, sampler.codec[0], sampling, MOST_BYTES, backbone=place, number=-1, remote=True)


def messages_of(text: str, parts: ChatParts) -> list[dict[str, str]]:
    """Split the text of a conversation, as built by `Speaker`, into messages."""
    *before, rest = text.split(parts.user_close_and_reply)
    if rest or not before:
        raise ValueError(f"the conversation does not end with the start of a completion: {text[-80:]!r}")
    messages = []
    for i, piece in enumerate(before):
        if i:
            answer, close, piece = piece.partition(parts.reply_close_and_user)
            messages.append({"role": "assistant", "content": answer})
        elif piece.startswith(parts.system_open):
            system, _, piece = piece.removeprefix(parts.system_open).partition(parts.system_close + parts.user_open)
            messages.append({"role": "system", "content": system})
        else:
            piece = piece.removeprefix(parts.start)
        messages.append({"role": "user", "content": piece})
    return messages
