"""Retrieval: citations against hand-computed measures, searchers, rewards and bad completions."""

import random
import re

import pytest

from envs.tasks import make_task
from envs.tasks.retrieval.citations import measure, read_citations
from envs.tasks.retrieval.searchers import SEARCHERS, Request
from envs.tasks.retrieval.task import NO_ACTION, Retrieval
from envs.tasks.scripted import play
from envs.tasks.search import scoring, sources
from envs.tasks.task import SPLITS

SAMPLE = dict(dataset="sample")


def example(kind="river", part="test", **settings):
    """A question of the sample about one passage (`river`, `year`), or about two (`job`)."""
    return next(row for row in Retrieval(**SAMPLE, **settings).examples(part) if row["id"].endswith(kind))


def write(made, row, *texts, searcher=(), step=0):
    """Play with the writer's completions, and those of a searcher, in order; also return all prompts."""
    sent, prompts = {0: iter(texts), 1: iter(searcher)}, []

    def answer(seat, messages, k):
        prompts.append(messages[-1]["content"])
        return next(sent[seat])

    outcome, ask = play(made, row, answer, step=step)
    return outcome, [(seat, reply.rewards) for seat, _, reply in ask.replies], prompts


# --------------------------------------------------------------------------------------------------------- citations


@pytest.mark.quick
@pytest.mark.parametrize(
    ("text", "answer", "numbers"),
    [
        ("Esk [1]", "Esk", (1,)),
        ("the river [2] Esk[10,3][ 2 ]", "the river Esk", (2, 10, 3)),
        ("[1]", "", (1,)),
        ("[a] [-1] [] 7", "[a] [-1] [] 7", ()),
        ("[" + "9" * 5000 + "] x", "[" + "9" * 5000 + "] x", ()),
    ],
)
def test_citations_are_separated_from_the_answer(text, answer, numbers):
    assert read_citations(text) == (answer, numbers)


@pytest.mark.quick
def test_citation_measures_equal_values_computed_by_hand():
    passages = ["Basel: The Rhine flows through Basel.", "Zoo: Basel has a zoo.", "River: the Rhine."]
    assert measure((1, 2, 3, 4), passages, ["Rhine"]) == {"citations": 4, "invented": 1, "supported": 0.5}
    assert measure((0,), passages, ["Rhine"]) == {"citations": 1, "invented": 1, "supported": 0}
    assert measure((), passages, ["Rhine"]) == {"citations": 0, "invented": 0, "supported": 0}


# --------------------------------------------------------------------------------------------------------- searchers


def test_searchers_do_what_they_are_for():
    """Mean over the test questions; no searcher ever brings a passage that is not in the collection."""
    collection = sources.load("sample")
    rows = list(collection.splits["test"])
    mentioned, notes = {}, {}
    for name, searcher in SEARCHERS.items():
        brought = [searcher.bring(Request(row["question"], row, collection, 3, random.Random(0))) for row in rows]
        assert all(passage in collection.passages for passages, _ in brought for passage in passages)
        assert all(len({p["title"] for p in passages}) == len(passages) for passages, _ in brought)
        texts = ["\n".join(p["text"] for p in passages) for passages, _ in brought]
        mentioned[name] = sum(scoring.mentions(t, r["answers"]) for t, r in zip(texts, rows, strict=True)) / len(rows)
        notes[name] = [note for _, note in brought]
    assert mentioned["helpful"] > mentioned["plain"] == mentioned["misleading"] > mentioned["lazy"]
    assert not any(notes["plain"]) and not any(notes["distracting"])
    for row, note in zip(rows, notes["misleading"], strict=True):
        claimed = re.fullmatch(r"I am certain that the answer is (.*)\.", note)[1]
        assert not scoring.exact(claimed, row["answers"])
        assert claimed.isdigit() == row["id"].endswith("year"), "the claim has the kind of the answer"


# --------------------------------------------------------------------------------------------------------- episodes


def test_an_answer_with_a_supporting_citation_earns_most():
    row = example()
    river = row["answers"][0]
    for goal, level in (("cooperative", "team"), ("adversarial", "agent")):
        made = Retrieval(**SAMPLE, goal=goal, partners=("plain",))
        outcome, rewards, prompts = write(made, row, f"<answer>{river} [1]</answer>")
        assert outcome.success == 1 and outcome.metrics["exact"] == 1 and outcome.metrics["supported"] == 1
        assert getattr(rewards[0][1], level) == pytest.approx(1.2) and rewards[0][1].process == 0
        assert row["question"] in prompts[0] and "[1] " in prompts[0] and "Note" not in prompts[0]
    outcome, rewards, _ = write(made, row, f"<answer>{river} [1][99]</answer>")
    assert outcome.metrics["invented"] == 1 and rewards[0][1].agent == pytest.approx(1.1)
    assert rewards[0][1].process == pytest.approx(-0.1)
    outcome, rewards, _ = write(made, row, "<answer>[1]</answer>")
    assert outcome.success == 0 and outcome.metrics["no_answer"] == 1 and outcome.answer is None


