"""Which page of a paged cache holds what: free pages, holders, and pages that are found again by their tokens.

A page that can be found is known by the page before it and its own tokens, and the first one by the policy that read
it; so equal beginnings of contexts lead to the same pages, whoever read them. Pages that nobody holds stay findable
until their space is needed; those that were used least recently go first.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

Key = tuple[int, bytes]  # the number of what comes before, and tokens


class PagePool:
    """Pages first … first + count − 1 of `size` tokens.

    unread  findable pages whose tokens have not been read yet: they may be held, but not attended to
    spoilt  free pages that may hold NaN: they are to be wiped before they are used again
    """

    def __init__(self, first: int, count: int, size: int):
        self.first, self.count, self.size = first, count, size
        self.unread: set[int] = set()
        self.spoilt: list[int] = []
        self._spoils: set[int] = set()  # pages that will be, when nobody holds them any more
        self._free = list(range(first + count - 1, first - 1, -1))
        self._holders = [0] * count
        self._page_of: dict[Key, int] = {}
        self._key_of: dict[int, Key] = {}
        self._number_of: dict[int, int] = {}  # numbers of findable pages, never used twice
        self._numbers = itertools.count(1)
        self._roots: dict[int, int] = {}  # the number before the first page of each policy
        self._idle: OrderedDict[int, None] = OrderedDict()  # findable pages without a holder, oldest use first

    @property
    def available(self) -> int:
        """Pages that can be taken: free ones, and those that would have to be forgotten."""
        return len(self._free) + len(self._idle)

    @property
    def held(self) -> int:
        return self.count - self.available

    def pages_for(self, tokens: int) -> int:
        """How many pages hold this many tokens."""
        return -(-tokens // self.size)

    def known(self, policy: int, tokens: np.ndarray) -> list[int]:
        """The pages of the longest known beginning of tokens int32 [n]."""
        data, step = tokens.tobytes(), 4 * self.size
        before, found = self._roots.get(policy), []
        if before is None:
            return found
        for start in range(0, len(data) - step + 1, step):
            page = self._page_of.get((before, data[start : start + step]))
            if page is None:
                break
            found.append(page)
            before = self._number_of[page]
        return found

    def publish(
        self, policy: int, tokens: np.ndarray, pages: Sequence[int], done: int = 0, unread: bool = False
    ) -> None:
        """Makes the full pages of tokens int32 [n] findable; nobody writes to them any more.

        Where the content of a page is known already, the other page stays the one that is found.
        done    the first so many were published before
        unread  they are yet to be read, except those that were findable before
        """
        data, step = tokens.tobytes(), 4 * self.size
        before = self._number_of.get(pages[done - 1]) if done else None
        if before is None:
            before, done = self._roots.get(policy) or self._roots.setdefault(policy, next(self._numbers)), 0
        for page, start in zip(pages[done:], range(done * step, len(data) - step + 1, step), strict=False):
            key = before, data[start : start + step]
            there = self._page_of.get(key)
            if there is None and page not in self._key_of and page not in self._spoils:
                self._page_of[key], self._key_of[page] = page, key
                self._number_of[page] = next(self._numbers)
                if unread:
                    self.unread.add(page)
                there = page
            if there is None:
                return  # the page is spoilt or known by other tokens, so what comes behind it cannot be reached
            before = self._number_of[there]

    def take(self, n: int) -> list[int] | None:
        """n pages for the caller to hold and to fill, or None if there are not as many."""
        if n > self.available:
            return None
        while len(self._free) < n:
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
            self._free.append(page)
        pages = self._free[len(self._free) - n :][::-1]
        del self._free[len(self._free) - n :]
        for page in pages:
            self._holders[page - self.first] = 1
        return pages

    def hold(self, pages: Iterable[int]) -> None:
        """Adds a holder to pages that are held or findable."""
        for page in pages:
            if not self._holders[page - self.first]:
                del self._idle[page]
            self._holders[page - self.first] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Takes a holder away. A row's last pages are forgotten before its first ones, which others may share."""
        for page in reversed(pages):
            self._holders[page - self.first] -= 1
            if self._holders[page - self.first]:
                continue
            if page in self._spoils:
                self._spoils.remove(page)
                self.spoilt.append(page)
            if page in self._key_of:
                self._idle[page] = None
            else:
                self._free.append(page)

    def spoil(self, pages: Sequence[int]) -> None:
        """Marks held pages as holding NaN."""
        self.forget(pages)
        self._spoils.update(pages)

    def forget(self, pages: Iterable[int]) -> None:
        """Makes pages unfindable."""
        for page in pages:
            if page in self._key_of:
                self._forget(page)
                if page in self._idle:
                    del self._idle[page]
                    self._free.append(page)

    def forget_policy(self, policy: int) -> None:
        """Makes everything unfindable that a policy has read: its weights have changed."""
        own = {self._roots.pop(policy, None)}
        pages = []
        for page, (before, _) in self._key_of.items():  # in the order of publishing: a page stands behind its parent
            if before in own:
                own.add(self._number_of[page])
                pages.append(page)
        self.forget(pages)

    def _forget(self, page: int) -> None:
        del self._page_of[self._key_of.pop(page)], self._number_of[page]
        self.unread.discard(page)
