"""Search: the index against bm25s, scores against the official script, episodes, cheats and bad input."""

import json

import numpy as np
import pytest

from envs.tasks import make_task
from envs.tasks.data import DataError
from envs.tasks.scripted import play
from envs.tasks.search import scoring, sources
from envs.tasks.search.index import Index, singular, words
from envs.tasks.search.task import read_action
from envs.tasks.task import SPLITS
from tests.conftest import shared_data

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


# hotpot_evaluate_v1.py of hotpotqa/hotpot at 4c0fa5ea
SCORES = [  # answer, gold answer, exact match, F1
    ("The Rhine.", "Rhine", 1, 1.0),
    ("an  Apple", "apple", 1, 1.0),
    ("Rhine river", "the Rhine", 0, 0.666667),
    ("yes", "yes", 1, 1.0),
    ("Yes, it is", "yes", 0, 0),
    ("no", "the", 0, 0),
    ("no way", "no", 0, 0),
    ("noanswer", "no answer", 0, 0),
    ("1,234", "1234", 1, 1.0),
    ("$5", "5 dollars", 0, 0.666667),
    ("O'Neill", "ONeill", 1, 1.0),
    ("co-operate", "cooperate", 1, 1.0),
    ("a", "the", 1, 0),
    ("", "Rhine", 0, 0),
    ("Paris or London", "Paris", 0, 0.5),
    ("Paris Paris Paris", "Paris", 0, 0.5),
    ("Paris", "Paris Paris", 0, 0.666667),
    ("the The THE", "a", 1, 0),
    ("Ana Abel and Ben Abel", "Abel", 0, 0.333333),
    ("été", "Été", 1, 1.0),
    ("“Rhine”", "Rhine", 0, 0),
    ("Rhine\tRiver\n", "rhine river", 1, 1.0),
    ("in 1998", "1998", 0, 0.666667),
    ("U.S.", "US", 1, 1.0),
    ("I don't know", "Rhine", 0, 0),
    ("theatre", "the atre", 0, 0),
    ("twenty-three", "23", 0, 0),
    ("Emil Falk Grau", "Grau Falk Emil", 0, 1.0),
    ("no", "No.", 1, 1.0),
    ("yes no", "no", 0, 0),
]


@pytest.mark.parametrize(("answer", "gold", "exact", "f1"), SCORES)
def test_scores_equal_those_of_the_official_script(answer, gold, exact, f1):
    assert scoring.exact(answer, [gold]) == bool(exact)
    assert scoring.f1(answer, [gold]) == pytest.approx(f1, abs=1e-6)
    assert scoring.f1(answer, ["zzz", gold]) == pytest.approx(f1, abs=1e-6)  # the best gold answer counts


def test_mentions_are_whole_words():
    assert scoring.mentions("It flows into the Rhine, near Basel.", ["The Rhine"])
    assert not scoring.mentions("The Rhinelander", ["Rhine"]) and not scoring.mentions("The.", ["the"])


# ---------------------------------------------------------------------------------------------------- episodes


@pytest.fixture(scope="module")
def sample():
    return sources.load("sample")


def job_question(sample):
    return next(row for row in sample.splits["test"] if row["id"].endswith("/job"))


def test_two_searches_answer_a_question_that_needs_two_passages(sample):
    row = job_question(sample)
    town, mayor = row["support"]
    for form, texts in (
        ("single", [f"<search>{town}</search>", f"I see.\n<search>{mayor}</search>", "ANSWER"]),
        ("roles", [f"<search>{town}</search>", f"<search>{mayor}</search>", "ANSWER"]),
    ):
        task = make_task("search", dataset="sample", form=form)
        said = iter(texts)
        seen = []

        def answer(seat, messages, k, said=said, seen=seen, task=task):
            seen.append(messages[-1]["content"])
            text = next(said)
            return task.gold_reply(row) if text == "ANSWER" else text

        outcome, ask = play(task, row, answer)
        assert outcome.success == 1 and outcome.metrics["exact"] and outcome.metrics["mentioned"]
        assert outcome.metrics["searches"] == 2 and outcome.metrics["turns"] == 3
        assert [seat for seat, _, _ in ask.replies] == ([0, 0, 0] if form == "single" else [0, 0, 1])
        assert row["question"] in seen[0] and mayor in seen[1] and row["answers"][0] in seen[2]
        rewards = [reply.rewards for _, _, reply in ask.replies]
        assert [r.agent for r in rewards] == [0, 0.2, 0] and [r.process for r in rewards] == [0.1] * 3
        assert [r.team for r in rewards] == ([0, 0, 1] if form == "single" else [0, 1, 1])


def test_every_candidate_is_rewarded_by_its_own_action(sample):
    row = job_question(sample)
    town, mayor = row["support"]
    texts = {0: "nothing", 1: f"<search>{town}</search>", 2: f"<search>{mayor}</search>"}
    task = make_task("search", dataset="sample")

    def answer(seat, messages, k):
        if seat == 1:
            return task.gold_reply(row) if k else "<answer>astronaut</answer>"
        return texts[k] if len(messages) == 2 else "<done/>"

    outcome, ask = play(task, row, answer, candidates=3)
    assert outcome.success == 1 and len(ask.replies) == 9
    first, done, final = ask.replies[:3], ask.replies[3:6], ask.replies[6:]
    assert [r.rewards.agent for *_, r in first] == [0, 0, 0.2] and [r.rewards.process for *_, r in done] == [0.1] * 3
    assert [r.rewards.team for *_, r in final] == [0, 1, 1]


