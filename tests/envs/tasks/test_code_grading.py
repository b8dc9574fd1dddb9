"""Programs on tests in the sandbox: outcomes, hostile programs, gold solutions."""

import gc
import json
import threading
import time

import pytest

from envs.tasks.code import calls, readers, sample, sources
from envs.tasks.code.grading import grade, module
from envs.tasks.code.rows import is_trainable, make_row
from envs.tasks.code.values import literal
from envs.tasks.sandbox import Sandbox, SandboxUnavailable
from tests.conftest import shared_data
from tests.envs.tasks.program_cases import RIGHT, WRONG
from tests.envs.tasks.sandboxes import enough


@pytest.fixture(scope="module")
def sandbox():
    """Return a sandbox, isolated if possible; the programs of these tests are harmless."""
    try:
        made = Sandbox(workers=2)
    except SandboxUnavailable:
        made = Sandbox(workers=2, mode="process")
    yield made
    made.close()


TESTS = [{"call": f"f({x})", "expect": str(x + 1)} for x in range(3)]
FUNCTION = make_row("t", 1, "Add one.", TESTS, entry_point="f", solution="def f(x):\n    return x + 1")
PROGRAM = make_row("t", 2, "Add.", [{"stdin": "1 2\n", "stdout": "3\n"}, {"stdin": "5 5\n", "stdout": "10\n"}])


def run(sandbox, row, program, tests=None, seconds=1.0):
    report = grade(sandbox, row, program, row["tests"] if tests is None else tests, seconds)
    assert json.loads(json.dumps(report)) == report
    return report


def outcomes(report):
    return [test["outcome"] for test in report["tests"]]


@pytest.mark.nightly_for("an endless loop-*", "too much memory-*", "infinite output-*", "files searched*")
@pytest.mark.parametrize(("name", "right"), [*((name, True) for name in RIGHT), *((name, False) for name in WRONG)])
def test_right_programs_pass_in_any_style_and_wrong_ones_fail(sandbox, name, right):
    row, program = (RIGHT if right else WRONG)[name]
    report = run(sandbox, row, program, seconds=enough(program))
    assert report["passed"] == right, report["tests"]


@pytest.mark.parametrize(
    ("program", "built", "ran", "found"),
    [
        ("def f(x): return x + 1", True, True, ["passed"] * 3),
        ("from __future__ import annotations\ndef f(x: int) -> Nothing: return x + 1.0", True, True, ["passed"] * 3),
        ("def f(x): return x and x + 1", True, True, ["wrong", "passed", "passed"]),
        ("def f(x): return [2, 1, 0][x + 1]", True, False, ["passed", "wrong", "error"]),
        ("def f(x: return x", False, False, ["error"] * 3),
        ("def g(x): return x", True, False, ["error"] * 3),
        ("raise ValueError('no')", True, False, ["error"] * 3),
        ("def f(x):\n    if x == 1: exit_()\n    return x + 1\nimport os\nexit_ = lambda: os._exit(0)", True, False,
         ["passed", "error", "passed"]),
        ("n = 0\ndef f(x):\n    global n\n    n += 1\n    return x + n", True, True, ["passed"] * 3),  # forks
        ("def f(x): return x + 1\nif __name__ == '__main__': print(f(int(input())))", True, True, ["passed"] * 3),
        ("import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: 'int'\ndef f(x): return A(x).x + 1", True, True,
         ["passed"] * 3),
        ("def f(x):\n    print('noise' * 100)\n    return x + 1", True, True, ["passed"] * 3),
        ("class Same:\n    def __eq__(self, other): return True\ndef f(x): return Same()", True, True, ["wrong"] * 3),
        ("class Sly(int):\n    def __eq__(self, o): return True\ndef f(x): return Sly(7)", True, True, ["wrong"] * 3),
        ("import builtins, sys\nbuiltins.compile = builtins.eval = lambda *a: 1\ndef f(x): return 1", True, True,
         ["passed", "wrong", "wrong"]),
        ("def f(x):\n    raise SystemExit(0)", True, False, ["error"] * 3),
        ("print('passed'); raise SystemExit(0)", True, False, ["error"] * 3),
        ("def f(x): return 'a\\ud800'", True, True, ["wrong"] * 3),
    ],
)  # fmt: skip
def test_functions(sandbox, program, built, ran, found):
    report = run(sandbox, FUNCTION, program)
    assert (report["built"], report["ran"], outcomes(report)) == (built, ran, found)
    assert report["share"] == pytest.approx(found.count("passed") / 3) and report["passed"] == (found == ["passed"] * 3)


