"""Assertions about programs: splitting them, comparing values outside, and resisting forged verdicts."""

import decimal
import fractions
import json
import secrets

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.tasks.sandbox import CallResult, Limits, asserts
from envs.tasks.sandbox.inside import values
from tests.conftest import examples
from tests.envs.tasks.sandboxes import any_sandbox

NUMBERS = st.booleans() | st.integers() | st.floats(allow_nan=False)
PLAIN = st.none() | NUMBERS | st.text(max_size=5) | st.binary(max_size=5)
HASHABLE = st.recursive(PLAIN, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
    ),
    max_leaves=6,
)


TAGS = st.sampled_from("nbifcqDsyltSFdo")
FORGED = st.recursive(
    st.none() | NUMBERS | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.builds(lambda tag, rest: [tag, *rest], TAGS, st.lists(inner, max_size=2))
    ),
    max_leaves=8,
)


def travelled(value):
    """Return a value after the round trip out of a program."""
    return json.loads(json.dumps(values.encode(value)))


@settings(max_examples=examples(60), deadline=None)
@given(VALUES, VALUES)
def test_values_are_equal_outside_as_they_are_in_python(one, other):
    assert CallResult("ok", travelled(one)).equals(one)
    assert CallResult("ok", travelled(one)).equals(other) == (one == other)
    assert eval(values.source(travelled(one))) == one


@settings(max_examples=examples(150), deadline=None)
@given(FORGED)
def test_forged_trees_are_refused_or_values(tree):
    """The comparison never raises, whatever is on the pipe."""
    result = CallResult("ok", json.loads(json.dumps(tree)))
    assert result.equals(object) is False and result.equals(1) in (True, False)
    assert isinstance(result.show(), str)


def test_what_follows_a_nan_or_an_object_is_looked_at_too():
    for first in (["f", "nan"], ["o", "x"]):
        for second in (
            ["i", []],
            ["y", "?"],
            ["d", [1]],
            ["q", "1", "0"],
            ["D", "1e999999999"],
            ["D", "sNaN"],
            ["D", "x"],
            ["b", float("inf")],
        ):
            result = CallResult("ok", ["l", [first, second]])
            assert not result.equals([1]) and isinstance(result.show(), str)


def test_numbers_are_compared_as_python_compares_them():
    assert CallResult("ok", travelled(2.0)).equals(2) and CallResult("ok", travelled(True)).equals(1)
    assert not CallResult("ok", travelled(float("nan"))).equals(float("nan"))
    assert not CallResult("ok", travelled([1])).equals((1,))
    assert CallResult("ok", travelled(10**5000)).equals(10**5000)
    assert not CallResult("ok", travelled(0.1 + 0.2)).equals(0.3)
    assert not CallResult("error", travelled(1)).equals(1)
    half = CallResult("ok", travelled(decimal.Decimal("0.50")))
    assert half.equals(0.5) and half.equals(fractions.Fraction(1, 2)) and half.show().endswith("Decimal('0.50')")
    assert not CallResult("ok", travelled(decimal.Decimal("NaN"))).equals(decimal.Decimal("NaN"))
    assert CallResult("ok", travelled(decimal.Decimal("-Infinity"))).equals(float("-inf"))


def test_tolerances_for_decimals_and_fractions():
    program = "from decimal import Decimal\nfrom fractions import Fraction\ndef f(kind): return kind(1) / 3"
    tests = [
        "assert abs(f(Decimal) - Decimal('0.3333333')) < Decimal('1e-6')", "assert str(f(Decimal))[:4] == '0.33'",
        "assert abs(f(Fraction) - 0.3333333) < 1e-6", "assert abs(f(Decimal) - Decimal('0.33')) < Decimal('1e-6')",
    ]  # fmt: skip
    setup = "from decimal import Decimal\nfrom fractions import Fraction"
    results = any_sandbox().run_asserts_sync(program, tests, setup=setup)
    assert [(result.passed, result.protected) for result in results] == [(True, True)] * 3 + [(False, True)], results


FUNCTIONS = """
def add(x, y=1): return x + y
def third(x): return x / 3
def count(n): yield from range(n)
def pairs(n): return [(i, str(i)) for i in range(n)]
class Solution:
    def twice(self, x): return 2 * x
def sum(x): return 99
"""

