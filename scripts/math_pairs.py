r"""Generate pairs of equal and nearly equal answers to test the math verifier.

    PYTHONPATH=. python scripts/math_pairs.py > tests/envs/tasks/math_pairs_generated.jsonl

The label is known by construction: sympy rewrites a value without changing it (expand, factor, partial fractions, a
common denominator, other notations), or the value is changed first. The verifier is not imported here.
"""

import json
import random

import sympy as sp

X, Y, N = sp.symbols("x y n")
PER_KIND = 15  # number of equal pairs per kind, and of unequal ones
FRAMES = (
    r"We find $\boxed{%s}$.", r"\boxed{%s}", "Step 1. We simplify.\n\\[\\boxed{%s}\\]\nThis completes the solution.",
    r"**Final answer:** $$\boxed{%s}$$", r"The answer is \(\boxed{%s}\). Check: it fits.",
)  # fmt: skip


def number(rng, low=-60, high=60):
    """Return a rational number that is not an integer."""
    q = rng.randint(2, 12)
    return sp.Rational(rng.choice([p for p in range(low, high) if p % q]), q)


def spelled(rng, value):
    """Write a rational number as LaTeX in a random notation."""
    value = sp.Rational(value)
    p, q = value.p, value.q
    sign, a = ("-", -p) if p < 0 else ("", p)
    if q == 1:
        return rng.choice([f"{p}", f"{p}.0", rf"{sign}\frac{{{2 * a}}}{{2}}"])
    ways = [rf"{sign}\frac{{{a}}}{{{q}}}", rf"{sign}\dfrac{{{a}}}{{{q}}}", rf"\frac{{{p}}}{{{q}}}", f"{p}/{q}",
            rf"{sign}\tfrac{{{3 * a}}}{{{3 * q}}}"]  # fmt: skip
    if a > q:
        ways.append(rf"{sign}{a // q}\frac{{{a % q}}}{{{q}}}")
    if set(sp.factorint(q)) <= {2, 5}:
        ways.append(format(float(value), ".10f").rstrip("0"))
    return rng.choice(ways)


def fraction(rng, equal):
    """Rewrite p/q; if unequal, change the numerator or sign, invert or round it."""
    value = number(rng)
    if equal:
        return sp.latex(value), spelled(rng, value)
    q = value.q
    rounded = rf"{float(value):.3f}"
    wrong = [spelled(rng, value + sp.Rational(1, q)), spelled(rng, -value), spelled(rng, 1 / value)]
    return sp.latex(value), rng.choice(wrong + [rounded] * (sp.Rational(rounded) != value))


def radical(rng, equal):
    """Rewrite (a + b√c)/d; if unequal, change one number."""
    a, b, c, d = rng.randint(1, 9), rng.choice([-3, -2, 2, 3, 5]), rng.choice([2, 3, 5, 6, 7, 10]), rng.randint(2, 7)
    value = (a + b * sp.sqrt(c)) / d
    other = value if equal else (a + rng.choice([(b + 1) * sp.sqrt(c), b * sp.sqrt(c + 4), -b * sp.sqrt(c)])) / d
    form = rng.choice([sp.expand, sp.factor, lambda e: sp.Mul(1, sp.Pow(sp.radsimp(1 / e), -1), evaluate=False)])
    return sp.latex(value), sp.latex(form(other))


def polynomial(rng, equal):
    """Rewrite a product of linear factors; if unequal, change one coefficient."""
    value = sp.prod(rng.choice([1, 2, 3]) * X + rng.choice([-4, -3, -1, 1, 2, 5]) for _ in range(rng.randint(2, 3)))
    other = value if equal else sp.expand(value) + rng.choice([1, -2, X, -3 * X, X**2])
    form = rng.choice([sp.expand, sp.factor, sp.horner])
    return sp.latex(rng.choice([sp.expand, sp.factor])(value)), sp.latex(form(other))


def rational_function(rng, equal):
    """Rewrite a rational function; if unequal, add a term."""
    a, b = rng.sample([-4, -3, -2, -1, 1, 2, 3, 5], 2)
    value = rng.randint(1, 5) / (X + a) + rng.choice([-3, -1, 2, 4]) / (X + b)
    other = value if equal else value + rng.choice([1, 1 / (X + a), -2 / (X + b)])
    return sp.latex(sp.together(value)), sp.latex(rng.choice([sp.apart, sp.together, sp.factor])(other))


