"""Debugging: mutations, verified bugs, repairs, rewards of both seats, and bad completions."""

import ast
import re

import pytest

from envs.tasks.code import calls, sample
from envs.tasks.code.rows import make_row
from envs.tasks.debugging import planting, task
from envs.tasks.debugging.mutations import KINDS, mutants
from envs.tasks.debugging.task import Debugging, NoBug
from envs.tasks.judges import Referee
from envs.tasks.sandbox import Sandbox, SandboxUnavailable
from envs.tasks.scripted import play
from tests.conftest import shared_data

SOLUTION = "def largest(a, b):\n    # of two numbers\n    if a > b:\n        return a\n    return b"
TESTS = [{"call": f"largest{pair}", "expect": str(max(pair))} for pair in ((1, 2), (5, 3), (4, 4))]
ROW = make_row("own", "largest", "Return the larger of two numbers.", TESTS, part="train", entry_point="largest",
               starter="def largest(a, b):", solution=SOLUTION) | {"key": "own largest"}  # fmt: skip
KWARGS = dict(dataset="sample", test_dataset="sample")


@pytest.fixture(scope="module", autouse=True)
def sandbox():
    """Use a sandbox, isolated if possible; the programs of these tests are harmless."""
    try:
        made = Sandbox(workers=1)
    except SandboxUnavailable:
        made = Sandbox(workers=1, mode="process")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "shared_sandbox", lambda mode: made)
        for module in (calls, planting):
            patch.setattr(module, "same_sandbox", lambda settings: made)
        yield made
    made.close()


def code(text):
    return f"Here:\n```python\n{text}\n```"


def program_in(messages):
    return re.findall(r"```python\n(.*?)\n```", messages[-1]["content"], re.DOTALL)[-1]


def rewards(ask):
    return [(seat, r.rewards.team, r.rewards.agent, r.rewards.process) for seat, _, r in ask.replies]


# ---------------------------------------------------------------------------------------------------- mutations


def test_every_kind_changes_one_place_and_stays_python():
    assert mutants(SOLUTION, "operators") == (ast.unparse(ast.parse(SOLUTION.replace(">", ">="))),)
    assert mutants(SOLUTION, "conditions") == (ast.unparse(ast.parse(SOLUTION.replace("a > b", "not a > b"))),)
    assert len(mutants(SOLUTION, "names")) == 4 and mutants(SOLUTION, "constants") == ()
    assert [m.count("pass") for m in mutants(SOLUTION, "statements")] == [1, 1, 1]
    assert set(mutants("def f(x):\n    return x + 10", "constants")) == {
        f"def f(x):\n    return x + {n}" for n in (9, 11)
    }
    for row in sample.rows():
        plain = ast.unparse(ast.parse(row["solution"])).splitlines()
        for kind in KINDS:
            for mutant in mutants(row["solution"], kind):
                ast.parse(mutant)
                assert mutant.splitlines() != plain
    assert mutants("def f(:", "names") == () and mutants("(" * 5000, "operators") == ()


def test_a_bug_that_breaks_no_test_is_passed_over(sandbox):
    """`>=` instead of `>` returns the same values, so the operator of `largest` cannot be a bug."""
    programs = [*mutants(SOLUTION, "operators"), "def largest(a, b:", *mutants(SOLUTION, "conditions")]
    needed = calls.needed(ROW)
    assert planting.first_bug({}, needed, SOLUTION, programs, TESTS, 2.0)["number"] == 2
    assert planting.first_bug({}, needed, SOLUTION, programs[:2], TESTS, 2.0)["number"] is None
    wrong = planting.first_bug({}, needed, programs[2], programs, TESTS, 2.0)
    assert wrong == {"original": planting.BROKEN, "number": None, "tried": 0}


# ---------------------------------------------------------------------------------------------------- episodes


def test_the_learner_sees_a_verified_bug_and_is_rewarded_for_a_repair():
    seen = []

    def answer(seat, messages, k):
        seen.append(program_in(messages))
        return code(SOLUTION)

    outcome, ask = play(Debugging(partners=("conditions",), **KWARGS), ROW, answer)
    assert seen == [mutants(SOLUTION, "conditions")[0]] and rewards(ask) == [(0, 0, 1, 0)]
    assert outcome.success and outcome.metrics["first_try"] == 1 and outcome.metrics["success_vs_conditions"] == 1
    assert "expected" not in str(ask.replies[0][2].verdict) and outcome.reason == "fixed"


def test_a_kind_without_a_bug_is_replaced_by_another_and_an_example_without_any_fails():
    outcome, _ = play(Debugging(partners=("operators",), turns=1, **KWARGS), ROW, lambda *_: code(SOLUTION))
    assert "success_vs_operators" not in outcome.metrics and outcome.success
    broken = ROW | {"solution": "def largest(a, b):\n    return a"}
    untested = ROW | {"tests": [{"call": "1", "expect": "1"}]}
    for row, match in ((broken, "the original program fails"), (untested, "no change breaks one of the 1 tests")):
        with pytest.raises(NoBug, match=match):
            play(Debugging(**KWARGS), row, lambda *_: code(SOLUTION))


def test_a_failed_attempt_shows_one_failing_test_and_only_the_last_attempt_is_rewarded():
    asked = []

    def answer(seat, messages, k):
        asked.append(messages[-1]["content"])
        return code("def largest(a, b):\n    return a" if len(asked) == 1 else SOLUTION)

    outcome, ask = play(Debugging(partners=("conditions",), **KWARGS), ROW, answer)
    assert "largest(1, 2), expected 2, found 1" in asked[1] and "largest(5, 3)" not in asked[1]
    assert rewards(ask) == [(0, 0, 0, 0), (0, 0, 1, 0)] and outcome.metrics["first_try"] == 0


