"""Proposer and solver: checks of proposals, rewards by solve rate, duplicates, diversity, and bad completions."""

import ast

import pytest

from envs.tasks.code.values import literal
from envs.tasks.propose import problems, programs, task
from envs.tasks.propose.problems import block
from envs.tasks.propose.task import Propose
from envs.tasks.sandbox import Sandbox, SandboxUnavailable
from envs.tasks.scripted import play
from tests.conftest import shared_data

KWARGS = dict(dataset="sample", test_dataset="sample", n_examples=4)
GOOD = block("def f(x):\n    return x * 3 + 1", "f(4)")
IDENTITY = "def f(x):\n    return x"
REFERENCES = {"id": "propose 0", "references": []}


@pytest.fixture(scope="module", autouse=True)
def sandbox():
    """Use a sandbox, isolated if possible; the programs of these tests are harmless."""
    try:
        made = Sandbox(workers=1)
    except SandboxUnavailable:
        made = Sandbox(workers=1, mode="process")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "shared_sandbox", lambda mode: made)
        patch.setattr(programs, "same_sandbox", lambda settings: made)
        yield made
    made.close()


def reason(text):
    return programs.checked({}, text, 0.3)["problem"]


BAD = {
    "no_program": ["", "f(x) = x", "```input\n1\n```", "```python\n\n```\n```input\n1\n```"],
    "no_input": ["```python\ndef f(x):\n    return x\n```", block("def f(x):\n    return x", "f()")],
    "too_long": [block(IDENTITY + "\n#" * 3000, "f(1)"), block(IDENTITY, f"f({'1' * 400})")],
    "syntax": [block("def f(x) return x", "f(1)")],
    "no_function": [block("def g(x):\n    return x", "f(1)"), block("class f:\n    pass", "f(1)")],
    "input_not_literal": [block(IDENTITY, f"f({x})") for x in ("y", "open('a')", "1 +", "**{}", "*[1]")],
    "forbidden": [block(f"import {name}\ndef f(x):\n    return x", "f(1)") for name in ("subprocess", "numpy")]
    + [block(f"def f(x):\n    return {call}", "f('1')") for call in ("eval(x)", "open(x)", "__import__(x)")],
    "not_deterministic": [
        block(f"import {name}\ndef f(x):\n    return x", "f(1)") for name in ("random", "time", "datetime", "os.path")
    ]
    + [block("def f(x):\n    from random import random\n    return random()", "f(1)")]
    + [block("import tempfile as t\ndef f(x):\n    return t.mktemp()", "f(1)")],
    "error": [block("def f(x):\n    return x[3]", "f([1])"), block("1 / 0\ndef f(x):\n    return x", "f(1)")],
    "limit": [block("def f(x):\n    while True:\n        x += 1", "f(1)"),
              block("def f(x):\n    print('x' * 10**6)\n    return 1", "f(1)")],
    "no_output": [block("def f(x):\n    print(x)", "f(1)"), block("def f(x):\n    return None", "f(1)")],
    "huge_output": [block("def f(x):\n    return [x] * 1000", "f(1)")],
    "output_not_literal": [block("def f(x):\n    return object()", "f(1)"), block(IDENTITY, "f(float('nan'))"),
                           block("def f(x):\n    return lambda: x", "f(1)")],
}  # fmt: skip


@pytest.mark.parametrize("problem", BAD)
def test_bad_proposals_have_a_reason(problem):
    assert [reason(text) for text in BAD[problem]] == [problem] * len(BAD[problem])
    assert programs.REASONS[problem].endswith(".")


def test_runs_that_differ_are_not_deterministic(monkeypatch):
    """The static check knows the usual modules only, so the second run decides."""
    monkeypatch.setattr(programs, "CHANGING", frozenset())
    monkeypatch.setattr(programs, "ALLOWED", programs.ALLOWED | {"random"})
    assert reason(block("import random\ndef f(x):\n    return random.random()", "f(1)")) == "not_deterministic"


def test_a_good_proposal_has_the_value_that_python_computes():
    found = programs.checked({}, f"Let me think.\n{GOOD}\nDone.", 1.0)
    assert found["problem"] == "" and (found["call"], found["expect"]) == ("f(4)", "13")
    program = "from math import gcd\ndef f(a, b=2):\n    return {gcd(a, b): [a, -b, 'x']}"
    for given in ("12, b=-8", "f(12, b=-8)", "f(12,\n  b=-8)"):
        found = programs.checked({}, block(program, given), 1.0)
        assert ast.literal_eval(found["expect"]) == {4: [12, 8, "x"]} and found["call"] == "f(12, b=-8)"


def test_names_comments_and_layout_do_not_make_a_program_different():
    one = programs.measured(ast.parse("def f(x, y):\n    '''Add.'''\n    z = x + y  # sum\n    return z"))
    two = programs.measured(ast.parse("def f(a, b):\n    c = (a +\n     b)\n    return c"))
    other = programs.measured(ast.parse("def f(a, b):\n    c = a - b\n    return [i for i in range(c)]"))
    assert one["form"] == two["form"] != other["form"]
    assert one["operators"] == ["Add"] and other["operators"] == ["ListComp", "Sub", "range()"]
    recursive = programs.measured(ast.parse("def f(n):\n    return n and f(n - 1)"))
    assert recursive["operators"] == ["And", "Sub"] and "n0(n1 - 1)" in recursive["form"]


