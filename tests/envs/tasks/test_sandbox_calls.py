"""Calls made together give the same results as in separate forks, also for stateful and hostile programs."""

import ast
import json
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.tasks.code import grading, sources
from envs.tasks.code.rows import make_row
from envs.tasks.sandbox import Limits, SandboxResult, calls
from envs.tasks.sandbox.inside.stateless import is_stateless
from tests.conftest import examples, shared_data
from tests.envs.tasks.sandboxes import any_sandbox, enough


class Forks:
    """A sandbox that makes each call in a separate fork and loads the program for every group."""

    def __init__(self, sandbox):
        self.sandbox, self.run_sync, self.workers = sandbox, sandbox.run_sync, sandbox.workers

    def evaluate_groups(self, program, groups, limits, name):
        submit = self.sandbox._submit_calls
        return [calls._ask(submit, program, group, limits, name, forks=True).results for group in groups]


def values(*sources):
    return [{"kind": "value", "source": source} for source in sources]


STATELESS = {
    "a loop": "def f(x):\n    for i in range(3):\n        x += i\n    return x",
    "imports and helpers": "import math, re\nfrom collections import Counter as C, deque\nfrom typing import List\n"
    "def g(x: List[int]) -> int:\n    return math.floor(x)\ndef f(x=1, *a, k=(1, -2), **o):\n"
    "    import heapq\n    return sorted(C([g(x)]), key=lambda y: -y)",
    "a global that functions do not use": "def f(x):\n    result = [x]\n    result.append(1)\n    return result\n"
    "result = f(3)\nprint(result)\nassert f(1)",
    "constants": "LIMIT = 2 * 5\nNAMES = ('a', 'b')\ntwice = lambda x: 2 * x\ndef f(x): return twice(LIMIT), NAMES",
    "the block of a script": "def f(x): return x\nif __name__ == '__main__':\n    print(f(int(input())))",
    "closures": "def f(x):\n    n = 0\n    def g():\n        nonlocal n\n        n += x\n    g()\n    return n",
    "raises": "def f(x):\n    if x: raise ValueError(f'no {x}')\n    try:\n        return [][0]\n"
    "    except IndexError as e:\n        return str(e)",
    "never ends": "def f(x):\n    while True: pass",
    "prints while it is loaded": "def f(x): return x + 1\nprint('x' * 200_000)",
    "recursion": "def f(x): return f(x) + 1",
    "does not load": "n = 1 / 0\ndef f(x): return x",
}
STATEFUL = {
    "global": "n = 0\ndef f(x):\n    global n\n    n += 1\n    return n",
    "a list of the module": "seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)",
    "a list of another name": "a = b = []\ndef f(x):\n    b.append(x)\n    return len(b)",
    "a list in a loop": "for memo in [{}]: pass\ndef f(x):\n    memo[len(memo)] = x\n    return len(memo)",
    "an iterator": "import itertools\nn = itertools.count()\ndef f(x): return next(n)",
    "a default": "def f(x, seen=[]):\n    seen.append(x)\n    return len(seen)",
    "a default of a keyword": "def f(x, *, seen={}):\n    seen[x] = 1\n    return len(seen)",
    "a default of a lambda": "f = lambda x, s=[]: s.append(x) or len(s)",
    "a closure": "def make():\n    n = 0\n    def g(x):\n        nonlocal n\n        n += 1\n        return n\n"
    "    return g\nf = make()",
    "an attribute": "def f(x):\n    f.n = getattr(f, 'n', 0) + 1\n    return f.n",
    "an attribute of the module": "import math\ndef f(x):\n    math.n = x\n    return x",
    "a class": "class A:\n    n = 0\ndef f(x):\n    A.n += 1\n    return A.n",
    "a cache": "from functools import lru_cache\n@lru_cache(None)\ndef f(x): return [x]",
    "globals()": "def f(x):\n    globals()['n'] = globals().get('n', 0) + 1\n    return n",
    "exec": "def f(x):\n    exec('global n; n = 1')\n    return x",
    "dunder": "def f(x):\n    f.__dict__['n'] = f.__dict__.get('n', 0) + 1\n    return f.__dict__['n']",
    "a frame": "def g():\n    yield 1\ndef f(x):\n    d = g().gi_frame.f_globals\n    d['n'] = d.get('n', 0) + 1\n"
    "    return d['n']",
    "a pattern": "def g(): yield 1\ndef f(x):\n    match g():\n        case object(gi_frame=h):\n"
    "            h.f_globals['n'] = h.f_globals.get('n', 0) + 1\n            return h.f_globals['n']",
    "a module's attribute by its name": "import operator\ndef g(): pass\ndef f(x):\n"
    "    d = operator.attrgetter('__globals__')(g)\n    d['n'] = d.get('n', 0) + 1\n    return d['n']",
    "a module of a module": "import typing\ndef f(x):\n    typing.sys.n = x\n    return x",
    "a module by another name": "def f(x):\n    import sys\n    sys = sys\n    sys.setrecursionlimit(50 + x)\n"
    "    return x",
    "a builtin by another name": "def f(x): return [globals() for globals in [globals]][0].setdefault('n', x)",
    "random": "import random\ndef f(x):\n    random.seed(x)\n    return random.random()",
    "files": "def f(x):\n    open('n', 'a').write('1')\n    return len(open('n').read())",
    "the interpreter": "import sys\ndef f(x):\n    sys.setrecursionlimit(50 + x)\n    return x",
    "what it prints": "def f(x): print('x' * 7000)",
    "a walrus": "def f(x): return x\n[n := [] for _ in '1']",
    "a finally of a generator": "def g():\n    try: yield 1\n    finally: [][0]\ndef f(x): return next(g())",
    "another builtin": "import builtins\nbuiltins.len = lambda x: 7\ndef f(x): return len([x])",
    "exit": "import os\ndef f(x): os._exit(x)",
    "exit while it is loaded": "import os\nos._exit(0)",
    "is not Python": "def f(x: return x",
    "is Python with what surrounds it": "raise ValueError('a backslash at the end') \\",
    "a killed process": "import os\ndef f(x): os.kill(os.getpid(), 9)",
    "equals everything": "class A(int):\n    def __eq__(self, o): return True\ndef f(x): return A(9)",
    "prints without end": "def f(x):\n    while True: print('x' * 1000)",
}
TESTS = [{"call": f"f({x})", "expect": str(x + 1)} for x in range(3)]
ROW = make_row("t", 1, "q", TESTS, entry_point="f", solution="def f(x): pass")
CASES = [{"call": "f(1)", "expect": "1"}, {"call": "f([])", "expect": "2"}, {"call": "f(0)", "expect": "3"}]


