"""Questions: reading and comparing answers, requirements of datasets, and known datasets."""

import json
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.tasks import TASKS
from envs.tasks.data import DataError
from envs.tasks.question.compare import grade, read, to_letter, to_number
from envs.tasks.question.sets import LABELS, Arc, Nli, SciQ
from envs.tasks.question.task import Question
from envs.tasks.question.template import fill
from envs.tasks.scripted import play
from envs.tasks.task import SPLITS
from tests.conftest import shared_data

OPTIONS = ["iron", "gold", "b", "a gas"]


def right(comparison, text, answer, options=(), form="boxed"):
    verdict = grade(comparison, form, text, answer, options)
    assert json.loads(json.dumps(verdict)) == verdict and bool(verdict["reason"]) != verdict["right"]
    return verdict["right"]


# ---------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"so \boxed{7}", ("7", "")),
        (r"\boxed{1} then \boxed{2}", (None, "boxes that differ")),
        (r"\boxed{1} then \boxed{ 1 }", ("1", "")),
        (r"\boxed{\frac{1}{2}} and {more}", (r"\frac{1}{2}", "")),
        (r"\boxed{\text{ neutral }}", ("neutral", "")),
        (r"\boxed{$5$}", ("5", "")),
        (r"\boxed{never closed", (None, "no box")),
        (r"<think>\boxed{1}</think>\boxed{2}", ("2", "")),
        (r"<think>\boxed{1}</think> none", (None, "no box")),
        (r"<think>\boxed{1}", (None, "unfinished thinking")),
        ("no box", (None, "no box")),
        (r"\boxed{}", (None, "empty box")),
    ],
)
def test_what_is_read_in_a_reply(text, found):
    assert read(text, "boxed") == found


def test_what_is_read_in_a_reply_that_is_the_answer():
    assert read(" red ", "text") == ("red", "") and read("  ", "text") == (None, "the reply is empty")
    assert read("<think>green</think>red", "text") == ("red", "")
    assert read("<think>red", "text") == (None, "unfinished thinking")


@pytest.mark.parametrize(
    ("comparison", "text", "answer", "expected"),
    [
        ("exact", r"\boxed{Neutral.}", "neutral", True),
        ("exact", r"\boxed{not neutral}", "neutral", False),
        ("exact", "neutral", "neutral", False),
        ("exact", r"\boxed{neutral} or \boxed{entailment}", "neutral", False),
        ("exact", r"\boxed{entailment} no: \boxed{neutral}", "neutral", False),
        ("exact", r"\boxed{neutral}, yes \boxed{ NEUTRAL }", "neutral", True),
        ("exact", r"\boxed{}", "neutral", False),
        ("one_of", r"\boxed{bob russell}", ["Bobby Scott", "Bob Russell"], True),
        ("one_of", r"\boxed{bob}", ["Bobby Scott", "Bob Russell"], False),
        ("contains", r"\boxed{the city of Paris}", "paris", True),
        ("contains", r"\boxed{Parisian}", "paris", False),
        ("number", r"\boxed{1,234.50}", "1234.5", True),
        ("number", r"\boxed{\$72}", 72, True),
        ("number", r"\boxed{3/4}", "0.75", True),
        ("number", r"\boxed{-3}", 3, False),
        ("number", r"\boxed{72 clips}", 72, False),
        ("number", r"\boxed{7 2}", 72, False),
        ("number", r"the 7 and the 2", 72, False),
        ("number", r"\boxed{1/0}", 1, False),
        ("number", r"\boxed{1e9999999}", 1, False),
        ("number", r"\boxed{9^{9^{9}}}", 1, False),
    ],
)
def test_comparisons(comparison, text, answer, expected):
    assert right(comparison, text, answer) == expected


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("A", "A"), ("(b)", "B"), ("C.", "C"), (r"\text{D}", "D"), ("gold", "B"), ("B. gold", "B"), ("B) Gold", "B"),
        ("A gas", "D"), ("D: a gas", "D"), ("b", "B"), ("B. iron", None), ("E", None), ("A or B", None), ("", None),
        ("gold and iron", None), ("none", None),
    ],
)  # fmt: skip
def test_options_go_by_letter_or_text(text, letter):
    assert to_letter(text, OPTIONS) == letter


@settings(deadline=None)
@given(st.fractions(max_denominator=1000), st.sampled_from(["{0}", " {0} ", "+{0}", "{0}."]))
def test_numbers_are_read_exactly(number, form):
    written = form.format(number) if number >= 0 else form.replace("+", "").format(number)
    assert to_number(written) == number == Fraction(str(number))


@settings(deadline=None)
@given(st.text(max_size=80), st.sampled_from(["exact", "contains", "number", "choice"]))
def test_grading_never_raises(text, comparison):
    for form in ("boxed", "text"):
        right(comparison, text, "1" if comparison == "number" else "A", OPTIONS if comparison == "choice" else (), form)


