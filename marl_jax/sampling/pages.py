"""Which page of a paged cache holds what: free pages, holders, and pages that are found again by their tokens.

A page is known by the policy that read it and by all tokens up to its end, as a chain of digests: equal chains have
equal keys and values, whoever read them. Pages that nobody holds stay findable until their space is needed; those
that were used least recently go first.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

Key = tuple[int, bytes]


def page_keys(policy: int, tokens: Sequence[int], size: int) -> list[Key]:
    """A key for each full page of tokens that a policy reads."""
    text = np.asarray(tokens, np.int32).tobytes()
    chain, keys = b"", []
    for end in range(4 * size, len(text) + 1, 4 * size):
        chain = hashlib.blake2b(chain + text[end - 4 * size : end], digest_size=16).digest()
        keys.append((policy, chain))
    return keys


class PagePool:
    """Pages first … first + count − 1 of `size` tokens.

    unread  findable pages whose tokens have not been read yet: they may be held, but not attended to
    spoilt  free pages that may hold NaN: they are to be wiped before they are used again
    """

    def __init__(self, first: int, count: int, size: int):
        self.first, self.count, self.size = first, count, size
        self.unread: set[int] = set()
        self.spoilt: list[int] = []
        self._spoils: set[int] = set()  # of these, the ones that are still held
        self._free = list(range(first + count - 1, first - 1, -1))
        self._holders: Counter[int] = Counter()
        self._page_of: dict[Key, int] = {}
        self._key_of: dict[int, Key] = {}
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

    def find(self, keys: Iterable[Key]) -> list[int]:
        """The pages of the longest known beginning, held for the caller."""
        found = []
        for key in keys:
            if key not in self._page_of:
                break
            found.append(self._page_of[key])
        self.hold(found)
        return found

    def take(self, n: int) -> list[int] | None:
        """n pages for the caller to hold and to fill, or None if there are not as many."""
        if n > self.available:
            return None
        while len(self._free) < n:
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
            self._free.append(page)
        pages = [self._free.pop() for _ in range(n)]
        self._holders.update(pages)
        return pages

    def hold(self, pages: Iterable[int]) -> None:
        """Adds a holder to pages that are held or findable."""
        for page in pages:
            self._idle.pop(page, None)
            self._holders[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Takes a holder away. A row's last pages are forgotten before its first ones, which others may share."""
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            del self._holders[page]
            if page in self._spoils:
                self._spoils.remove(page)
                self.spoilt.append(page)
            if page in self._key_of:
                self._idle[page] = None
            else:
                self._free.append(page)

    def publish(self, page: int, key: Key, unread: bool = False) -> None:
        """Makes a held page findable, unless its content is known already; nobody writes to it any more."""
        if key in self._page_of or page in self._key_of:
            return
        self._page_of[key], self._key_of[page] = page, key
        if unread:
            self.unread.add(page)

    def forget(self, policy: int | None = None, pages: Iterable[int] | None = None) -> None:
        """Makes the pages of a policy (its weights have changed), or these pages, unfindable."""
        if pages is None:
            pages = [page for page, key in self._key_of.items() if key[0] == policy]
        for page in pages:
            if page in self._key_of:
                self._forget(page)
                if page in self._idle:
                    del self._idle[page]
                    self._free.append(page)

    def spoil(self, pages: Sequence[int]) -> None:
        """Marks held pages as holding NaN."""
        self.forget(pages=pages)
        self._spoils.update(pages)

    def _forget(self, page: int) -> None:
        del self._page_of[self._key_of.pop(page)]
        self.unread.discard(page)
