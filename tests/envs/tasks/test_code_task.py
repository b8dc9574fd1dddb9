"""Episodes of the `code` task with known rewards: roles and single, turns, candidates, both presets."""

import json

import pytest

from envs.tasks.code import calls, sample, task
from envs.tasks.code.extract import LONGEST
from envs.tasks.code.rows import make_row
from envs.tasks.code.task import Code
from envs.tasks.sandbox import Sandbox, SandboxUnavailable
from envs.tasks.scripted import play

ROW = next(row for row in sample.rows() if row["id"] == "double")
RIGHT, WRONG = "def double(x):\n    return 2 * x", "def double(x):\n    return x + 3"  # WRONG is right for 3 alone
GOOD, BAD, USELESS = "assert double(2) == 4", "assert double(2) == 5", "assert double(3) == 6"


def code(text):
    return f"So:\n```python\n{text}\n```"


def suite(*lines):
    return "```tests\n" + "\n".join(lines) + "\n```"


@pytest.fixture(scope="module", autouse=True)
def sandbox():
    """Use a sandbox, isolated if possible; the programs of these tests are harmless."""
    try:
        made = Sandbox(workers=2)
    except SandboxUnavailable:
        made = Sandbox(workers=2, mode="process")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "shared_sandbox", lambda mode: made)
        patch.setattr(calls, "same_sandbox", lambda settings: made)
        yield made
    made.close()


def script(*turns):
    """Return completions by turn, seat and candidate: turns[turn][seat] is a text or a list of candidates."""

    def answer(seat, messages, k):
        said = turns[sum(m["role"] == "assistant" for m in messages)][seat]
        return said if isinstance(said, str) else said[k]

    return answer


