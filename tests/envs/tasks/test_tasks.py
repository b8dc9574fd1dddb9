"""Tasks: examples, verifiers, and episodes with known rewards."""

import ast
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.tasks import TASKS
from envs.tasks.arithmetic import Arithmetic, ArithmeticProblem, draw_problems, grade, read_answer
from envs.tasks.data import fingerprint_of
from envs.tasks.scripted import play
from envs.tasks.solver_checker import SolverChecker
from envs.tasks.task import SPLITS
from envs.tasks.verilog import bench
from tests.conftest import examples

EXAMPLE = ArithmeticProblem("What is 2 + 3?", 5, 1)


def values(tree):
    """Evaluate an expression with Python's parser."""
    return eval(compile(ast.Expression(tree), "", "eval"), {"__builtins__": {}})


# ---------------------------------------------------------------------------------------------------- all tasks


# The task `program` needs a program and a server: see
# tests/marl_jax/rollouts/host/test_programs.py.
@pytest.mark.parametrize(
    "name",
    [name for name in TASKS.names() if TASKS.get(name).__module__.startswith("envs") and not TASKS.get(name).serves],
)
def test_every_task_keeps_to_the_protocol(name):
    own = {}
    if name == "dataset":  # the only task without default data
        own = dict(data=[dict(prompt=f"What is {i} + {i}?") for i in range(40)], rewards=[lambda completion: 1.0])
    if name == "verilog" and bench.find_tools() is None:
        pytest.skip(bench.MISSING)
    task = TASKS.get(name)(**own)
    parts = {part: task.examples(part) for part in SPLITS}
    assert all(len(examples) and list(examples) == list(task.examples(part)) for part, examples in parts.items())
    assert all(fingerprint_of(examples) for examples in parts.values())
    kinds = [{repr(example) for example in examples} for examples in parts.values()]
    assert len(set.union(*kinds)) == sum(map(len, kinds)), "an example is in two parts"
    with pytest.raises(ValueError, match="part is 'dev', but must be one of: train, validation, test"):
        task.examples("dev")
    for candidates in (1, 3):
        outcome, ask = play(task, parts["train"][0], lambda *_: "I do not know", candidates)
        assert outcome.problem() is None and {seat for seat, *_ in ask.replies} <= set(range(len(task.roles)))


ARITHMETIC = ("arithmetic", "arithmetic_debate", "solver_checker")


@pytest.mark.parametrize("name", ARITHMETIC)
def test_right_and_wrong_answers_on_arithmetic(name):
    task = TASKS.get(name)(n_examples=60)
    example = task.examples("train")[0]
    assert all(len(task.examples(part)) == 60 for part in SPLITS)
    for candidates in (1, 3):
        outcome, ask = play(task, example, lambda *_: f"so it is\nanswer: {example.answer}", candidates)
        assert outcome.problem() is None and outcome.success == 1
        assert {seat for seat, *_ in ask.replies} == set(range(len(task.roles)))
        outcome, _ = play(task, example, lambda *_: "I do not know", candidates)
        assert outcome.problem() is None and outcome.success == 0


@pytest.mark.parametrize("name", ARITHMETIC)
def test_the_known_answers_score_full_marks(name):
    task = TASKS.get(name)(n_examples=30)
    for part in SPLITS:
        for example in task.examples(part):
            assert play(task, example, lambda *_, e=example: f"answer: {e.answer}")[0].success == 1


# ---------------------------------------------------------------------------------------------------- arithmetic


@settings(deadline=None, max_examples=examples(25))
@given(st.integers(0, 2**30), st.integers(1, 6), st.sampled_from(SPLITS))
def test_answers_are_those_of_python(seed, level, part):
    for problem in draw_problems(part, (level,), 20, seed):
        text = problem.question.removeprefix("What is ").removesuffix("?")
        tree = ast.parse(text, mode="eval").body
        assert values(tree) == problem.answer
        assert sum(isinstance(node, ast.BinOp) for node in ast.walk(tree)) == problem.level == level


