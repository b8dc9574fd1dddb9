"""Extraction from completions, comparison of values, and rewards: everything that needs no sandbox."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.tasks.code import rewards
from envs.tasks.code.extract import LONGEST, blocks, read_case, read_cases, read_program
from envs.tasks.code.values import literal, same, same_output, same_trees, shown
from envs.tasks.sandbox.inside.values import encode
from tests.conftest import examples

# ---------------------------------------------------------------------------------------------------- programs


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("First\n```python\nx = 1\n```\nbetter\n```py\nx = 2\n```\nthat is it", "x = 2"),
        ("```\nx = 1\n```", "x = 1"),
        ("```python\nx = 1\n```\n```\noutput: 1\n```", "x = 1"),  # a block without a label is only a last resort
        ("```python\nx = 1\n```\n```tests\nassert f(1) == 1\n```", "x = 1"),
        ("```Python3 title\nx = 1\n```", "x = 1"),
        ("   ```python\nx = 1\n   ```", "x = 1"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''"),
        ("~~~python\nx = 1\n~~~", "x = 1"),
        ("```python\r\nx = 1\r\ny = 2\r\n```\r\n", "x = 1\ny = 2"),
        ("```python\nx = 1", "x = 1"),  # cut off, or the stop token in place of the fence
        ("```python\nx = 1\n```\n```python\n\n```", "x = 1"),
        ("```bash\nls\n```", None),
        ("x = 1", None),
        ("", None),
        ("```", None),
    ],
)
def test_the_last_python_block_is_the_program(answer, program):
    found = read_program(answer)
    assert found.text == program and found.problem == ("" if program else "missing")


@given(st.lists(st.text(alphabet="ab =\n`~", max_size=30), max_size=6).map("".join))
def test_blocks_never_fail_and_are_parts_of_the_answer(answer):
    for block in blocks(answer):
        assert block.text in answer.replace("\r\n", "\n")


@pytest.mark.nightly
@given(st.text(st.characters(exclude_characters="`~\r", exclude_categories=["Cs"])), st.text(max_size=50))
def test_what_stands_between_fences_is_the_program(program, prose):
    expected = program if program.strip() else None
    prose = prose.replace("`", "").replace("~", "")
    assert read_program(f"{prose}\n```python\n{program}\n```\n{prose}").text == expected


@pytest.mark.parametrize("piece", ["a", "```\n", "```python\n", "assert f(1) == 1\n", "`" * 10, "[", "\ud800", "\xff"])
def test_an_answer_of_a_megabyte_is_counted_and_costs_nothing(piece):
    answer = piece * (1_000_000 // len(piece))
    began = time.process_time()
    assert read_program(answer).problem == "too_long" and read_cases(answer, "f").tests == []
    for short in (answer[:LONGEST], "```tests\n" + answer[: LONGEST - 10]):
        read_program(short)
        read_cases(short, "f")
        read_cases(short, None)
    assert time.process_time() - began < 3


# ---------------------------------------------------------------------------------------------------- test cases


@pytest.mark.parametrize(
    ("line", "call", "value"),
    [
        ("assert f(1, 2) == 3", "f(1, 2)", "3"),
        ("assert f(-1, x=[1, (2,)]) == {'a': {1}}, 'why'", "f(-1, x=[1, (2,)])", "{'a': {1}}"),
        ("assert f() is None", "f()", "None"),
        ("assert f('a;b') == 'c'  # comment", "f('a;b')", "'c'"),
        ("assert f(float('inf')) == set()", "f(float('inf'))", "set()"),
    ],
)
def test_cases_are_calls_with_literals(line, call, value):
    found = read_case(line, "f")
    assert (found["call"], found["expect"]) == (call, value)
    assert read_cases(f"Here:\n```tests\n{line}\n```", "f").tests == [found]


@pytest.mark.parametrize(
    "line",
    [
        "assert g(1) == 3", "assert f(1) > 3", "assert f(1)", "assert f(x) == 3", "assert f(1) == f(2)",
        "assert f(*[1]) == 3",
        "assert f(**{'a': 1}) == 3", "assert f(__import__('os').system('ls')) == 0",
        "assert f(1) == open('/etc/passwd')",
        "assert f([x for x in (1, 2)]) == 3", "assert f(lambda: 1) == 3", "assert a.f(1) == 3", "assert f(1)() == 3",
        "assert f(1) == 3; import os", "assert f(1 == 3", "assert f(" + "[" * 500 + "]" * 500 + ") == 1",
        "assert f(" + "-" * 1500 + "1) == 1", "assert f(1" + "+1" * 900 + ") == 1", "assert f(9**9**9) == 1",
        "assert f(" + "1" * 2000 + ") == 1", "assert f('\ud800\0') == 1", "assert f(1) == ...", "assert f({**{}}) == 1",
        "assert f({[]}) == 1", "assert f(1/0) == 1", "assert f('a' + 'b') == 1", "assert f('a' * 99999) == 1",
    ],
)  # fmt: skip
def test_everything_else_is_unreadable(line):
    assert read_case(line, "f") is None
    found = read_cases(f"```tests\n{line}\n```", "f")
    assert not found.tests and found.unreadable == 1


def test_methods_duplicates_and_the_most_cases():
    assert read_case("assert Solution().f(1) == 2", "Solution.f")["call"] == "Solution().f(1)"
    assert read_case("assert Solution.f(1) == 2", "Solution.f") is None
    text = "\n".join(f"assert f({i % 5}) == 0" for i in range(20)) + "\nassert f(x) == 0"
    found = read_cases(text, "f", most=3)
    assert [test["call"] for test in found.tests] == ["f(0)", "f(1)", "f(2)"]
    assert (
        read_cases("```tests\nassert f(1) == 1\n```\n```python\nassert f(2) == 2\n```", "f").tests[0]["call"] == "f(1)"
    )
    assert read_cases("```python\nprint(1)\n```", "f").tests == []


def test_inputs_and_outputs_are_pairs_of_blocks():
    answer = (
        "```input\n1 2\n```\n```output\n3\n```\nAnother input:\n```\n4\n```\nwith the output\n```text\n4\n```\n"
        "```output\n9\n```\n```input\n5\n```\n```input\n6\n```\n```output\n\n```\n```python\nprint(1)\n```\n```input\n7\n```"
    )
    found = read_cases(answer, None)
    assert found.tests == [
        {"stdin": "1 2\n", "stdout": "3\n"}, {"stdin": "4\n", "stdout": "4\n"}, {"stdin": "6\n", "stdout": "\n"},
    ]  # fmt: skip
    assert found.unreadable == 2
    assert read_cases("```input\n\ud800\n```\n```output\n1\n```", None).unreadable == 1


# ---------------------------------------------------------------------------------------------------- values

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner)
    | st.dictionaries(st.text() | st.integers(), inner)
    | st.sets(st.integers() | st.text(), max_size=4) | st.frozensets(st.integers(), max_size=3),
    max_leaves=12,
)  # fmt: skip


def has_nan(value):
    return "nan" in repr(value).replace("'", "")


@settings(max_examples=examples(60), deadline=None)
@given(VALUES)
def test_a_value_is_read_from_its_repr_and_equals_itself(value):
    found = literal(repr(value))
    if not has_nan(value):
        assert found == value and type(found) is type(value)
        assert same(value, encode(value)) and same(value, encode(value), close=(0.0, 0.0), plain=True)


@settings(max_examples=examples(60), deadline=None)
@given(VALUES, VALUES)
def test_equality_is_pythons(one, other):
    if not has_nan((one, other)):
        assert same(one, encode(other)) == (one == other)


@pytest.mark.parametrize(
    ("expected", "found", "options", "equal"),
    [
        (1, 1.0, {}, True), (1, True, {}, True), ("1", 1, {}, False), ([1], (1,), {}, False),
        ([1], (1,), {"plain": True}, True), ({"a": [(1, 2)]}, {"a": ([1, 2],)}, {"plain": True}, True),
        (0.3, 0.1 + 0.2, {}, False), (0.3, 0.1 + 0.2, {"close": (1e-9, 0)}, True), ([1, 0.5],
        [1, 0.6], {"close": (0, 0.2)}, True),
        ([1, 0.5], [2, 0.5], {"close": (0, 5.0)}, False),  # integers have no tolerance
        ({"a": 1.0}, {"a": 1.1}, {"close": (0, 0.2)}, True), ({"a": 1.0}, {"b": 1.0}, {"close": (0, 0.2)}, False),
        (10**400, 1.0, {"close": (0.1, 0)}, False), (math.inf, math.inf, {"close": (0.1, 0)}, True),
        (1.0, "1.0", {"close": (0.1, 0)}, False), ((1.0,), [1.0], {"close": (0.1, 0)}, False),
        (math.nan, math.nan, {}, False),
    ],
)  # fmt: skip
def test_tolerances_and_lists(expected, found, options, equal):
    assert same(expected, encode(found), **options) == equal


@pytest.mark.parametrize(
    "tree", [None, 3, [], ["l"], ["i", "zz"], ["i", "1" * 10**6], ["x", 1], ["l", [["l", 3]]], {"a": 1}, ["o", "File"]]
)
def test_a_forged_tree_equals_nothing_and_can_be_shown(tree):
    assert not same(3, tree) and not same_trees(["i", "3"], tree, close=(0, 9.0)) and len(shown(tree)) <= 200


@settings(max_examples=examples(60), deadline=None)
@given(VALUES)
def test_values_are_shown_as_python_writes_them(value):
    text = shown(encode(value), 10**6)
    if not has_nan(value) and "inf" not in text and "frozenset" not in repr(value):
        assert literal(text) == value
    assert len(shown(encode(value), 20)) <= 20


@pytest.mark.parametrize(
    ("expected", "found", "equal"),
    [
        ("3\n", "3", True), ("3", "3\n\n\n", True), ("1 2", " 1   2 \n", True), ("1\n2", "1 2", False), ("a",
        "A", False),
        ("0.5", "0.50000001", True), ("0.5", "0.51", False), ("1e3", "1000", True), ("2", "2.0", False), ("2.0",
        "2", True),
        ("3", "3 extra", False), ("", "\n", True), ("", "0", False), ("nan", "nan", True), ("1.0", "nan", False),
        ("1e999", "inf", False), ("1000000.0", "1000000.5", True), ("x 1.0", "x 1.0000001", True), ("a\r\nb",
        "a\nb", True),
    ],
)  # fmt: skip
def test_outputs_are_compared_by_lines_and_words(expected, found, equal):
    assert same_output(expected, found) == equal


@given(st.text(), st.text())
def test_an_output_equals_itself_and_the_rule_is_total(one, other):
    assert same_output(one, one + "\n ") and isinstance(same_output(one, other), bool)


# ---------------------------------------------------------------------------------------------------- rewards


@pytest.mark.parametrize(
    ("built", "ran", "share", "paid"),
    [
        (False, False, 0.0, 0.0),
        (True, False, 0.0, 0.1),
        (True, True, 0.0, 0.2),
        (True, False, 0.5, 0.5),  # half of the tests pass, another raises
        (True, True, 0.25, 0.4),
        (True, True, 1.0, 1.0),
    ],
)
def test_paper_coder(built, ran, share, paid):
    assert sum(rewards.paper_coder(built, ran, share)) == pytest.approx(paid)


@pytest.mark.parametrize(
    ("right", "caught", "paid"),
    [
        ([], [], 0.0),  # nothing that can be read
        ([True], [], 1.0),  # no wrong program to catch
        ([True, True], [True, True], 1.0),
        ([True, True], [True, False], 0.2 + 0.8 * 0.5),
        ([True, False], [True, True], 0.2 + 0.8 * 0.5),
        ([True, False, False, False], [True, False], 0.2 + 0.8 * 0.25 * 0.5),
        ([False, False], [True, True], 0.2),  # a wrong case rejects everything
        ([False], [], 0.2),
        ([True], [False], 0.2),
    ],
)
def test_paper_tester(right, caught, paid):
    assert sum(rewards.paper_tester(right, caught)) == pytest.approx(paid)


@pytest.mark.parametrize(
    ("passes", "right", "paid"),
    [
        ([True, True], [False, False], None),  # no right program: nothing is known
        ([True, False, False], [True, False, False], 1.0),
        ([True, True, False], [True, False, False], 0.5),
        ([True, True, True], [True, False, False], 0.0),  # right, and of no use
        ([False, False, False], [True, False, False], 0.0),
        ([False, True, False], [True, False, False], -0.5),
        ([True, False, True, True], [True, True, False, False], -1.0),  # fails one of two right ones
        ([True, True], [True, True], 1.0),  # no wrong program
        ([True, False], [True, True], -1.0),
    ],
)
def test_cure_test(passes, right, paid):
    assert rewards.cure_test(passes, right) == paid


def test_cure_answers():
    right = [True, False, False]
    good, useless, bad = [True, False, False], [True, True, True], [False, True, True]
    assert rewards.cure_tester([good], right) == 1.0 and rewards.cure_tester([good, useless], right) == 0.5
    assert rewards.cure_tester([good, bad], right) == 0.0 and rewards.cure_tester([bad], right) == -1.0
    assert rewards.cure_tester([], right) == 0.0  # rejects all, as a test that nothing passes
    assert rewards.cure_tester([], [True, True]) == -1.0
    assert rewards.cure_tester([good], [False, False, False]) == 0.0 and rewards.cure_coder(0.375) == 0.375


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=16))
def test_cure_is_the_formula_of_the_paper(programs):
    """Mu = Π over right programs of B · Σ over wrong of (1 - 0) - Σ over wrong of B, per wrong program."""
    passes, right = [p for p, _ in programs], [r for _, r in programs]
    wrong = sum(not r for r in right)
    all_right = math.prod(int(p) for p, r in programs if r)
    if any(right) and wrong:
        expected = (all_right * wrong - sum(p for p, r in programs if not r)) / wrong
        assert rewards.cure_test(passes, right) == pytest.approx(expected)
