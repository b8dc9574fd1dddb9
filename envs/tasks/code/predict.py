"""Prediction (CRUXEval): the answer completes an assertion about a given program; one agent, one turn."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Mapping

from envs.tasks.chat import keep_one
from envs.tasks.code import calls, prompts, rewards
from envs.tasks.code.extract import read_cases
from envs.tasks.code.grading import SECONDS
from envs.tasks.code.rows import Row
from envs.tasks.code.values import literal, parse, same
from envs.tasks.replies import Reply
from envs.tasks.sandbox.inside.values import encode
from envs.tasks.task import Ask, Outcome


async def play_prediction(ask: Ask, row: Row, continuation: str, sandbox: Callable[[], Mapping]) -> Outcome:
    """0.2 for an assertion that can be read, 0.8 for one that holds and is about what was given."""
    chat = ask.chat(0, system=prompts.PREDICT)
    reply = await chat.say(prompts.predict(row), n=ask.candidates, label="predict")

    given = ast.unparse(parse(row["tests"][0]["call"], "eval"))

    async def one(k: int, candidate: Reply) -> tuple[bool, str | None]:
        cases = read_cases(candidate.text, row["entry_point"], most=64, given=given).tests
        right = bool(cases) and await holds(ask, row, cases[-1], given, sandbox, f"predict_{k}")
        answer = cases[-1]["expect" if row["predict"] == "output" else "call"] if cases else None
        candidate.reward(process=rewards.VALID * bool(cases), agent=rewards.GOOD * right)
        candidate.judge(right, answer)
        return right, answer

    found = await asyncio.gather(*(one(k, candidate) for k, candidate in enumerate(reply.replies)))
    right, answer = found[reply.replies.index(keep_one(ask, chat, reply, continuation))]
    return Outcome(right, {"parse_failure": float(answer is None)}, answer=answer)


async def holds(ask: Ask, row: Row, case: dict, given: str, sandbox: Callable[[], Mapping], name: str) -> bool:
    """Whether an assertion is right: the given half is as given, and the other half is true.

    The value for a given input is compared with the published one, nothing is run. Any input that gives the published
    value will do, so that one is run; `sandbox` returns the settings of a sandbox.
    """
    [gold] = row["tests"]
    value_is_given = same(literal(gold["expect"]), encode(literal(case["expect"])))
    if row["predict"] == "output":
        return case["call"] == given and value_is_given
    if not value_is_given:
        return False
    test = {"call": case["call"], "expect": gold["expect"]}
    arguments = (sandbox(), calls.needed(row), row["solution"], [test], SECONDS)
    report = await ask.verify(calls.graded, *arguments, limit=calls.limit(1, SECONDS), name=name)
    return report["passed"]