def paid(ask, seat=None):
    return [
        pytest.approx(r.rewards.team + r.rewards.agent + r.rewards.process)
        for s, _, r in ask.replies if seat is None or s == seat
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------------- turns


def test_an_episode_ends_when_the_program_passes_the_testers_cases():
    outcome, ask = play(Code(dataset="sample"), ROW, script([code(RIGHT), suite(GOOD, USELESS)]))
    assert outcome.success and outcome.reason == "agreed" and outcome.metrics["turns"] == 1
    assert paid(ask) == [1.0, 1.0] and outcome.metrics["cases_right"] == 1.0


def test_a_later_turn_shows_what_failed_and_only_the_last_turn_is_rewarded():
    seen = []

    def answer(seat, messages, k):
        seen.append((seat, messages[-1]["content"]))
        return script([code(WRONG), suite(GOOD, USELESS)], [code(RIGHT), suite(GOOD)])(seat, messages, k)

    outcome, ask = play(Code(dataset="sample", turns=3), ROW, answer)
    assert outcome.success and outcome.metrics["turns"] == 2 and outcome.metrics["success_first_turn"] == 0
    assert paid(ask, 0) == [0.0, 1.0] and paid(ask, 1) == [0.0, 1.0]
    again = [text for seat, text in seen[2:]]
    assert all("fails 1 of the 2 test cases:\n- double(2), expected 4, found 5" in text for text in again)


def test_without_agreement_the_last_turn_decides():
    answers = script([code(RIGHT), suite(BAD)], [code(RIGHT), suite(BAD)])
    outcome, ask = play(Code(dataset="sample", turns=2), ROW, answers)
    assert outcome.success and outcome.reason == "turns" and outcome.metrics["cases_right"] == 0
    assert paid(ask, 1) == [0.0, 0.2]
    outcome, ask = play(Code(dataset="sample", turns=1), ROW, script([code(WRONG), suite(USELESS)]))
    assert not outcome.success and outcome.reason == "agreed"  # they agree but are wrong
    assert paid(ask) == [0.2 + 0.8 / 3, 0.2]  # one of three gold tests; the case lets the wrong program through


def test_no_gold_test_is_shown_to_anybody():
    secret = make_row(
        "t", 1, "Add.", [{"call": "f(7451)", "expect": "'gOlD'"}, {"call": "f(7452)",
        "expect": "'gOlD'"}], entry_point="f",
        starter="def f(x):", solution="def f(x): return 'gO' + 'lD'",
    )  # fmt: skip
    seen = []

    def answer(seat, messages, k):
        seen.extend(message["content"] for message in messages)
        return code("def f(x): return x") + "\n" + suite("assert f(1) == 2")

    for form in ("roles", "single"):
        play(Code(dataset="sample", form=form, turns=3), secret, answer, candidates=2)
    text = "\n".join(seen)
    assert "def f(x):" in text and "expected 2, found 1" in text and "745" not in text and "gOlD" not in text
    seen.clear()

    def right(seat, messages, k):
        seen.append(messages[-1]["content"])
        return code(secret["solution"])

    outcome, _ = play(Code(dataset="sample", shown=1), secret, right)
    assert "f(7451) ==" in seen[0] and "7452" not in seen[0] and outcome.success  # tests that are shown are not used
    only = play(Code(dataset="sample", shown=9), {**secret, "tests": secret["tests"][:1]}, lambda *_: "")
    assert only[0].metrics["gold_share"] == 0  # at least one test stays hidden


def test_one_agent_writes_both():
    right, wrong = code(RIGHT) + "\n" + suite(GOOD), code(WRONG) + "\n" + suite(GOOD)
    task_ = Code(dataset="sample", form="single", turns=2)
    assert task_.roles == ("coder",)
    outcome, ask = play(task_, ROW, script([wrong], [right]))
    assert outcome.success and paid(ask) == [0.0, 1.0] and "cases_right" not in outcome.metrics
    outcome, ask = play(task_, ROW, script([[wrong, right, "?"]]), candidates=3)
    assert outcome.success and outcome.reason == "agreed" and paid(ask) == [0.2 + 0.8 / 3, 1.0, 0.0]


def test_programs_with_standard_input():
    row = next(row for row in sample.rows() if row["id"] == "sum_of_line")
    cases = "```input\n2 2\n```\n```output\n4\n```"
    outcome, ask = play(Code(dataset="sample"), row, script([code(row["solution"]), cases]))
    assert outcome.success and paid(ask) == [1.0, 1.0]
    outcome, ask = play(Code(dataset="sample", turns=1), row, script([code("print(3)"), cases]))
    assert not outcome.success and outcome.reason == "turns" and paid(ask, 1) == [1.0]


# ---------------------------------------------------------------------------------------------------- candidates


def test_every_candidate_is_tried_and_one_is_continued():
    first = [[code(WRONG), "no program", code(RIGHT)], [suite(BAD), suite(USELESS), suite(GOOD)]]
    outcome, ask = play(Code(dataset="sample"), ROW, script(first), candidates=3)
    assert outcome.success and outcome.reason == "agreed"
    assert paid(ask, 0) == [0.2 + 0.8 / 3, 0.0, 1.0]
    assert paid(ask, 1) == [0.2, 0.2, 1.0]  # wrong; right but misses the wrong program; right and catches it
    outcome, ask = play(Code(dataset="sample", turns=1, continuation="first"), ROW, script(first), candidates=3)
    assert not outcome.success


def test_cure_compares_programs_and_tests_of_one_problem():
    programs = [code(WRONG), code(RIGHT), code("def double(x): return 0")]
    first = [programs, [suite(GOOD), suite(BAD, GOOD), suite(USELESS)]]
    outcome, ask = play(Code(dataset="sample", reward="cure", turns=1), ROW, script(first), candidates=3)
    assert outcome.success and paid(ask, 0) == [1 / 3, 1.0, 1 / 3]
    # GOOD rejects both wrong programs; BAD fails the right one and lets WRONG through: -1/2; USELESS rejects one.
    assert paid(ask, 1) == [1.0, (1.0 - 0.5) / 2, 0.5]
    none_right = [[code(WRONG), code("x = 1")], [suite(GOOD), "none"]]
    outcome, ask = play(Code(dataset="sample", reward="cure", turns=1), ROW, script(none_right), candidates=2)
    assert paid(ask, 1) == [0.0, 0.0]


def test_without_a_solution_right_programs_judge_the_cases():
    row = {**ROW, "solution": None}
    both = [[code(RIGHT), code(WRONG)], [suite(GOOD), suite(BAD)]]
    _, ask = play(Code(dataset="sample", turns=1), row, script(both), candidates=2)
    assert paid(ask, 1) == [1.0, 0.2]
    _, ask = play(Code(dataset="sample", turns=1), row, script([[code(WRONG)] * 2, [suite(GOOD), "?"]]), candidates=2)
    assert paid(ask, 1) == [0.2, 0.0]  # no correct program to judge by


def test_an_answer_is_not_judged_by_the_cases_of_another():
    """The first tester's case never ends, but the second one's cases still count as right."""
    slow = {**ROW, "solution": "def double(x):\n    while x == 7: pass\n    return 2 * x"}
    programs = [code(slow["solution"]), code(WRONG)]
    cases = [suite("assert double(7) == 14", GOOD), suite(GOOD)]
    _, ask = play(Code(dataset="sample", turns=1, seconds=1.0), slow, script([programs, cases]), candidates=2)
    assert paid(ask, 1)[1] == 1.0 and paid(ask, 1)[0] == 0.2


def test_equal_programs_run_once(sandbox):
    seen = []

    class Counting:
        def evaluate_groups(self, *args):
            seen.append(args)
            return sandbox.evaluate_groups(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "same_sandbox", lambda settings: Counting())
        play(Code(dataset="sample", turns=1), ROW, script([[code(RIGHT)] * 4, [suite(GOOD)] * 4]), candidates=4)
    assert len(seen) == 4  # gold tests, the solution on the cases, the program on the cases, and the kept pair


# ---------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("answer", "metric"),
    [
        ("x" * 1_000_000, "answer_too_long"),
        ("```python\n" + "x = 1\n" * 200_000, "answer_too_long"),
        ("```python\n" + "x = 1\n" * (LONGEST // 7), None),
        ("I do not know", "program_missing"),
        ("\ufffd\x00\ud800", "program_missing"),
        ("```python\n\ud800\n```", None),
        ("```python\nprint('\x00')\n```", None),
        ("```python\nwhile True: pass\n```", "limit_hit"),
    ],
    ids=lambda x: str(x)[:20],
)
@pytest.mark.parametrize("form", ["roles", "single"])
def test_bad_answers_are_counted_and_end_no_episode(answer, metric, form):
    seconds = 0.2 if metric == "limit_hit" else 2.0  # long enough for a slow machine
    outcome, ask = play(Code(dataset="sample", form=form, turns=1, seconds=seconds), ROW, lambda *_: answer)
    assert outcome.problem() is None and outcome.success == 0 and len(ask.replies) == len(ask.task.roles)
    counted = [name for name in ("answer_too_long", "program_missing", "limit_hit") if outcome.metrics[name]]
    assert counted == ([metric] if metric else [])
    assert all(0 <= reward.expected <= 0.2 for reward in paid(ask))


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"turns": 0}, "turns is 0, but must be between 1 and 4"),
        ({"turns": 5}, "turns is 5, but must be between 1 and 4"),
        ({"form": "pair"}, "form is 'pair', but must be one of: roles, single"),
        ({"reward": "x"}, "reward is 'x', but must be one of: paper, cure"),
        ({"dataset": "nope"}, "dataset is 'nope', but must be one of: apps"),
        ({"sandbox": "none"}, "sandbox is 'none', but must be one of: auto, process"),
        ({"dataset": "cruxeval_output"}, "form is 'roles' with dataset 'cruxeval_output', but must be 'single'"),
        ({"test_dataset": "cruxeval_input"}, "form is 'roles' with dataset 'cruxeval_input'"),
    ],
)  # fmt: skip
def test_parameters_are_checked(params, error):
    with pytest.raises(ValueError, match=error):
        Code(**params)