@pytest.mark.nightly_for("import time\\ndef f(x): time.sleep(100)-limit")
@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("def f(x):\n    while True: pass", "limit"),
        ("def f(x):\n    while True: print('x' * 10_000)", "limit"),
        ("def f(x): return 'x' * 10**10", "error"),
        ("import time\ndef f(x): time.sleep(100)", "limit"),
    ],
)  # fmt: skip
def test_programs_that_never_end_take_the_time_of_a_limit(sandbox, program, outcome):
    began = time.monotonic()
    report = run(sandbox, FUNCTION, program, seconds=0.2)
    assert report["built"] and report["share"] == 0 and time.monotonic() - began < 20
    assert outcome in outcomes(report), report


@pytest.mark.parametrize(
    ("program", "built", "found"),
    [
        ("print(sum(map(int, input().split())))", True, ["passed"] * 2),
        ("import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())), end='\\n\\n')", True, ["passed"] * 2),
        ("print(3)", True, ["passed", "wrong"]),
        ("print(", False, ["error"] * 2),
        ("print(3); raise KeyError", True, ["error"] * 2),
        ("input(); input(); input()", True, ["error"] * 2),
        ("while True: print(3)", True, ["limit"] * 2),
    ],
)
def test_programs_with_standard_input(sandbox, program, built, found):
    report = run(sandbox, PROGRAM, program, seconds=enough(program))
    assert (report["built"], outcomes(report)) == (built, found)


def test_programs_that_are_no_text_are_not_run(sandbox):
    for program, note in (("x = '\ud800'", "not valid Unicode"), ("x\0", "NUL"), ("x" * 200_000, "200000 characters")):
        report = run(sandbox, FUNCTION, program)
        assert outcomes(report) == ["error"] * 3 and note in report["tests"][0]["note"] and not report["built"]


def test_no_expected_value_reaches_the_sandbox(sandbox):
    class Spy:
        seen = ""

        def evaluate_groups(self, program, groups, *args):
            Spy.seen += program + json.dumps(groups)
            return sandbox.evaluate_groups(program, groups, *args)

    tests = [{"call": "f(1)", "expect": "'sEcReT'", "or": ["'sEcReT'"]}]
    assert run(Spy(), FUNCTION, "def f(x): return 'sEc' + 'ReT'", tests)["passed"]
    assert "f(1)" in Spy.seen and "sEcReT" not in Spy.seen


def test_values_of_the_solution_are_expected_where_none_is_given(sandbox):
    row = make_row(
        "t", 3, "q", [{"call": "f(1)"}, {"call": "f('a')"}, {"call": "f(2)", "close": [0.0, 0.5]}], entry_point="f",
        solution="def f(x): return x / 2",
    )  # fmt: skip
    report = run(sandbox, row, "def f(x): return x * 0.6")
    assert outcomes(report) == ["wrong", "void", "passed"] and report["share"] == 0.5
    assert run(sandbox, row, row["solution"])["passed"]
    broken = {**row, "solution": "def f(x): return object()"}
    assert outcomes(run(sandbox, broken, row["solution"])) == ["void"] * 3
    assert not run(sandbox, broken, row["solution"])["passed"]


