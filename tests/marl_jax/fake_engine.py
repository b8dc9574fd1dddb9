"""An engine without a model: a slot of a page holds the number of the whole context up to it, so every look is checked.

It has the programs that a `Batcher` runs. Whatever a line or a row attends to must be, slot by slot, its own context
under the present weights of its policy; what a sample draws is a function of that context and its seed alone.
"""

import dataclasses
import types

import numpy as np

from marl_jax.sampling import decode
from models import cache as kv
from tests.marl_jax.tiny_engine import CONFIG

NAN = CONFIG.vocab_size - 1  # a token whose keys and values are not finite, nor those of any later token
WORDS = 3  # tokens that are drawn: few, so that answers begin alike


@dataclasses.dataclass(frozen=True)
class Context:
    """A node of the tree of all contexts."""

    number: int
    before: int
    depth: int
    finite: bool


class Contexts:
    """Numbers of contexts: 0 is nothing."""

    def __init__(self):
        self._nodes, self._numbers = [None], {}

    def __getitem__(self, number: int) -> Context:
        return self._nodes[number]

    def _node(self, key, before, depth, finite) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._nodes)
            self._nodes.append(Context(len(self._nodes), before, depth, finite))
        return self._numbers[key]

    def root(self, policy: int, version: int) -> int:
        return self._node(("root", policy, version), 0, 0, True)

    def add(self, number: int, token: int) -> int:
        node = self._nodes[number]
        return self._node((number, int(token)), number, node.depth + 1, node.finite and token != NAN)


def draw(number: int, seed: int) -> int:
    """The token that follows a context."""
    return (((number + 1) * 2654435761 + (seed + 1) * 40503 & 0xFFFFFFFF) >> 13 & 0xFFFF) % WORDS


class FakeEngine:
    """`parts` parts of a batch, `policies` policies."""

    dtype = np.float32
    images = None

    def __init__(self, policies: int = 2, parts: int = 1):
        self.row_multiple, self.n_policies = parts, policies
        self.versions, self.weights = [0] * policies, None
        self.model = types.SimpleNamespace(cfg=CONFIG)
        self.contexts = Contexts()
        self.decoding: list[int] = []  # rows of every call

    def page_bytes(self, size):
        return kv.page_nbytes(CONFIG, size, self.dtype)

    def check_weights(self, policy, weights):
        pass

    def set_weights(self, policy, weights, version):
        self.versions[policy] = version

    def answer(self, prompt, seed, policy, budget, stop_ids=(), versions=None):
        """What a request alone gets, as (tokens, finish)."""
        tokens = []
        while len(tokens) < budget:
            number = self.contexts.root(policy, versions[len(tokens)] if versions else self.versions[policy])
            for token in [*prompt, *tokens]:
                number = self.contexts.add(number, token)
            if not self.contexts[number].finite:
                return tokens, "invalid"
            tokens.append(draw(number, seed))
            if tokens[-1] in stop_ids:
                return tokens, "stop"
        return tokens, "length"

    # Programs

    def _empty_pages(self, pages, size):
        return np.zeros((pages, size), np.int64)

    def _seen(self, pages, table, length, policy) -> int:
        """The number of a context of `length` tokens, after a look at every slot of it."""
        number = int(pages[table[(length - 1) // pages.shape[1]], (length - 1) % pages.shape[1]]) if length else 0
        root = self.contexts.root(policy, self.versions[policy])
        expected = number or root
        for at in range(length - 1, -1, -1):
            found = int(pages[table[at // pages.shape[1]], at % pages.shape[1]])
            assert found and found == expected, f"slot {at} of {length} holds something else"
            assert self.contexts[found].depth == at + 1
            expected = self.contexts[found].before
        assert expected == root, "another policy's, or of earlier weights"
        return number or root

    def _check_part(self, pages, table, b, batch):
        own = len(pages) // self.row_multiple
        assert set((table // own).tolist()) == {b // (batch // self.row_multiple)}, "a page of another part"

    def _read_lines(self, weights, pages, lines):
        for b, n in enumerate(lines.lengths):
            self._check_part(pages, lines.table[b], b, len(lines.lengths))
            if not n:
                continue
            number = self._seen(pages, lines.table[b], lines.starts[b], lines.adapter_ids[b])
            for at, token in enumerate(lines.tokens[b, :n], lines.starts[b]):
                number = self.contexts.add(number, token)
                pages[lines.table[b, at // pages.shape[1]], at % pages.shape[1]] = number
        return pages

    def _decode_rows(self, weights, pages, rows, steps):
        batch, size = len(rows.token), pages.shape[1]
        tokens, logps = np.zeros((batch, steps), np.int32), np.zeros((batch, steps), np.float32)
        written, finish = np.zeros((batch,), np.int32), np.full((batch,), decode.LENGTH)
        going = np.flatnonzero(rows.budget > 0)
        self.decoding.append(len(going))
        seen = {b: self._seen(pages, rows.table[b], rows.lengths[b], rows.adapter_ids[b]) for b in going}
        writers = {}
        for b in going:
            self._check_part(pages, rows.table[b], b, batch)
            finish[b], token, number = decode.GOING, rows.token[b], seen[b]
            while finish[b] == decode.GOING and written[b] < steps:
                at = rows.lengths[b] + written[b]
                page = rows.table[b, at // size]
                assert writers.setdefault(page, b) == b, "two rows write to a page"
                number = self.contexts.add(number, token)
                pages[page, at % size] = number
                if not self.contexts[number].finite:
                    finish[b] = decode.INVALID
                    break
                token = draw(number, int(rows.seeds[b]))
                tokens[b, written[b]], logps[b, written[b]] = token, -number
                written[b] += 1
                if token in rows.stop_ids[b]:
                    finish[b] = decode.STOP
                elif written[b] == rows.budget[b]:
                    finish[b] = decode.LENGTH
        for b in going:  # nobody has written over what another row attends to
            self._seen(pages, rows.table[b], rows.lengths[b], rows.adapter_ids[b])
        return pages, (tokens, logps, written, finish, np.int32(steps))

    def _copy_pages(self, pages, source, target):
        own = len(pages) // self.row_multiple
        for d in range(self.row_multiple):
            for a, b in zip(source[d], target[d], strict=True):
                if b < own:
                    pages[d * own + b] = pages[d * own + a]
        return pages

    def _wipe_pages(self, pages, which):
        own = len(pages) // self.row_multiple
        for d in range(self.row_multiple):
            pages[d * own + which[d][which[d] < own]] = 0
        return pages