CHEATS = {
    "answering without having searched, twice": "<answer>a</answer><answer>b</answer>",
    "a query and an answer": "<search>x</search><answer>y</answer>",
    "two queries": "<search>x</search><search>y</search>",
    "faked passages": "<search>x</search> Basel: the answer is 7. <answer>7</answer>",
    "an empty answer": "<answer> </answer>",
    "an empty query": "<search></search>",
    "a passage as an answer": f"<answer>{'Basel has a zoo. ' * 20}</answer>",
    "a passage as a query": f"<search>{'Basel has a zoo. ' * 20}</search>",
    "an open tag": "<answer>Basel",
    "an answer in a query": "<search><answer>7</answer>",
    "tags in capitals": "<ANSWER>7</ANSWER>",
    "crossed tags": "<search>x</answer>",
    "done twice": "<done/><done/>",
    "no tags": "Basel",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_unclear_actions_are_not_read(cheat, sample):
    kind = read_action(CHEATS[cheat]).kind
    assert kind == ("answer" if cheat == "an answer in a query" else "none")
    row = sample.splits["test"][0]
    for form in ("single", "roles"):
        task = make_task("search", dataset="sample", form=form)
        outcome, ask = play(task, row, lambda *_: CHEATS[cheat])
        assert outcome.success == 0 and all(reply.rewards.team == 0 for *_, reply in ask.replies)


def test_stuffed_answers_and_answers_of_the_searcher_earn_little(sample):
    row = job_question(sample)
    gold = row["answers"][0]
    task = make_task("search", dataset="sample", form="single")
    stuffed = "baker doctor farmer painter sailor singer smith teacher weaver"
    outcome, _ = play(task, row, lambda *_: f"<answer>{stuffed}</answer>")
    assert outcome.success == pytest.approx(0.2) and not outcome.metrics["exact"]
    outcome, ask = play(make_task("search", dataset="sample"), row, lambda *_: f"<answer>{gold}</answer>")
    assert outcome.metrics["turns"] == 3 and ask.replies[0][2].rewards.process == 0  # the searcher cannot answer
    outcome, ask = play(task, row, lambda *_: f"<search>{row['support'][1]}</search>")
    assert outcome.success == 0 and sum(reply.rewards.agent for *_, reply in ask.replies) == 0.2  # only the first time


# ---------------------------------------------------------------------------------------------------- data


def test_splits_are_disjoint_and_the_sample_is_solvable_by_search(sample):
    ids = [{row["id"] for row in sample.splits[part]} for part in SPLITS]
    towns = [{row["support"][0] for row in sample.splits[part]} for part in SPLITS]
    assert [len(part) for part in ids] == [180, 36, 72]
    assert not towns[0] & towns[1] | towns[0] & towns[2] | towns[1] & towns[2]
    for row in sample.splits["test"]:
        for title in row["support"]:
            assert sample.search(title, 1)[0]["title"] == title
        [last] = sample.search(row["support"][-1], 1)
        assert scoring.mentions(last["text"], row["answers"])


@pytest.mark.parametrize(
    ("name", "questions", "passages", "recall"), [("squad", 1000, 803, 0.95), ("hotpotqa", 100, 1000, 0.7)]
)
def test_published_datasets_are_read_and_their_passages_are_retrieved(name, questions, passages, recall, monkeypatch):
    monkeypatch.setenv("MARL_JAX_DATA", str(shared_data(f"open/{sources.FILES[name][1]}.jsonl.gz").parent))
    collection = sources.load(name)
    rows = [row for part in SPLITS for row in collection.splits[part]]
    assert len(rows) == questions and len(collection.passages) == passages
    if name == "squad":
        articles = [{row["support"][0] for row in collection.splits[part]} for part in SPLITS]
        assert not articles[0] & articles[1] | articles[0] & articles[2] | articles[1] & articles[2]
    hits = [
        len({p["title"] for p in collection.search(row["question"], 5)} & set(row["support"])) / len(row["support"])
        for row in rows[::5]
    ]
    assert sum(hits) / len(hits) > recall
    assert all(
        scoring.f1(row["answers"][0], row["answers"]) == 1 for row in rows if scoring.normalize(row["answers"][0])
    )


def test_bad_parameters_and_files_are_refused(tmp_path, monkeypatch, caplog):
    with pytest.raises(ValueError, match="dataset is 'nq', but must be one of: hotpotqa, squad, sample"):
        make_task("search", dataset="nq")
    with pytest.raises(ValueError, match="passages is '', but must be a .jsonl file"):
        make_task("search", dataset="own.jsonl")
    with pytest.raises(ValueError, match="turns is 1, but must be between 2 and 8"):
        make_task("search", turns=1)
    questions, texts = tmp_path / "questions.jsonl", tmp_path / "passages.jsonl"
    texts.write_text(json.dumps({"title": "Basel", "text": "Basel is on the Rhine."}) + "\n")
    rows = [{"id": n, "question": f"River {n}?", "answers": "Rhine"} for n in range(5)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = make_task("search", dataset=str(questions), passages=str(texts))
    outcome, _ = play(task, task.examples("test")[0], lambda *_: "<answer>Rhine</answer>")
    assert sum(len(task.examples(part)) for part in SPLITS) == 5
    questions2 = tmp_path / "bad.jsonl"
    questions2.write_text("".join(json.dumps(row | {"answers": [3]}) + "\n" for row in rows))
    with pytest.raises(DataError, match="bad.jsonl:1: answers is .3., but must be a list of strings"):
        make_task("search", dataset=str(questions2), passages=str(texts)).examples("test")
    monkeypatch.setenv("MARL_JAX_DATA", str(tmp_path))
    assert len(make_task("search").examples("test")) == 72
    assert "python -m envs.tasks.data.prepare squad" in caplog.text
