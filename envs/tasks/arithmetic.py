"""Arithmetic task: one agent evaluates an expression and ends with `answer: N`.

A problem of level n has n operations (+, −, ×, with and without brackets) on numbers that grow with the level.
Problems are sampled from a seed. A hash of the question determines its split, so no question is in two splits.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import random
import re
from collections.abc import Sequence

from envs.tasks.chat import keep_one
from envs.tasks.replies import CallTimeout, Reply
from envs.tasks.task import Ask, Outcome, Task, check_split

FORMAT = "Think as long as you need, then end with a line 'answer: N', where N is the number."
SYSTEM = f"You compute carefully. {FORMAT}"
HELD_OUT = {0: "test", 1: "validation"}  # hash of a question modulo 5 -> split; all other values are train

_MARKED = re.compile(r"answer\s*:\s*\**\s*(?P<number>[^\n]*)", re.IGNORECASE)
_NUMBER = re.compile(r"(?P<sign>[-+\u2212]?)\s*(?P<digits>[0-9]{1,30}|[0-9]{1,3}(,[0-9]{3}){1,9})(\.0{1,9})?\s*\**\.?")


@dataclasses.dataclass(frozen=True)
class ArithmeticProblem:
    """A question with its answer and difficulty level."""

    question: str
    answer: int
    level: int


def read_answer(text: str) -> int | None:
    """Return the number after the last `answer:`, or None if there is none.

    A text that is nothing but a number is also accepted.
    """
    marked = list(_MARKED.finditer(text))
    match = _NUMBER.fullmatch(marked[-1]["number"].strip() if marked else text.strip())
    if match is None:
        return None
    number = int(match["digits"].replace(",", ""))
    return -number if match["sign"] in ("-", "\u2212") else number


def grade(text: str, answer: int) -> dict:
    """Grade a completion and return {"right": bool, "answer": int or None}.

    The result is a JSON value, because the function runs in another process.
    """
    number = read_answer(text)
    return {"right": number == answer, "answer": number}


async def graded(ask: Ask, replies: Sequence[Reply], answer: int) -> list[dict]:
    """Grade replies in worker processes.

    If parsing a completion takes too long, its answer counts as missing.
    """

    async def one(k, reply):
        try:
            return await ask.verify(grade, reply.text, answer, limit=2.0, name=f"grade_{k}")
        except CallTimeout:
            return {"right": False, "answer": None}

    verdicts = await asyncio.gather(*(one(k, reply) for k, reply in enumerate(replies)))
    for reply, verdict in zip(replies, verdicts, strict=True):
        reply.judge(verdict["right"], verdict["answer"], "" if verdict["answer"] is not None else "no number was read")
    return verdicts


def voted(number: int | None) -> str | None:
    """Convert a number to the answer of an `Outcome`."""
    return None if number is None else str(number)


@dataclasses.dataclass(frozen=True)
class Arithmetic(Task):
    """Arithmetic problems for a single agent.

    Attributes:
        levels: Difficulty levels, used in turn.
        n_examples: Number of problems per split.
        seed: Random seed of the problems.
        continuation: Candidate that counts if a turn has several: "best", "random" or "first".
    """

    levels: tuple[int, ...] = (1, 2, 3)
    n_examples: int = 1000
    seed: int = 0
    continuation: str = "best"

    roles = ("solver",)

    def examples(self, part: str) -> list[ArithmeticProblem]:
        """Return `n_examples` distinct problems of a split."""
        return draw_problems(part, self.levels, self.n_examples, self.seed)

    def gold_reply(self, example: ArithmeticProblem) -> str:
        """Return a correct reply."""
        return f"answer: {example.answer}"

    async def play(self, ask: Ask, example: ArithmeticProblem) -> Outcome:
        """Ask the question and grade the reply.

        A correct answer gives a team reward of 1, a readable number a process reward of 0.1.
        """
        chat = ask.chat(0, system=SYSTEM)
        reply = await chat.say(example.question, n=ask.candidates)
        verdicts = await graded(ask, reply.replies, example.answer)
        for candidate, verdict in zip(reply.replies, verdicts, strict=True):
            candidate.reward(team=float(verdict["right"]), process=0.1 * (verdict["answer"] is not None))
        verdict = verdicts[reply.replies.index(keep_one(ask, chat, reply, self.continuation))]
        metrics = {f"success_level_{example.level}": verdict["right"], "parse_failure": verdict["answer"] is None}
        return Outcome(verdict["right"], metrics, answer=voted(verdict["answer"]))


def draw_problems(part: str, levels: tuple[int, ...], n: int, seed: int) -> list[ArithmeticProblem]:
    """Sample `n` distinct problems of a split, cycling through the levels."""
    check_split(part)
    if not levels or any(level < 1 for level in levels):
        raise ValueError(f"levels is {levels!r}, but must be one or more numbers >= 1")
    rng = random.Random(f"arithmetic {seed} {part}")
    problems: dict[str, ArithmeticProblem] = {}
    misses = 0
    while len(problems) < n:
        problem = _draw(rng, levels[len(problems) % len(levels)])
        misses += 1
        if problem.question not in problems and _part(problem.question) == part:
            problems[problem.question], misses = problem, 0
        elif misses > 2000:
            raise ValueError(
                f"n_examples is {n}, but {part} has only about {len(problems)} problems of levels {levels!r}"
            )
    return list(problems.values())


def _draw(rng: random.Random, level: int) -> ArithmeticProblem:
    largest = 30 + 20 * level**2
    text, value = str(first := rng.randint(1, largest)), first
    product = True  # whether the text can be multiplied without brackets
    for _ in range(level):
        sign, number = rng.choice("+-*"), rng.randint(1, largest)
        if sign == "*":
            number = rng.randint(2, 9)
            text, value = f"{text if product else f'({text})'} * {number}", value * number
        else:
            text, value = f"{text} {sign} {number}", value + number if sign == "+" else value - number
            product = False
    return ArithmeticProblem(f"What is {text}?", value, level)


def _part(question: str) -> str:
    return HELD_OUT.get(hashlib.sha256(question.encode()).digest()[0] % 5, "train")