def test_seeds_differ_and_too_many_examples_are_refused():
    assert Arithmetic(seed=1).examples("train") != Arithmetic(seed=2).examples("train")
    with pytest.raises(ValueError, match="has only about"):
        Arithmetic(levels=(1,), n_examples=5000).examples("test")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("answer: 12", 12),
        ("12", 12),
        (" -7 \n", -7),
        ("Answer:\u22127.", -7),
        ("First 3, then 4.\n**answer: 1,234**", 1234),
        ("answer: 3\nno, wait\nanswer: 4", 4),
        ("ANSWER : +5.00", 5),
        ("answer: 12 apples", None),
        ("answer: 1 or 2", None),
        ("answer: 12,34", None),
        ("answer: 0.5", None),
        ("answer: 2 + 3", None),
        ("answer: __import__('os')", None),
        ("the 12", None),
        ("answer: 4\nanswer: unsure", None),
        ("answer: " + "9" * 10_000, None),
        ("", None),
        ("answer: \u0664", None),
    ],
)
def test_answers_are_read_strictly(text, number):
    assert read_answer(text) == number


@settings(deadline=1000)
@given(st.text(), st.integers(-(10**9), 10**9), st.sampled_from(["{}", "{:,}", "+{}", "{}.0"]))
def test_reasoning_before_the_answer_does_not_matter(reasoning, number, form):
    written = form.format(number) if number >= 0 or form[0] != "+" else str(number)
    assert read_answer(f"{reasoning}\nanswer: {written}") == number


@settings(deadline=1000)
@given(st.text(alphabet="answer: 0123456789,.+-*\n\u0663\u2212", max_size=200))
def test_grading_never_fails_and_gives_json(text):
    verdict = grade(text, 5)
    assert json.loads(json.dumps(verdict)) == verdict


def test_right_answers_are_rewarded_for_the_team_and_readable_ones_for_the_process():
    answers = ["answer: 4", "hm", "answer: 5"]
    outcome, ask = play(Arithmetic(), EXAMPLE, lambda seat, messages, k: answers[k], candidates=3)
    assert [vars(r.rewards) for *_, r in ask.replies] == [
        {"team": 0.0, "agent": 0.0, "process": 0.1},
        {"team": 0.0, "agent": 0.0, "process": 0.0},
        {"team": 1.0, "agent": 0.0, "process": 0.1},
    ]
    assert outcome.success and outcome.metrics == {"success_level_1": True, "parse_failure": False}


# ---------------------------------------------------------------------------------------------------- two roles


def test_the_best_candidate_is_continued_and_read_by_the_other_role():
    read = []

    def answer(seat, messages, k):
        read.append((seat, k, messages[-1]["content"]))
        return f"answer: {k + 4}"

    outcome, ask = play(SolverChecker(), EXAMPLE, answer, candidates=3)
    assert outcome.reason == "agreed" and outcome.metrics["rounds"] == 1
    assert "```\nanswer: 5\n```" in next(text for seat, _, text in read if seat == 1)
    assert [r.rewards.team for *_, r in ask.replies] == [0, 1, 0, 0, 1, 0]


def test_a_checker_that_disagrees_sends_the_solver_back():
    outcome, ask = play(SolverChecker(), EXAMPLE, lambda seat, m, k: f"answer: {4 + seat}")
    assert outcome.success == 1 and outcome.reason == "rounds" and outcome.metrics["checker_mended"]
    assert [(seat, turn) for seat, turn, _ in ask.replies] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_a_random_continuation_follows_from_the_episodes_seed():
    task = SolverChecker(continuation="random", rounds=1)
    kept = {play(task, EXAMPLE, lambda s, m, k: f"answer: {k}", 8)[0].success for _ in range(3)}
    assert len(kept) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: SolverChecker(continuation="worst"),
            "continuation is 'worst', but must be one of: best, random",
        ),
        (lambda: SolverChecker(rounds=0), "rounds is 0"),
        (lambda: Arithmetic(levels=()).examples("train"), r"levels is \(\)"),
    ],
)
def test_settings_without_meaning_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