RIGHT = """
assert add(1) == 2
assert 2 == add(1)
assert add(1) == 2.0, "with a message"
assert abs(third(1) - 0.3333) < 1e-3
assert math.isclose(third(1), 1 / 3)
assert list(count(3)) == [0, 1, 2]
assert set(count(3)) == {2, 1, 0}
assert pairs(2) == [(0, "0"), (1, "1")]
assert pairs(2)[1][0] == 1
assert len(pairs(4)) == 4
assert Solution().twice(4) == 8
assert add(add(1), add(2)) == 5
assert add(1) == 2 and add(2) == 3
assert not add(-1)
assert add(1)
assert add(1) != 3
assert add(0) in (1, 2)
assert add("a", "b") == "ab"
assert add(1) == add(0) + 1
assert add(1) is not None
assert sum([1]) == 99
assert isinstance(add(1), int)
""".strip().splitlines()

WRONG = """
assert add(1) == 3
assert pairs(1) == [[0, "0"]]
assert abs(third(1) - 0.4) < 1e-3
assert list(count(3)) == [0, 1]
assert add("a") == 1
assert missing(1) == 1
assert add(1) is None
""".strip().splitlines()


def test_verdicts_are_those_of_python_and_made_outside():
    results = any_sandbox().run_asserts_sync(FUNCTIONS, RIGHT + WRONG)
    assert [test for test, result in zip(RIGHT, results, strict=False) if not result.passed] == []
    assert [test for test, result in zip(WRONG, results[len(RIGHT) :], strict=True) if result.passed] == []
    assert all(result.protected for result in results)
    assert all(result.reason for result in results[len(RIGHT) :])


def test_what_cannot_be_taken_apart_runs_inside_and_says_so():
    tests = [
        "assert all(add(x) == x + 1 for x in (0, 1))",
        "x = add(1)\nassert x == 2",
        "assert any(add(x) for x in [-1])",
    ]
    results = any_sandbox().run_asserts_sync(FUNCTIONS, tests)
    assert [(result.passed, result.protected) for result in results] == [(True, False), (True, False), (False, False)]


def test_a_setup_may_use_what_the_program_defines():
    program = "class Node:\n    def __init__(self, data): self.data = data\ndef data(node): return node.data"
    tests = ["assert data(root) == 5", "assert data(root) > 4"]
    results = any_sandbox().run_asserts_sync(program, tests, setup="root = Node(5)")
    assert [result.passed for result in results] == [True, True]


def test_statements_of_a_check_function():
    check = "META = {}\ndef check(it):\n    'x'\n    assert it(1) == 2, 'm'\n    assert 1 + it(1) == 3\n"
    assert asserts.statements(check, "add") == ["assert add(1) == 2", "assert 1 + add(1) == 3"]
    looped = "def check(candidate):\n    for x in range(3):\n        assert candidate(x) == x + 1\n"
    (whole,) = asserts.statements(looped, "add")
    (result,) = any_sandbox().run_asserts_sync(FUNCTIONS, [whole])
    assert result.passed and not result.protected


# A program that looks everywhere it can for a text that begins with "gold-", and answers with what it found.
HUNTER = r"""
import ctypes, gc, os, re, sys
PATTERN = re.compile(rb"go" + rb"ld-[0-9a-f]{16}")
libc = ctypes.CDLL(None)
def pages():
    reader, writer = os.pipe()
    libc.sbrk.restype = ctypes.c_void_p
    for middle in {id(object()) & ~4095, id(sys) & ~4095, libc.sbrk(0) & ~4095}:
        for address in range(middle - (16 << 20), middle + (16 << 20), 4096):
            if libc.write(writer, ctypes.c_void_p(address), ctypes.c_size_t(4096)) == 4096:
                yield os.read(reader, 4096)
def places():
    frame = sys._getframe()
    while frame:
        yield repr((frame.f_locals, frame.f_code.co_consts, frame.f_code.co_names)).encode("utf-8", "replace")
        frame = frame.f_back
    for number in range(3, 20):
        try:
            yield os.pread(number, 1 << 20, 0)
        except OSError:
            pass
    for held in gc.get_objects():
        try:
            yield repr(held)[:100000].encode("utf-8", "replace")
        except Exception:
            pass
    yield from pages()
def f(x):
    for place in places():
        found = PATTERN.search(place)
        if found:
            return found[0].decode()
    return "nothing"
"""

ALWAYS_EQUAL = """
class Any(str):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = None
"""

