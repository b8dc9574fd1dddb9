"""Samplers of another process, for an endpoint in this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from marl_jax.sampling.batcher_thread import BatcherClosed, BatcherFailed
from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.requests import OnTokens
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.workers import serialization
from marl_jax.serving.workers.channel import Channel, Handlers


class SamplerChannel(Channel):
    """A worker's end of a channel: requests completions and passes on their tokens."""

    def __init__(self, handlers: Handlers):
        super().__init__(handlers)
        self._on_tokens: dict[int, OnTokens] = {}

    async def ask(self, ids: Sequence[int], fields: dict, on_tokens: OnTokens | None = None) -> list[Completion]:
        """Return the completions of a prompt; cancelling it frees their rows."""
        number, answered = self.expect()
        try:
            self.send(serialization.ask(number, ids, fields | {"stream": on_tokens is not None}))
            if on_tokens is not None:
                self._on_tokens[number] = on_tokens
            return await answered
        finally:
            if answered.cancelled() or not answered.done():
                self.send(serialization.message(serialization.CANCEL, serialization.NUMBER.pack(number)))
            self.forget(number)
            self._on_tokens.pop(number, None)

    def received(self, kind: int, payload: bytes) -> None:
        """Handle tokens or finished completions."""
        if kind == serialization.ANSWERS:
            self.settle(*serialization.read_answers(payload))
        elif kind == serialization.TOKENS:
            number, k, new = serialization.read_tokens(payload)
            if (on_tokens := self._on_tokens.get(number)) is not None:
                self._show(on_tokens, k, new)
        else:
            super().received(kind, payload)

    def _show(self, on_tokens: Callable, k: int, new: Completion) -> None:
        try:
            on_tokens(k, new)
        except Exception as error:  # concerns only one request
            self.loop.call_exception_handler({"message": f"{on_tokens} failed", "exception": error})


class WorkerSampler:
    """A `BatcherThread` of another process.

    Attributes:
        number: Number of the sampler in the other process.
        running: Whether the sampler accepts requests, as far as this process knows.
    """

    def __init__(self, channel: SamplerChannel, number: int):
        self._channel, self.number, self.running = channel, number, True

    async def answer(
        self, ids: Sequence[int], sampling: Sampling, policy: int = 0, n: int = 1, deadline: float | None = None,
        on_tokens: OnTokens | None = None,
    ) -> list[Completion]:  # fmt: skip
        """See `BatcherThread.answer`.

        Deadlines are valid here too, because processes of one machine share the clock.
        """
        fields = {
            "sampler": self.number, "policy": policy, "n": n, "deadline": deadline,
            "sampling": serialization.sampling_fields(sampling),
        }  # fmt: skip
        try:
            return await self._channel.ask(ids, fields, on_tokens)
        except (BatcherClosed, BatcherFailed):
            self.running = False
            raise

    def hold_image(self, image: Any, policy: int = 0) -> tuple[list[int], Callable[[], None]]:
        """Refuse images, which only the process of the batcher can encode."""
        raise ValueError("serve.workers is > 0, but images need a server without workers")

    def top_logprobs(self, ids: Sequence[int], start: int, sampling: Sampling, policy: int = 0, k: int = 5):
        """See `BatcherThread.top_logprobs`; blocks until the other process has answered."""
        rows = self._channel.call_in_thread(
            "top_logprobs", self.number, list(ids), start, serialization.sampling_fields(sampling), policy, k
        )
        return [[(token, logp) for token, logp in row] for row in rows]
