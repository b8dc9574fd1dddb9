r"""Programs as answers: GSM8K's calculations as programs, TinyGSM's rows, and the math task with programs."""

import json
import re
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.tasks import scripted
from envs.tasks.data import DataError, from_jsonl
from envs.tasks.math import programs, task, tool
from envs.tasks.math.programs import NoProgram, kind, reference_program
from envs.tasks.math.sources import MathProblem
from envs.tasks.math.task import Math
from scripts import tiny_gsm
from tests.conftest import examples, shared_data
from tests.envs.tasks.sandboxes import any_sandbox

SOLUTION = (
    "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n"
    "Natalia sold 48+24 = <<48+24=72>>72 clips altogether in April and May.\n#### 72"
)
EXAMPLE = MathProblem("x", "Five boxes hold 7 pens each, and 3.5 are broken. How many are whole?", "31.5", "test")

# ------------------------------------------------------------------------------------------------- reference programs

NUMBERS = st.one_of(
    st.integers(0, 999).map(str), st.from_regex(r"\A(0|[1-9][0-9]{0,2})?\.[0-9]{1,2}\Z"), st.just("007")
)
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", " * "]), inner).map("".join),
        inner.map("({})".format), inner.map("-{}".format),
    ),
    max_leaves=6,
)  # fmt: skip


def by_python(expression):
    """Evaluate an expression of exact fractions with Python's grammar."""
    exact = re.sub(r"\d+\.?\d*|\.\d+", lambda number: f"Fraction('{number[0]}')", expression)
    return Fraction(eval(exact, {"Fraction": Fraction}))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(EXPRESSIONS, min_size=1, max_size=4))
def test_a_program_computes_what_its_calculations_come_to(expressions):
    """Steps replace equal numbers without changing the result; runs with fractions instead of floats."""
    try:
        values = [by_python(e) for e in expressions]
    except ZeroDivisionError:
        with pytest.raises(NoProgram, match="division by zero"):
            reference_program("".join(f"<<{e}=0>>" for e in expressions))
        return
    # The second calculation uses the result of the first, as in solutions.
    whole = [(e, v) for e, v in zip(expressions, values, strict=True) if v >= 0 and v.denominator == 1]
    expressions += [f"{v.numerator}+1" for _, v in whole]
    values += [v + 1 for _, v in whole]
    program = reference_program("".join(f"so <<{e}=0>>" for e in expressions))
    assert not whole or "step_" in program.split("=", 1)[1]
    names: dict = {}
    exec(re.sub(r"(?<![\w.])(\d+\.?\d*|\.\d+)", r"Fraction('\1')", program), {"Fraction": Fraction}, names)
    assert names["solution"].__globals__["Fraction"] is Fraction and names["solution"]() == values[-1]


def test_gsm8ks_own_example():
    assert reference_program(SOLUTION) == (
        "def solution():\n    step_1 = 48 / 2\n    step_2 = 48 + step_1\n    return step_2"
    )
    assert programs.calculations(SOLUTION) == [("48/2", 24), ("48+24", 72)]


@pytest.mark.parametrize(
    ("solution", "answer", "found"),
    [
        (SOLUTION, "72", "agrees"),
        ("<<1000+500=1500>>", "1,500", "agrees"),
        ("She has 3 left.", "3", "no calculation"),
        ("<<5*10=50>> is less than <<4*13=52>>", "50", "an earlier step"),
        ("<<.50-.25=.25>>", "25", "another unit"),
        ("<<24/6=4>> and 4+6=10", "10", "a step is missing"),
    ],
)
def test_kinds(solution, answer, found):
    assert kind(solution, answer) == found


@pytest.mark.parametrize(
    "text",
    ["<<2+=4>>", "<<(2+3=5>>", "<<2 3=5>>", "<<2**3=8>>", "<<x*2=4>>", "<<5>>", "<<1/0=0>>", "<<2+2=four>>",
     "<<)=1>>", "<<٣+1=4>>",
     "<<__import__('os')=1>>", f"<<{'(' * 300}1=1>>"],
)  # fmt: skip
def test_what_is_no_calculation_is_refused_and_named(text):
    with pytest.raises(NoProgram, match="<<"):
        reference_program(text)