CHEATS = {
    "prints the verdict": "def f(x):\n    print('passed', 'ok', True)\n    return 0",
    "exits while loading": "import sys\nsys.exit(0)",
    "exits at once while loading": "import os\nos._exit(0)",
    "exits in the call": "import os\ndef f(x): os._exit(0)",
    "sys.exit in the call": "import sys\ndef f(x): sys.exit(0)",
    "equals everything": ALWAYS_EQUAL + "def f(x): return Any()",
    "patches builtins": "import builtins\n"
    "for name in ('repr', 'isinstance', 'type', 'eval', 'compile', 'AssertionError'):\n"
    "    setattr(builtins, name, lambda *a, **k: True)\ndef f(x): return 0",
    "patches the modules of the runner": "import json, os\n"
    'json.dumps = lambda *a, **k: \'[0, "passed", ""]\'\n'
    "os.write = os.read = os.pread = lambda *a: b''\ndef f(x): return 0",
    "writes records of its own": "import os\n"
    'for n in range(20):\n    try: os.write(n, b\'[0, "passed", ""]\\n\' * 3)\n'
    "    except OSError: pass\ndef f(x): return 0",
    "ends the pipe": "import os\nos.closerange(3, 100)\ndef f(x): return 0",
    "searches memory, frames and descriptors": HUNTER,
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_passes_no_test(cheat):
    gold = f"gold-{secrets.token_hex(8)}"
    tests = [f"assert f(1) == {gold!r}", f"assert f(1).startswith({gold[:9]!r})", f"assert {gold!r} in [f(2)]"]
    results = any_sandbox().run_asserts_sync(CHEATS[cheat], tests, limits=Limits(wall=10, cpu=9))
    assert [(result.passed, result.protected) for result in results] == [(False, True)] * 3


def test_the_search_does_find_what_is_there():
    """The search is real: it finds a test that runs in the program's process, which is not `protected`."""
    gold = f"gold-{secrets.token_hex(8)}"
    (result,) = any_sandbox().run_asserts_sync(HUNTER, [f"x = f(1)\nassert x == {gold!r}"])
    assert result.passed and not result.protected
    held = f"held = bytearray({gold[::-1]!r}[::-1], 'ascii') + bytearray(3000)\n"  # in plain text only in memory
    in_pages = "any(PATTERN.search(page) for page in pages())"
    assert any_sandbox().run_calls_sync(held + HUNTER, [in_pages])[0].equals(True)
    assert any_sandbox().run_calls_sync(HUNTER, [in_pages])[0].equals(False)


def test_a_later_program_of_the_same_worker_finds_nothing_of_an_earlier_one():
    sandbox = any_sandbox()
    gold = f"gold-{secrets.token_hex(8)}"
    text = f"import sys\nx = {gold!r}\nprint(x, file=sys.stderr)\nprint(x, input())\nopen('f', 'w').write(x)"
    assert gold in sandbox.run_sync(text, stdin=gold).stdout
    sandbox.run_asserts_sync("x = 1", [f"y = x\nassert {gold!r}"])
    (result,) = sandbox.run_calls_sync(HUNTER, ["f(1)"], limits=Limits(wall=10, cpu=9))
    assert result.equals("nothing")


@pytest.mark.parametrize("cheat", [name for name in CHEATS if "call" in name or "verdict" in name or "records" in name])
def test_careless_cheats_fail_inside_too(cheat):
    (result,) = any_sandbox().run_asserts_sync(CHEATS[cheat], ["x = f(1)\nassert x == 'gold'"])
    assert not result.passed and not result.protected


def test_calls_report_values_errors_and_limits():
    program = "import time\ndef f(x): return {x: (1, 2.5)}\ndef slow(): time.sleep(60)"
    calls = ["f(1)", "f([])", "f", "slow()", "f(2)"]
    found = any_sandbox().run_calls_sync(program, calls, limits=Limits(wall=0.7))
    assert [result.status for result in found] == ["ok", "error", "ok", "limit", "limit"]
    assert found[0].equals({1: (1, 2.5)}) and found[0].show() == "{1:(1,2.5,)}"
    assert found[1].error == "TypeError: unhashable type: 'list'"
    assert found[2].show() == "a value of type function cannot be compared"
    assert found[3].error == "wall"
    assert json.dumps([result.to_json() for result in found])


def test_a_program_that_does_not_load_fails_every_call_with_the_reason():
    (found,) = any_sandbox().run_calls_sync("def f(:", ["f(1)"])
    assert found.status == "error" and "SyntaxError" in found.error
