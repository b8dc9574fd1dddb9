"""Samplers that are in another process, for an endpoint in this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from marl_jax.sampling.batcher_thread import BatcherClosed, BatcherFailed
from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.requests import OnTokens
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.workers import serialization
from marl_jax.serving.workers.channel import Channel, Handlers


class SamplerChannel(Channel):
    """A worker's end of a channel: asks for answers, and hands out tokens as they come."""

    def __init__(self, handlers: Handlers):
        super().__init__(handlers)
        self._on_tokens: dict[int, OnTokens] = {}

    async def ask(self, ids: Sequence[int], fields: dict, on_tokens: OnTokens | None = None) -> list[Completion]:
        """The answers; cancelling it frees their rows."""
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
        """Tokens or answers."""
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
        except Exception as error:  # is that of one request
            self.loop.call_exception_handler({"message": f"{on_tokens} failed", "exception": error})


class WorkerSampler:
    """A `BatcherThread` of another process, by its number there.

    running  whether it takes requests, as far as is known here
    """

    def __init__(self, channel: SamplerChannel, number: int):
        self._channel, self.number, self.running = channel, number, True

    async def answer(
        self, ids: Sequence[int], sampling: Sampling, policy: int = 0, n: int = 1, deadline: float | None = None,
        on_tokens: OnTokens | None = None,
    ) -> list[Completion]:  # fmt: skip
        """As `BatcherThread.answer`; processes of one machine have the same clock for deadlines."""
        fields = {
            "sampler": self.number, "policy": policy, "n": n, "deadline": deadline,
            "sampling": serialization.sampling_fields(sampling),
        }  # fmt: skip
        try:
            return await self._channel.ask(ids, fields, on_tokens)
        except (BatcherClosed, BatcherFailed):
            self.running = False
            raise

    def top_logprobs(self, ids: Sequence[int], start: int, sampling: Sampling, policy: int = 0, k: int = 5):
        """As `BatcherThread.top_logprobs`, in a thread that waits for the other process."""
        found = self._channel.call_in_thread(
            "top_logprobs", self.number, list(ids), start, serialization.sampling_fields(sampling), policy, k
        )
        return [[(token, logp) for token, logp in row] for row in found]
