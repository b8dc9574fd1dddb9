"""Readers of published files: hand-made records of each format, the files if available, and bad input."""

import ast
import base64
import contextlib
import dataclasses
import json
import os
import pickle
import re
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.tasks.code import contests, readers, sample, sources
from envs.tasks.code.asserts import to_test
from envs.tasks.code.private_tests import pickled_text, private_tests
from envs.tasks.code.rows import check_row, is_trainable, kind_of, make_row, some_tests, split
from envs.tasks.code.task import Code
from envs.tasks.data import DataError
from envs.tasks.task import SPLITS
from tests.conftest import shared_data


@pytest.fixture
def data(monkeypatch):
    monkeypatch.setenv("MARL_JAX_DATA", str(shared_data("open/mbpp.jsonl.gz").parents[1]))


# ---------------------------------------------------------------------------------------------------- assertions


@pytest.mark.parametrize(
    ("text", "test"),
    [
        ("assert f(1, 'a') == [2]", {"call": "f(1, 'a')", "expect": "[2]"}),
        ("assert 2 == f(1)", {"call": "f(1)", "expect": "2"}),
        ("assert (f(1)) == 2, 'message'", {"call": "f(1)", "expect": "2"}),
        ("assert set(f(1)) == set((1, 2))", {"call": "set(f(1))", "expect": "set((1, 2))"}),
        ("assert f(1) is None", {"call": "f(1)", "expect": "None"}),
        ("assert f(1) == 6.0/5.0", {"call": "f(1)", "expect": "6.0 / 5.0"}),
        ("assert f(1)", {"call": "bool(f(1))", "expect": "True"}),
        ("assert not f(1)", {"call": "bool(f(1))", "expect": "False"}),
        ("assert abs(f(1) - 0.5) < 1e-6", {"call": "f(1)", "expect": "0.5", "close": [0.0, 1e-6]}),
        ("assert math.isclose(f(1), 2, rel_tol=0.1)", {"call": "f(1)", "expect": "2", "close": [0.1, 0.0]}),
        ("assert True, 'fine'", None),
        # Assertions that cannot be split into a call and a value run in the program's process.
        ("assert f(1) == f(2)", {"check": "assert f(1) == f(2)"}),
        ("assert f(1) < 3", {"check": "assert f(1) < 3"}),
        ("assert f(1) != 3", {"check": "assert f(1) != 3"}),
        ("assert not f(1) == 3", {"check": "assert not f(1) == 3"}),
        ("assert f(1) == 2 and f(2) == 3", {"check": "assert f(1) == 2 and f(2) == 3"}),
        ("assert f(1) == g(2)", {"check": "assert f(1) == g(2)"}),
        ("assert 0 < f(1) < 3", {"check": "assert 0 < f(1) < 3"}),
        ("for i in []: assert f(i)", {"check": "for i in []:\n    assert f(i)"}),
    ],
)
def test_assertions_become_calls_where_the_value_can_be_kept_outside(text, test):
    assert to_test(ast.parse(text).body[0], "f") == test


# ---------------------------------------------------------------------------------------------------- function sets

MBPP = {
    "task_id": 11, "text": "Add one.",
    "code": "def helper(x):\r\n    return x\r\ndef inc(x):\r\n    return helper(x) + 1",
    "test_setup_code": "", "test_list": ["assert inc(1) == 2", "assert inc(-1) == 0"], "challenge_test_list": [],
}  # fmt: skip


def test_mbpp_has_the_published_parts_and_the_solutions_signature():
    [row] = readers.mbpp([MBPP])
    assert row["part"] == "test" and row["entry_point"] == "inc" and row["starter"] == "def inc(x):"
    assert "\r" not in row["solution"] and row["tests"][0] == {"call": "inc(1)", "expect": "2"}
    ids = {1: "prompt", 10: "prompt", 510: "test", 511: "validation", 600: "validation", 601: "train", 974: "train"}
    assert {id: next(readers.mbpp([MBPP | {"task_id": id}]))["part"] for id in ids} == ids
    sanitized = {k: v for k, v in MBPP.items() if k != "text"} | {"prompt": "Add one.", "test_imports": ["import math"]}
    [row] = readers.mbpp([sanitized])
    assert row["question"] == "Add one." and row["setup"] == "import math"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"task_id": None}, "mbpp: task_id is None, but must be of type int"),
        ({"task_id": 975}, "mbpp 975: the published ids are 1 to 974"),
        ({"code": "def inc(x"}, "mbpp 11: not Python"),
        ({"test_list": []}, "mbpp 11: the tests call none of its functions"),
        ({"test_list": ["assert other(1) == 2"]}, "mbpp 11: the tests call none of its functions: helper, inc"),
        ({"text": "  "}, "mbpp 11: question is '  ', but must be a non-empty string"),
    ],
)
def test_records_with_missing_or_wrong_fields_are_named(change, error):
    with pytest.raises(ValueError, match=error):
        list(readers.mbpp([MBPP | change]))


