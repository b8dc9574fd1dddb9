"""Rules of chats and replies, with scripted seats."""

import asyncio
import re

import pytest

from envs.tasks.replies import TaskError
from envs.tasks.scripted import ScriptedAsk
from envs.tasks.task import Outcome

pytestmark = pytest.mark.quick


class Nobody:
    roles = ("one", "two")


def numbered(seat, messages, k):
    return f"{seat}:{sum(m['role'] == 'assistant' for m in messages)}:{k}"


def chat(seat=0, system=None):
    return ScriptedAsk(Nobody, numbered).chat(seat, system)


def run(coroutine):
    return asyncio.run(coroutine)


def test_a_chat_only_grows():
    async def talk():
        c = chat(1, "S")
        first = await c.say("U")
        before = list(c.messages)
        await c.say("V")
        return first, before, c

    first, before, c = run(talk())
    assert first.text == "1:0:0" and first.replies == (first,)
    assert c.messages[: len(before)] == before
    assert [m["content"] for m in c.messages] == ["S", "U", "1:0:0", "V", "1:1:0"] and c.turn == 2


def test_the_kept_candidate_is_the_one_that_continues():
    async def talk():
        c = chat()
        reply = await c.say("U", n=3)
        kept = c.keep(2)
        await c.say("V")
        return c, reply, kept

    c, reply, kept = run(talk())
    assert kept is reply.replies[2] and reply.text == "0:0:2"
    assert [m["content"] for m in c.messages] == ["U", "0:0:2", "V", "0:1:0"]


def test_a_fork_continues_on_its_own():
    async def talk():
        c = chat()
        await c.say("U")
        one, two = c.fork(), c.fork()
        await one.say("V")
        await c.say("W")
        return c, one, two

    c, one, two = run(talk())
    assert [m["content"] for m in one.messages] == ["U", "0:0:0", "V", "0:1:0"]
    assert [m["content"] for m in c.messages] == ["U", "0:0:0", "W", "0:1:0"]
    assert len(two.messages) == 2 and two.turn == 1
    assert len({c.path, one.path, two.path}) == 3


def test_rewards_add_up_at_three_levels():
    async def talk():
        c = chat()
        reply = await c.say("U", n=2)
        reply.replies[1].reward(team=1)
        c.keep(1)
        reply.reward(team=0.5, agent=2, process=-0.1)
        return reply

    reply = run(talk())
    assert vars(reply.replies[1].rewards) == {"team": 1.5, "agent": 2.0, "process": -0.1}
    assert vars(reply.replies[0].rewards) == {"team": 0.0, "agent": 0.0, "process": 0.0}


async def say_with_open_candidates(c):
    await c.say("U", n=2)
    await c.say("V")


async def fork_with_open_candidates(c):
    await c.say("U", n=2)
    c.fork()


async def keep_twice(c):
    await c.say("U", n=2)
    c.keep(0)
    c.keep(1)


async def keep_beyond(c):
    await c.say("U", n=2)
    c.keep(2)


async def keep_one_of_one(c):
    await c.say("U")
    c.keep(0)


async def keep_nothing(c):
    c.keep(0)


async def two_at_once(c):
    await asyncio.gather(c.say("U"), c.say("V"))


async def fork_while_waiting(c):
    saying = asyncio.ensure_future(c.say("U"))
    await asyncio.sleep(0)
    try:
        c.fork()
    finally:
        await saying


async def text_too_early(c):
    _ = (await c.say("U", n=2)).text


async def reward_too_early(c):
    (await c.say("U", n=2)).reward(team=1)


async def reward_nan(c):
    (await c.say("U")).reward(agent=float("nan"))


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (say_with_open_candidates, r"say: the last reply has 2 candidates; call keep\(k\) first"),
        (fork_with_open_candidates, "fork: the last reply has 2 candidates"),
        (keep_twice, "a candidate of the last reply was already kept"),
        (keep_beyond, "keep: k is 2, but must be 0 to 1"),
        (keep_one_of_one, "the last reply has one candidate, which is kept automatically"),
        (keep_nothing, "no message was sent yet"),
        (two_at_once, "say: the chat is waiting for a reply"),
        (fork_while_waiting, "fork: the chat is waiting for a reply"),
        (text_too_early, "text: the reply has 2 candidates"),
        (reward_too_early, "reward: the reply has 2 candidates"),
        (reward_nan, "reward: agent is nan, but must be a finite number"),
        (lambda c: c.say(3), "say: text is 3, but must be a string"),
        (lambda c: c.say("U", n=0), "say: n is 0, but must be an integer >= 1"),
        (lambda c: c.say("U", label=7), "say: label is 7"),
    ],
)
def test_misuse_is_refused_with_what_was_done(act, message):
    with pytest.raises(TaskError, match=message):
        run(act(chat()))


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (Outcome(True), None),
        (Outcome(0.5, {"x": 1}), None),
        (Outcome(2.0), "success is 2.0, but must be 0 to 1"),
        (Outcome(None), "success is None"),
        (Outcome("yes"), "success is 'yes'"),
        (Outcome(1.0, {"x": float("inf")}), "metrics.'x'. is inf"),
        (Outcome(1.0, {}, None), "reason is None"),
    ],
)
def test_outcomes_are_checked(outcome, problem):
    found = outcome.problem()
    assert found is None if problem is None else re.search(problem, found)