def test_one_call_finds_what_separate_ones_do(sandbox, monkeypatch):
    monkeypatch.setattr(calls, "same_sandbox", lambda settings: sandbox)
    row, text = calls.needed(FUNCTION), "```tests\nassert f(1) == 2\nassert f(2) == 9\nassert f(x) == 1\n```"
    for program in ("def f(x): return x + 1", "def f(x): return", "while True: pass", None):
        seconds = enough(program or "")
        found = calls.tried({}, row, program, TESTS, text, 8, seconds)
        assert [len(found["cases"]["tests"]), found["cases"]["unreadable"]] == [2, 1]
        if program is None:
            assert found["gold"] is None is found["kept"]
        else:
            assert found["gold"] == run(sandbox, FUNCTION, program, seconds=seconds)
            assert found["kept"] == run(sandbox, FUNCTION, program, found["cases"]["tests"], seconds=seconds)
    assert calls.tried({}, row, "x = 1", TESTS, "no case", 8, 2.0)["kept"] is None


def test_syntax_trees_can_be_made_in_several_threads():
    """Let another thread run during garbage collection, as JAX's callback does."""
    text, errors = repr([(i, f"a{i}", {1: [2, 3, i]}) for i in range(40)]), []

    def read(depth):
        if depth:
            return read(depth - 1)
        until = time.monotonic() + 0.6
        while time.monotonic() < until and not errors:
            try:
                literal(text)
            except SystemError as error:
                errors.append(error)

    def yield_turn(*_):
        time.sleep(0)

    gc.callbacks.append(yield_turn)
    try:
        threads = [threading.Thread(target=read, args=(depth,)) for depth in (0, 7)]
        for act in (threading.Thread.start, threading.Thread.join):
            for thread in threads:
                act(thread)
    finally:
        gc.callbacks.remove(yield_turn)
    assert not errors


def test_prelude_and_setup_surround_the_program(sandbox):
    row = {**FUNCTION, "prelude": "import math\none = 1", "setup": "three = 3"}
    tests = [{"call": "f(three)", "expect": "4"}, {"call": "math.floor(f(0.5))", "expect": "1"}]
    assert run(sandbox, row, "def f(x): return x + one", tests)["passed"]
    assert module(row, "from __future__ import annotations\nx = 1").startswith("from __future__ import annotations\n")


def test_checks_run_behind_the_program(sandbox):
    tests = [{"check": "for i in range(3):\n    assert f(i) == i + 1"}, {"check": "assert f(1) == 3"}]
    assert outcomes(run(sandbox, FUNCTION, FUNCTION["solution"], tests)) == ["passed", "error"]
    assert outcomes(run(sandbox, FUNCTION, "import os\ndef f(x): os._exit(0)", tests)) == ["error"] * 2
    assert not is_trainable({"tests": tests})


def test_the_samples_solutions_pass_and_nothing_else_does(sandbox):
    for row in sample.rows():
        assert run(sandbox, row, row["solution"])["passed"], row["id"]
        wrong = "print('?')" if row["entry_point"] is None else f"def {row['entry_point']}(*a): return '?'"
        assert run(sandbox, row, wrong)["share"] == 0, row["id"]


def test_some_gold_solutions_pass_and_buggy_ones_do_not(sandbox, monkeypatch):
    """Check a sample; `python -m benchmarks.code_gold` checks all."""
    monkeypatch.setenv("MARL_JAX_DATA", str(shared_data("open/mbpp.jsonl.gz").parents[1]))
    files = {name: sources.from_jsonl(sources.find(name)) for name in ("mbpp", "humaneval", "quixbugs_python")}
    for reader, records in ((readers.mbpp, files["mbpp"][::100]), (readers.humaneval, files["humaneval"][::20])):
        for row in reader(records):
            assert run(sandbox, row, row["solution"], seconds=4.0)["passed"], (row["source"], row["id"])
    records = [r for r in files["quixbugs_python"] if r["name"] in ("flatten", "hanoi", "kth", "sqrt", "detect_cycle")]
    for record, row in zip(records, readers.quixbugs(records), strict=True):
        assert run(sandbox, row, row["solution"])["passed"], row["id"]
        assert not run(sandbox, row, record["buggy"])["passed"], row["id"]