def test_mbpp_plus_arguments_get_the_types_of_the_assertions():
    record = {
        "task_id": "Mbpp/700", "prompt": '"""\nCount.\nassert count([(1, 2)], (3,)) == 2\n"""\n',
        "entry_point": "count",
        "canonical_solution": "def count(a, b):\n    return len(a)", "base_input": [], "atol": 0.5,
        "plus_input": [[[[1, 2], [3, 4]], [5]], [[], []]],
        "assertion": "import math\nassert count([(1, 2)], (3,)) == 2",
    }  # fmt: skip
    [row] = readers.mbpp_plus([record])
    assert row["question"] == "Count." and row["part"] == "train"
    assert [test["call"] for test in row["tests"]] == [
        "count([(1, 2)], (3,))", "count([(1, 2), (3, 4)], (5,))", "count([], ())",
    ]  # fmt: skip
    assert "expect" not in row["tests"][1] and row["tests"][1]["close"] == [0.0, 0.5]
    assert next(readers.mbpp_plus([record | {"plus_input": {}}]))["tests"] == row["tests"][:1]


def test_humaneval_keeps_helpers_and_turns_loops_into_one_check():
    record = {
        "task_id": "HumanEval/7", "entry_point": "g", "canonical_solution": "    return h(x) + 1\n",
        "prompt": 'import math\n\ndef h(x):\n    return x\n\ndef g(x: int) -> int:\n    """ Add one. """\n',
        "test": "def check(candidate):\n    assert candidate(1) == 2\n    assert abs(candidate(2) - 3.0) < 1e-6\n",
    }  # fmt: skip
    [row] = readers.humaneval([record])
    assert row["starter"] == "def g(x: int) -> int:" and "def h" in row["prelude"] and "def g" not in row["prelude"]
    assert [test["call"] for test in row["tests"]] == ["g(1)", "g(2)"]
    loop = "def check(candidate):\n    assert candidate(1) == 2\n    for i in range(3):\n        assert candidate(i)\n"
    [row] = readers.humaneval([record | {"test": loop}])
    assert [kind_of(test) for test in row["tests"]] == ["check"] and not is_trainable(row)


def test_cruxeval_and_quixbugs():
    record = {"id": "s", "code": "def f(x):\n    return x", "input": "'a'", "output": "'a'"}
    [asked] = readers.cruxeval([record])
    assert "assert f('a') == ??" in asked["question"]
    [asked] = readers.cruxeval([record], predict="input")
    assert "assert f(??) == 'a'" in asked["question"]
    bug = {
        "name": "half", "buggy": 'def half(x):\n    return x\n\n"""\nHalf of x.\n"""\n',
        "correct": "def half(x):\n    return x / 2",
        "json_tests": [[[4, 0.1], 2]], "pytest": "assert half(*i) == pytest.approx(e, abs=i[-1])",
    }  # fmt: skip
    [row] = readers.quixbugs([bug])
    assert row["tests"] == [{"call": "half(4, 0.1)", "expect": "2", "plain": True, "close": [0.0, 0.1]}]
    assert "Half of x." in row["question"] and '"""' not in row["question"]
    graph = {"json_tests": None, "node_py": "class Node: pass", "pytest": "import pytest\nfrom node import Node\n"
             "if pytest.use_correct:\n    from correct_python_programs.half import half\nelse:\n    pass\n"
             "def test1():\n    assert half(2) == 1\n"}  # fmt: skip
    [row] = readers.quixbugs([bug | graph])
    assert row["tests"][0]["check"].endswith("test1()") and "import" not in row["tests"][0]["check"]
    with pytest.raises(ValueError, match="quixbugs half: json_tests contains 3, but each test must be"):
        list(readers.quixbugs([bug | {"json_tests": [3]}]))


# ---------------------------------------------------------------------------------------------------- contests

LCB = {
    "question_title": "Sum", "question_content": "Add.", "question_id": "q1", "starter_code": "", "metadata": "{}",
    "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
}  # fmt: skip


def packed(value, protocol=pickle.DEFAULT_PROTOCOL):
    return base64.b64encode(zlib.compress(pickle.dumps(value, protocol))).decode()


