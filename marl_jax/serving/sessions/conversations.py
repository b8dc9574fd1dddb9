"""The calls of a session as conversations, in the form in which host tasks have their chats."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from marl_jax.rollouts.host.conversation import Said
from marl_jax.serving.openai.calls import Call


@dataclasses.dataclass
class SessionConversation:
    """A chat as `collate` takes it: the ids of everything said, and the turns that belong to it.

    seat     number of the model in the session
    path     tells the conversations of a session apart: by what was asked first, so that their order does not depend
             on who was answered first, and where that is equal by a number
    prompt_len  tokens before the first answer, of a fork too
    calls    ids of the calls, one for each turn
    """

    seat: int
    path: tuple[int, ...]
    tokens: list[int]
    prompt_len: int
    said: list[Said] = dataclasses.field(default_factory=list)
    calls: list[str] = dataclasses.field(default_factory=list)


def conversations(calls: Iterable[Call], seats: Mapping[str, int]) -> list[SessionConversation]:
    """The answered calls as conversations, each answer in one of them; `seats` are the numbers of the models.

    Answers to a call with n > 1 are candidates: the one that was continued first is kept, the others are branches. A
    turn has the number of the call's round, so that turns of different conversations are in order of time.
    """
    found: list[SessionConversation] = []
    place: dict[str, SessionConversation] = {}  # of a call
    for call in calls:
        if call.answers is None:
            continue
        chat, opening = None, len(call.ids)
        if call.after is not None:
            earlier, k = call.after
            before = place[earlier.id]
            opening = before.prompt_len
            if before.calls[-1] == earlier.id and before.said[-1].kept is None:
                before.said[-1].kept, before.tokens, chat = k, list(call.ids), before
        if chat is None:
            path = (*call.ids, len(found))
            chat = SessionConversation(seats[call.model.name], path, list(call.ids), opening)
            found.append(chat)
        speaker = call.model.speaker
        if call.asked.schema is not None:  # drawn from another distribution than the policy's
            speaker = dataclasses.replace(speaker, number=-1)
        chat.said.append(Said(len(call.ids), call.round, None, speaker, call.answers, call.contents, call.replies))
        chat.calls.append(call.id)
        place[call.id] = chat
    for chat in found:
        last = chat.said[-1]
        if last.kept is None and len(last.answers) == 1:
            last.kept = 0
            chat.tokens = chat.tokens + last.contents[0]
    return found