def test_state_is_seen():
    assert [name for name, text in STATELESS.items() if not is_stateless(text, ["f(1)", "f([2])"], "program")] == []
    assert [name for name, text in STATEFUL.items() if is_stateless(text, ["f(1)"], "program")] == []
    assert not is_stateless("def f(x): return x\ntree = [1]", ["f(tree)"], "program")  # a call may change it too
    assert not is_stateless("def f(x): return x", ["f(n := 1)"], "program")
    assert not is_stateless(STATELESS["the block of a script"], ["f(1)"], "__main__")


@pytest.mark.parametrize("program", [*STATELESS.values(), *STATEFUL.values()], ids=[*STATELESS, *STATEFUL])
def test_reports_are_those_of_forks(program):
    sandbox, seconds = any_sandbox(), enough(program)
    found = grading.grade_groups(sandbox, ROW, program, [ROW["tests"], CASES], seconds)
    assert found == grading.grade_groups(Forks(sandbox), ROW, program, [ROW["tests"], CASES], seconds)
    assert found[0] == grading.grade(sandbox, ROW, program, ROW["tests"], seconds)


LINES = {  # by kind of `n`: lines that change it, and lines that only seem to
    "n = 0": ("global n; n += x", "n = x", "n += x", "for n in (1, x): pass", "x = [n for n in (1, x)]", "x += n"),
    "n = [0]": ("n[0] += x", "n.append(x)", "n = [x]; n[0] += 1", "x = [n for n in n]", "x = n[0]", "m = n; m[0] = x"),
    "n = {}": ("n[len(n)] = x", "n.setdefault(len(n), x)", "n = {}; n[x] = x", "x = len(n)", "m = [n]; m[0][x] = 1"),
    "def n(y=[]): return y.append(1) or len(y)": ("x = n()", "n(x)", "n.x = x", "x = n([])", "n = len; n([x])"),
}
ENDS = ("x", "(x, n)", "[x for x in (x,)]", "(lambda n: n)(x)", "str(n)[:9]")