def test_a_search_brings_further_passages_which_keep_their_numbers():
    row = example("job")
    mayor = row["support"][1]
    searches = (f"<search>{mayor}</search>", f"<answer>{row['answers'][0]} [9]</answer>")
    outcome, _, prompts = write(Retrieval(**SAMPLE, partners=("plain",)), row, *searches)
    assert outcome.success == 1 and outcome.metrics["mentioned"] == 1
    numbers = dict(re.findall(r"\[(\d+)\] ([^:]+):", "\n".join(prompts)))
    assert len(set(numbers.values())) == len(numbers) == outcome.metrics["passages"] and mayor in numbers.values()
    assert prompts[1].endswith("Answer now.")


def test_completions_without_a_readable_action_cost_a_penalty():
    made, row = Retrieval(**SAMPLE, partners=("lazy",)), example()
    outcome, rewards, prompts = write(made, row, "", "<search>one</search>")  # the last turn must be an answer
    assert outcome.metrics["invalid"] == 1 and outcome.reason == "no_answer" and outcome.success == 0
    assert [one.process for _, one in rewards] == [-0.1, -0.1] and prompts[1].startswith(NO_ACTION)
    outcome, rewards, _ = write(made, row, "<done/>", "<answer>x</answer><answer>y</answer>")
    assert [one.process for _, one in rewards] == [-0.1, -0.1] and outcome.metrics["no_answer"] == 1


def test_a_conversation_that_never_ends_ends_after_its_turns():
    made = Retrieval(**SAMPLE, partners=("distracting",), turns=5)
    outcome, rewards, _ = write(made, example(), *["<search>river</search>"] * 9)
    assert len(rewards) == 5 and outcome.reason == "no_answer"


def test_a_searcher_that_is_a_model_may_mislead_and_earns_what_the_writer_loses():
    made = Retrieval(**SAMPLE, form="model", goal="adversarial", partners=("misleading",), note_limit=12)
    row = example()
    searcher = (f"It is Rome,  for certain. <search>{row['support'][0]}</search>", "I found nothing.")
    texts = ("<search>more</search>", "<answer>Rome [1]</answer>")
    outcome, rewards, prompts = write(made, row, *texts, searcher=searcher)
    assert [seat for seat, _ in rewards] == [1, 0, 1, 0] and outcome.success == 0
    assert rewards[2][1].agent == 1 and rewards[2][1].process == pytest.approx(-0.1), "the second query is missing"
    assert "Note of the searcher: It is Rome, " in prompts[1] and "certain" not in prompts[1]
    assert "The searcher found no passages." in prompts[3] and "The writer wants: more" in prompts[2]


def test_the_searcher_switches_and_is_the_same_for_all_episodes_of_an_example():
    made = Retrieval(**SAMPLE, partners=("distracting", "misleading"), schedule="switch", switch_at=(3,))
    row = example()
    first, second = (write(made, row, "<answer>x</answer>", step=step) for step in (2, 3))
    assert "success_vs_distracting" in first[0].metrics and "success_vs_misleading" in second[0].metrics
    assert write(made, row, "<answer>y</answer>", step=2)[2] == first[2]


def test_evaluations_have_all_searchers_and_bad_settings_are_errors():
    made = make_task("retrieval", dataset="sample", form="model").for_evaluation()
    rows = made.examples("test")
    assert [row["partner"] for row in rows][: len(SEARCHERS)] == list(SEARCHERS) and made.roles == ("writer",)
    keys = [{row["key"] for row in made.examples(part)} for part in SPLITS]
    assert not keys[0] & keys[1] | keys[0] & keys[2] | keys[1] & keys[2]
    for wrong, match in (
        (dict(partners=("kind",)), "partners contains 'kind', but must contain only: helpful"),
        (dict(form="both"), "form is 'both', but must be one of: scripted, model"),
        (dict(turns=0), "turns is 0, but must be between 1 and 16"),
        (dict(dataset="none"), "dataset is 'none', but must be one of"),
    ):
        with pytest.raises(ValueError, match=match):
            Retrieval(**SAMPLE | wrong)