@pytest.mark.parametrize(
    "text", [r"\boxed{" * 10**5, r"\boxed{x}" * 10**5, "{" * 10**6, r"\boxed{" + "9" * 10**6 + "}"]
)
def test_a_megabyte_is_graded_in_no_time(text):
    start = time.process_time()
    assert not right("number", text, 5)
    assert time.process_time() - start < 2


def test_expressions_are_compared_by_the_verifier_of_math():
    for text, answer, expected in (
        (r"\boxed{\frac{2}{4}}", r"\frac12", True), (r"\boxed{x+1}", "1+x", True), (r"\boxed{x-1}", "1+x", False),
        ("no box", "1", False),
    ):  # fmt: skip
        assert right("math", text, answer) == expected
    assert right("math", r"\frac{2}{4}", "0.5", form="text")


# ---------------------------------------------------------------------------------------------------- the task


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_dataset_by_config_alone(tmp_path):
    rows = [{"q": f"{i} + 1", "a": f"#{i + 1}", "kind": "even" if i % 2 else "odd"} for i in range(30)]
    task = Question(
        train=write(tmp_path / "train.jsonl", rows), template="What is {q}? Write # before it in \\boxed{}.",
        answer="a", group="kind",
    )  # fmt: skip
    assert {part: len(task.examples(part)) for part in SPLITS} == {"train": 24, "validation": 3, "test": 3}
    example = task.examples("train")[0]
    outcome, ask = play(task, example, lambda *_: rf"\boxed{{{example['a']}}}")
    assert outcome.success == 1 and outcome.answer == example["a"]
    assert outcome.metrics == {"parse_failure": False, f"success_kind_{example['kind']}": True}
    seen = []
    play(task, example, lambda seat, messages, k: seen.append(messages) or "")
    assert seen[0][1]["content"] == f"What is {example['q']}? Write # before it in \\boxed{{}}."


def test_rewards_and_verdicts_of_candidates():
    task = TASKS.get("nli")(format_reward=0.2)
    texts = ["dunno", r"\boxed{neutral}", r"\boxed{entailment}"]
    example = {"premise": "p", "hypothesis": "h", "label": "entailment"}
    outcome, ask = play(task, example, lambda seat, messages, k: texts[k], candidates=3)
    assert [(r.rewards.team, r.rewards.process) for *_, r in ask.replies] == [(0, 0), (0, 0.2), (1, 0.2)]
    assert [(r.verdict["right"], r.verdict["answer"]) for *_, r in ask.replies] == [
        (0, None), (0, "neutral"), (1, "entailment"),
    ]  # fmt: skip
    assert outcome.success == 1 and outcome.answer == "entailment"


EXAMPLE = {"premise": "p", "hypothesis": "h", "label": "entailment"}


def boxed(*answers):
    left = list(answers)
    return lambda *_: rf"\boxed{{{left.pop(0)}}}"


def test_a_checker_who_agrees_ends_the_episode_and_the_last_answer_counts():
    task = TASKS.get("nli")(agents="roles", turns=3)
    assert task.roles == ("solver", "checker")
    outcome, ask = play(task, EXAMPLE, boxed("entailment", "entailment"))
    assert outcome.success == 1 and outcome.reason == "agreed" and outcome.score == 1
    outcome, ask = play(task, EXAMPLE, boxed("neutral", "entailment", "entailment", "entailment"))
    assert outcome.success == 1 and outcome.metrics["turns"] == 2 and not outcome.metrics["right_first"]
    assert [(seat, turn) for seat, turn, _ in ask.replies] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [r.rewards.team for *_, r in ask.replies] == [0, 0, 1, 1], "more turns pay no more"
    outcome, ask = play(TASKS.get("nli")(agents="roles"), EXAMPLE, boxed("entailment", "neutral"))
    assert outcome.success == 0 and outcome.reason == "done" and outcome.score == 0


def test_each_role_reads_what_the_other_wrote():
    seen = []

    def answer(seat, messages, k):
        seen.append((seat, messages[-1]["content"]))
        return rf"I say \boxed{{{'neutral' if seat else 'entailment'}}}"

    play(TASKS.get("nli")(agents="roles", turns=2), EXAMPLE, answer)
    assert [seat for seat, _ in seen] == [0, 1, 0, 1]
    assert "Premise: p" in seen[1][1] and r"I say \boxed{entailment}" in seen[1][1]
    assert r"The checker wrote" in seen[2][1] and r"I say \boxed{neutral}" in seen[2][1]


def test_a_solver_alone_checks_its_answer_until_it_repeats_one():
    task = TASKS.get("nli")(turns=4)
    outcome, ask = play(task, EXAMPLE, boxed("neutral", "entailment", "entailment"))
    assert outcome.success == 1 and outcome.metrics["turns"] == 3 and outcome.reason == "agreed"
    assert [r.rewards.team for *_, r in ask.replies] == [0, 0, 1]
    outcome, ask = play(task, EXAMPLE, lambda *_: "dunno", candidates=2)
    assert outcome.reason == "turns" and len(ask.replies) == 8, "no answer confirms nothing"