@settings(max_examples=examples(40), deadline=None, database=None)
@given(st.sampled_from([(head, line) for head, lines in LINES.items() for line in lines]), st.data())
def test_calls_of_any_program_come_to_what_they_do_in_forks(kind, data):
    """Generate programs from lines that bind, change and use one name in every way."""
    head, line = kind
    lines = [line, *data.draw(st.lists(st.sampled_from(LINES[head]), max_size=1))]
    start, end = data.draw(st.sampled_from(("f(x)", "f(x, n=n)", "f(x, *, m=1)"))), data.draw(st.sampled_from(ENDS))
    program = "\n".join([head, f"def {start}:", *(f"    {line}" for line in lines), f"    return {end}"])
    items, sandbox = values("f(1)", "f(2)", "f([0])", "f(1)"), any_sandbox()
    [forks] = Forks(sandbox).evaluate_groups(program, [items], Limits(), "program")
    assert sandbox.evaluate(program, items, Limits(), "program") == forks, program


def mutated(source, chance):
    """Return a program with one operator or constant changed."""
    tree = ast.parse(source)
    places = [n for n in ast.walk(tree) if isinstance(n, ast.BinOp | ast.Compare) or _is_number(n)]
    if places:
        node = chance.choice(places)
        if isinstance(node, ast.BinOp):
            node.op = chance.choice((ast.Add(), ast.Sub(), ast.Mult(), ast.FloorDiv(), ast.Mod()))
        elif isinstance(node, ast.Compare):
            node.ops[0] = chance.choice((ast.Lt(), ast.GtE(), ast.Eq(), ast.NotEq()))
        else:
            node.value += chance.choice((-1, 1))
    return ast.unparse(tree)


def _is_number(node):
    return isinstance(node, ast.Constant) and type(node.value) is int


def test_mutated_solutions_get_the_reports_of_forks(monkeypatch):
    monkeypatch.setenv("MARL_JAX_DATA", str(shared_data("open/mbpp.jsonl.gz").parents[1]))
    sandbox, chance, passed = any_sandbox(), random.Random(0), []
    for row in sources.read("mbpp")[7::70]:
        for program in (row["solution"], mutated(row["solution"], chance)):
            groups = [row["tests"], row["tests"][:2]]
            found = grading.grade_groups(sandbox, row, program, groups, 2.0)
            assert found == grading.grade_groups(Forks(sandbox), row, program, groups, 2.0), program
            passed.append(found[0]["passed"])
    assert all(passed[::2]) and not all(passed[1::2])


def test_recursion_ends_at_the_same_depth():
    program, items = "def f(n): return n and 1 + f(n - 1)", values(*(f"f({n})" for n in range(985, 997, 2)))
    found = any_sandbox().evaluate(program, items, Limits())
    assert found == Forks(any_sandbox()).evaluate_groups(program, [items], Limits(), "__main__")[0]
    assert found[0].status == "ok" and found[-1].error.startswith("RecursionError")


def test_memory_is_that_of_a_call_alone():
    program, limits = "def f(n): return len(bytearray(b'x') * (n << 20))", Limits(memory_mb=100)
    for order in ((1, 40, 1, 200, 40), (200, 40)):
        found = any_sandbox().evaluate(program, values(*(f"f({n})" for n in order)), limits)
        assert [one.status for one in found] == ["error" if n == 200 else "ok" for n in order]
        assert found[order.index(200)].error.startswith("MemoryError")