# ---------------------------------------------------------------------------------------------------- prediction


@pytest.mark.parametrize(
    ("predict", "answer", "right", "reward"),
    [
        ("output", "assert f('a', 2) == 'aa'", True, 1.0),
        ("output", "first\nassert f('a', 2) == 'x'\nno:\nassert f('a', 2) == 'aa'", True, 1.0),
        ("output", "assert f('a', 3) == 'aaa'", False, 0.2),  # true, but not the question
        ("output", "assert f('a', 2) == 'aaa'", False, 0.2),
        ("output", "assert f('a', 2) == f('a', 2)", False, 0.0),
        ("input", "assert f('a', 2) == 'aa'", True, 1.0),
        ("input", "assert f(setattr(f, '__code__', (lambda *a: 'aa').__code__)) == 'aa'", False, 0.0),
        ("input", "assert f('aa', 1) == 'aa'", True, 1.0),  # any input will do
        ("input", "assert f('a', 3) == 'aaa'", False, 0.2),
        ("input", "assert f('b', 2) == 'aa'", False, 0.2),
        ("input", "aa", False, 0.0),
    ],
)
def test_prediction(predict, answer, right, reward):
    row = make_row(
        "cruxeval", 1, "?", [{"call": "f('a', 2)", "expect": "'aa'"}], entry_point="f",
        solution="def f(s, n):\n    return s * n", predict=predict,
    )  # fmt: skip
    outcome, ask = play(Code(dataset=f"cruxeval_{predict}", form="single"), row, lambda *_: answer)
    assert outcome.success == right and paid(ask) == [reward]
    outcome, ask = play(Code(dataset="sample", form="single"), row, lambda s, m, k: ["?", answer][k], candidates=2)
    assert outcome.success == right and paid(ask) == [0.0, reward]


