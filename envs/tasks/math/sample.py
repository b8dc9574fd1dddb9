"""Built-in problems that need no data file.

They were written for this project and have the licence of the code.
"""

_PROBLEMS = (
    # (part, question, answer)
    ("train", "A crate holds 24 jars. Nine crates arrive, and 17 jars are broken. How many jars are whole?", "199"),
    ("train", "Compute $\\frac{3}{4} - \\frac{1}{6}$.", r"\frac{7}{12}"),
    ("train", "Solve $5x - 8 = 2x + 19$.", "9"),
    ("train", "Find all real $x$ with $x^2 - 3x - 10 = 0$.", "-2, 5"),
    ("train", "A ticket costs 15 dollars. A group of 8 gets 20 percent off. What does it pay, in dollars?", "96"),
    ("train", "Simplify $\\sqrt{75} - \\sqrt{12}$.", r"3\sqrt{3}"),
    ("train", "What is the remainder when $7^{20}$ is divided by $5$?", "1"),
    ("train", "How many three-digit numbers have three different odd digits?", "60"),
    ("train", "For which $x$ is $2x - 7 \\le 5$? Give an interval.", r"(-\infty, 6]"),
    ("train", "Expand $(2x - 3)(x + 4)$.", "2x^2+5x-12"),
    ("validation", "Mira reads 34 pages a day. In how many days does she read a book of 476 pages?", "14"),
    ("validation", "Where do the lines $y = 2x + 1$ and $y = 7 - x$ meet? Give a point.", "(2, 5)"),
    ("validation", "What is $15\\%$ of $260$?", "39"),
    ("test", "A tank loses 7 litres an hour and held 150 litres. How much is left after 12 hours, in litres?", "66"),
    ("test", "Compute $\\binom{7}{3} - 5!/4$.", "5"),
    ("test", "The angles of a triangle are in the ratio $2 : 3 : 4$. How large is the largest, in degrees?", "80"),
    ("test", "A fair die is thrown twice. What is the probability that the sum is $10$ or more?", r"\frac{1}{6}"),
    ("test", "Find the distance between $(1, -2)$ and $(4, 4)$.", r"3\sqrt{5}"),
)


def rows(part: str) -> list[dict[str, str]]:
    """Return the problems of a split."""
    return [
        {"id": f"sample/{part}/{i}", "question": question, "answer": answer, "source": "sample"}
        for i, (_, question, answer) in enumerate(p for p in _PROBLEMS if p[0] == part)
    ]
