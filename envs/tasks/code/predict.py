"""Prediction episodes (CRUXEval): one agent completes an assertion about a given program in one turn."""

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
    """Play one prediction problem."""
    chat = ask.chat(0, system=prompts.PREDICT)
    reply = await chat.say(prompts.predict(row), n=ask.candidates, label="predict")
    judged = await judge_predictions(ask, row, reply, sandbox)
    right, answer = judged[reply.replies.index(keep_one(ask, chat, reply, continuation))]
    return Outcome(right, {"parse_failure": float(answer is None)}, answer=answer)


async def judge_predictions(
    ask: Ask, row: Row, reply: Reply, sandbox: Callable[[], Mapping]
) -> list[tuple[bool, str | None]]:
    """Reward and judge every candidate of a prediction.

    A readable assertion is rewarded with 0.2, and a correct one with another 0.8.

    Returns:
        For each candidate, whether it is right, and its answer or None.
    """
    given = ast.unparse(parse(row["tests"][0]["call"], "eval"))

    async def one(k: int, candidate: Reply) -> tuple[bool, str | None]:
        cases = read_cases(candidate.text, row["entry_point"], most=64, given=given).tests
        right = bool(cases) and await holds(ask, row, cases[-1], given, sandbox, f"predict_{k}")
        answer = cases[-1]["expect" if row["predict"] == "output" else "call"] if cases else None
        candidate.reward(process=rewards.VALID * bool(cases), agent=rewards.GOOD * right)
        candidate.judge(right, answer)
        return right, answer

    return list(await asyncio.gather(*(one(k, candidate) for k, candidate in enumerate(reply.replies))))


async def holds(ask: Ask, row: Row, case: dict, given: str, sandbox: Callable[[], Mapping], name: str) -> bool:
    """Check that an assertion keeps the given half and completes it correctly.

    A predicted output is compared with the published value, without running anything. A predicted input is run, because
    any input that produces the published value is correct.

    Args:
        ask: Interface of the episode.
        row: The problem.
        case: The assertion as a test.
        given: The published call.
        sandbox: Function that returns the settings of a sandbox.
        name: Name of the recorded call.
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