def test_text_of_a_row_is_never_a_template():
    assert fill("{a} {b}", {"a": "{b}", "b": "x", "c": 1}) == "{b} x"
    assert fill(r"{a} \boxed{} {not a field}", {"a": ["x", "y"]}) == "A. x\nB. y \\boxed{} {not a field}"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (dict(comparison="fuzzy"), "comparison is 'fuzzy', but must be one of: exact"),
        (dict(form="xml"), "form is 'xml', but must be one of: boxed, text"),
        (dict(template="{question} {answer}"), "shows {answer}, the field with the answer"),
        (dict(comparison="choice"), "must be a field for 'choice'"),
        (dict(test="x.jsonl"), "set without train"),
        (dict(agents="crowd"), "agents is 'crowd', but must be one of: single, roles"),
        (dict(turns=0), "turns is 0"),
    ],
)
def test_settings_without_meaning_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        Question(**params)


@pytest.mark.parametrize(
    ("row", "params", "message"),
    [
        ({"question": "q"}, {}, "no field 'answer'; the fields are: question"),
        ({"question": "q", "answer": ""}, {}, "the field 'answer' is empty"),
        ({"answer": "a"}, {}, "no field 'question'"),
        ({"question": "q", "answer": "many"}, dict(comparison="number"), "the answer 'many' is not a number"),
        ({"question": "q", "answer": "E", "o": ["x", "y"]}, dict(comparison="choice", options="o"), "none of the opt"),
        ({"question": "q", "answer": "A", "o": ["x"]}, dict(comparison="choice", options="o"), "must be 2 to 26"),
        ({"question": "q", "answer": "a"}, dict(comparison="one_of"), "not a list of strings"),
        ({"question": " ", "answer": "a"}, {}, "the prompt is empty"),
    ],
)
def test_bad_rows_are_named(tmp_path, row, params, message):
    answer = {"number": 1, "one_of": ["a"]}.get(params.get("comparison"), "A")
    fine = {"question": "fine", "answer": answer, "o": ["A", "b"]}
    path = write(tmp_path / "rows.jsonl", [fine, fine, row])
    with pytest.raises(DataError, match=f"rows.jsonl:3: .*{message}"):
        Question(train=path, **params).examples("train")


def test_the_same_question_in_train_and_test_is_refused(tmp_path):
    rows = [{"question": f"q{i}", "answer": "a"} for i in range(20)]
    train, test = write(tmp_path / "train.jsonl", rows), write(tmp_path / "test.jsonl", rows[4:5])
    with pytest.raises(DataError, match=r'example "q4" is in train \(.*train.jsonl:5\) and in test \(.*test.jsonl:1\)'):
        Question(train=train, test=test).examples("train")


# ---------------------------------------------------------------------------------------------------- known datasets


@pytest.mark.parametrize("name", ["question", "nli", "arc", "sciq"])
def test_the_known_answers_of_the_samples_score_full_marks(name, monkeypatch):
    monkeypatch.delenv("MARL_JAX_DATA", raising=False)
    task = TASKS.get(name)()
    assert {part: len(task.examples(part)) for part in SPLITS} == {"train": 12, "validation": 6, "test": 6}
    for part in SPLITS:
        for example in task.examples(part):
            outcome, _ = play(task, example, lambda *_, e=example: rf"so \boxed{{{e[task.answer]}}}")
            assert outcome.success == 1


@pytest.mark.parametrize(
    ("task", "sizes"),
    [(Nli, (2880, 320, 3200)), (Arc, (242, 27, 30)), (SciQ, (810, 90, 100))],
)
def test_the_known_answers_of_the_published_files_score_full_marks(task, sizes, monkeypatch):
    monkeypatch.setenv("MARL_JAX_DATA", str(shared_data("SHA256SUMS").parent))
    made = task()
    assert tuple(len(made.examples(part)) for part in SPLITS) == sizes
    for part in SPLITS:
        for row in made.examples(part):
            options = row[made.options] if made.options else ()
            assert right(made.comparison, rf"\boxed{{{row[made.answer]}}}", row[made.answer], options)
    if task is Nli:
        assert all(900 < [row["label"] for row in made.examples("train")].count(x) < 1000 for x in LABELS.values())
    if task is SciQ:
        letters = [row["answer"] for row in made.examples("train")]
        assert all(150 < letters.count(letter) < 260 for letter in "ABCD"), "the place must not give the answer away"


def test_published_forms_of_nli_and_arc_are_read(tmp_path):
    published = {"uid": "1", "context": "p", "hypothesis": "h", "label": "c"}
    assert Nli().read(published)["label"] == "contradiction" and Nli().read({**published, "label": 0})["premise"] == "p"
    path = write(tmp_path / "nli.jsonl", [published, {**published, "label": "x"}])
    with pytest.raises(DataError, match="nli.jsonl:2: ValueError: the label is 'x', but must be one of: entailment"):
        Nli(train=path).examples("train")
    row = {"id": "n", "question": "?", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2"}
    assert Arc().read(row) == {"id": "n", "question": "?", "choices": ["x", "y"], "answer": "B"}
    with pytest.raises(ValueError, match="is none of"):
        Arc().read({**row, "answerKey": "C"})