def constant(rng, equal):
    """Rewrite multiples of π, e and logarithms; if unequal, round or change the multiple."""
    q, n = number(rng, 1, 40), rng.randint(2, 9)
    value, forms = rng.choice([
        (q * sp.pi, [rf"\frac{{{q.p}\pi}}{{{q.q}}}", rf"\frac{{{q.p}}}{{{q.q}}}\pi", rf"\pi \cdot {q.p}/{q.q}"]),
        (sp.log(n**2 + 1) * 2, [rf"\ln {(n**2 + 1) ** 2}", rf"2\ln({n**2 + 1})", rf"4\ln\sqrt{{{n**2 + 1}}}"]),
        (sp.exp(n) / 2, [rf"\frac{{e^{{{n}}}}}{{2}}", rf"\frac{{1}}{{2}}e^{{{n}}}", rf"0.5 e^{{{n}}}"]),
        (sp.Integer(2) ** sp.Rational(n, 10 + n),
         [rf"2^{{\frac{{{n}}}{{{10 + n}}}}}", rf"\sqrt[{10 + n}]{{2^{{{n}}}}}"]),
    ])  # fmt: skip
    if equal:
        return sp.latex(value, ln_notation=True), rng.choice(forms)
    wrong = [f"{float(value):.4f}", sp.latex(value * sp.Rational(n + 1, n), ln_notation=True)]
    return sp.latex(value, ln_notation=True), rng.choice(wrong)


def integer(rng, equal):
    """Rewrite a large integer; if unequal, change a digit or the exponent."""
    k, e = rng.randint(2, 99), rng.randint(3, 7)
    value = k * 10**e if rng.random() < 0.5 else rng.randint(1000, 9_999_999)
    wrong = value + 10 ** rng.randint(0, 2) if rng.random() < 0.5 else value * 10
    v = value if equal else wrong
    separated = f"{v:,}"
    product = r" \cdot ".join(f"{p}^{{{m}}}" if m > 1 else f"{p}" for p, m in sp.factorint(v).items())
    return str(value), rng.choice([
        separated, separated.replace(",", "{,}"), separated.replace(",", r",\!"), separated.replace(",", r"\,"),
        product, rf"{sp.Rational(v, 1000).p / sp.Rational(v, 1000).q} \times 10^3", f"{v}.00",
    ])  # fmt: skip


def percentage(rng, equal):
    """Rewrite a percentage; if unequal, change it, for example by a factor of ten."""
    p = rng.choice([5, 12, 15, 20, 24, 35, 40, 45, 60, 64, 75, 80])
    if equal:
        return rf"{p}\%", rng.choice([rf"{p}\%", f"{p}%", str(p), f"{p / 100:g}", spelled(rng, sp.Rational(p, 100)),
                                      rf"{p}\text{{ percent}}"])  # fmt: skip
    wrong = [rf"{p * 10}\%", rf"{p + 1}\%", f"{p / 10:g}", f"{(p + 1) / 100:g}", rf"{100 - p - 3}"]
    return rf"{p}\%", rng.choice(wrong)


def measured(rng, equal):
    """Rewrite a quantity with its unit; if unequal, change the number or the unit."""
    n = rng.randint(2, 300)
    unit, names, other = rng.choice([
        ("cm", [r"\text{ cm}", " cm", r"\,\mathrm{cm}", r"\text{ centimeters}"], "m"),
        ("dollars", [r"\text{ dollars}", " dollars", ""], "cents"),
        ("minutes", [r"\text{ minutes}", " minutes", r"\;\text{min}", ""], "hours"),
        ("km", [r"\text{ km}", " kilometers", ""], "miles"),
    ])  # fmt: skip
    gold = rf"{n} \text{{ {unit}}}"
    if equal:
        return gold, f"{n}{rng.choice(names)}"
    return gold, rng.choice([rf"{n} \text{{ {other}}}", f"{n + 1}{rng.choice(names)}", rf"{10 * n}{rng.choice(names)}"])


def collection(rng, equal):
    """Rewrite a set in another order; if unequal, add, remove or change an element."""
    pool = sorted({number(rng) for _ in range(12)} | set(map(sp.Integer, range(-5, 6))))
    values = rng.sample(pool, rng.randint(2, 5))
    shuffled = values[:]
    rng.shuffle(shuffled)
    if not equal:
        change = rng.choice(["drop", "add", "change"])
        if change == "drop":
            shuffled.pop()
        elif change == "add":
            shuffled.append(sp.Integer(77))
        else:
            shuffled[0] += sp.Rational(1, 2)
    braces = rng.choice([(r"\{", r"\}"), (r"\left\{ ", r" \right\}"), ("", "")])
    return r"\{" + ", ".join(map(sp.latex, values)) + r"\}", braces[0] + ", ".join(
        spelled(rng, v) for v in shuffled) + braces[1]  # fmt: skip