# ---------------------------------------------------------------------------------------------------- episodes


def episode(proposals, solved=(), **settings):
    """Play with the candidates of the proposer, and the numbers of right solver's candidates per problem."""
    right = iter(solved)
    counts = {}

    def answer(seat, messages, k):
        if seat == task.PROPOSER:
            return proposals[k]
        question = messages[-1]["content"]
        if question not in counts:
            counts[question] = next(right)
        value = "13" if k < counts[question] else "14"
        return f"```tests\n{question.split('assert ')[1].split(' == ')[0].join(['assert ', ''])} == {value}\n```"

    outcome, ask = play(Propose(**KWARGS | settings), REFERENCES, answer, candidates=len(proposals))
    by_seat = [[reply for seat, _, reply in ask.replies if seat == own] for own in (task.PROPOSER, task.SOLVER)]
    return outcome, *by_seat


@pytest.mark.parametrize(("right", "reward"), [(0, 0), (1, 0.75), (2, 0.5), (3, 0.25), (4, 0)])
def test_the_proposer_earns_what_the_solver_misses(right, reward):
    outcome, [proposed], solver = episode([GOOD], [right])
    assert proposed.rewards.agent == pytest.approx(reward) and proposed.rewards.process == 0
    assert [r.rewards.agent for r in solver] == [0.8] * right + [0] * (4 - right)
    assert [r.rewards.process for r in solver] == [0.2] * 4
    assert outcome.success == outcome.metrics["solve_rate"] == right / 4 and outcome.metrics["learnable"] == (
        0 < right < 4
    )


def test_the_published_variant_punishes_problems_without_a_signal():
    for right, reward in ((0, -0.5), (4, -0.5), (2, 0.5)):
        assert episode([GOOD], [right], no_signal=-0.5)[1][0].rewards.agent == pytest.approx(reward)


def test_invalid_proposals_and_duplicates_have_no_solver():
    renamed = GOOD.replace("x", "y")
    outcome, proposed, solver = episode([GOOD, "nothing", renamed, GOOD.replace("4\n", "4 \n")], [1], solvers=6)
    assert [(r.rewards.agent, r.rewards.process) for r in proposed] == [
        (pytest.approx(5 / 6), 0),
        (0, -0.5),
        (0, 0),
        (0, 0),
    ]
    assert len(solver) == 6 and outcome.reason == "solved"
    assert outcome.metrics["duplicate"] == 0.5 and outcome.metrics["invalid_no_program"] == 0.25
    assert outcome.metrics["valid"] == 0.75 and outcome.metrics["distinct_programs"] == pytest.approx(1 / 3)
    assert proposed[1].verdict["reason"] == programs.REASONS["no_program"]


def test_a_problem_of_the_prompt_is_a_duplicate(monkeypatch):
    example = Propose(**KWARGS, references=2).examples("train")[0]
    copied = example["references"][0]
    monkeypatch.setitem(REFERENCES, "references", example["references"])
    outcome, [proposed], solver = episode([block(copied["program"], copied["call"])])
    assert outcome.metrics["duplicate"] == 1 and not solver and outcome.success == 0 and outcome.reason == "invalid"


def test_the_solver_reads_the_problem_but_not_the_proposal():
    seen = {}

    def answer(seat, messages, k):
        seen[seat] = list(messages)
        return "I cheat: 13\n" + GOOD

    outcome, ask = play(Propose(**KWARGS), REFERENCES, answer)
    text = "".join(message["content"] for message in seen[task.SOLVER])
    assert "assert f(4) == ??" in text and "cheat" not in text and outcome.metrics["solve_rate"] == 0
    assert [r.rewards.process for seat, _, r in ask.replies if seat == task.SOLVER] == [0] * 4


# ---------------------------------------------------------------------------------------------------- data


def test_splits_and_evaluations():
    made = Propose(**KWARGS)
    assert made.roles == ("solver", "proposer") and made.for_evaluation().roles == ("solver",)
    assert len(made.examples("train")) == 4 and made.examples("train")[0] == Propose(**KWARGS).examples("train")[0]
    row = made.examples("validation")[0]
    call, expect = row["tests"][0]["call"], row["tests"][0]["expect"]
    for text, right in ((f"```tests\nassert {call} == {expect}\n```", True), ("no", False)):
        outcome, _ = play(made.for_evaluation(), row, lambda seat, messages, k, text=text: text)
        assert outcome.success == right
    for bad in (dict(solvers=3), dict(no_signal=0.5), dict(problems="all"), dict(dataset="none")):
        with pytest.raises(ValueError, match=f"{next(iter(bad))} is"):
            Propose(**bad)


def test_published_problems_are_what_their_programs_compute(monkeypatch):
    monkeypatch.setenv("MARL_JAX_DATA", str(shared_data("open/mbpp.jsonl.gz").parent))
    rows = problems.load("mbpp", "train")
    assert len(rows) > 700 and len(problems.load("cruxeval_output", "test")) == 800
    for row in rows[:8]:
        [test] = row["tests"]
        found = programs.checked({}, block(row["solution"], test["call"]), 1.0)
        assert literal(found["expect"]) == literal(test["expect"])