@pytest.mark.parametrize("text", ["", "I cannot.", "```python\n```", "```python\ndef largest(a, b:\n```"])
def test_completions_without_a_working_program_are_counted(text):
    outcome, ask = play(Debugging(partners=("conditions",), turns=1, **KWARGS), ROW, lambda *_: text)
    [(_, team, agent, process)] = rewards(ask)
    missing = "def" not in text
    assert (team, agent, process) == (0, 0, -0.2 * missing) and outcome.metrics["no_program"] == missing
    assert not outcome.success and outcome.reason == "not_fixed"


def test_hints_are_true_or_false_by_the_goal():
    seen = {}
    for goal in task.GOALS:
        made = Debugging(partners=("conditions",), goal=goal, turns=1, **KWARGS)
        play(made, ROW, lambda seat, messages, k, goal=goal: seen.setdefault(goal, messages[-1]["content"]))
    assert "Hint" not in seen["neutral"] and seen["cooperative"].endswith("Hint: a condition is reversed.")
    assert "Hint" in seen["adversarial"] and "a condition is reversed" not in seen["adversarial"]


BUG = code("def largest(a, b):\n    return b")


@pytest.mark.parametrize(
    ("goal", "plant", "fix", "expected"),
    [
        ("adversarial", BUG, code(SOLUTION), [(1, 0, 0, 0), (0, 0, 1, 0)]),
        ("adversarial", BUG, BUG, [(1, 0, 1, 0), (0, 0, 0, 0)]),
        ("cooperative", BUG, code(SOLUTION), [(1, 0, 0, 0), (0, 1, 0, 0)]),
        ("adversarial", code(SOLUTION), code(SOLUTION), [(1, 0, 0, -0.2), (0, 0, 1, 0)]),
        ("cooperative", "none", code(SOLUTION), [(1, 0, 0, -0.2), (0, 0, 1, 0)]),
    ],
)
def test_a_model_plants_and_is_rewarded_only_for_a_bug_that_breaks_a_test(goal, plant, fix, expected):
    made = Debugging(form="model", goal=goal, partners=("names",), turns=1, **KWARGS)
    outcome, ask = play(made, ROW, lambda seat, messages, k: plant if seat else fix)
    assert rewards(ask) == expected and outcome.metrics["planted"] == (plant == BUG)


def test_bugs_change_from_step_to_step_unless_they_are_static():
    seen = []
    for static, steps in ((True, (0, 1, 2, 3)), (False, (0, 0, 1, 2, 3))):
        made = Debugging(partners=("names",), static=static, turns=1, **KWARGS)
        texts = []
        for step in steps:
            play(made, ROW, lambda s, m, k, texts=texts: texts.append(program_in(m)) or "", step=step)
        seen.append(texts)
    assert len(set(seen[0])) == 1 and seen[1][0] == seen[1][1] and len(set(seen[1])) > 1


def test_published_programs_are_read_and_have_their_bugs(monkeypatch):
    monkeypatch.setenv("MARL_JAX_DATA", str(shared_data("open/quixbugs_python.jsonl.gz").parents[1]))
    made = Debugging().for_evaluation()
    rows = made.examples("test")
    assert (len(rows), len(made.examples("train")), len(made.examples("validation"))) == (40, 371, 90)
    row = next(row for row in rows if row["id"] == "max_sublist_sum")
    solution = row["solution"]
    outcome, _ = play(made, row, lambda seat, messages, k: code(solution))
    assert outcome.success and "success_vs_published" in outcome.metrics and "max_ending_here + x" in row["buggy"]
    assert not play(made, row, lambda seat, messages, k: code(row["buggy"]))[0].success


@pytest.mark.nightly
def test_published_bugs_break_a_test_and_published_solutions_repair_them(monkeypatch):
    monkeypatch.setenv("MARL_JAX_DATA", str(shared_data("open/quixbugs_python.jsonl.gz").parents[1]))
    made, repaired = Debugging(turns=1).for_evaluation(), []
    for row in made.examples("test"):
        try:
            outcome, _ = play(made, row, lambda seat, messages, k, row=row: code(row["solution"]))
        except NoBug:
            continue
        repaired.append(outcome.success)
    assert len(repaired) >= 36 and all(repaired)


def test_an_unknown_kind_of_bug_is_rejected():
    with pytest.raises(ValueError, match="partners contains 'typos', but must contain only: operators"):
        Debugging(partners=("typos",))


@pytest.mark.parametrize("against", ["reference", "partner"])
def test_a_judge_compares_the_repair_with_the_solution_or_the_bug(against):
    buggy = SOLUTION.replace(">", "<")
    made, repair = Debugging(form="model", turns=1, **KWARGS), SOLUTION + "  # b is larger"
    rule = Referee(None, against=against, rule_weight=2.0)
    answer = lambda seat, messages, k: code(buggy if seat else repair)  # noqa: E731
    outcome, ask = play(made, ROW, answer, judge=rule)
    p = 0.5 if against == "reference" else 1.0
    assert outcome.success and outcome.metrics["judge_p"] == p
    assert sorted(rewards(ask)) == [(0, 0, 2 + p, 0), (1, 0, 1 - p, 0)]
