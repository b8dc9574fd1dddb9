"""A dozen built-in problems that need no data file.

They ask for functions and for programs that read standard input.
"""

from __future__ import annotations

from envs.tasks.code.rows import Row, make_row


def _function(part: str, question: str, solution: str, **tests: str) -> Row:
    """Make the row of a function with tests given as `name="arguments -> value"`."""
    name = solution.split("(")[0].removeprefix("def ")
    pairs = [text.split(" -> ") for text in tests.values()]
    return make_row(
        "sample", name, question, [{"call": f"{name}({given})", "expect": value} for given, value in pairs], part=part,
        entry_point=name, starter=solution.split("\n")[0], solution=solution,
    )  # fmt: skip


def _program(part: str, id: str, question: str, solution: str, **tests: str) -> Row:
    pairs = [text.split(" -> ") for text in tests.values()]
    cases = [{"stdin": given + "\n", "stdout": printed + "\n"} for given, printed in pairs]
    return make_row("sample", id, question, cases, part=part, solution=solution)


def rows() -> list[Row]:
    """Return all problems: six for training, three for validation and three for testing."""
    return [
        _function(
            "train", "Write a function that returns twice a number.",
            "def double(x):\n    return 2 * x",
            a="3 -> 6", b="0 -> 0", c="-4 -> -8",
        ),
        _function(
            "train", "Write a function that returns the larger of two numbers.",
            "def larger(a, b):\n    return a if a > b else b",
            a="1, 2 -> 2", b="5, -5 -> 5", c="3, 3 -> 3", d="-2, -1 -> -1",
        ),
        _function(
            "train", "Write a function that counts the vowels (a, e, i, o, u, in either case) of a text.",
            "def vowels(text):\n    return sum(c in 'aeiou' for c in text.lower())",
            a="'banana' -> 3", b="'' -> 0", c="'XYZ' -> 0", d="'AEiou' -> 5",
        ),
        _function(
            "train", "Write a function that returns the items of a list in reverse order, as a new list.",
            "def backwards(items):\n    return list(items)[::-1]",
            a="[1, 2, 3] -> [3, 2, 1]", b="[] -> []", c="['a'] -> ['a']",
        ),
        _program(
            "train", "sum_of_line", "Read one line of integers and print their sum.",
            "print(sum(map(int, input().split())))",
            a="1 2 3 -> 6", b="10 -> 10", c="-1 1 -> 0",
        ),
        _program(
            "train", "squares", "Read an integer n, at least 1. Print the squares of 1 to n, one a line.",
            "for i in range(1, int(input()) + 1):\n    print(i * i)",
            a="1 -> 1", b="3 -> 1\n4\n9",
        ),
        _function(
            "validation", "Write a function that tells whether a number is even.",
            "def is_even(n):\n    return n % 2 == 0",
            a="2 -> True", b="3 -> False", c="0 -> True", d="-1 -> False",
        ),
        _function(
            "validation", "Write a function that returns the mean of a list of numbers, and 0 for an empty list.",
            "def mean(numbers):\n    return sum(numbers) / len(numbers) if numbers else 0",
            a="[1, 2] -> 1.5", b="[] -> 0", c="[4] -> 4.0",
        ),
        _program(
            "validation", "longest_word", "Read a line of words and print the longest one; of several the first.",
            "print(max(input().split(), key=len))",
            a="a bird sings -> sings", b="one two -> one",
        ),
        _function(
            "test", "Write a function that returns the absolute difference of two numbers.",
            "def distance(a, b):\n    return abs(a - b)",
            a="1, 4 -> 3", b="4, 1 -> 3", c="-1, 1 -> 2", d="7, 7 -> 0",
        ),
        _function(
            "test", "Write a function that counts how often each letter of a text occurs, as a dictionary.",
            "def letter_counts(text):\n    return {c: text.count(c) for c in text}",
            a="'aab' -> {'a': 2, 'b': 1}", b="'' -> {}", c="'xyx' -> {'x': 2, 'y': 1}",
        ),
        _program(
            "test", "even_numbers", "Read a line of integers. Print the even ones, in order, with spaces between them.",
            "print(*[n for n in map(int, input().split()) if n % 2 == 0])",
            a="1 2 3 4 -> 2 4", b="8 -> 8", c="6 5 -2 -> 6 -2",
        ),
    ]  # fmt: skip