class Fake:
    """Answer submissions from a list of (status, exit code, limit, records)."""

    def __init__(self, *answers):
        self.answers, self.seen = list(answers), []

    def __call__(self, program, limits, items, name):
        self.seen.append(json.loads(items[calls.inside_calls.NONCE :]))
        status, code, limit, records = self.answers.pop(0)
        return SandboxResult(status, "", "", 0.1, code, limit), "\n".join(map(json.dumps, records)).encode()


TOGETHER, APART = ["load", "together", None], ["load", "forks", None]


def value(index, number):
    return [index, "value", ["i", str(number)]]


def numbers(groups):
    return [[one.value[1] if one.status == "ok" else one.status for one in group] for group in groups]


@pytest.mark.parametrize(
    ("answers", "found", "asked"),
    [
        ([("ok", 0, None, [TOGETHER, value(0, 1), value(1, 2), value(2, 3)])], [["1", "2"], ["3"]], [3]),
        # A program with state evaluates only the first group.
        ([("ok", 0, None, [APART, value(0, 1), value(1, 2)]), ("ok", 0, None, [APART, value(0, 3)])],
         [["1", "2"], ["3"]], [3, 1]),
        # A time limit hit in the first group is its own; one hit in the second may be due to the first.
        ([("limit", None, "cpu", [TOGETHER, value(0, 1)]), ("ok", 0, None, [TOGETHER, value(0, 3)])],
         [["1", "limit"], ["3"]], [3, 1]),
        ([("limit", None, "cpu", [TOGETHER, value(0, 1), value(1, 2)]), ("limit", None, "cpu", [TOGETHER])],
         [["1", "2"], ["limit"]], [3, 1]),
        # A process that dies between calls is run again, with forks.
        ([("error", -11, None, [TOGETHER, value(0, 1)]), ("ok", 0, None, [APART, value(0, 1), value(1, 2)]),
          ("ok", 0, None, [TOGETHER, value(0, 3)])], [["1", "2"], ["3"]], [3, "forks", 1]),
        ([("limit", None, "memory", [TOGETHER, value(0, 1), value(1, 2)]), ("error", -9, None, [TOGETHER]),
          ("ok", 0, None, [APART, value(0, 3)])], [["1", "2"], ["3"]], [3, 1, "forks"]),
        # A program that does not load is not run again.
        ([("error", 1, None, [["load", "error", "ValueError"]])], [["error"] * 2, ["error"]], [3]),
        ([("limit", None, "cpu", [])], [["limit"] * 2, ["limit"]], [3]),
        ([("limit", 0, "output", [TOGETHER, value(0, 1), value(1, 2)])], [["limit"] * 2, ["limit"]], [3]),
        ([("refused", None, None, []), ("ok", 0, None, [APART, value(0, 3)])], [["refused"] * 2, ["3"]], [3, 1]),
    ],
)  # fmt: skip
def test_groups_are_asked_again_only_where_it_matters(answers, found, asked):
    submit = Fake(*answers)
    assert numbers(calls.evaluate_groups(submit, "", [values("a", "b"), values("c")], Limits(), "m")) == found
    assert ["forks" if request["forks"] else len(request["items"]) for request in submit.seen] == asked
    assert all(request["alone"] <= 2 for request in submit.seen) and not submit.answers


def test_a_second_group_does_not_wait_until_the_first_one_is_at_its_limit():
    asked = threading.Event()

    def submit(program, limits, items, name):
        if len(json.loads(items[calls.inside_calls.NONCE :])["items"]) == 1:
            asked.set()
            return SandboxResult("ok", "", "", 0.1, 0), json.dumps(value(0, 3)).encode()
        assert asked.wait(20)
        return SandboxResult("limit", "", "", 1.0, None, "cpu"), json.dumps(TOGETHER).encode()

    found = calls.evaluate_groups(submit, "", [values("a", "b"), values("c")], Limits(), "m")
    assert numbers(found) == [["limit"] * 2, ["3"]]
