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
    begun     whether a sample of it has a row or had one: from then on it belongs to the weights that read it
    ended     "cancelled", or None; its rows are freed before the next chunk
    unplaced  samples that wait for a row and have written nothing: what is read for one of them serves all
    """

    id: int
    prompt: list[int]
    policy: int
    deadline: float | None
    answers: list[Answer | None]
    begun: bool = False
    ended: str | None = None
    unplaced: int = 0

    def overdue(self, now: float) -> str | None:
        """Why it has to end now, or None."""
        return self.ended or ("deadline" if self.deadline is not None and now >= self.deadline else None)


@dataclasses.dataclass(eq=False)
class Read:
    """A context on its way into pages, read once for all samples that continue it.

    tokens  the context but its last token, which the first step of decoding reads
    pages   that hold it, held for as long as it is read or samples wait for it
    waits   pages among them that somebody else is reading
    next    the first position that has not been given to the device
    done    whether all of it has
    """

    request: Request
    tokens: list[int]
    pages: list[int]
    waits: list[int]
    next: int
    done: bool = False


@dataclasses.dataclass(eq=False)
class Sample:
    """Sample k of a request, waiting or in a row.

    placed  whether it has a row
    pages   of its row, in order
    read    what its row waits for, or None when it may decode
    copy    (source, target): a page to copy when that has been read, so that samples do not write over each other
    """

    request: Request
    k: int
    sampling: Sampling
    tokens: list[int] = dataclasses.field(default_factory=list)
    logps: list[float] = dataclasses.field(default_factory=list)
    versions: list[int] = dataclasses.field(default_factory=list)
    placed: bool = False
    pages: list[int] = dataclasses.field(default_factory=list)
    read: Read | None = None
    copy: tuple[int, int] | None = None

    @property
    def context(self) -> list[int]:
        """What it has: the last token is still to be read."""
        return self.request.prompt + self.tokens

    @property
    def length(self) -> int:
        """Tokens of its context that are in the cache when it decodes."""
        return len(self.request.prompt) + len(self.tokens) - 1

    @property
    def most(self) -> int:
        """Tokens that it has in the cache at its end, if it uses its budget up."""
        return len(self.request.prompt) + self.sampling.max_new_tokens - 1

    @property
    def budget(self) -> int:
        return self.sampling.max_new_tokens - len(self.tokens)

    @property
    def program(self) -> tuple[bool, bool, int]:
        """What of its settings is part of a program's shape."""
        return self.sampling.filters, self.sampling.repetition_penalty != 1, stop_width(self.sampling)

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
    read       tokens read into pages: of prompts, and of answers read again; the last one of a prompt is not among
               them, since the first step of decoding reads it
    reused     tokens of contexts that were in pages already when a sample got its row
    slots      decoding steps times rows
    preempted  how often a sample gave its row up because memory was short
    seconds    of work
    waiting    requests of which nothing has been read yet, and `running` the other open ones
    versions   of the weights, per policy
    """

    generated: int = 0
    read: int = 0
    reused: int = 0
    slots: int = 0
    preempted: int = 0
    seconds: float = 0.0
    waiting: int = 0
    running: int = 0
    versions: tuple[int, ...] = ()

    @property
    def useful(self) -> float:
        """The share of decoding slots that gave a token."""
        return self.generated / max(self.slots, 1)


@dataclasses.dataclass(frozen=True)
class Memory:
    """What pages hold at a moment.

    tokens  that rows and contexts in progress have in pages, those of shared pages once
    slots   of the pages that are held for them
    total   slots of all pages; the others are free, or hold contexts that may be found again
    """

    tokens: int
    slots: int
    total: int
