"""Messages of negotiations: free text, and a line with a binding action.

    OFFER book=1 hat=0 ball=2       the speaker gets one book and two balls, the other seat the rest
    ACCEPT                          takes the other's last offer
    QUIT                            ends the negotiation without a deal

The last line with an action counts. A message without one only talks. An action that breaks the rules is not carried
out, and its message is passed on without it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from envs.tasks.negotiation.deals import Bundle, Context
from envs.tasks.negotiation.strategies import Strategy

OFFER, ACCEPT, QUIT, TALK, INVALID = "offer", "accept", "quit", "talk", "invalid"
_ACTION = re.compile(r"^[\s>*`]*(OFFER|ACCEPT|QUIT)\b(.*)$", re.MULTILINE)
_PAIR = re.compile(r"([^\W\d]+)\s*[=:]\s*(-?\d+)")


@dataclasses.dataclass(frozen=True)
class Message:
    """A message as it was read.

    Attributes:
        kind: OFFER, ACCEPT, QUIT, TALK or INVALID.
        text: The free text.
        bundle: The items that the speaker asks for, in an offer.
        problem: Broken rule, for an invalid message.
    """

    kind: str
    text: str
    bundle: Bundle | None = None
    problem: str = ""


def read_message(text: str, items: Sequence[str], counts: Sequence[int], on_table: bool, limit: int) -> Message:
    """Read a message.

    Args:
        text: A completion.
        items: Names of the items.
        counts: Numbers of items.
        on_table: Whether there is an offer to accept.
        limit: Maximum number of characters of the free text; the rest is cut.
    """
    actions = list(_ACTION.finditer(text))
    free = _ACTION.sub("", text).strip()[:limit]
    if not actions:
        return Message(TALK, free) if free else Message(INVALID, "", problem="the message is empty")
    word, rest = actions[-1][1], actions[-1][2]
    if word == "QUIT":
        return Message(QUIT, free)
    if word == "ACCEPT":
        return Message(ACCEPT, free) if on_table else Message(INVALID, free, problem="there is no offer to accept")
    bundle, problem = read_offer(rest, items, counts)
    return Message(INVALID, free, problem=problem) if problem else Message(OFFER, free, bundle)


def read_offer(text: str, items: Sequence[str], counts: Sequence[int]) -> tuple[Bundle | None, str]:
    """Return the bundle of `book=1 hat=2`, or the broken rule.

    Items that are not named count 0.
    """
    pairs = [(name.lower(), number) for name, number in _PAIR.findall(text)]
    if not pairs:
        return None, f"the offer names no items; write {' '.join(f'{item}=N' for item in items)}"
    taken: dict[str, int] = {}
    for name, number in pairs:
        item = name if name in items else name.removesuffix("s")
        if item not in items:
            return None, f"there is no {name!r:.40}"
        if item in taken:
            return None, f"{item} occurs twice"
        most = counts[items.index(item)]
        if len(number) > 4 or not 0 <= int(number) <= most:
            return None, f"{item} is {number:.12}, but must be between 0 and {most}"
        taken[item] = int(number)
    return tuple(taken.get(item, 0) for item in items), ""


def list_items(items: Sequence[str], bundle: Sequence[int]) -> str:
    """Return a bundle as `book=1 hat=0 ball=2`."""
    return " ".join(f"{item}={number}" for item, number in zip(items, bundle, strict=True))


# ---------------------------------------------------------------------------------------------------- prompts

GOALS = {
    "own": "You want as many points for yourself as possible.",
    "cooperative": "You work together: you want as many points as possible for both of you in total.",
    "adversarial": "You compete: you want as many more points than the other as possible.",
}


def system(goal: str, strategy: Strategy | None = None) -> str:
    """Return the system prompt of a seat; `strategy` is that of a context agent."""
    return (
        "You negotiate with another agent about items. "
        + (GOALS[goal] if strategy is None else strategy.prompt)
        + " Without a deal, both of you get 0 points. Write one or two sentences, then one line with your action."
    )


def opening(context: Context, seat: int) -> str:
    """Return the rules of a negotiation with the values of one seat."""
    items, counts, values = context["items"], context["counts"], context["values"][seat]
    lines = [
        f"- {item}: {count}, {value} points each" for item, count, value in zip(items, counts, values, strict=True)
    ]
    if "reasons" in context:
        lines = [f"{line}. {reason}" for line, reason in zip(lines, context["reasons"][seat], strict=True)]
    return (
        "These items are divided between you and the other agent, whose points differ from yours:\n"
        + "\n".join(lines)
        + "\n\nPossible actions:\n"
        + f"OFFER {' '.join(f'{item}=N' for item in items)}   (the items that you get; the other gets the rest)\n"
        + "ACCEPT   (take the other's last offer)\nQUIT   (end without a deal)"
    )


def heard(context: Context, message: Message) -> str:
    """Return the other's message as its reader sees it; the offered items are the reader's."""
    lines = ["The other agent writes:", *([message.text] if message.text else [])]
    if message.kind == OFFER and message.bundle is not None:
        left = [count - taken for count, taken in zip(context["counts"], message.bundle, strict=True)]
        lines.append(f"Offer: you get {list_items(context['items'], left)}.")
    else:
        lines.append("There is no offer.")
    return "\n".join(lines)


def left(messages: int) -> str:
    """Return how many messages a seat may still write."""
    return "This is your last message." if messages == 1 else f"You may write {messages} more messages."


def scripted_text(context: Context, strategy: Strategy, turn: int) -> str:
    """Return the free text of a scripted negotiator in seat 1."""
    values = strategy.stated(context["values"][1])
    best = context["items"][values.index(max(values))]
    worst = context["items"][values.index(min(values))]
    if turn == 0:
        return f"I need the {best} most, and the {worst} least."
    return f"I still need the {best} most."


def judged(context: Context) -> str:
    """Return the request that a judge reads before both sides of a negotiation."""
    items = ", ".join(f"{count} {item}" for count, item in zip(context["counts"], context["items"], strict=True))
    return f"Two agents negotiate how to divide {items}. Each answer is what one of them wrote and got."


def line_of(context: Context, message: Message) -> str:
    """Return a message on one line, as a judge reads it."""
    action = message.kind.upper() if message.kind in (OFFER, ACCEPT, QUIT) else ""
    if message.bundle is not None:
        action = f"{action} {list_items(context['items'], message.bundle)}"
    return " ".join([*message.text.split(), *action.split()])
