"""What a `Batcher` keeps about its requests, and the usage it reports."""

from __future__ import annotations

import dataclasses

import numpy as np

from marl_jax.sampling.conversation import Answer
from marl_jax.sampling.settings import Sampling, sample_seed, stop_width


@dataclasses.dataclass(eq=False)
class Request:
    """n samples of one prompt.

    answers   one per sample, None until it is there
    deadline  a value of time.monotonic(), or None
    begun     whether a sample of it has been read: from then on it belongs to the weights that read it
    ended     "cancelled", or None; its rows are freed before the next chunk
    """

    id: int
    prompt: list[int]
    policy: int
    deadline: float | None
    answers: list[Answer | None]
    begun: bool = False
    ended: str | None = None

    def overdue(self, now: float) -> str | None:
        """Why it has to end now, or None."""
        return self.ended or ("deadline" if self.deadline is not None and now >= self.deadline else None)


@dataclasses.dataclass(eq=False)
class Sample:
    """Sample k of a request, waiting or in a row.

    before  how many of its tokens were read again together with the prompt, after an update in flight
    """

    request: Request
    k: int
    sampling: Sampling
    tokens: list[int] = dataclasses.field(default_factory=list)
    logps: list[float] = dataclasses.field(default_factory=list)
    versions: list[int] = dataclasses.field(default_factory=list)
    before: int = 0

    @property
    def context(self) -> list[int]:
        """What its row reads before it writes."""
        return self.request.prompt + self.tokens[: self.before]

    @property
    def remaining(self) -> Sampling:
        """How it continues behind what was read."""
        if not self.before:
            return self.sampling
        return dataclasses.replace(self.sampling, max_new_tokens=self.sampling.max_new_tokens - self.before)

    @property
    def program(self) -> tuple[bool, int]:
        """What of its settings is part of a program's shape."""
        return self.sampling.filters, stop_width(self.sampling)

    def extend(self, tokens: np.ndarray, logps: np.ndarray, version: int) -> None:
        """Adds tokens that were written under one version of the weights."""
        self.tokens += tokens.tolist()
        self.logps += logps.tolist()
        self.versions += [version] * len(tokens)

    def cut_at_stop_string(self, tokenizer) -> bool:
        """Drops the tokens behind the first stop string; those that complete it stay."""
        stops = self.sampling.stop_strings
        if not stops or not _holds(tokenizer.decode(self.tokens), stops):
            return False
        lengths = range(1, len(self.tokens) + 1)
        kept = next(n for n in lengths if _holds(tokenizer.decode(self.tokens[:n]), stops))
        del self.tokens[kept:], self.logps[kept:], self.versions[kept:]
        return True

    def answer(self, finish: str) -> Answer:
        """What it has written, for the caller."""
        arrays = (self.tokens, np.int32), (self.logps, np.float32), (self.versions, np.int32)
        tokens, logps, versions = (np.asarray(x, dtype) for x, dtype in arrays)
        return Answer(tokens, logps, finish, versions)


def samples_of(request: Request, sampling: Sampling) -> list[Sample]:
    """The samples of a request, each with a seed of its own that does not depend on how many there are."""
    return [
        Sample(request, k, dataclasses.replace(sampling, seed=sample_seed(sampling.seed, k)))
        for k in range(len(request.answers))
    ]


def _holds(text: str, stops: tuple[str, ...]) -> bool:
    return any(stop in text for stop in stops)


@dataclasses.dataclass
class Usage:
    """What a batcher has done so far, and what it has before it.

    generated  tokens written
    decoded    those of them that took a decoding slot: the first token after reading does not
    read       tokens of prompts, and of answers read again under new weights
    slots      decoding steps times rows
    seconds    of work
    waiting    requests of which nothing has been read yet, and `running` the other open ones
    versions   of the weights, per policy
    """

    generated: int = 0
    decoded: int = 0
    read: int = 0
    slots: int = 0
    seconds: float = 0.0
    waiting: int = 0
    running: int = 0
    versions: tuple[int, ...] = ()

    @property
    def useful(self) -> float:
        """The share of decoding slots that gave a token."""
        return self.decoded / max(self.slots, 1)
