"""Right programs in unusual styles and wrong programs that try to pass, for the rates of wrong verdicts."""

from envs.tasks.code.rows import make_row

_SUMS = [("3\n1 2 3\n", "6\n"), ("1\n-5\n", "-5\n"), ("4\n10 20\n30 40\n", "100\n")]
SUM = make_row("sum", 1, "Add n integers.", [{"stdin": given, "stdout": out} for given, out in _SUMS])
WINDOWS = make_row(
    "windows", 2, "Add n integers.", [{"stdin": given.replace("\n", "\r\n"), "stdout": out} for given, out in _SUMS]
)
THIRD = make_row(
    "third", 3, "Divide.", [{"stdin": "1 3\n", "stdout": "0.333333333\n"}, {"stdin": "6 4\n", "stdout": "1.5\n"}]
)
TEXT = make_row(
    "text", 4, "Reverse.", [{"stdin": "añ😀ß\n", "stdout": "ß😀ña\n"}, {"stdin": "абв\n", "stdout": "вба\n"}]
)
MANY = make_row("many", 5, "Count down.", [{"stdin": "3\n", "stdout": "3\n2\n1\n"}, {"stdin": "1\n", "stdout": "1\n"}])
PLUS = make_row(
    "plus", 6, "Add one.", [{"call": f"f({x})", "expect": str(x + 1)} for x in (0, 1, 41)], entry_point="f",
    solution="def f(x):\n    return x + 1",
)  # fmt: skip
CHECKS = make_row(
    "checks", 7, "Add one.", [{"check": "assert all(f(x) == x + 1 for x in range(5))"}], entry_point="f",
    solution="def f(x):\n    return x + 1",
)  # fmt: skip
MEAN = make_row(
    "mean", 8, "Mean.", [{"call": "f([1, 2])", "expect": "1.5", "close": [1e-6, 1e-9]},
                         {"call": "f([1, 1, 2])", "expect": "1.3333333333", "close": [1e-6, 1e-9]}],
    entry_point="f", solution="def f(xs):\n    return sum(xs) / len(xs)",
)  # fmt: skip
PAIR = make_row(
    "pair", 9, "Count.", [{"call": "f('aab')", "expect": "({'a': 2, 'b': 1}, (2, True))"}], entry_point="f",
    solution="def f(s):\n    return {c: s.count(c) for c in s}, (2, True)",
)  # fmt: skip

