"""Assignment of samples to rows and pages, computed on the host.

A mesh may shard the batch into parts, each with its own rows and pages. A sample stays in its part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from marl_jax.sampling.pages import PagePool
from marl_jax.sampling.requests import Memory, PendingPrefill, Request, Sample, Usage
from marl_jax.sampling.slots import Slots


@dataclasses.dataclass(frozen=True)
class Line:
    """Consecutive tokens of one context to be prefilled.

    Attributes:
        tokens: int32 [n].
        start: Position of the first token.
        pages: Pages of the context.
        policy: Index of the policy.
        context: int32 [N], all tokens of the context.
    """

    tokens: np.ndarray
    start: int
    pages: Sequence[int]
    policy: int
    context: np.ndarray


@dataclasses.dataclass(frozen=True)
class ReleasedPages:
    """Pages of a finished row.

    Attributes:
        pages: The pages.
        policy: Index of the policy.
        tokens: Tokens of the pages if these should become findable, otherwise None.
        known: Number of full pages that are already findable.
    """

    pages: list[int]
    policy: int
    tokens: np.ndarray | None
    known: int


class Part:
    """The samples of some rows, and the pages that they share.

    Args:
        pool: The pages.
        slots: The rows.
        version: Returns the version of a policy's weights.
        chunk: Steps per chunk. A row has pages for these before it starts the chunk.
        exact: Whether results must not depend on memory pressure, bit for bit. Then a sample has pages for its full
            completion from the start, so that it is never prefilled again, and only prefilled pages become findable.
        usage: Counters to update.
    """

    def __init__(
        self, pool: PagePool, slots: Slots, version: Callable[[int], int], chunk: int, exact: bool, usage: Usage
    ):
        self.pool, self.slots, self.version = pool, slots, version
        self.chunk, self.exact, self.usage = chunk, exact, usage
        self.preempted: list[Sample] = []  # to be queued again, oldest row first
        self._reads: list[PendingPrefill] = []  # in the order of their dependencies
        self._shared: dict[Request, PendingPrefill] = {}  # contexts that more samples of their request will continue
        self._copies: list[Sample] = []  # samples that need a copy of a page
        self._left: list[ReleasedPages] = []  # pages of finished rows, not yet released

    @property
    def active(self) -> list[Sample]:
        """Samples that have a row."""
        return [sample for sample in self.slots.samples if sample is not None]

    # Rows and pages

    def place(self, sample: Sample) -> bool:
        """Assign a row and pages to a sample; return False if none are free."""
        if self._place(sample):
            return True
        if self.slots.free < len(self.slots.samples):
            return False
        # No row is active, so none will release pages: release shared contexts and place this sample without sharing.
        for read in [read for read in self._shared.values() if read.done]:
            self._unshare(read)
        return self._place(sample, alone=True)

    def _place(self, sample: Sample, alone: bool = False) -> bool:
        """Try to place a sample; `alone` prevents sharing with samples of its request."""
        request, pool, fresh = sample.request, self.pool, not len(sample.tokens)
        read = self._shared.get(request) if fresh and not alone else None
        begun = read is None
        if begun:
            read = self._begin(sample)
            if read is None:
                return False
        full, tail = divmod(len(read.tokens), pool.size)
        # The last sample that continues a context takes over its last page; the others get a copy.
        copies = tail > 0 and fresh and request.unplaced > 1 and not alone
        more = pool.pages_for(sample.most) - len(read.pages) if self.exact else 0
        own = self._take(copies + more)
        if own is None:
            if begun:
                self._give_up(read)
            return False
        shared = read.pages[:full] if copies else read.pages
        pool.hold(shared)
        self.slots.put(sample, [*shared, *own], read.done)
        if not read.done:
            sample.read = read
            read.samples.append(sample)
        if copies:
            sample.copy = read.pages[full], own[0]
            self._copies.append(sample)
        if fresh:
            request.unplaced -= 1
            if request.unplaced and not alone:
                self._shared[request] = read
        self.usage.reused += 0 if begun else len(read.tokens)
        return True

    def _begin(self, sample: Sample) -> PendingPrefill | None:
        """Reserve pages for a context and queue its prefill; return None if pages are short."""
        tokens, pool = sample.context[:-1], self.pool
        known, busy = pool.known(sample.request.policy, tokens), len(self.slots.samples) - self.slots.free
        missing = pool.pages_for(len(tokens)) - len(known)
        pool.hold(known)
        # Every decoding row may need another page soon; taking these now would only lead to preemption.
        spare = 0 if self.exact else busy
        if missing > pool.available - spare:
            self.settle()
        if missing > pool.available - spare and (busy or missing > pool.available):
            pool.release(known)
            return None
        taken = pool.take(missing)
        assert taken is not None
        pages = known + taken
        waits = [page for page in known if page in pool.unread] if pool.unread else []
        pool.publish(sample.request.policy, tokens, pages, len(known), unread=True)
        read = PendingPrefill(sample.request, tokens, pages, waits, len(known) * pool.size)
        self._reads.append(read)
        self.usage.reused += read.next
        return read

    def _give_up(self, read: PendingPrefill):
        """Undo `_begin`."""
        self._reads.remove(read)
        self.usage.reused -= read.next
        self.pool.forget([page for page in read.pages[read.next // self.pool.size :] if page in self.pool.unread])
        self.pool.release(read.pages)

    def grow(self) -> np.ndarray:
        """Reserve pages for the next chunk and return the rows that decode it.

        Other rows may be preempted.
        """
        slots, pool = self.slots, self.pool
        going = np.flatnonzero(slots.ready)
        ends = np.minimum(slots.lengths[going] + self.chunk, slots.most[going])
        need = np.maximum(-(-ends // pool.size) - slots.n_pages[going], 0)
        pages = self._take(int(need.sum()))
        if pages is not None:
            slots.add_pages(going, need, pages)
            return going
        order = np.argsort(slots.came[going])
        stay = []
        for slot, count in zip(going[order], need[order], strict=True):
            if slots.samples[slot] is None:  # preempted for an older sample
                continue
            while (pages := pool.take(int(count))) is None and self._reclaim(slot):
                pass
            if pages is not None:  # otherwise the row waits until pending prefills release pages
                slots.add_pages(np.asarray([slot]), np.asarray([count]), pages)
                stay.append(slot)
        return np.sort(np.asarray([slot for slot in stay if slots.samples[slot] is not None], np.int64))

    def _reclaim(self, keep: int) -> bool:
        """Make pages available, and return False if that is impossible.

        Contexts that only wait for rows are released first, then the most recent row that is newer than `keep` is
        preempted.
        """
        waiting = [read for read in self._shared.values() if read.done]
        if waiting:
            for read in waiting:
                self._unshare(read)
            return True
        came = self.slots.came
        others = [slot for slot in np.flatnonzero(self.slots.ready) if came[slot] > came[keep]]
        if not others:
            return False
        sample = self.slots.samples[max(others, key=lambda slot: came[slot])]
        assert sample is not None
        self.release(sample)
        self.settle()
        self.preempted.insert(0, sample)
        self.usage.preempted += 1
        return True

    def release(self, sample: Sample, spoilt: bool = False) -> None:
        """Free the row of a sample.

        The row is free at once; its pages are released by the next `settle` or when pages are short. Full pages become
        findable unless they are spoilt.
        """
        slot, policy = sample.slot, sample.request.policy
        assert slot is not None
        findable = sample.read is None and not self.exact and not spoilt
        tokens = self.slots.context(slot)[:-1] if findable else None
        left = ReleasedPages(self.slots.pages(slot), policy, tokens, (len(sample.context) - 1) // self.pool.size)
        if sample.read is not None:
            sample.read.samples.remove(sample)
        if sample.copy is not None:
            self._copies.remove(sample)
        sample.read = sample.copy = None
        self.slots.clear(slot, self.version(policy))
        if spoilt:  # to be cleared before the next chunk
            self.pool.spoil(left.pages)
            self.pool.release(left.pages)
        else:
            self._left.append(left)

    def settle(self) -> None:
        """Release the pages of finished rows."""
        left, self._left = self._left, []
        for one in left:
            if one.tokens is not None:
                self.pool.publish(one.policy, one.tokens, one.pages, one.known)
            self.pool.release(one.pages)

    def _take(self, count: int) -> list[int] | None:
        """Take pages, or return None if fewer are available."""
        if count > self.pool.available:
            self.settle()
        return self.pool.take(count)

    def close(self, request: Request) -> None:
        """Release a request's context, which no further sample will continue."""
        if request in self._shared:
            self._unshare(self._shared[request])

    def forget(self, policy: int) -> list[Sample]:
        """Drop the cached contexts of a policy, and return its samples, which lose their rows."""
        gone = [s for s in self.active if s.request.policy == policy]
        gone.sort(key=lambda sample: self.slots.came[sample.slot])
        for sample in gone:
            self.release(sample)
        self.settle()
        for read in [r for r in {*self._reads, *self._shared.values()} if r.request.policy == policy]:
            self.pool.release(read.pages)
        self._reads = [r for r in self._reads if r.request.policy != policy]
        self._shared = {q: r for q, r in self._shared.items() if q.policy != policy}
        self.pool.forget_policy(policy)
        return gone

    # Prefill

    def unread_lines(self, width: int, enough: int) -> int:
        """Count the lines of `width` tokens that still have to be prefilled.

        Counting stops when `enough` is reached.
        """
        count = 0
        for read in self._reads:
            if count >= enough:
                break
            count += -(-(len(read.tokens) - read.next) // width)
        return count

    def lines(self, most: int, width: int) -> list[Line]:
        """Return up to `most` lines of `width` tokens to prefill next.

        A line attends only to its own tokens, to earlier lines, and to prefilled pages.
        """
        lines: list[Line] = []
        size, unread = self.pool.size, self.pool.unread
        for read in list(self._reads):
            if any(page in unread for page in read.waits):
                continue
            first = read.next
            while read.next < len(read.tokens) and len(lines) < most:
                end = min(read.next + width, len(read.tokens))
                own = read.tokens[read.next : end]
                lines.append(Line(own, read.next, read.pages, read.request.policy, read.tokens))
                read.next = end
            self.usage.read += read.next - first
            unread.difference_update(read.pages[first // size : read.next // size])
            if read.next == len(read.tokens):
                self._complete(read)
            elif len(lines) == most:
                break
        return lines

    def _complete(self, read: PendingPrefill):
        """Mark a prefill as done, so that its samples can decode."""
        read.done = True
        self._reads.remove(read)
        for sample in read.samples:
            sample.read = None
            self.slots.ready[sample.slot] = True
        read.samples.clear()
        if self._shared.get(read.request) is not read:
            self.pool.release(read.pages)

    def copies(self) -> list[tuple[int, int]]:
        """Return the pages to copy before the next chunk, as (source, target)."""
        prefilled = [sample for sample in self._copies if sample.read is None]
        pairs = [sample.copy for sample in prefilled if sample.copy is not None]
        self._copies = [sample for sample in self._copies if sample.read is not None]
        for sample in prefilled:
            sample.copy = None
        for request in [q for q in self._shared if not q.unplaced]:
            self._unshare(self._shared[request])
        return pairs

    def _unshare(self, read: PendingPrefill):
        """Stop keeping a context for further samples."""
        del self._shared[read.request]
        if read.done:
            self.pool.release(read.pages)

    def memory(self) -> Memory:
        """Return the present use of the pages."""
        slots, pool = self.slots, self.pool
        filled = np.zeros((pool.count,), np.int32)
        order = np.arange(slots.table.shape[1])

        def fill(table, n_pages, lengths):
            inside = np.clip(lengths[:, None] - order * pool.size, 0, pool.size)
            held = order < n_pages[:, None]
            np.maximum.at(filled, table[held] - pool.first, inside[held])

        decoding = np.flatnonzero(slots.ready)
        fill(slots.table[decoding], slots.n_pages[decoding], slots.lengths[decoding])
        for read in {*self._reads, *self._shared.values()}:
            table = np.zeros((1, len(order)), np.int32)
            table[0, : len(read.pages)] = read.pages
            fill(table, np.asarray([len(read.pages)]), np.asarray([read.next]))
        return Memory(int(filled.sum()), pool.held * pool.size, pool.count * pool.size)
