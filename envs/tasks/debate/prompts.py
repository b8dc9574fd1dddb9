"""Prompts of the agents in a debate."""

from __future__ import annotations

import re
from collections.abc import Sequence

NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "Jan", "Kim", "Leo", "Mia", "Noor", "Otto", "Pia",
)  # fmt: skip
"""Names of the agents by seat. An agent has the same name for all others and in all turns."""

GLOSSES = ((0.3, "probably wrong"), (0.6, "doubtful"), (0.8, "probably right"), (float("inf"), "very probably right"))
"""Upper bounds of scores, and words for scores below them."""


def system(name: str | None, text: str) -> str | None:
    """Return the system prompt of an agent, or None if it is empty.

    An agent that meets no others has no name.
    """
    named = text if name is None else f"You are {name}. {text}"
    return named.strip() or None


def again(
    question: str,
    form: str,
    names: Sequence[str],
    seat: int,
    answers: Sequence[str],
    scores: Sequence[float] | None = None,
) -> str:
    """Return the prompt of a later turn for the agent in `seat`.

    It has the others' last answers, the question, and the request to revise.

    Args:
        question: The question.
        form: How an answer must end.
        names: Names of all agents.
        seat: Seat of the agent.
        answers: Answers of all agents at the previous turn.
        scores: Scores of these answers by a verifier, if they are shown.
    """
    parts = []
    if scores is not None:
        parts.append(f"A verifier scores your last answer {gloss(scores[seat])}.")
    for other, (name, text) in enumerate(zip(names, answers, strict=True)):
        if other != seat:
            said = f"{name} answered:\n{fenced(text.strip())}" if text.strip() else f"{name} gave no answer."
            parts.append(said if scores is None else f"{said}\nThe verifier scores it {gloss(scores[other])}.")
    compare = "Compare these answers with your own" if len(names) > 1 else "Check your answer step by step"
    parts.append(f"The question was: {question}")
    parts.append(f"{compare}. Revise your answer if it is wrong, and keep it if it is right. {form}".strip())
    return "\n\n".join(parts)


def fenced(text: str) -> str:
    """Enclose a text in a code block.

    The fence is longer than every run of backticks in the text, so the text cannot close it.
    """
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def gloss(score: float) -> str:
    """Format a verifier's score with three decimals and in words."""
    return f"{score:.3f} ({next(words for bound, words in GLOSSES if score < bound)})"