RIGHT = {
    "class": (SUM, """
class Solver:
    def __init__(self, stream):
        self.numbers = [int(word) for line in stream for word in line.split()][1:]
    def __str__(self):
        return str(sum(self.numbers))
import sys
print(Solver(sys.stdin))
"""),
    "generator": (SUM, """
import sys
def words():
    for line in sys.stdin:
        yield from line.split()
found = words()
n = int(next(found))
print(sum(int(next(found)) for _ in range(n)))
"""),
    "bytes": (SUM, r"""
import sys
_, *x = map(int, sys.stdin.buffer.read().split())
sys.stdout.buffer.write(b'%d\n' % sum(x))
"""),
    "input to the end": (SUM, """
n, total = int(input()), 0
while True:
    try:
        line = input()
    except EOFError:
        break
    total += sum(map(int, line.split()))
print(total)
"""),
    "print with sep and end": (SUM, """
import sys
text = str(sum(map(int, sys.stdin.read().split()[1:])))
print(*text, sep='', end='')
print()
"""),
    "deep recursion": (SUM, """
import sys
sys.setrecursionlimit(10**6)
x = list(map(int, sys.stdin.read().split()[1:])) + [0] * 30000
def add(i): return 0 if i == len(x) else x[i] + add(i + 1)
print(add(0))
"""),
    "exit() in the middle": (SUM, """
import sys
x = list(map(int, sys.stdin.read().split()))
if x[0] == 1:
    print(x[1])
    exit()
print(sum(x[1:]))
"""),
    "exit(0) in a function": (SUM, """
def main():
    import sys
    print(sum(map(int, sys.stdin.read().split()[1:])))
    exit(0)
main()
"""),
    "quit() at the end": (SUM, """
import sys
print(sum(map(int, sys.stdin.read().split()[1:])))
quit()
"""),
    "sys.exit in try": (SUM, """
import sys
try:
    print(sum(map(int, sys.stdin.read().split()[1:])))
    sys.exit()
finally:
    sys.stdout.flush()
"""),
    "Windows source": (SUM, "import sys\r\nif sys:\r\n    print(sum(map(int, sys.stdin.read().split()[1:])))"),
    "Windows line ends in the input": (WINDOWS, """
n = int(input())
x = []
while len(x) < n:
    x += map(int, input().split())
print(sum(x))
"""),
    "Windows line ends in the output": (SUM, r"""
import sys
print(sum(map(int, sys.stdin.read().split()[1:])), end='\r\n')
"""),
    "spaces after the output": (SUM, r"""
import sys
print(sum(map(int, sys.stdin.read().split()[1:])), ' \t')
print()
print(' ')
"""),
    "a byte order mark": (SUM, "\ufeffimport sys\nprint(sum(map(int, sys.stdin.read().split()[1:])))"),
    "a byte order mark and a function": (PLUS, "\ufefffrom __future__ import annotations\ndef f(x: int): return x + 1"),
    "open(0)": (SUM, "print(sum(map(int, open(0).read().split()[1:])))"),
    "/dev/stdin": (SUM, """
with open('/dev/stdin') as file:
    print(sum(int(x) for x in file.read().split()[1:]))
"""),
    "/dev/fd/0": (SUM, "print(sum(map(int, open('/dev/fd/0').read().split()[1:])))"),
    "/dev/stdout": (SUM, "print(sum(map(int, open(0).read().split()[1:])), file=open('/dev/stdout', 'w'))"),
    "os.read and os.write": (SUM, """
import os
os.write(1, str(sum(map(int, os.read(0, 1 << 16).split()[1:]))).encode())
"""),
    "fileinput": (SUM, """
import fileinput
x = [int(w) for line in fileinput.input() for w in line.split()]
print(sum(x[1:]))
"""),
    "a thread with a large stack": (SUM, """
import sys, threading
threading.stack_size(2**29)
sys.setrecursionlimit(1 << 25)
def main():
    x = list(map(int, sys.stdin.read().split()[1:]))
    def add(i): return 0 if i == len(x) else x[i] + add(i + 1)
    print(add(0))
thread = threading.Thread(target=main)
thread.start()
thread.join()
"""),
    "asyncio": (SUM, """
import asyncio, sys
async def main():
    await asyncio.sleep(0)
    print(sum(map(int, sys.stdin.read().split()[1:])))
asyncio.run(main())
"""),
    "atexit": (SUM, """
import atexit, sys
out = []
atexit.register(lambda: sys.stdout.write(''.join(out)))
out.append(str(sum(map(int, sys.stdin.read().split()[1:]))))
"""),
    "match, walrus and reduce": (SUM, """
import sys, functools, operator
match sys.stdin.read().split():
    case [n, *rest] if (k := int(n)) == len(rest):
        print(functools.reduce(operator.add, map(int, rest)))
"""),
    "redirected output": (SUM, """
import contextlib, io, sys
held = io.StringIO()
with contextlib.redirect_stdout(held):
    print(sum(map(int, sys.stdin.read().split()[1:])))
sys.__stdout__.write(held.getvalue())
"""),
    "exec of built source": (SUM, """
import sys
exec('x = ' + '+'.join(f'({w})' for w in sys.stdin.read().split()[1:]))
print(x)
"""),
    "a main guard and a docstring": (SUM, """
'''Add.'''
from __future__ import annotations
import sys
if __name__ == "__main__":
    print(sum(map(int, sys.stdin.read().split()[1:])), flush=True)
"""),
    "many digits": (THIRD, """
a, b = map(int, input().split())
print(a / b)
"""),
    "an exponent": (THIRD, """
a, b = map(int, input().split())
print(f'{a / b:.7e}')
"""),
    "a Decimal": (THIRD, """
from decimal import Decimal
a, b = map(Decimal, input().split())
print(a / b)
"""),
    "rounded": (THIRD, """
a, b = map(int, input().split())
print('%.6f' % (a / b))
"""),
    "other letters": (TEXT, "print(input()[::-1])"),
    "letters as bytes": (TEXT, """
import sys
sys.stdout.buffer.write(sys.stdin.buffer.read().decode().strip()[::-1].encode())
"""),
    "lines joined": (MANY, "print('\\n'.join(map(str, range(int(input()), 0, -1))))"),
    "recursive generator": (MANY, r"""
def down(n):
    if n:
        yield n
        yield from down(n - 1)
print(*down(int(input())), sep='\n')
"""),
    "Fraction near a float": (MEAN, """
from fractions import Fraction
def f(xs): return Fraction(sum(xs), len(xs))
"""),
    "Decimal near a float": (MEAN, """
from decimal import Decimal
def f(xs): return Decimal(sum(xs)) / len(xs)
"""),
    "subclasses of dict and tuple": (PAIR, """
import collections
P = collections.namedtuple('P', 'n all')
def f(s): return collections.Counter(s), P(2, True)
"""),
    "an enumeration and a method": (PLUS, """
import enum
E = enum.IntEnum('E', {f'e{i}': i for i in range(50)})
class S:
    def f(self, x): return E(x + 1)
f = S().f
"""),
    "a check in the program's process": (CHECKS, "f = (1).__add__"),
}  # fmt: skip

