"""The pool of pages: holders, lookup by tokens, and eviction."""

import collections

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from marl_jax.sampling.pages import PagePool
from tests.conftest import examples

SIZE, COUNT, FIRST = 2, 9, 20
words = st.lists(st.integers(0, 1), max_size=9)
policies = st.integers(0, 1)


def ints(tokens):
    return np.asarray(tokens, np.int32)


class Pool(RuleBasedStateMachine):
    """Rows come, grow and go; the contents of every page are recorded, and lookups must return the right ones."""

    def __init__(self):
        super().__init__()
        self.pool = PagePool(FIRST, COUNT, SIZE)
        self.rows = []  # [policy, tokens, pages, shared], where the first `shared` pages were looked up
        self.content = {}  # page -> (policy, generation, all tokens up to its end)
        self.generation = [0, 0]
        self.bad = set()  # pages that must be cleared before they are used
        self.uses = []  # pages in the order in which they were released

    def fill(self, policy, tokens, pages, first):
        """Write full pages, which have no other holder."""
        others = collections.Counter(page for row in self.rows for page in row[2])
        for i, page in enumerate(pages[first:], first):
            assert others[page] <= 1, "two holders, one of whom writes"
            assert page not in self.bad, "not wiped"
            whole = (i + 1) * SIZE <= len(tokens)
            self.content[page] = (policy, self.generation[policy], tokens[: (i + 1) * SIZE]) if whole else None

    def take(self, n):
        before = self.pool.available
        pages = self.pool.take(n)
        assert (pages is None) == (n > before) and self.pool.available == before - len(pages or ())
        if pages is not None:
            assert len(set(pages)) == n and not set(pages) & {page for row in self.rows for page in row[2]}
            self.bad -= {page for page in pages if page in self.pool.spoilt}  # the batcher clears these first
            self.pool.spoilt = [page for page in self.pool.spoilt if page not in pages]
        return pages

    @rule(policy=policies, tokens=words)
    def come(self, policy, tokens):
        found = self.pool.known(policy, ints(tokens))
        for i, page in enumerate(found):
            assert self.content[page] == (policy, self.generation[policy], tokens[: (i + 1) * SIZE])
            assert page not in self.bad
        self.pool.hold(found)
        pages = self.take(self.pool.pages_for(len(tokens)) - len(found))
        if pages is None:
            return self.pool.release(found)
        row = [policy, tokens, found + pages, len(found)]
        self.rows.append(row)
        self.fill(policy, tokens, row[2], len(found))
        self.pool.publish(policy, ints(tokens), row[2], len(found))
        assert self.pool.known(policy, ints(tokens)) == row[2][: len(tokens) // SIZE], "found at once"

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=4))
    def grow(self, data, more):
        row = data.draw(st.sampled_from(self.rows))
        policy, tokens, pages, _ = row
        new = self.take(max(self.pool.pages_for(len(tokens) + len(more)) - len(pages), 0))
        if new is not None:
            first = len(tokens) // SIZE
            row[1], row[2] = tokens + more, pages + new
            self.fill(policy, row[1], row[2], first)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), publish=st.booleans(), spoilt=st.sampled_from([False, False, False, True]))
    def go(self, data, publish, spoilt):
        row = data.draw(st.sampled_from(self.rows))
        policy, tokens, pages, shared = row
        if spoilt:
            self.pool.spoil(pages)
            self.bad |= set(pages)
            assert not set(pages) & set(self.pool._key_of)
        elif publish:
            self.pool.publish(policy, ints(tokens), pages, shared)
        self.rows.remove(row)
        self.pool.release(pages)

    @rule(policy=policies)
    def new_weights(self, policy):
        for row in [row for row in self.rows if row[0] == policy]:
            self.rows.remove(row)
            self.pool.release(row[2])
        other = [(row, self.pool.known(row[0], ints(row[1]))) for row in self.rows]
        self.pool.forget_policy(policy)
        self.generation[policy] += 1
        assert all(not self.pool.known(policy, ints([a, b])) for a in (0, 1) for b in (0, 1))
        assert all(self.pool.known(row[0], ints(row[1])) == found for row, found in other), "the other one's stay"

    @invariant()
    def every_page_is_somewhere(self):
        holders = collections.Counter(page for row in self.rows for page in row[2])
        pool = self.pool
        assert pool._holders == [holders[FIRST + i] for i in range(COUNT)]
        places = [*pool._free, *pool._idle, *holders]
        assert sorted(places) == list(range(FIRST, FIRST + COUNT)), "free, or idle, or held"
        assert pool.held == len(holders) and pool.available == COUNT - len(holders)
        assert set(pool._idle) <= set(pool._key_of) and not set(pool._free) & set(pool._key_of)
        assert set(pool._key_of) == set(pool._page_of.values()) == set(pool._number_of)
        assert not set(pool._key_of) & self.bad, "what may hold NaN is not found"
        free_bad = {page for page in self.bad if page not in holders}
        assert free_bad == set(pool.spoilt) and len(pool.spoilt) == len(free_bad)


