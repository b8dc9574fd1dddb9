"""Which samples decode, in which pages, and what has to be read for them: decided on the host, without a device.

A mesh may split the batch into parts, each with its own rows and pages; a sample stays in the part that took it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from marl_jax.sampling.pages import Key, PagePool, page_keys
from marl_jax.sampling.requests import Memory, Read, Request, Sample, Usage


@dataclasses.dataclass(frozen=True)
class Line:
    """Tokens of one context that stand next to each other, to be read into its pages from `start` on."""

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]
    policy: int


class Part:
    """The samples of up to `rows` rows, and the pages they share.

    chunk  steps that a row decodes at a time: it has pages for these before it begins
    exact  what a sample gets must not depend on memory, to the last bit: it has pages for its whole answer from the
           start, so that it is never read again, and only what was read is found again, not what was decoded
    """

    def __init__(self, pool: PagePool, rows: int, chunk: int, exact: bool, usage: Usage):
        self.pool, self.rows, self.chunk, self.exact, self.usage = pool, rows, chunk, exact, usage
        self.active: list[Sample] = []  # in the order in which they got their rows
        self.preempted: list[Sample] = []  # for the queue, the one that had its row longest first
        self._reads: list[Read] = []  # in the order in which they depend on each other
        self._shared: dict[Request, Read] = {}  # contexts that further samples of their request will continue

    # Rows and pages

    def known(self, keys: Sequence[Key]) -> int:
        """How many pages of a context are here."""
        found = self.pool.find(keys)
        self.pool.release(found)
        return len(found)

    def place(self, sample: Sample, keys: Sequence[Key]) -> bool:
        """Gives a sample a row and pages for its context, whose full pages have these keys; False: no room now."""
        request, pool = sample.request, self.pool
        read = self._shared.get(request) if not sample.tokens else None
        fresh = read is None
        if fresh:
            read = self._begin(sample, keys)
            if read is None:
                return False
        full, tail = divmod(len(read.tokens), pool.size)
        # The last sample that continues a context takes its last page as it is; the others get a copy.
        copies = tail > 0 and not sample.tokens and request.unplaced > 1
        more = pool.pages_for(sample.most) - len(read.pages) if self.exact else 0
        own = pool.take(copies + more)
        if own is None:
            if fresh:
                self._drop(read)
            return False
        shared = read.pages[:full] if copies else read.pages
        pool.hold(shared)
        sample.placed, sample.pages, sample.read = True, [*shared, *own], None if read.done else read
        sample.copy = (read.pages[full], own[0]) if copies else None
        if not sample.tokens:
            request.unplaced -= 1
            if request.unplaced:
                self._shared[request] = read
        self.usage.reused += 0 if fresh else len(read.tokens)
        self.active.append(sample)
        return True

    def _begin(self, sample: Sample, keys: Sequence[Key]) -> Read | None:
        tokens, pool = sample.context[:-1], self.pool
        found = pool.find(keys)
        # Rows that decode are about to need a page each: what is taken from them now would be read again.
        spare = 0 if self.exact else len(self.active)
        missing = pool.pages_for(len(tokens)) - len(found)
        if missing + spare > pool.available and (self.active or missing > pool.available):
            pool.release(found)
            return None
        pages = found + pool.take(missing)
        waits = [page for page in found if page in pool.unread]
        for page, key in zip(pages[len(found) : len(keys)], keys[len(found) :], strict=True):
            pool.publish(page, key, unread=True)
        read = Read(sample.request, tokens, pages, waits, len(found) * pool.size)
        self._reads.append(read)
        self.usage.reused += read.next
        return read

    def _drop(self, read: Read):
        """Gives up a context that is in no line yet."""
        self._reads.remove(read)
        own = [page for page in read.pages if page in self.pool.unread and page not in read.waits]
        self.usage.reused -= read.next
        self.pool.forget(pages=own)
        self.pool.release(read.pages)

    def grow(self) -> list[Sample]:
        """The samples that decode now, with pages for the next chunk; others may lose their row to them."""
        going = []
        for sample in list(self.active):
            if sample.read is not None or not sample.placed:  # not read yet, or just preempted
                continue
            need = self.pool.pages_for(min(sample.length + self.chunk, sample.most)) - len(sample.pages)
            while need > 0 and (pages := self.pool.take(need)) is None and self._reclaim(sample):
                pass
            if need > 0 and pages is None:
                continue  # it sits out until what is being read lets pages go
            sample.pages += pages if need > 0 else []
            going.append(sample)
        return [sample for sample in going if sample.placed]

    def _reclaim(self, keep: Sample) -> bool:
        """Makes pages available: contexts that only wait for rows first, then the sample that came last."""
        waiting = [read for read in self._shared.values() if read.done]
        if waiting:
            for read in waiting:
                self._unshare(read)
            return True
        last = next((s for s in reversed(self.active) if s.read is None and s is not keep), None)
        if last is None:
            return False
        self.release(last)
        self.preempted.insert(0, last)
        self.usage.preempted += 1
        return True

    def release(self, sample: Sample, spoilt: bool = False) -> None:
        """Takes the row from a sample. What it has in full pages can be found again, unless it is spoilt."""
        self.active.remove(sample)
        if sample.read is None and not self.exact and not spoilt:
            keys = page_keys(sample.request.policy, sample.context[:-1], self.pool.size)
            for page, key in zip(sample.pages, keys, strict=False):
                self.pool.publish(page, key)
        if spoilt:
            self.pool.spoil(sample.pages)
        self._vacate(sample)

    def _vacate(self, sample: Sample):
        self.pool.release(sample.pages)
        sample.placed, sample.pages, sample.read, sample.copy = False, [], None, None

    def close(self, request: Request) -> None:
        """No further sample will continue the context of this request."""
        if request in self._shared:
            self._unshare(self._shared[request])

    def forget(self, policy: int) -> list[Sample]:
        """Lets go of everything that a policy has read, since its weights change; returns the samples without a row."""
        gone = [s for s in self.active if s.request.policy == policy]
        for sample in gone:
            self.active.remove(sample)
            self._vacate(sample)
        for read in [r for r in {*self._reads, *self._shared.values()} if r.request.policy == policy]:
            self.pool.release(read.pages)
        self._reads = [r for r in self._reads if r.request.policy != policy]
        self._shared = {q: r for q, r in self._shared.items() if q.policy != policy}
        self.pool.forget(policy)
        return gone

    # Reading

    @property
    def unread(self) -> int:
        """Tokens that are in no line yet."""
        return sum(len(read.tokens) - read.next for read in self._reads)

    def lines(self, most: int, width: int) -> list[Line]:
        """Up to `most` lines of `width` tokens. What a line attends to is in it, in an earlier one, or read already."""
        found: list[Line] = []
        for read in list(self._reads):
            if any(page in self.pool.unread for page in read.waits):
                continue
            while read.next < len(read.tokens) and len(found) < most:
                end = min(read.next + width, len(read.tokens))
                found.append(Line(read.tokens[read.next : end], read.next, read.pages, read.request.policy))
                self.usage.read += end - read.next
                read.next = end
            self.pool.unread.difference_update(read.pages[: read.next // self.pool.size])
            if read.next == len(read.tokens):
                read.done = True
                self._reads.remove(read)
                for sample in self.active:
                    if sample.read is read:
                        sample.read = None
                if self._shared.get(read.request) is not read:
                    self.pool.release(read.pages)
        return found

    def copies(self) -> list[tuple[int, int]]:
        """Pages to copy before the next chunk, as (source, target)."""
        ready = [s for s in self.active if s.copy is not None and s.read is None]
        pairs = [s.copy for s in ready]
        for sample in ready:
            sample.copy = None
        for request in [q for q in self._shared if not q.unplaced]:
            self._unshare(self._shared[request])
        return pairs

    def _unshare(self, read: Read):
        del self._shared[read.request]
        if read.done:
            self.pool.release(read.pages)

    def memory(self) -> Memory:
        """What is held now."""
        filled: dict[int, int] = {}
        contexts = [(s.pages, s.length) for s in self.active if s.read is None]
        contexts += [(r.pages, r.next) for r in {*self._reads, *self._shared.values()}]
        size = self.pool.size
        for pages, length in contexts:
            for i, page in enumerate(pages):
                filled[page] = max(filled.get(page, 0), min(size, max(length - i * size, 0)))
        return Memory(sum(filled.values()), self.pool.held * size, self.pool.count * size)