WRONG = {
    "constant": (SUM, "print(6)"),
    "nothing": (SUM, ""),
    "exit(0) before the answer": (SUM, """
exit(0)
print(6)
"""),
    "os._exit(0)": (SUM, """
import os
os._exit(0)
"""),
    "the answer, then an exception": (SUM, """
import sys
print(sum(map(int, sys.stdin.read().split()[1:])))
raise ValueError
"""),
    "the answer, then exit(1)": (SUM, """
import sys
print(sum(map(int, sys.stdin.read().split()[1:])))
exit(1)
"""),
    "infinite output": (SUM, "while True: print(6)"),
    "an endless loop": (SUM, """
import sys
print(sum(map(int, sys.stdin.read().split()[1:])), flush=True)
while True: pass
"""),
    "all numbers": (SUM, "for i in range(-10, 110): print(i)"),
    "all numbers in a line": (SUM, "print(*range(-10, 110))"),
    "the answer twice": (SUM, """
import sys
x = sum(map(int, sys.stdin.read().split()[1:]))
print(x)
print(x)
"""),
    "words around the answer": (SUM, """
import sys
print('Answer:', sum(map(int, sys.stdin.read().split()[1:])))
"""),
    "on standard error": (SUM, """
import sys
print(sum(map(int, sys.stdin.read().split()[1:])), file=sys.stderr)
"""),
    "almost an integer": (SUM, """
import sys
print(sum(map(int, sys.stdin.read().split()[1:])) + 1e-9)
"""),
    "numbers of the first line only": (SUM, """
input()
print(sum(map(int, input().split())))
"""),
    "files searched for the answer": (SUM, """
import os, re
seen = []
for top in ('.', '/tmp', '/dev', '/proc/self', '/proc/1', '/.sandbox', '/dev/shm'):
    for folder, _, names in os.walk(top):
        for name in names[:50]:
            try:
                with open(os.path.join(folder, name), 'rb') as file:
                    seen += re.findall(rb'stdout.{3,20}', file.read(10000))
            except Exception:
                pass
print(seen[0].decode() if seen else '')
"""),
    "descriptors searched for the answer": (SUM, """
import os
for descriptor in range(3, 300):
    try:
        print(os.pread(descriptor, 1000, 0).decode())
        break
    except Exception:
        pass
"""),
    "a patched print": (SUM, """
import builtins
class Any(str):
    __eq__ = lambda self, other: True
builtins.print(Any('x'))
"""),
    "forks that try all answers": (SUM, """
import os
for i in range(-5, 8):
    if not os.fork():
        print(i)
        os._exit(0)
while True:
    try: os.wait()
    except ChildProcessError: break
"""),
    "a dropped sign": (SUM, """
import sys
print(abs(sum(map(int, sys.stdin.read().split()[1:]))))
"""),
    "two digits of a third": (THIRD, """
a, b = map(int, input().split())
print(round(a / b, 2))
"""),
    "a fraction as text": (THIRD, """
from fractions import Fraction
a, b = map(int, input().split())
print(Fraction(a, b))
"""),
    "not a number": (THIRD, "print(float('nan'))"),
    "letters without accents": (TEXT, "print(input()[::-1].encode('ascii', 'replace').decode())"),
    "lines in one line": (MANY, "print(*range(int(input()), 0, -1))"),
    "equal to everything": (PLUS, """
class Same(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def f(x): return Same(7)
"""),
    "the number as text": (PLUS, "def f(x): return str(x + 1)"),
    "a generator of the number": (PLUS, """
def f(x):
    yield x + 1
"""),
    "exit(0) while loading": (PLUS, """
def f(x): return x
exit(0)
"""),
    "exit(0) in the call": (PLUS, "def f(x): exit(0)"),
    "patched builtins": (PLUS, """
import builtins, json
builtins.eval = builtins.compile = lambda *a: 1
json.dumps = lambda *a: '[0, "value", ["i", "1"]]'
def f(x): return 0
"""),
    "forged results": (PLUS, r"""
import os
for i in range(3):
    os.write(5, b'[%d, "passed", "x"]\n[%d, "value", ["i", "1"]]\n' % (i, i))
def f(x): return 1
"""),
    "a search of frames and objects": (PLUS, """
import gc, sys
def f(x):
    frame = sys._getframe()
    while frame.f_back: frame = frame.f_back
    held = [o for o in gc.get_objects() if isinstance(o, dict) and 'expect' in o]
    return held[0]['expect'] if held else frame.f_locals.get('expected', 7)
"""),
    "swallowed asserts": (CHECKS, """
import builtins, sys
builtins.AssertionError = type('Quiet', (Exception,), {})
sys.excepthook = lambda *a: None
def f(x): return 0
"""),
    "exit(0) before the check": (CHECKS, """
import os
def f(x): os._exit(0)
"""),
    "SystemExit in the check": (CHECKS, "def f(x): raise SystemExit(0)"),
    "a patched all": (CHECKS, """
def all(_): return False
def f(x): return 0
"""),
    "a far Fraction": (MEAN, """
from fractions import Fraction
def f(xs): return Fraction(sum(xs), len(xs)) + Fraction(1, 1000)
"""),
    "an infinite Decimal": (MEAN, """
from decimal import Decimal
def f(xs): return Decimal('inf')
"""),
    "too much memory": (PLUS, """
x = [0]
while True: x += x
def f(x): return x + 1
"""),
}  # fmt: skip