@pytest.mark.nightly
def test_every_row_of_gsm8k():
    """The counts are those in docs/math.md."""
    counts = {}
    for part in ("train", "test"):
        rows = from_jsonl(shared_data(f"open/gsm8k_{part}.jsonl.gz"))
        solutions = [rows.row(i)["answer"].rpartition("####") for i in range(len(rows))]
        counts[part] = Counter(kind(solution, answer.strip()) for solution, _, answer in solutions)
    assert counts == {
        "train": {"agrees": 7001, "no calculation": 95, "an earlier step": 13, "another unit": 11,
                  "a step is missing": 353},
        "test": {"agrees": 1208, "no calculation": 18, "another unit": 3, "a step is missing": 90},
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------- in the sandbox


@pytest.fixture
def sandbox(monkeypatch):
    found = any_sandbox()
    monkeypatch.setattr(task, "shared_sandbox", lambda mode: found)
    monkeypatch.setattr(tool, "same_sandbox", lambda settings: found)
    return found


def test_reference_programs_run(sandbox):
    for solution, printed in ((SOLUTION, "72.0"), ("<<7//2=3>><<3*.5=1.5>>", "1.5"), ("<<.1+.2=.3>>", None)):
        result = sandbox.run_sync(programs.to_run(reference_program(solution)))
        assert result.status == "ok" and (printed is None or result.stdout == printed + "\n")
    assert tool.verify_output("0.3", result.stdout) == {
        "right": True, "answer": "0.30000000000000004", "reason": "equal up to rounding"
    }  # fmt: skip


TINY = '''def simple_math_problem() -> int:
    """
    Ana has 12 figs and eats a third. How many are left?
    """
    figs = 12
    result = figs - figs // 3
    return result
'''


def test_tiny_gsm_rows_become_problems(sandbox, tmp_path, capsys):
    rows = [
        {"question": "Ana has 12 figs and eats a third. How many are left?", "code": TINY},
        {"question": "Crashes.", "code": "def simple_math_problem():\n    return 1 / 0\n"},
        {"question": "Says a word.", "code": "def simple_math_problem():\n    return 'many'\n"},
        {"question": "Half of 5?", "code": "def simple_math_problem():\n    return 5 / 2\n"},
        {"question": "Returns nothing.", "code": "x = 1\n"},
    ]
    source, target = tmp_path / "tiny.jsonl", tmp_path / "problems.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [row["id"] for row in programs.tiny_gsm(source)] == [f"tiny_gsm/{i}" for i in range(5)]
    assert programs.tiny_gsm(source)[0]["program"] == TINY
    tiny_gsm.main(str(source), str(target), sandbox)
    assert capsys.readouterr().out == "2 problems; left out: {'error': 1, 'no number': 2}\n"
    assert [json.loads(line) for line in target.read_text().splitlines()] == [
        {"id": "tiny_gsm/0", "question": rows[0]["question"], "answer": "8"},
        {"id": "tiny_gsm/3", "question": "Half of 5?", "answer": "2.5"},
    ]
    source.write_text(json.dumps(rows[0]) + "\n" + json.dumps({"question": "q", "code": " "}) + "\n")
    with pytest.raises(DataError, match="tiny.jsonl:2: the field 'code' is empty"):
        programs.tiny_gsm(source)
    source.write_text(json.dumps({"question": "q", "code": 5}) + "\n")
    with pytest.raises(DataError, match="tiny.jsonl:1: the field 'code' is 5, but must be a string"):
        programs.tiny_gsm(source)


def test_the_task_reads_the_problems(sandbox, tmp_path):
    code = "def simple_math_problem():\n    return {} / 2\n"
    rows = [{"question": f"Half of {i}?", "code": code.format(i)} for i in range(40)]
    source, target = tmp_path / "tiny.jsonl", tmp_path / "problems.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tiny_gsm.main(str(source), str(target), sandbox)
    played = Math(dataset=str(target), answer="program")
    problem = played.examples("train")[0]
    number = problem.id.rpartition("/")[2]
    assert problem.question == f"Half of {number}?" and float(problem.answer) == int(number) / 2
    outcome, _ = scripted.play(played, problem, lambda *_: block(code.format(number)))
    assert outcome.success


def block(code):
    return f"I compute.\n```python\n{code}\n```\n"


@pytest.mark.parametrize(
    ("reply", "right", "ran", "answer"),
    [
        (block("def solution():\n    return 5 * 7 - 3.5"), 1, 1, "31.5"),
        (block("def simple_math_problem():\n    return 63 / 2"), 1, 1, "31.5"),
        (block("print(5 * 7 - 3.5)"), 1, 1, "31.5"),
        (block("def solution():\n    return 31\nprint(31.5)"), 0, 1, "31"),
        (block("def solution():\n    return 5 * 7"), 0, 1, "35"),
        (block("def solution(x):\n    return 31.5"), 0, 0, None),
        (block("print(open('/etc/hostname')"), 0, 0, None),
        (block("x = 31.5"), 0, 1, None),
        (r"It is \boxed{31.5}", 0, 0, None),
        ("<think>" + block("print(31.5)"), 0, 0, None),
        ("<think>" + block("print(4)") + "</think>" + block("print(31.5)"), 1, 1, "31.5"),
    ],
)
def test_a_program_is_paid_by_the_number_it_comes_to(sandbox, reply, right, ran, answer):
    played = Math(answer="program")
    played.prepare()
    outcome, ask = scripted.play(played, EXAMPLE, lambda *_: reply)
    assert outcome.success == right and outcome.metrics["program_ran"] == ran
    rewards = ask.replies[0][2].rewards
    assert (rewards.team, rewards.agent) == (right, 0.8 * right)
    assert rewards.process == pytest.approx(0.1 * ran + 0.1 * (answer is not None))
    assert ask.replies[0][2].verdict["answer"] == answer


def test_a_program_that_does_not_end_is_wrong_and_the_next_turn_says_so(sandbox):
    seen = []

    def answer(seat, messages, k):
        seen.append(messages[-1]["content"])
        return block("while True: pass") if len(seen) == 1 else block("def solution():\n    return 31.5")

    outcome, ask = scripted.play(Math(answer="program", turns=3, wall=0.3), EXAMPLE, answer)
    assert outcome.success and outcome.reason == "agreed" and outcome.metrics["wrong_to_right"] == 1
    assert re.search("was ended at its (wall|cpu) limit", seen[1]) and "printed:\n```\n31.5\n```" in seen[2]
    assert sum(r.rewards.team for *_, r in ask.replies) == 1, "the last turn pays, and only it"


def test_candidates_are_compared_by_their_programs(sandbox):
    replies = [block("print(1)"), block("print(31.5)"), "none"]
    outcome, ask = scripted.play(Math(answer="program"), EXAMPLE, lambda seat, messages, k: replies[k], candidates=3)
    assert outcome.success, "the best one is kept"
    assert [r.rewards.team for *_, r in ask.replies] == [0, 1, 0]


@pytest.mark.parametrize("params", [dict(form="roles"), dict(tool=True)])
def test_a_program_needs_no_second_one(params):
    with pytest.raises(ValueError, match="answer is 'program', but form is .* Set form to 'single' and tool to False"):
        Math(answer="program", **params)