def point(rng, equal):
    """Rewrite a tuple; if unequal, swap, change or remove an entry."""
    values = rng.sample([*range(-9, 10)], rng.randint(2, 4))
    values[0] = number(rng)
    other = values[:]
    if not equal:
        change = rng.choice(["swap", "change", "drop"])
        if change == "swap":
            other[0], other[1] = other[1], other[0]
        elif change == "change":
            other[-1] += 1
        else:
            other.pop()
    left, right = rng.choice([("(", ")"), (r"\left(", r"\right)"), ("( ", " )")])
    gap = rng.choice([",", ", ", r",\,"])
    return "(" + ",".join(map(sp.latex, values)) + ")", left + gap.join(spelled(rng, v) for v in other) + right


def interval(rng, equal):
    """Rewrite an interval or inequality; if unequal, change an end or whether it is open."""
    a, b = sorted(rng.sample(range(-20, 20), 2))
    low, high = rng.choice("(["), rng.choice(")]")
    gold = f"{low}{a},{b}{high}"
    if not equal:
        change = rng.choice(["low", "high", "end"])
        if change == "low":
            low = "[" if low == "(" else "("
        elif change == "high":
            high = "]" if high == ")" else ")"
        else:
            b += 1
    signs = {"(": "<", "[": r"\le", ")": "<", "]": r"\leq"}
    flipped = {"(": ">", "[": r"\ge", ")": ">", "]": r"\geq"}
    return gold, rng.choice([
        rf"\left{low}{a}, {b}\right{high}", rf"{a} {signs[low]} x {signs[high]} {b}", rf"x \in {low}{a},{b}{high}",
        rf"{b} {flipped[high]} x {flipped[low]} {a}",
    ])  # fmt: skip


def matrix(rng, equal):
    """Rewrite a matrix; if unequal, transpose it or change an entry."""
    rows, columns = rng.choice([(2, 2), (2, 3), (3, 1)])
    values = [[number(rng) if rng.random() < 0.3 else sp.Integer(rng.randint(-9, 9)) for _ in range(columns)]
              for _ in range(rows)]  # fmt: skip
    other = [row[:] for row in values]
    if not equal:
        if rows != columns or rng.random() < 0.5 or values[0][1] == values[1][0]:
            other[-1][-1] += rng.choice([-1, 1, 3])
        else:
            other = [list(row) for row in zip(*other, strict=True)]
    kind, line = rng.choice(["pmatrix", "bmatrix"]), rng.choice([r" \\ ", r"\\", "\\\\\n", r"\\[3pt]"])

    def text(kind, line, rows):
        return rf"\begin{{{kind}}}{line.join(' & '.join(row) for row in rows)}\end{{{kind}}}"

    gold = text("pmatrix", r" \\ ", [[sp.latex(v) for v in row] for row in values])
    return gold, text(kind, line, [[spelled(rng, v) for v in row] for row in other])


def complex_number(rng, equal):
    """Rewrite a complex number; if unequal, conjugate it or change a part."""
    a, b = rng.choice([-7, -4, -2, 3, 5, 8]), rng.choice([-6, -3, 2, 4, 9])
    c, d = (a, b) if equal else rng.choice([(a, -b), (a + 1, b), (b, a)])
    halves = rf"\frac{{{2 * c} {2 * d:+d}i}}{{2}}"
    return f"{a}{b:+d}i", rng.choice([f"{d}i {c:+d}", f"{c} {d:+d} i", rf"i({d} {-c:+d}i)", halves])


def equation(rng, equal):
    """Rewrite the equation of a line; if unequal, change the slope or intercept."""
    m, b, k = rng.choice([-3, -2, 2, 4]), rng.choice([-5, -1, 3, 7]), rng.choice([2, 3, -1])
    m2, b2 = (m, b) if equal else rng.choice([(m, b + 1), (-m, b), (m + 1, b)])
    line = m2 * X + b2
    return f"y={sp.latex(m * X + b)}", rng.choice([
        f"y = {sp.latex(line)}", sp.latex(line), f"{sp.latex(sp.expand(k * (line - Y)))} = 0",
        f"{sp.latex(k * Y)} = {sp.latex(sp.expand(k * line))}",
    ])  # fmt: skip


KINDS = (
    fraction, radical, polynomial, rational_function, constant, integer, percentage, measured, collection, point,
    interval, matrix, complex_number, equation,
)  # fmt: skip


def pairs(per_kind=PER_KIND, seed=""):
    """Yield every pair as {"kind", "gold", "text", "right"}."""
    for make in KINDS:
        seen = set()
        for right in (True, False):
            rng = random.Random(f"{make.__name__} {right}{seed}")
            count = tries = 0
            while count < per_kind and tries < 20 * per_kind:
                tries += 1
                gold, answer = make(rng, right)
                if (gold, answer) in seen:
                    continue
                seen.add((gold, answer))
                count += 1
                text = rng.choice(FRAMES) % answer
                yield {"kind": f"generated {make.__name__}", "gold": gold, "text": text, "right": right}


if __name__ == "__main__":
    for pair in pairs():
        print(json.dumps(pair))
