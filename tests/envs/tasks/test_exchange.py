"""Exchanges of messages: who reads what, credit of messages, and messages that are not delivered."""

import asyncio
import dataclasses

import pytest

from envs.tasks.exchange import EMPTY, SENT, TOO_LONG, Exchange, read_message
from envs.tasks.scripted import ScriptedAsk


@dataclasses.dataclass(frozen=True)
class Number:
    quality: float


def play(rounds, answering, answer, candidates=1, continuation="best"):
    """Play an exchange of four seats in which an answer is a number, its quality; return prompts too."""
    seen, names = [], []

    def replies(seat, messages, k):
        seen.append((seat, messages[-1]["content"], k))
        return answer(seat, messages[-1]["content"], k)

    def request(seat, history, answers):
        said = [f"{who}:{message.text}" for messages in history for who, message in messages.items()]
        return " ".join([*said, "answer" if answers else "speak"])

    async def judge(seat, reply, name):
        names.append(name)
        reply.reward(agent=float(reply.text))
        return Number(float(reply.text))

    ask = ScriptedAsk(type("Seats", (), {"roles": "abcd"})(), replies, candidates)
    exchange = Exchange(
        ask=ask, rounds=rounds, answering=answering, limit=5, penalty=0.5, continuation=continuation,
        system=lambda seat: f"seat {seat}", request=request, judge=judge,
    )  # fmt: skip
    played = asyncio.run(exchange.play())
    assert len(rounds) > 1 or len(names) == len(set(names))  # answers of one round have different names
    return played, ask, seen


def test_messages_are_read_in_later_rounds_and_before_answers():
    def answer(seat, text, k):
        return "1" if text.endswith("answer") else f"m{seat}"

    played, ask, seen = play(((0, 1), (2,)), (3,), answer)
    assert [(seat, text) for seat, text, _ in seen] == [
        (0, "speak"), (1, "speak"), (2, "0:m0 1:m1 speak"), (3, "0:m0 1:m1 2:m2 answer")
    ]  # fmt: skip
    assert len(played) == 1 and [reply.rewards.team for *_, reply in ask.replies] == [1, 1, 1, 0]


def test_a_message_earns_what_its_readers_make_of_it():
    """Readers of the second candidate answer well; a reader's own answer never credits its own message."""

    def answer(seat, text, k):
        if not text.endswith("answer"):
            return ("bad", "good")[k] if seat == 0 else "hm"
        return ("0", "0.5")[k] if seat == 0 else ("1" if "0:good" in text else "0")

    played, ask, seen = play(((0, 1),), (0, 1), answer, candidates=2)
    messages = [reply for seat, _, reply in ask.replies][:4]
    assert [reply.rewards.team for reply in messages] == [0, 1, 0.25, 0.25]
    assert len(ask.replies) == 4 + 2 * 2 * 2 and [one.value(0) for one in played] == [0, 1]
    assert seen[4][1] == "0:bad 1:hm answer" and seen[-1][1] == "0:good 1:hm answer"


@pytest.mark.parametrize(("continuation", "kept"), [("best", "good"), ("first", "bad")])
def test_messages_of_early_rounds_are_continued_to_the_end_and_one_is_kept(continuation, kept):
    def answer(seat, text, k):
        if text.endswith("answer"):
            return "1" if "0:good" in text else "0"
        return ("bad", "good")[k] if text == "speak" else "so"

    played, ask, seen = play(((0,), (1,)), (2,), answer, 2, continuation)
    assert [reply.rewards.team for *_, reply in ask.replies[:2]] == [0, 1]
    assert [one.history[0][0].text for one in played] == [kept] * 2
    # Two messages, two continuations of a message and an answer, then two messages with two answers each.
    assert len(ask.replies) == 2 + 2 * 2 + 2 + 4
    assert [reply.rewards.team for *_, reply in ask.replies[6:8]] == [float(kept == "good")] * 2


@pytest.mark.parametrize(
    ("text", "kind", "shown"),
    [
        (" five \n", SENT, "five"), ("", EMPTY, "(The message was empty.)"),
        (" \n ", EMPTY, "(The message was empty.)"),
        ("sixsix", TOO_LONG, "(The message had 6 characters, but at most 5 are delivered.)"),
    ],
)  # fmt: skip
def test_messages_that_are_not_delivered(text, kind, shown):
    assert (read_message(text, 5).text, read_message(text, 5).kind) == (shown, kind)
    played, ask, seen = play(((0,),), (1,), lambda seat, *_: text if seat == 0 else "1")
    assert seen[1][1] == f"0:{shown} answer" and played[0].share(kind) == 1
    reward = ask.replies[0][2].rewards
    assert (reward.team, reward.process) == (1, -0.5 * (kind != SENT))


def test_an_unknown_continuation_is_refused():
    with pytest.raises(ValueError, match="continuation is 'worst', but must be one of: best, random, first"):
        play(((0,),), (1,), lambda *_: "1", continuation="worst")