Pool.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestPool = Pool.TestCase


def read(pool, tokens, policy=0):
    """Place and release a row, and return its known length and its pages."""
    found = pool.known(policy, ints(tokens))
    pool.hold(found)
    pages = found + pool.take(pool.pages_for(len(tokens)) - len(found))
    pool.publish(policy, ints(tokens), pages, len(found))
    pool.release(pages)
    return len(found), pages


def test_what_was_used_least_recently_goes_first():
    pool = PagePool(0, 6, SIZE)
    first, second, third = ([i, i, i, i] for i in range(3))
    for tokens in (first, second, third, first):
        read(pool, tokens)
    assert read(pool, [7, 7])[0] == 0  # one page is evicted: the last one of the second row
    assert [len(pool.known(0, ints(x))) for x in (first, second, third)] == [2, 1, 2]
    read(pool, [8, 8, 8, 8])  # two more are evicted: the rest of the second row, and the last page of the third
    assert [len(pool.known(0, ints(x))) for x in (first, second, third)] == [2, 0, 1]
    assert len(pool.known(0, ints([7, 7]))) == 1


def test_what_is_held_is_not_forgotten():
    pool = PagePool(0, 4, SIZE)
    pages = pool.take(2)
    pool.publish(0, ints([1, 1, 1, 1]), pages)
    read(pool, [2, 2, 2, 2])
    assert pool.take(3) is None and pool.available == 2
    read(pool, [3, 3, 3, 3])
    assert pool.known(0, ints([1, 1, 1, 1])) == pages and pool.known(0, ints([2, 2])) == []


def test_equal_contents_are_found_in_one_page_and_lead_on():
    """Two rows write the same; the continuation of the second is found after the pages of the first."""
    pool = PagePool(0, 8, SIZE)
    one, two = pool.take(2), pool.take(3)
    pool.publish(0, ints([5, 6, 7, 8]), one)
    pool.publish(0, ints([5, 6, 7, 8, 9, 9]), two)
    assert pool.known(0, ints([5, 6, 7, 8, 9, 9, 1])) == [*one, two[2]]
    pool.release(two)
    assert pool.held == 2 and pool.available == 6
    assert pool.known(0, ints([5, 6, 7, 8, 9, 9])) == [*one, two[2]]


def test_a_page_is_known_by_all_that_comes_before_it():
    """The same two tokens in another context, or of another policy, are not the same page."""
    pool = PagePool(0, 8, SIZE)
    read(pool, [1, 2, 3, 4])
    assert pool.known(0, ints([3, 4])) == [] and pool.known(0, ints([9, 9, 3, 4])) == []
    assert pool.known(1, ints([1, 2])) == [] and len(pool.known(0, ints([1, 2, 3, 4, 5]))) == 2
    assert len(pool.known(0, ints([1, 2, 3]))) == 1, "full pages only"


def test_unread_pages_are_marked_until_they_are_forgotten():
    pool = PagePool(0, 4, SIZE)
    read(pool, [1, 1])
    pages = pool.known(0, ints([1, 1]))
    pool.hold(pages)
    pages += pool.take(2)
    pool.publish(0, ints([1, 1, 2, 2, 3]), pages, 1, unread=True)
    assert pool.unread == {pages[1]}, "what was known has been read, what is not full cannot be found"
    pool.forget(pages[1:])
    assert pool.unread == set() and pool.known(0, ints([1, 1, 2, 2])) == pages[:1]
    pool.release(pages)
    assert pool.held == 0


def test_an_orphan_is_never_found_and_its_page_comes_back():
    """The page before it was evicted, and its id is never reused, so no lookup leads to it."""
    pool = PagePool(0, 3, SIZE)
    _, pages = read(pool, [1, 1, 2, 2])
    pool.forget(pages[:1])
    read(pool, [1, 1])
    assert len(pool.known(0, ints([1, 1, 2, 2]))) == 1
    assert pool.take(3) is not None and pool.held == 3
