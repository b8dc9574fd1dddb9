"""Arithmetic: one agent computes an expression, reasons as long as it likes and ends with `answer: N`.

A problem of level n has n operations (+, −, ×, with and without brackets) on numbers that grow with the level. Problems
are drawn with a seed; a hash of the question decides to which part it belongs, so that no question is in two.
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
HELD_OUT = {0: "test", 1: "validation"}  # by the hash of a question modulo 5; the others are for training

_MARKED = re.compile(r"answer\s*:\s*\**\s*(?P<number>[^\n]*)", re.IGNORECASE)
_NUMBER = re.compile(r"(?P<sign>[-+\u2212]?)\s*(?P<digits>[0-9]{1,30}|[0-9]{1,3}(,[0-9]{3}){1,9})(\.0{1,9})?\s*\**\.?")


@dataclasses.dataclass(frozen=True)
class ArithmeticProblem:
    """A question, its answer and how hard it is."""

    question: str
    answer: int
    level: int


def read_answer(text: str) -> int | None:
    """The number behind the last `answer:`, or a text that is nothing but a number; None where there is neither."""
    marked = list(_MARKED.finditer(text))
    found = _NUMBER.fullmatch(marked[-1]["number"].strip() if marked else text.strip())
    if found is None:
        return None
    number = int(found["digits"].replace(",", ""))
    return -number if found["sign"] in ("-", "\u2212") else number


def grade(text: str, answer: int) -> dict:
    """{"right": bool, "answer": the number that was read or None}: a JSON value, to be computed in another process."""
    found = read_answer(text)
    return {"right": found == answer, "answer": found}


async def graded(ask: Ask, replies: Sequence[Reply], answer: int) -> list[dict]:
    """`grade` of some replies, in other processes; an answer that takes too long to read is no answer."""

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
    """A number as an outcome's answer."""
    return None if number is None else str(number)


@dataclasses.dataclass(frozen=True)
class Arithmetic(Task):
    """The task.

    levels      difficulties, which take turns
    n_examples  problems in each part
    seed        of the problems
    continuation  the candidate that counts, where the run asks for several
    """

    levels: tuple[int, ...] = (1, 2, 3)
    n_examples: int = 1000
    seed: int = 0
    continuation: str = "best"

    roles = ("solver",)

    def examples(self, part: str) -> list[ArithmeticProblem]:
        """Problems without repetition."""
        return draw_problems(part, self.levels, self.n_examples, self.seed)

    def gold_reply(self, example: ArithmeticProblem) -> str:
        """A right reply."""
        return f"answer: {example.answer}"

    async def play(self, ask: Ask, example: ArithmeticProblem) -> Outcome:
        """One question, one answer: 1 for a right one for the team, 0.1 for the process if a number can be read."""
        chat = ask.chat(0, system=SYSTEM)
        reply = await chat.say(example.question, n=ask.candidates)
        verdicts = await graded(ask, reply.replies, example.answer)
        for candidate, verdict in zip(reply.replies, verdicts, strict=True):
            candidate.reward(team=float(verdict["right"]), process=0.1 * (verdict["answer"] is not None))
        verdict = verdicts[reply.replies.index(keep_one(ask, chat, reply, self.continuation))]
        metrics = {f"success_level_{example.level}": verdict["right"], "parse_failure": verdict["answer"] is None}
        return Outcome(verdict["right"], metrics, answer=voted(verdict["answer"]))


def draw_problems(part: str, levels: tuple[int, ...], n: int, seed: int) -> list[ArithmeticProblem]:
    """`n` different problems of a part, the levels in turn."""
    check_split(part)
    if not levels or any(level < 1 for level in levels):
        raise ValueError(f"levels is {levels!r}; accepted: numbers from 1 up")
    rng = random.Random(f"arithmetic {seed} {part}")
    found: dict[str, ArithmeticProblem] = {}
    misses = 0
    while len(found) < n:
        problem = _draw(rng, levels[len(found) % len(levels)])
        misses += 1
        if problem.question not in found and _part(problem.question) == part:
            found[problem.question], misses = problem, 0
        elif misses > 2000:
            raise ValueError(f"n_examples is {n}; the levels {levels!r} have only about {len(found)} in {part}")
    return list(found.values())


def _draw(rng: random.Random, level: int) -> ArithmeticProblem:
    largest = 30 + 20 * level**2
    text, value = str(first := rng.randint(1, largest)), first
    product = True  # whether the text binds as tightly as a product, so that it needs no brackets in one
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