def test_evaluations_have_four_seconds_at_least():
    assert [Code(dataset="sample", seconds=s).for_evaluation().seconds for s in (1.0, 4.0, 9.0)] == [4.0, 4.0, 9.0]


def test_rows_are_json_and_parts_come_from_their_sets():
    made = Code(dataset="sample")
    rows = [row for part in ("train", "validation", "test") for row in made.examples(part)]
    assert json.loads(json.dumps(rows)) == rows and len(rows) == 12


def test_verdicts_and_the_score_that_needs_no_gold_test():
    outcome, ask = play(Code(dataset="sample", turns=1), ROW, script([code(WRONG), suite(GOOD, USELESS)]))
    assert outcome.score == 0.5  # share of the tester's cases, used by best-of-k
    coder, tester = (reply.verdict for *_, reply in ask.replies)
    assert coder["right"] == 0 and coder["answer"] == WRONG and coder["reason"].startswith("1 of 3 gold tests; wrong")
    assert tester["right"] == 1 and tester["reason"] == "2 of 2 cases are right"
    outcome, ask = play(Code(dataset="sample", turns=1), ROW, lambda *_: "?")
    assert outcome.score == 0 and ask.replies[0][2].verdict["reason"] == "program: missing"


def test_a_published_call_need_not_have_literal_arguments():
    row = make_row(
        "cruxeval", 1, "?", [{"call": "f(range(3),  lambda x: x)", "expect": "3"}], entry_point="f",
        solution="def f(r, g): return len(r)", predict="output",
    )  # fmt: skip
    for predict in ("output", "input"):
        task_ = Code(dataset=f"cruxeval_{predict}", form="single")
        outcome, _ = play(task_, {**row, "predict": predict}, lambda *_: "assert f(range(3), lambda x: x) == 3")
        assert outcome.success and outcome.answer is not None
        outcome, _ = play(task_, {**row, "predict": predict}, lambda *_: "assert f(range(3), lambda x: 1) == 3")
        assert not outcome.success and outcome.answer is None
