"""What a `Batcher` keeps about its requests, and the usage it reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.settings import Constraint, Sampling, sample_seed, stop_width

OnTokens = Callable[[int, Completion], None]
"""Called with k and what sample k of a request has written since the last call, of which `finish` is "going"."""


@dataclasses.dataclass(eq=False)
class Request:
    """n samples of one prompt.

    answers    one per sample, None until it is there
    deadline   a value of time.monotonic(), or None
    begun      whether a sample of it has a row or had one: from then on it belongs to the weights that read it
    ended      "cancelled", or None; its rows are freed before the next chunk
    unplaced   samples that wait for a row and have written nothing: what is read for one of them serves all
    on_tokens  called after a chunk with what is new, or None
    """

    id: int
    prompt: np.ndarray
    policy: int
    deadline: float | None
    answers: list[Completion | None]
    begun: bool = False
    ended: str | None = None
    unplaced: int = 0
    on_tokens: OnTokens | None = None

    def overdue(self, now: float) -> str | None:
        """Why it has to end now, or None."""
        return self.ended or ("deadline" if self.deadline is not None and now >= self.deadline else None)


@dataclasses.dataclass(eq=False)
class PendingPrefill:
    """A context on its way into pages, read once for all samples that continue it.

    tokens   int32 [n], the context but its last token, which the first step of decoding reads
    pages    that hold it, held for as long as it is read or samples wait for it
    waits    pages among them that somebody else is reading
    next     the first position that has not been given to the device
    samples  that have a row and wait for it
    done     whether all of it has been given to the device
    """

    request: Request
    tokens: np.ndarray
    pages: list[int]
    waits: list[int]
    next: int
    samples: list[Sample] = dataclasses.field(default_factory=list)
    done: bool = False


@dataclasses.dataclass(eq=False)
class Sample:
    """Sample k of a request, waiting or in a row.

    tokens      int32 [n], written before it got the row it has now; with their `logps` and `versions`
    slot        its row, or None
    read        what its row waits for, or None when it may decode
    copy        (source, target): a page to copy when that has been read, so that samples do not write over each other
    shown       tokens that the request's `on_tokens` has had
    constraint  what it may write, or None
    """

    request: Request
    k: int
    sampling: Sampling
    tokens: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0,), np.int32))
    logps: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0,), np.float32))
    versions: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0,), np.int32))
    slot: int | None = None
    read: PendingPrefill | None = None
    copy: tuple[int, int] | None = None
    shown: int = 0
    constraint: Constraint | None = None

    @property
    def context(self) -> np.ndarray:
        """What it begins with when it gets a row: the last token is read by the first step of decoding."""
        return np.concatenate([self.request.prompt, self.tokens]) if len(self.tokens) else self.request.prompt

    @property
    def most(self) -> int:
        """Tokens that it has in the cache at its end, if it uses its budget up."""
        return len(self.request.prompt) + self.sampling.max_new_tokens - 1

    @property
    def program(self) -> tuple[bool, bool, int, bool]:
        """What of its settings is part of a program's shape."""
        sampling = self.sampling
        return sampling.filters, sampling.repetition_penalty != 1, stop_width(sampling), self.constraint is not None

    def extend(self, tokens: np.ndarray, logps: np.ndarray, version: int) -> None:
        """Adds tokens that were written under one version of the weights."""
        self.tokens = np.concatenate([self.tokens, tokens])
        self.logps = np.concatenate([self.logps, logps])
        self.versions = np.concatenate([self.versions, np.full((len(tokens),), version, np.int32)])

    def up_to_stop_string(self, tokens: np.ndarray, tokenizer) -> int | None:
        """How many of the tokens behind its own complete the first stop string, or None."""
        stops, own = self.sampling.stop_strings, self.tokens.tolist()
        if not _holds(tokenizer.decode(own + tokens.tolist()), stops):
            return None
        return next(n for n in range(len(tokens) + 1) if _holds(tokenizer.decode(own + tokens[:n].tolist()), stops))

    def show(self, tokens: np.ndarray, logps: np.ndarray, version: int) -> None:
        """Hands to `on_tokens` what it has not had yet; the arguments are what the sample's row has written."""
        fresh = max(self.shown - len(self.tokens), 0)
        new = len(self.tokens) + len(tokens) - self.shown
        if new <= 0:
            return
        tokens, logps = tokens[fresh:].copy(), logps[fresh:].copy()
        versions = np.full((len(tokens),), version, np.int32)
        if self.shown < len(self.tokens):  # of an earlier row
            pairs = ((self.tokens, tokens), (self.logps, logps), (self.versions, versions))
            tokens, logps, versions = (np.concatenate([before[self.shown :], row]) for before, row in pairs)
        self.shown += new
        assert self.request.on_tokens is not None
        self.request.on_tokens(self.k, Completion(tokens, logps, "going", versions))

    def answer(self, finish: str) -> Completion:
        """What it has written, for the caller."""
        return Completion(self.tokens, self.logps, finish, self.versions)


def samples_of(request: Request, sampling: Sampling) -> list[Sample]:
    """The samples of a request, each with a seed of its own that does not depend on how many there are."""
    make = sampling.constraint or (lambda: None)
    return [
        Sample(request, k, dataclasses.replace(sampling, seed=sample_seed(sampling.seed, k)), constraint=make())
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
    seconds    of work, of which the device had something to read or to decode for `device`
    waiting    requests of which nothing has been read yet, and `running` the other open ones
    versions   of the weights, per policy
    """

    generated: int = 0
    read: int = 0
    reused: int = 0
    slots: int = 0
    preempted: int = 0
    seconds: float = 0.0
    device: float = 0.0
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
