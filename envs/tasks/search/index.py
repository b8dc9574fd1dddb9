"""BM25 over passages, in NumPy.

    index = Index(["The Rhine flows through Basel.", "Basel has a zoo."])
    index.search("Which river flows through Basel?", 1)        # [(0, 1.28…)]

The scores are those of Lucene, and of the package `bm25s` with its default settings. That package is not used, because
importing it starts JAX, which the processes of tasks must not do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

K1, B = 1.5, 0.75
STOPWORDS = frozenset([
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
])  # fmt: skip
"""The stop words of Lucene's English analyzer."""
_WORD = re.compile(r"\w\w+")


def words(text: str) -> list[str]:
    """Return the words of a text in lower case and singular, without stop words."""
    return [singular(word) for word in _WORD.findall(text.lower()) if word not in STOPWORDS]


def singular(word: str) -> str:
    """Remove the ending of an English plural, by the rules of Harman's S stemmer."""
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return f"{word[:-3]}y"
    if word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    return word[:-1] if word.endswith("s") and not word.endswith(("us", "ss")) else word


class Index:
    """An inverted index of passages with precomputed scores.

    Args:
        texts: The passages.
        tokens: Function that splits a text into words.
    """

    def __init__(self, texts: Sequence[str], tokens: Callable[[str], list[str]] = words):
        if not texts:
            raise ValueError("texts is empty, but an index needs at least one passage")
        self._n, self._tokens = len(texts), tokens
        counts = [Counter(tokens(text)) for text in texts]
        lengths = [sum(count.values()) for count in counts]
        mean = max(sum(lengths) / len(lengths), 1e-9)
        postings: dict[str, list[tuple[int, float]]] = {}
        for i, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            for word, number in count.items():
                weight = number / (number + K1 * (1 - B + B * length / mean))
                postings.setdefault(word, []).append((i, weight))
        self._postings: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for word, found_in in postings.items():
            rarity = np.log1p((self._n - len(found_in) + 0.5) / (len(found_in) + 0.5))
            where, weights = zip(*found_in, strict=True)
            self._postings[word] = np.array(where, np.int32), (rarity * np.array(weights)).astype(np.float32)

    def __len__(self) -> int:
        return self._n

    def scores(self, query: str) -> np.ndarray:
        """Return the score of every passage: float32 [N]."""
        total = np.zeros(self._n, np.float32)
        for word in self._tokens(query):
            if word in self._postings:
                where, weights = self._postings[word]
                total[where] += weights
        return total

    def search(self, query: str, k: int = 3) -> list[tuple[int, float]]:
        """Return the indices and scores of at most `k` passages, the best first.

        Passages without a word of the query are left out. Of passages with equal scores, the earlier one comes first.
        """
        total = self.scores(query)
        best = np.argsort(-total, kind="stable")[:k]
        return [(int(i), float(total[i])) for i in best if total[i] > 0]