def test_livecodebench_functions_programs_and_private_tests():
    private = [{"input": "4 5\n", "output": "9\n", "testtype": "stdin"}]
    [row] = contests.livecodebench([LCB | {"private_test_cases": packed(json.dumps(private))}])
    assert [test["stdin"] for test in row["tests"]] == ["1 2\n", "4 5\n"] and row["entry_point"] is None
    functional = {
        "starter_code": "class Solution:\n    def add(self, a: int, b: List[int]) -> int:\n        ",
        "metadata": json.dumps({"func_name": "add"}),
        "public_test_cases": json.dumps([{"input": "1\n[2, 3]", "output": "[true]", "testtype": "functional"}]),
    }
    [row] = contests.livecodebench([LCB | functional])
    assert row["entry_point"] == "Solution.add"
    assert row["tests"] == [{"call": "Solution().add(1, [2, 3])", "expect": "[True]", "plain": True}]


@settings(deadline=None, max_examples=40)
@given(st.text(max_size=400), st.integers(1, 5))
def test_a_pickled_text_is_read_as_pickle_writes_it(text, protocol):
    assert pickled_text(pickle.dumps(text, protocol)) == text


class Evil:
    def __reduce__(self):
        return (os.system, ("touch /tmp/should_not_exist",))


@pytest.mark.parametrize("value", [Evil(), ["a"], ("a",), {"a": 1}, 3, None, b"bytes", os.system, [Evil(), "text"]])
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_any_other_pickle_is_refused_and_not_run(value, protocol):
    with pytest.raises(ValueError, match="more than a string|truncated"):
        pickled_text(pickle.dumps(value, protocol))
    assert not os.path.exists("/tmp/should_not_exist")


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_text_or_refused(data):
    with contextlib.suppress(ValueError):
        assert isinstance(pickled_text(data), str)


