"""Search: the index against recorded scores of bm25s."""

import numpy as np
import pytest

from envs.tasks.search.index import Index, singular, words

PASSAGES = [
    "The Rhine flows through Basel.", "Basel has a zoo.", "Zoos keep animals; the zoo of Basel keeps rhinos.",
    "Rivers: Rhine, Rhone and Danube.",
]  # fmt: skip
BM25S = {  # bm25s 0.3.16, BM25().get_scores(words(query))
    "Which river flows through Basel?": [1.16405, 0.16785, 0.11414, 0.50694],
    "rhine rhine zoo": [0.5837, 0.32619, 0.33607, 0.5837],
    "animals": [0.0, 0.0, 0.38527, 0.0],
}


@pytest.mark.parametrize("query", BM25S)
def test_scores_equal_those_of_bm25s(query):
    np.testing.assert_allclose(Index(PASSAGES).scores(query), BM25S[query], atol=1e-5)


def test_search_returns_the_best_passages_and_the_first_of_equals():
    index = Index(PASSAGES)
    assert [i for i, _ in index.search("rhine rhine zoo", 3)] == [0, 3, 2]
    assert [i for i, _ in index.search("animals", 3)] == [2]  # no passage without a word of the query
    assert index.search("", 3) == index.search("the of unknown", 3) == []
    assert len(index) == 4
    with pytest.raises(ValueError, match="texts is empty"):
        Index([])


def test_plurals_and_stop_words():
    assert [singular(w) for w in ("cities", "houses", "buses", "glass", "bus", "trees", "dogs", "moieties")] == [
        "city", "house", "buse", "glass", "bus", "tree", "dog", "moiety",
    ]  # fmt: skip
    assert words("The Rivers of a City, 1998!") == ["river", "city", "1998"]
