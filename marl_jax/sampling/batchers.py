"""Several base models behind the interface of one `Batcher`: policies are numbered across all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import Executor, Future

from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.conversation import Completion
from marl_jax.sampling.requests import OnTokens, Usage
from marl_jax.sampling.settings import Sampling


class Batchers:
    """One `Batcher` per base model.

    routes  for policy 0, 1, …: its batcher and its number there; None gives the policies of the batchers in order
    """

    def __init__(self, batchers: Sequence[Batcher], routes: Sequence[tuple[int, int]] | None = None):
        self.batchers = list(batchers)
        self._begun: Batcher | None = None
        if routes is None:
            routes = [(i, p) for i, b in enumerate(self.batchers) for p in range(b.n_policies)]
        self.routes = [tuple(r) for r in routes]
        for policy, (which, own) in enumerate(self.routes):
            if not (0 <= which < len(self.batchers) and 0 <= own < self.batchers[which].n_policies):
                raise ValueError(f"routes[{policy}] is {(which, own)}; expected: a batcher and one of its policies")
        if len(set(self.routes)) < len(self.routes):
            raise ValueError(f"routes is {self.routes}; expected: every policy of a batcher once at most")

    def _route(self, policy: int) -> tuple[int, int]:
        if not 0 <= policy < len(self.routes):
            raise ValueError(f"policy is {policy}; accepted: 0 to {len(self.routes) - 1}")
        return self.routes[policy]

    def submit(
        self, ids: Sequence[int], sampling: Sampling | None = None, policy: int = 0, n: int = 1,
        deadline: float | None = None,
    ) -> int:  # fmt: skip
        """As `Batcher.submit`."""
        which, own = self._route(policy)
        # Numbers interleave, so that a number says whose request it is.
        return self.batchers[which].submit(ids, sampling, own, n, deadline) * len(self.batchers) + which

    def check_request(self, ids: Sequence[int], sampling: Sampling | None = None, policy: int = 0, n: int = 1) -> None:
        """As `Batcher.check_request`."""
        which, own = self._route(policy)
        self.batchers[which].check_request(ids, sampling, own, n)

    def top_logprobs(self, ids: Sequence[int], start: int, sampling: Sampling, policy: int, k: int):
        """As `Batcher.top_logprobs`."""
        which, own = self._route(policy)
        return self.batchers[which].top_logprobs(ids, start, sampling, own, k)

    def cancel(self, request: int) -> bool:
        """As `Batcher.cancel`."""
        own, which = divmod(request, len(self.batchers))
        return self.batchers[which].cancel(own)

    def watch(self, request: int, on_tokens: OnTokens) -> None:
        """As `Batcher.watch`."""
        own, which = divmod(request, len(self.batchers))
        self.batchers[which].watch(own, on_tokens)

    def check_weights(self, policy: int, weights: dict) -> None:
        """As `Batcher.check_weights`."""
        which, own = self._route(policy)
        self.batchers[which].check_weights(own, weights)

    def set_weights(self, policy: int, weights: dict, version: int) -> None:
        """As `Batcher.set_weights`."""
        which, own = self._route(policy)
        self.batchers[which].set_weights(own, weights, version)

    def results(self) -> list[tuple[int, list[Completion]]]:
        """As `Batcher.results`."""
        return [
            (own * len(self.batchers) + which, answers)
            for which, batcher in enumerate(self.batchers) for own, answers in batcher.results()
        ]  # fmt: skip

    def run(self) -> dict[int, list[Completion]]:
        """Answers everything that was submitted."""
        while self.busy:
            self.step()
        return dict(self.results())

    def step(self) -> None:
        """One chunk of every batcher that has something to do."""
        self.begin()
        self.finish()
        self.catch_up()

    def begin(self, device: Executor | None = None) -> Future | None:
        """A chunk of every batcher that has something to do, of which the last one is only begun.

        Programs of several models are never launched side by side: on a mesh they could wait for each other for ever.
        """
        busy = [batcher for batcher in self.batchers if batcher.busy]
        for batcher in busy[:-1]:
            batcher.begin(device)
            batcher.finish()
        self._begun = busy[-1] if busy else None
        return None if self._begun is None else self._begun.begin(device)

    def refill(self) -> None:
        """As `Batcher.refill`."""
        for batcher in self.batchers:
            batcher.refill()

    def finish(self) -> None:
        """As `Batcher.finish`."""
        if self._begun is not None:
            self._begun.finish()

    def catch_up(self) -> None:
        """As `Batcher.catch_up`."""
        for batcher in self.batchers:
            batcher.catch_up()

    def close(self) -> None:
        """As `Batcher.close`."""
        for batcher in self.batchers:
            batcher.close()

    def expire(self) -> None:
        """As `Batcher.expire`."""
        for batcher in self.batchers:
            batcher.expire()

    @property
    def busy(self) -> bool:
        """Whether any of them is."""
        return any(batcher.busy for batcher in self.batchers)

    @property
    def updating(self) -> set[int]:
        """The policies whose new weights wait for rows in flight."""
        return {policy for policy, (which, own) in enumerate(self.routes) if own in self.batchers[which].updating}

    @property
    def n_policies(self) -> int:
        return len(self.routes)

    @property
    def next_deadline(self) -> float | None:
        """As `Batcher.next_deadline`."""
        return min((d for b in self.batchers if (d := b.next_deadline) is not None), default=None)

    @property
    def compile_seconds(self) -> float:
        """Sum of `Batcher.compile_seconds`; one batcher runs at a time, so all requests wait for each of them."""
        return sum(batcher.compile_seconds for batcher in self.batchers)

    @property
    def usage(self) -> Usage:
        """Sums over the batchers; versions by policy."""
        usages = [batcher.usage for batcher in self.batchers]
        names = [f.name for f in dataclasses.fields(Usage) if f.name != "versions"]
        versions = tuple(usages[which].versions[own] for which, own in self.routes)
        return Usage(**{name: sum(getattr(u, name) for u in usages) for name in names}, versions=versions)
