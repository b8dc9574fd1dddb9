"""Sentences of stories, and the rule that scores a story.

The rule measures what can be measured exactly: whether the constraints are met, how much the learner repeats, and how
often its sentences take up a word of the story before. Style and plot are left to a judge.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from envs.tasks.story.briefs import Brief

_END = re.compile(r"[.!?]+[\"')\]]*(?=\s|$)")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
GRAM = 3
COMMON = (
    "a an and are as at be but by for from had has have he her his i in into is it its not of on or she so that the "
    "their them then there they this to was were what when which while who with you"
)
"""Words that connect no sentences."""


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return [word.lower() for word in _WORD.findall(text)]


def problem_of(text: str, limit: int) -> str:
    """Return why a contribution is not one sentence of at most `limit` words, or ""."""
    words, ends = words_of(text), list(_END.finditer(text.strip()))
    if not words:
        return "the sentence is empty"
    if len(words) > limit:
        return f"the sentence has {len(words)} words, but must have at most {limit}"
    if len(ends) != 1 or ends[0].end() != len(text.strip()):
        return "the contribution must be exactly one sentence with its punctuation"
    return ""


def repetition(sentences: Sequence[str], before: Sequence[Sequence[str]]) -> float:
    """Return the share of three-word sequences that the story has already had.

    Args:
        sentences: Sentences to measure.
        before: For each of them, the sentences before it.
    """
    repeated = total = 0
    for sentence, earlier in zip(sentences, before, strict=True):
        seen = {gram for text in earlier for gram in _grams(text)}
        for gram in _grams(sentence):
            repeated += gram in seen
            total += 1
            seen.add(gram)
    return repeated / total if total else 0.0


def _grams(text: str) -> list[tuple[str, ...]]:
    words = words_of(text)
    return [tuple(words[i : i + GRAM]) for i in range(len(words) - GRAM + 1)]


def is_linked(sentence: str, before: Sequence[str]) -> bool:
    """Return whether a sentence has a character or another content word of the story before."""
    return bool((set(words_of(sentence)) - set(COMMON.split())) & {word for text in before for word in words_of(text)})


def score(brief: Brief, story: Sequence[tuple[int, str]]) -> dict[str, float]:
    """Score a story by its constraints.

    Args:
        brief: The constraints.
        story: Seat and text of every sentence, -1 for the opening. Seat 0 is the learner, who writes the last one.

    Returns:
        The shares `words` and `characters` that occur, `ending`, `repetition` and `linked` of the learner's sentences,
        and `score`, the mean of all five with the repetition subtracted from 1.
    """
    own = [i for i, (seat, _) in enumerate(story) if seat == 0]
    texts = [text for _, text in story]
    everything = {word for text in texts for word in words_of(text)}
    last = words_of(texts[-1])
    shares = {
        "words": _share(brief["words"], everything),
        "characters": _share(brief["characters"], everything),
        "ending": float(bool(last) and last[-1] == brief["ending"]),
        "repetition": repetition([texts[i] for i in own], [texts[:i] for i in own]) if own else 0.0,
        "linked": sum(is_linked(texts[i], texts[:i]) for i in own) / len(own) if own else 0.0,
    }
    total = sum(1 - value if name == "repetition" else value for name, value in shares.items())
    return {**shares, "score": total / len(shares) if own else 0.0}


def _share(wanted: Sequence[str], words: set[str]) -> float:
    return sum(word.lower() in words for word in wanted) / len(wanted)
