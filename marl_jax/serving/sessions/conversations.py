"""Calls of a session as conversations, in the format of host tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from marl_jax.rollouts.host.conversation import Said
from marl_jax.serving.openai.calls import Call


@dataclasses.dataclass
class SessionConversation:
    """A conversation in the format that `collate` expects.

    Attributes:
        seat: Index of the model in the session.
        path: Sort key of the conversation: its first prompt and a number. The order does not depend on which call was
            answered first.
        tokens: Token ids of the complete conversation.
        prompt_len: Number of tokens before the first completion, also for a fork.
        said: Turns of the conversation.
        calls: Ids of the calls, one for each turn.
    """

    seat: int
    path: tuple[int, ...]
    tokens: list[int]
    prompt_len: int
    said: list[Said] = dataclasses.field(default_factory=list)
    calls: list[str] = dataclasses.field(default_factory=list)


def conversations(calls: Iterable[Call], seats: Mapping[str, int]) -> list[SessionConversation]:
    """Return the answered calls as conversations, with each completion in exactly one of them.

    The completions of a call with n > 1 are candidates: the one that was continued first is kept, and the others are
    branches. The number of a turn is the round of its call, so turns of different conversations are ordered in time.

    Args:
        calls: Calls of the session, in order.
        seats: Indices of the models by name.
    """
    merged: list[SessionConversation] = []
    place: dict[str, SessionConversation] = {}  # by the id of a call
    for call in calls:
        if call.answers is None:
            continue
        conversation, opening = None, len(call.ids)
        if call.after is not None:
            earlier, k = call.after
            before = place[earlier.id]
            opening = before.prompt_len
            if before.calls[-1] == earlier.id and before.said[-1].kept is None:
                before.said[-1].kept, before.tokens, conversation = k, list(call.ids), before
        if conversation is None:
            path = (*call.ids, len(merged))
            conversation = SessionConversation(seats[call.model.name], path, list(call.ids), opening)
            merged.append(conversation)
        speaker = call.model.speaker
        if call.asked.schema is not None:  # not sampled from the policy's distribution
            speaker = dataclasses.replace(speaker, number=-1)
        conversation.said.append(
            Said(len(call.ids), call.round, None, speaker, call.answers, call.contents, call.replies)
        )
        conversation.calls.append(call.id)
        place[call.id] = conversation
    for conversation in merged:
        last = conversation.said[-1]
        if last.kept is None and len(last.answers) == 1:
            last.kept = 0
            conversation.tokens = conversation.tokens + last.contents[0]
    return merged
