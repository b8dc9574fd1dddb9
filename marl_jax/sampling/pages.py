"""Pages of a paged KV cache: free pages, reference counts, and lookup by tokens.

A page that can be found is identified by the page before it and its own tokens, and the first page by the policy. Equal
prefixes of contexts therefore lead to the same pages. Pages without a holder stay findable until their space is needed;
the least recently used ones are evicted first.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

Key = tuple[int, bytes]  # id of the preceding page, and tokens


class PagePool:
    """Pages first … first + count − 1 of `size` tokens.

    Attributes:
        unread: Findable pages that have not been prefilled yet. They may be held, but not attended to.
        spoilt: Free pages that may contain NaN and must be cleared before they are used again.
    """

    def __init__(self, first: int, count: int, size: int):
        self.first, self.count, self.size = first, count, size
        self.unread: set[int] = set()
        self.spoilt: list[int] = []
        self._spoils: set[int] = set()  # held pages that will be spoilt when they are released
        self._free = list(range(first + count - 1, first - 1, -1))
        self._holders = [0] * count
        self._page_of: dict[Key, int] = {}
        self._key_of: dict[int, Key] = {}
        self._number_of: dict[int, int] = {}  # ids of findable pages, never reused
        self._numbers = itertools.count(1)
        self._roots: dict[int, int] = {}  # id that precedes the first page of each policy
        self._idle: OrderedDict[int, None] = OrderedDict()  # findable pages without a holder, least recently used first

    @property
    def available(self) -> int:
        """Number of pages that can be taken, including findable ones without a holder."""
        return len(self._free) + len(self._idle)

    @property
    def held(self) -> int:
        """Number of pages that have a holder."""
        return self.count - self.available

    def pages_for(self, tokens: int) -> int:
        """Return the number of pages for a number of tokens."""
        return -(-tokens // self.size)

    def known(self, policy: int, tokens: np.ndarray) -> list[int]:
        """Return the pages of the longest known prefix of tokens int32 [n]."""
        data, step = tokens.tobytes(), 4 * self.size
        before, pages = self._roots.get(policy), []
        if before is None:
            return pages
        for start in range(0, len(data) - step + 1, step):
            page = self._page_of.get((before, data[start : start + step]))
            if page is None:
                break
            pages.append(page)
            before = self._number_of[page]
        return pages

    def publish(
        self, policy: int, tokens: np.ndarray, pages: Sequence[int], done: int = 0, unread: bool = False
    ) -> None:
        """Make the full pages of tokens int32 [n] findable.

        They must not be written any more. If the contents of a page are already known, lookups continue to return the
        other page.

        Args:
            policy: The policy that computed the pages.
            tokens: Tokens of the context.
            pages: Its pages.
            done: Number of pages that were published before.
            unread: Whether pages that become findable still have to be prefilled.
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
                return  # the page is spoilt or has other tokens, so later pages could not be found
            before = self._number_of[there]

    def take(self, n: int) -> list[int] | None:
        """Take n pages to hold and to fill; return None if fewer are available."""
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
        """Add a holder to pages that are held or findable."""
        for page in pages:
            if not self._holders[page - self.first]:
                del self._idle[page]
            self._holders[page - self.first] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Remove a holder from pages.

        A row's last pages are evicted before its first ones, which others may share.
        """
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
        """Mark held pages as containing NaN."""
        self.forget(pages)
        self._spoils.update(pages)

    def forget(self, pages: Iterable[int]) -> None:
        """Make pages unfindable."""
        for page in pages:
            if page in self._key_of:
                self._forget(page)
                if page in self._idle:
                    del self._idle[page]
                    self._free.append(page)

    def forget_policy(self, policy: int) -> None:
        """Make all pages of a policy unfindable, since its weights have changed."""
        own = {self._roots.pop(policy, None)}
        pages = []
        for page, (before, _) in self._key_of.items():  # in publishing order, so parents come first
            if before in own:
                own.add(self._number_of[page])
                pages.append(page)
        self.forget(pages)

    def _forget(self, page: int) -> None:
        """Remove a page from the lookup tables."""
        del self._page_of[self._key_of.pop(page)], self._number_of[page]
        self.unread.discard(page)