def test_what_is_not_a_packed_list_of_tests_is_refused():
    for field, error in (
        ("not base64!", "not base64 of zlib"), (base64.b64encode(b"x").decode(), "not base64 of zlib"),
        (packed("{}"), "not a list of JSON objects"), (packed("["), "not JSON"), (packed(7), "more than a string"),
        (base64.b64encode(zlib.compress(pickle.dumps("[]") + b"junk")).decode(), "4 bytes follow the end"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"q: .*{error}"):
            private_tests(field, "q")
    assert private_tests('[{"input": "1"}]', "q") == [{"input": "1"}]


def test_apps():
    record = {
        "problem_id": 3, "question": "Q", "starter_code": "", "solutions": json.dumps(["print(input())"]),
        "input_output": json.dumps({"inputs": ["1\n", ["2", "3"]], "outputs": ["1\n", ["2"]]}),
    }  # fmt: skip
    [row] = contests.apps([record], part="train")
    assert row["tests"][1] == {"stdin": "2\n3", "stdout": "2"} and row["solution"] == "print(input())"
    calls = json.dumps({"fn_name": "f", "inputs": [[1, [2]]], "outputs": [[3]]})
    [row] = contests.apps([record | {"input_output": calls}])
    assert row["tests"] == [{"call": "f(1, [2])", "expect": "[3]", "plain": True, "or": ["3"]}]
    [row] = contests.apps([record | {"input_output": calls, "starter_code": "class Solution:\n    def f(self, a):"}])
    assert row["tests"][0]["call"] == "Solution().f(1, [2])" and row["entry_point"] == "Solution.f"
    assert not list(contests.apps([record | {"input_output": ""}]))  # some published problems have no tests
    with pytest.raises(ValueError, match="apps 3: input_output has 1 inputs but 0 outputs"):
        list(contests.apps([record | {"input_output": json.dumps({"inputs": ["1"], "outputs": []})}]))


def test_codecontests():
    record = {
        "name": "1_A", "description": "D", "public_tests": {"input": ["1\n"], "output": ["2\n"]},
        "private_tests": {"input": [], "output": []}, "generated_tests": {"input": ["3\n"], "output": ["4\n"]},
        "solutions": {"language": [2, 3, 3], "solution": ["int main;", "print 1", "print(1)"]},
    }  # fmt: skip
    [row] = contests.codecontests([record])
    assert [test["stdout"] for test in row["tests"]] == ["2\n", "4\n"] and row["solution"] == "print(1)"
    statements = {"name": "1_A", "statement": "D", "n_hidden_tests": 3}
    with pytest.raises(ValueError, match="codecontests 1_A: there are no tests; .* one of: public_tests"):
        list(contests.codecontests([statements]))


# ---------------------------------------------------------------------------------------------------- rows and parts


def test_the_sample_is_in_order_and_in_parts():
    parts = sources.load("sample")
    assert {part: len(parts[part]) for part in SPLITS} == {"train": 6, "validation": 3, "test": 3}
    assert len({row["id"] for row in sample.rows()}) == 12
    for row in sample.rows():
        check_row(row)


def test_a_question_of_the_test_part_is_not_trained_on():
    test = [{"call": "f(1)", "expect": "1"}]
    rows = [
        make_row("s", 1, "Same  question", test, part="train"), make_row("s", 2, "same question", test, part="test"),
        make_row("s", 3, "Other", test, part="train"), make_row("s", 4, "other", test, part="validation"),
        make_row("s", 5, "Checked", [{"check": "assert f(1)"}], part="train"),
        make_row("s", 6, "New", test, part="train"),
    ]  # fmt: skip
    assert {part: [row["id"] for row in found] for part, found in split(rows).items()} == {
        "train": ["6"], "validation": ["4"], "test": ["2"],
    }  # fmt: skip


@given(st.integers(1, 60), st.integers(0, 12))
def test_some_tests_are_spread_over_all(n, most):
    row = {"tests": list(range(n))}
    found = some_tests(row, most)
    assert len(found) == (min(n, most) if most else n) and found == sorted(set(found)) and found[0] == 0
    if most and n > most:
        assert max(b - a for a, b in zip(found, [*found[1:], n], strict=True)) <= n // most + 1


def test_an_own_file_of_rows(tmp_path):
    path = tmp_path / "mine.jsonl"
    good = {"id": 1, "question": "Add.", "entry_point": "f", "tests": [{"call": "f(1)", "expect": "2"}]}

    def load(*rows):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        sources._load.cache_clear()
        return sources.load(str(path))

    rows = [good | {"id": i, "question": f"Add {i}."} for i in range(20)]
    parts = load(*rows, good | {"id": "t", "question": "Sub.", "part": "test"})
    assert [len(parts[part]) for part in SPLITS] == [18, 2, 1]
    for bad, error in (
        (good | {"tests": []}, "row 1: tests is missing or empty"),
        ({"id": 1, "question": "Q"}, "row 1: tests is missing or empty"),
        (good | {"answer": 3}, "row 1: unknown field 'answer'"),
        (good | {"part": "dev"}, "row 1: part is 'dev', but must be one of: train, validation, test"),
        (good | {"tests": [{"call": "f(1)", "expect": "open('x')"}]}, "own 1: test 0: expect: not a literal"),
        (good | {"tests": [{"stdin": "", "stdout": ""}]}, "own 1: test 0: it has stdin, but the row asks for"),
        (good | {"entry_point": "f; import os"}, "own 1: entry_point is 'f; import os'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=error):
            load(bad)
    with pytest.raises(DataError, match='id "1" is in train .* and in test'):
        load(good, good | {"question": "Other", "part": "test"})
    path.write_bytes(b'{"id": "\xff"}\n')
    sources._load.cache_clear()
    with pytest.raises(DataError, match=r"mine.jsonl:1: "):
        sources.load(str(path))
    with pytest.raises(ValueError, match="dataset is 'nope', but must be one of: apps, .*, or a .jsonl file of rows"):
        sources.load("nope")


def test_without_its_file_a_data_set_is_the_sample(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MARL_JAX_DATA", str(tmp_path))
    with caplog.at_level("WARNING"):
        parts = sources.load("mbpp")
    assert parts["train"].fingerprint == sources.load("sample")["train"].fingerprint
    assert "mbpp: file mbpp not found in $MARL_JAX_DATA" in caplog.text and len(caplog.records) == 1


def test_the_published_files_are_read_whole(data):
    sizes = {
        "mbpp": (371, 90, 500), "humaneval": (0, 0, 164), "cruxeval_output": (0, 0, 800), "quixbugs": (0, 0, 40),
        "livecodebench": (0, 0, 400),
    }  # fmt: skip
    for name, expected in sizes.items():
        parts = sources.load(name)
        assert tuple(len(parts[part]) for part in SPLITS) == expected, name
    assert [row["id"] for part in SPLITS for row in sources.load("mbpp")[part] if not is_trainable(row)] == ["596"]
    checked = [row["id"] for row in sources.load("humaneval")["test"] if not is_trainable(row)]
    assert checked == ["32", "33", "38", "44", "50", "53", "151"]


def test_the_page_names_every_data_set_and_parameter_and_its_row_can_be_read():
    page = (Path(__file__).parents[3] / "docs" / "code.md").read_text()
    assert sources.own_row(json.loads(re.search(r"```json\n(.*?)```", page, re.DOTALL)[1]))["entry_point"] == "inc"
    for name in sources.SOURCES:
        assert f"`{name}`" in page, name
    for field in dataclasses.fields(Code):
        assert f"`{field.name}`" in page, field.name
