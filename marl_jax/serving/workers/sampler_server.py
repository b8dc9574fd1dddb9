"""The samplers' end of a channel: passes a worker's requests on to the samplers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.openai.calls import ServedModel
from marl_jax.serving.workers import serialization
from marl_jax.serving.workers.channel import Channel, Handlers


class NumberedSamplers:
    """The samplers of some models, each with a number by which workers refer to it."""

    def __init__(self, models: Mapping[str, ServedModel]):
        self.all: list[Any] = []
        self._models: dict[tuple[int, int], ServedModel] = {}
        for model in models.values():
            speaker = model.speaker
            if not any(speaker.sampler is one for one in self.all):
                self.all.append(speaker.sampler)
            self._models[self.number(speaker.sampler), speaker.policy] = model

    def number(self, sampler: Any) -> int:
        """Return the number of a sampler."""
        return next(i for i, one in enumerate(self.all) if one is sampler)

    def sampling(self, number: int, policy: int, fields: Mapping[str, Any]) -> Sampling:
        """Decode the settings from a worker; a schema is compiled by the policy's model."""
        schema = fields["schema"]
        if schema is None:
            return serialization.read_sampling(fields)
        return serialization.read_sampling(fields, self._models[number, policy].json_output.constraint(schema))

    async def top_logprobs(
        self, number: int, ids: Sequence[int], start: int, fields: Mapping[str, Any], policy: int, k: int
    ) -> list[list[tuple[int, float]]]:
        """See `BatcherThread.top_logprobs`."""
        sampling = self.sampling(number, policy, fields)
        rows = await asyncio.to_thread(self.all[number].top_logprobs, ids, start, sampling, policy, k)
        return [[(int(token), float(logp)) for token, logp in row] for row in rows]


class SamplerServer(Channel):
    """This process's end of the channel to one worker."""

    def __init__(self, samplers: NumberedSamplers, handlers: Handlers):
        super().__init__(handlers)
        self._samplers = samplers
        self._running: dict[int, asyncio.Task] = {}

    def received(self, kind: int, payload: bytes) -> None:
        """Handle a request or its cancellation."""
        if kind == serialization.ASK:
            number, fields, ids = serialization.read_ask(payload)
            task = self._running[number] = self.handle(number, self._answer, fields, ids)
            task.add_done_callback(lambda _: self._running.pop(number))
        elif kind == serialization.CANCEL:
            if (task := self._running.get(serialization.read_number(payload))) is not None:
                task.cancel()
        else:
            super().received(kind, payload)

    async def _answer(self, number: int, fields: Mapping[str, Any], ids: list[int]) -> None:
        sampler, policy, more = self._samplers.all[fields["sampler"]], fields["policy"], {}
        if fields["stream"]:

            def on_tokens(k: int, new: Completion) -> None:
                self.send(serialization.tokens(number, k, new))

            more = {"on_tokens": on_tokens}
        sampling = self._samplers.sampling(fields["sampler"], policy, fields["sampling"])
        completions = await sampler.answer(
            ids, sampling, policy=policy, n=fields["n"], deadline=fields["deadline"], **more
        )
        self.send(serialization.answers(number, completions))
